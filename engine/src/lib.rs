//! ferry: an embedded transfer engine. Moves registered memory between processes and tells the caller exactly when the
//! memory is free again.
//!
//! Imports between these modules point down the data path only (see `ARCHITECTURE.md`); `tests/imports.rs` has the
//! order and enforces it.

/// Tests that are compiled into the engine and beside it name the engine alike.
#[cfg(test)]
extern crate self as ferry;

pub mod api;
pub mod command;
pub mod complete;
pub mod config;
pub mod context;
pub mod control;
pub mod handle;
pub mod limits;
pub mod loss;
pub mod request_map;
pub mod status;
pub mod types;

pub mod device;
pub mod notify;
pub mod peer;
pub mod plan;
pub mod region;
pub mod route;
mod schedule;
pub mod session;
pub mod stage;
pub mod stats;
pub mod sys;
pub mod transport;
mod try_reserve;

pub use api::*;
pub use config::Config;
pub use status::{Error, Status};

/// Compiles the Rust program in engine/README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
