//! Files and block devices as memory. Implements the interface of `device`; `stage` and the device threads use it. One
//! device is one file system, or one block device: a disk that hangs keeps the thread of its own device alone.
//!
//! ```text
//! files ─ what is registered: the addresses of each file, its descriptors, and the driver
//!    └ queue ─ batches of pieces as calls on files: what is left of short ones, which piece has failed, fdatasync
//!        └ calls ─ makes the calls: by io_uring, or by a few threads
//! ```
//! No file is mapped, so no access raises SIGBUS: what a file system refuses is the errno of a call.

mod calls;
mod files;
mod queue;
#[cfg(test)]
mod tests;

pub use files::{library, Files, OpenFile};
