//! The simulated side of `sys::pause`.

pub use ferry_sim_kernel::task::{sleep, spin, yield_now};
