//! ferry-pool over the engines of some seeds: each process is a node of one pool, most of them members with little
//! memory, while their programs transfer by the same sessions and faults strike.
//!
//! ```text
//! plan    the nodes: what they lend, how many keys there are and how long their values
//! keys    digests and values, which are functions of a key's number
//! desk    the model: openings of pools, open calls, who was said to hold a key
//! player  the task of one node: opens and closes its pool, makes calls, learns their ends
//! audit   after the last fault: index, values and books of all nodes agree
//! ```

mod audit;
mod desk;
mod keys;
mod plan;
mod player;

pub use desk::{Desk, LABEL};
pub use plan::{draw, PoolPlan};
pub use player::{run, CLOSED, EVICTED, FAR, FULL};
