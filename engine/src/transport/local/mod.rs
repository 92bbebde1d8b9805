//! The same-host transport: this process copies from and to the peer's memory, by system calls (`process_vm_readv`,
//! `process_vm_writev`), or by plain copies if the peer's memory can be mapped.
//!
//! ```text
//! service ─ proves host, user and process over AF_UNIX (`attach`), passes grants and memfds
//!    └▶ path ─ one to each peer: the submitter copies small transfers; `copy_threads` and waiters copy others
//!         └▶ far ─ one piece, region by region; settles the piece's slices
//!              ├ copier: another process's memory; enters by the grant, copies, leaves
//!              ├ own: the engine's own memory, for transfers to itself
//!              └ mappings, process: the peer's memory that is mapped here; whether its process still lives
//! ```
//! `draining` watches paths that have ended. `control` begins and ends the paths with the sessions
//! (`peer::TransportService`). Notifications go over the other transports, after the data.

pub mod attach;
mod copier;
mod copy_threads;
mod draining;
mod far;
mod listener;
mod mappings;
mod own;
mod path;
mod process;
mod proof;
mod service;
mod session;
mod sessions;

pub use own::{OwnMemory, OwnNotifier};
pub use path::{LocalPath, PIECE_BYTES};
pub use service::{LocalService, LocalSettings};
