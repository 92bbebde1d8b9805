//! ferry-directory: finds ferry's peers by name. A [`Directory`] is a list that the program is given (`static:`), or a
//! table in etcd (`etcd:`) where engines register themselves, that each directory watches, and from which an engine
//! that has ended disappears.
//!
//! A directory says where a peer is and which incarnation it is, nothing else. Peers authenticate each other by ferry's
//! own key, and transfers need no directory.
//!
//! | | |
//! |---|---|
//! | [`Directory`] | register, look up, connect |
//! | [`Change`] | what has become of a name |
//! | [`limits`] | the bounds |
//!
//! This crate uses ferry's public interface alone. Only `etcd:` has a thread.

mod directory;
mod entry;
mod etcd;
pub mod limits;
mod options;
mod shared;
mod table;
mod url;

/// For ferry's fuzz targets alone: no part of the interface.
#[cfg(feature = "parts")]
#[doc(hidden)]
pub mod parts {
    pub use crate::entry::{decode, encode, Place};
    pub use crate::table::Table;
    pub use crate::url::{parse, parse_file, Etcd, Url};
}

pub use directory::{Directory, DirectoryInfo};
pub use entry::{Entry, Identity};
pub use options::{read as read_pem, DirectoryOptions};
pub use table::Change;
