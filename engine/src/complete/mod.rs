//! Completion: the table of transfers with generations, and how each transfer reaches exactly one final state. Below
//! `transport`, which settles slices here; above `notify`, which wakes the waiters.

mod counters;
pub mod flags;
pub mod position;
pub mod result;
pub mod table;
pub mod transfer;

pub use flags::TransferFlags;
pub use result::{Fence, Notification, Progress, RequestResult, State, TransferResult};
pub use table::Table;
pub use transfer::{Failure, Transfer, TransferSpec};
