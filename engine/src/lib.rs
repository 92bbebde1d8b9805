//! ferry: an embedded transfer engine. Moves registered memory between processes and tells the caller exactly when the
//! memory is free again.
//!
//! Modules are private. The public modules and the names below are the library's interface in Rust.
//!
//! Imports between these modules point down the data path only (see `ARCHITECTURE.md`); `tests/imports.rs` has the
//! order and enforces it.

/// Tests that are compiled into the engine and beside it name the engine alike.
#[cfg(test)]
extern crate self as ferry;

mod api;
#[cfg(test)]
mod cases;
mod command;
mod complete;
pub mod config;
mod context;
mod control;
mod device;
mod handle;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
pub mod limits;
mod loss;
pub mod notify;
mod peer;
mod plan;
mod region;
mod request_map;
mod route;
mod schedule;
mod session;
mod stage;
mod stats;
pub mod status;
mod sys;
mod transport;
mod try_reserve;
pub mod types;

pub use api::*;
pub use complete::{
    Fence, Notification, Progress, RequestResult, State, Transfer as TransferCore, TransferResult,
};
pub use config::Config;
pub use device::Start;
pub use peer::PeerState;
pub use plan::blocks;
pub use region::RegionSpec;
pub use status::{Error, Status};

/// Compiles the Rust program in engine/README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
