//! ferry-pool: a KV cache for a whole cluster, whose owners move the bytes.
//!
//! | | |
//! |---|---|
//! | [`Pool`] | a node on an engine: lends memory, puts, gets, says what exists |
//! | [`key`] | digests of chunks, chains of token hashes. Pure |
//! | [`parts`] | values of engines that are sharded differently. Pure |
//! | [`Outcome`] | how one key of a call ended |
//! | [`node`] | the node as a state machine: no I/O, no clock |
//! | [`index`] | where keys live: members, homes, the table of one index member. Pure |
//! | [`store`] | the objects of a node: space, holders, what goes next. Pure |
//! | [`sum`] | the checksum of values |
//! | [`wire`] | messages of two nodes |
//! | [`limits`] | every bound |
//!
//! This crate uses ferry's public interface alone.

#![deny(missing_debug_implementations)]

#[doc(hidden)]
pub mod index;
pub mod key;
pub mod limits;
mod metrics;
#[doc(hidden)]
pub mod node;
mod outcome;
pub mod parts;
mod pool;
#[doc(hidden)]
pub mod store;
#[doc(hidden)]
pub mod sum;
#[doc(hidden)]
pub mod wire;

pub use ferry_directory::DirectoryOptions;
pub use index::NodeId;
pub use key::{Chain, Digest, Identity, Keyspace, TenantTag};
pub use node::{Drained, KeyEnd};
pub use outcome::Outcome;
pub use parts::{Cut, Parts};
pub use pool::{
    Call, Cost, CostOptions, Ended, FileOptions, NodeInfo, Pool, PoolOptions, PoolStats, PutOptions, Quota,
    TenantStats, Value, CHANNEL,
};
pub use wire::{Cursor, Listed};
