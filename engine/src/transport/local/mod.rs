//! The same host: this process copies from and to the peer's memory by itself, by system call
//! (`process_vm_readv`, `process_vm_writev`), or by plain copies where the peer's memory can be mapped.
//!
//! ```text
//! service ─ proves host, user and process over AF_UNIX (`attach`), passes grants and memfds
//!    └▶ link ─ a peer's path: the submitter copies what is small, `copy_threads` and waiters the rest
//!         └▶ copier ─ one piece: in by the grant, copy, out; settles its slices
//!              └ maps, process: what of the peer is mapped here; whether it is still the same process
//! ```
//! `draining` looks after paths that are over. Sessions are the TCP transport's; it keeps this one as a
//! `peer::TransportService`. Notifications go over the session, after the data.

mod attach;
mod copier;
mod copy_threads;
mod draining;
mod listener;
mod mappings;
mod path;
mod process;
mod service;
mod session;
mod sessions;

pub use path::PIECE_BYTES;
pub use service::{Service, Settings};
