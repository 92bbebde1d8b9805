//! A node of the pool as a state machine (`Machine`): no I/O, no clock. `pool` carries out what it wants with ferry's
//! transfers and notifications; the simulation and the tests carry it out by themselves.

mod call;
mod calls;
mod counts;
mod drain;
mod hints;
mod looks;
mod machine;
mod nodes;
mod own;
mod owner;
mod placing;
mod prefetch;
mod questions;
mod serving;
mod telling;
mod tier;

pub use call::{Ask, KeyEnd};
pub use counts::{Counts, OwnerCounts};
pub use drain::Drained;
pub use machine::{Action, End, Machine, SumOf};
pub use owner::Asker;
pub use prefetch::Prefetches;
pub use tier::Tier;
