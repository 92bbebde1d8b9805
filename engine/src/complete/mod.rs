//! Completion: the slab of transfers with generations, and how each reaches one final state, once.
//! Below `transport`, which settles slices here; above `notify`, which tells the waiters.

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
