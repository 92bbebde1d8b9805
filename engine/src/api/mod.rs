//! The engine's interface in Rust. The C ABI (`ffi`) is a thin layer over the same calls.
//!
//! Everything is thread-safe. Handles are plain numbers that are checked at each use. Blocking calls take
//! `Option<Duration>`: None waits for ever, zero does not wait.

mod burial;
#[cfg(test)]
pub mod burial_tests;
mod closing;
mod descriptor;
mod devices;
mod engine;
mod files;
mod future;
mod local;
mod memory;
mod metrics;
mod outcome;
#[cfg(test)]
mod outcome_tests;
mod own;
mod paths;
mod peers;
mod reached;
mod transfers;
mod unrest;
mod view;
mod waiting;

pub use descriptor::Descriptor;
pub use engine::Engine;
pub use files::FileRegion;
pub use future::{EventFuture, TransferFuture};
pub use local::LocalRegion;
pub use memory::{Memory, RegionOptions};
pub use metrics::EngineStats;
pub use paths::PathInfo;
pub use peers::{PeerInfo, Probe, RemoteRegionInfo};
pub use reached::ReachedFuture;
pub use transfers::{Deadline, Transfer, TransferOptions};
pub use view::MemoryView;
