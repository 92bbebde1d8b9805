//! ferry-kv over the engines of some seeds: the processes of a plan are the ranks of instances that hand sequences
//! over, while their programs transfer by the same sessions and faults strike.
//!
//! ```text
//! plan      which processes are ranks, and of what shapes
//! desk      the model: sequences, which process plays which side, whose blocks are whose
//! rank      the task of one rank: opens and closes its cache, begins sides, learns their ends
//! closing   the ends of its sides in time, and of its cache
//! producer  what a rank does with what it offers: extends, computes, takes back, seals
//! check     every byte of a take, and each write of the kernel to a rank's memory
//! ```
//! `caches` is that of ferry-kv's own stories: layouts, and where each byte of a sequence lies.

#[path = "../../../../kv/tests/handoff/caches.rs"]
#[expect(dead_code, reason = "the stories have more layouts")]
mod caches;
mod check;
mod closing;
mod desk;
mod plan;
mod producer;
mod rank;

pub use desk::{Desk, LABEL};
pub use plan::{draw, KvPlan};
pub use producer::TAKEN_BACK;
pub use rank::{run, CLOSED, OPENED_LATE, RECEIVED};
