//! Staging moves device memory when no path reaches it directly. The other transports move host memory. The stage
//! turns a transfer into linked steps: copies on devices, and transfers between slots of pinned host memory on any
//! path.
//!
//! ```text
//! WRITE   device ─copy▶ slot ═transfer▶ slot ─copy▶ device
//!         device ─copy▶ slot ═transfer▶ host memory
//!         host memory ═══════transfer▶ slot ─copy▶ device         READ: the other way round
//! ```
//! Devices of one host that reach both memories copy directly, without slots.
//!
//! Each engine has two rings of slots: `outgoing` for its own transfers, `incoming` for those of its peers. A step
//! that holds an incoming slot may wait for an outgoing slot, never the other way round, so no two engines wait for
//! each other.
//!
//! `path` is the `Path` that `peer` sees. `runs` makes operations of queued slices; `operation` is an operation under
//! way, `operations` has all of them, and `steps` takes them from step to step. `serve` is the target's side. `mapped`
//! maps device memory of other processes, which `lending` lends. `bridge` and `bridge_target` copy between devices of
//! two hosts (`bridges`). `wire` has the messages of the two sides, `service` the thread of all this, `due` the work
//! of a turn, `staged_peer` the state of one peer, `shared` what other threads see.

mod bridge;
mod bridge_target;
mod bridges;
mod due;
mod event;
mod lending;
mod mapped;
mod operation;
mod operations;
mod path;
mod quarantine;
mod ring;
mod runs;
mod serve;
mod service;
mod shared;
mod staged_peer;
mod steps;
#[cfg(test)]
pub mod tests;
pub mod wire;

pub use service::{Mover, StageService, StageSettings, StagedPart};
