//! The simulated side of `sys::eventfd`.

pub use ferry_sim_kernel::eventfd::EventFd;
