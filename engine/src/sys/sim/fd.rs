//! The simulated side of `sys::fd`: a descriptor is a number of a simulated process.

pub use ferry_sim_kernel::fd::{AsFd, BorrowedFd, OwnedFd};
