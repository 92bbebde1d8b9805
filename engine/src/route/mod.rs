//! Routing: which path carries a transfer and why no other does (`decide`), from facts that the caller has gathered
//! (`facts`), and the slices that a path can post (`slice`). Pure. Whoever has to choose a path asks here: `api` when
//! a transfer is submitted and when somebody asks for a peer's paths, the outbox of `peer` when one goes again or its
//! path has gone, `stage` for what lies between two devices. `why` has the sentences.

mod decide;
mod facts;
mod slice;
#[cfg(test)]
mod tests;
mod why;

pub use decide::{
    asks, between_devices, copies_at_once, decide, stages_refused, why, Between, Decision, FASTER, ORDER,
};
pub use facts::{Asked, Facts, Memory, PathState};
pub use slice::slice;
pub use why::Why;
