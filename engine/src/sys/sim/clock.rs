//! The simulated side of `sys::clock`: each host of a simulation has clocks of its own.

use crate::types::{Boottime, Monotonic};
pub use ferry_sim_kernel::clock::{now, wall};

pub fn monotonic_ns() -> Monotonic {
    Monotonic::from_ns(ferry_sim_kernel::clock::monotonic_ns())
}

pub fn boottime_ns() -> Boottime {
    Boottime::from_ns(ferry_sim_kernel::clock::boottime_ns())
}
