//! The C interface of Mooncake's Transfer Engine over the crate `ferry`. `ferry_mooncake.h` beside this crate declares
//! it; `README.md` lists the differences from Mooncake's own. The crate checks pointers, turns ferry's errors into that
//! interface's numbers, and keeps the interface's state: segments by number, memory by address, batches of tasks.
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
// The header states what every entry point requires of its caller: pointers are NULL or point to what their types say,
// for the length of the call; an engine is not used after it is destroyed.
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
