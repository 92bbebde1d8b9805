//! ferry: an embedded transfer engine. Moves registered memory between processes and tells the caller exactly when the
//! memory is free again.
//!
//! **Begin with [`Engine`]**: every call is one of its methods, or of what they return.
//!
//! | | |
//! |---|---|
//! | [`Engine::open`] | opens an engine, with the settings of a [`Config`] |
//! | [`Engine::alloc`], [`Engine::register`] | memory that peers reach; [`Memory::view`] reads and writes its bytes |
//! | [`Engine::connect`], [`Engine::peer_regions`] | a peer, by its `host:port`, and the memory that it offers |
//! | [`Engine::write`], [`Engine::read`] | moves bytes by lists of [`types::Request`], and waits |
//! | [`Engine::submit`] | the same without waiting: a [`Transfer`], which can be waited for or awaited |
//! | [`Engine::queue`] | events: transfers, notifications, peers ([`notify`]) |
//! | [`Error`], [`Status`] | why a call failed |
//! | [`Engine::close`] | after its Ok nothing touches the memory |
//!
//! Two complete programs are in `engine/README.md`, and the promises in `docs/contracts.md`.
//!
//! Modules are private. The public modules and the names below are the library's interface in Rust.
//!
//! Imports between these modules point down the data path only (see `ARCHITECTURE.md`); `tests/imports.rs` has the
//! order and enforces it.

/// Tests use the same name for the engine, whether they are compiled into the crate or beside it.
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
mod lists;
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
/// For libraries above ferry: threads that get no signals, like the engine's own, and work that a fork by another
/// thread waits for.
pub mod thread {
    pub use crate::sys::thread::{spawn_outside as spawn, JoinHandle};
    pub use crate::sys::unforked::unforked;
}
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
