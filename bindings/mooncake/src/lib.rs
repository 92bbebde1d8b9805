//! The C interface of Mooncake's Transfer Engine over the crate `ferry`: `ferry_mooncake.h` beside this
//! crate declares it, `README.md` says what differs from Mooncake's own. It checks pointers, turns
//! ferry's errors into that interface's numbers, and keeps what the interface keeps: segments by number,
//! memory by address, batches of tasks.
//!
//! ```text
//! call      every entry point: panics and errors become numbers, and lines of the log
//! pointers  NULL, text, lists, values written back       types   structs and constants
//! engine segments memory batches notices links            one concept of the interface each
//! ```
//! The Python module `mooncake.engine` (`bindings/python/mooncake`) promises the same behaviour; their
//! notifications have one format.

// The names are the interface's.
#![allow(non_snake_case)]
// What an entry point asks of its caller is in the header, the same for all of them: pointers are NULL or
// point to what their types say, for the length of the call; an engine is not used once it is destroyed.
#![allow(clippy::missing_safety_doc)]

pub mod batches;
mod call;
pub mod engine;
pub mod links;
mod log;
pub mod memory;
pub mod notices;
mod pointers;
pub mod segments;
pub mod types;
