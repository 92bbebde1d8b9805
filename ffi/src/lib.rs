//! The C ABI of ferry. `include/ferry.h`, `ferry_kv.h` and `ferry_pool.h` are generated from this crate, one section
//! per file; the doc comments here are their documentation. The crate is a thin layer over `engine::api`, `ferry_kv`
//! and `ferry_pool`: it checks pointers and sizes, converts arguments, catches panics, and decides nothing.
//!
//! ```text
//! guard      every entry point: panics become PANIC, errors go to the caller's ferry_error
//! pointers   NULL, alignment, text, slices            ┐
//! versioned  struct_size in, struct_size out          ├ what comes in and goes out
//! handles    handles, timeouts, operations            ┘
//! status error config engine memory peers descriptor transfers options blocks layers results notify queues
//! events stats names          one C concept each
//! kv         ferry_kv.h: layouts of KV caches, plans, handing sequences over
//! pool       ferry_pool.h: a KV cache for the whole cluster
//! ```
//! `README.md` beside this crate states the contract as a whole.

// C names, so that the header says what the source says.
#![allow(non_camel_case_types)]
// Every entry point asks the same of its caller; README.md has the contract. A pointer is NULL or points to
// the object that its type and documentation name, for the length of the call.
#![allow(clippy::missing_safety_doc)]

mod allocations;
pub mod blocks;
pub mod config;
pub mod descriptor;
pub mod engine;
pub mod error;
pub mod events;
mod guard;
pub mod handles;
pub mod kv;
pub mod layers;
pub mod memory;
pub mod names;
pub mod notify;
pub mod options;
pub mod peer_info;
pub mod peers;
mod pointers;
pub mod pool;
pub mod queues;
pub mod results;
pub mod stats;
pub mod status;
pub mod transfers;
mod versioned;
