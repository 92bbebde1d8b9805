//! Staging: how transfers of device memory go where no path reaches it. The data path of the rest of the
//! engine moves host memory; here a transfer becomes linked steps of copies on devices and transfers between
//! slots of locked host memory, whatever carries those.
//!
//! ```text
//! WRITE   device ─copy▶ slot ═transfer▶ slot ─copy▶ device
//!         device ─copy▶ slot ═transfer▶ host memory
//!         host memory ═══════transfer▶ slot ─copy▶ device         READ: the other way round
//! ```
//! Between devices of one host none of this is needed where a device reaches both memories: it copies by
//! itself.
//!
//! Each engine has two rings of slots: `outgoing` for its own transfers, `incoming` for its peers'. A step
//! that holds an incoming slot may wait for an outgoing one, never the other way round, so no two engines
//! wait for each other.
//!
//! `path` is the path as `peer` sees it, `runs` makes operations of what is queued; `operation` is one on its
//! way and `steps` what is done with it, `serve` the target's side of one. `mapped` maps memory of other
//! processes' devices, which those `lending`. `wire` is what both sides say, `service` the thread on which all of it
//! happens, `due` what that looks at in a turn; a `staged_peer` is what is known of one peer.

mod bridge;
mod bridge_target;
mod due;
mod event;
mod lending;
mod mapped;
mod operation;
mod path;
mod quarantine;
mod ring;
mod runs;
mod serve;
mod service;
mod staged_peer;
mod steps;
#[cfg(test)]
pub mod tests;
mod wire;

pub use service::{Mover, Part, Service, Settings};
