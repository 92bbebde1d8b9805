//! ferry-kv: hands paged KV caches from prefill workers to decode workers that may be sharded differently.
//!
//! | | |
//! |---|---|
//! | [`Cache`] | a cache of an engine: offers its blocks, takes others' |
//! | [`handoff`] | offers, takes, and who may free and write their blocks |
//! | [`layout`] | describes one rank's cache: groups, layers, strides, shard. Travels as bytes |
//! | [`plan`] | which ranks exchange which bytes. Pure |
//! | [`timeline`] | plots what a cache has recorded. Pure |
//!
//! A program of two processes is in `kv/README.md`, and the promises in `docs/kv.md`.
//!
//! This crate uses ferry's public interface alone.

#![deny(missing_debug_implementations)]

pub mod cache;
pub mod handoff;
pub mod layout;
#[doc(hidden)]
pub mod messages;
#[doc(hidden)]
pub mod os;
#[doc(hidden)]
pub mod page;
pub mod plan;
pub mod timeline;

pub use cache::{Cache, CacheMemory, CacheOptions};
pub use handoff::{
    BlockList, End, Ends, Event, HandoffId, HandoffState, Mode, OfferSpec, Other, Stats, TakeSpec,
};
pub use layout::{
    Arrangement, Group, GroupKind, Layer, LayerMemory, Layout, ModelKey, Shard, Strides, Tensor,
};
pub use plan::Plan;

/// Compiles the program in kv/README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
