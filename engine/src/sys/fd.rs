//! The owner of a descriptor, and what borrows it: the standard library's. A simulation has descriptors of its own.

pub use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
