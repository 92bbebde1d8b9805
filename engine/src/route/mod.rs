//! Routing: decides which path carries a transfer and why the others do not (`decide`), from facts that the caller has
//! gathered (`facts`), and cuts the slices that a path can post (`slice`). Pure. The callers are `api` (at submit and
//! for a peer's paths), the outbox of `peer` (when a slice is queued again or its path is gone, and for notifications
//! that are posted apart from data), and `stage` (for the transfer between two devices). `why` has the texts of the
//! reasons.

mod decide;
mod facts;
mod slice;
#[cfg(test)]
mod tests;
mod why;

pub use decide::{
    asks, between_devices, copies_at_once, decide, stages_refused, why, Between, Decision, NotificationPaths,
    FASTER, NOTIFIERS, ORDER,
};
pub use facts::{Asked, Facts, Memory, PathState};
pub use slice::slice;
pub use why::Why;
