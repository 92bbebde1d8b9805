//! Staging: how transfers of device memory go where no path reaches it. The data path of the rest of the
//! engine moves host memory; here a transfer becomes linked steps of copies on devices and transfers between
//! slots of locked host memory, whatever carries those.
//!
//! ```text
//! WRITE   device ─copy▶ slot ═transfer▶ slot ─copy▶ device
//!         device ─copy▶ slot ═transfer▶ host memory
//!         host memory ═══════transfer▶ slot ─copy▶ device         READ: the other way round
//! ```
//! Each engine has two rings of slots: `outgoing` for its own transfers, `incoming` for its peers'. A step
//! that holds an incoming slot may wait for an outgoing one, never the other way round, so no two engines
//! wait for each other.
//!
//! `link` is the path as `peer` sees it, `operation` one piece of a transfer on its way and `steps` what
//! is done with it, `serve` the target's
//! side of one, `wire` what both sides say, `service` the thread on which all of it happens.

mod link;
mod operation;
mod ring;
mod serve;
mod service;
mod steps;
#[cfg(test)]
pub mod tests;
mod wire;

pub use service::{Mover, Part, Service, Settings};
