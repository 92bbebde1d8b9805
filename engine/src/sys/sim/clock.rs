//! The simulated side of `sys::clock`: each host of a simulation has clocks of its own.

use crate::types::{Boottime, Monotonic, Shown};
use ferry_sim_kernel::clock;
pub use ferry_sim_kernel::clock::{now, wall};

pub fn monotonic_ns() -> Monotonic {
    Monotonic::from_ns(clock::raw_ns())
}

pub fn boottime_ns() -> Boottime {
    Boottime::from_ns(clock::raw_boottime_ns())
}

pub fn shown<const N: usize>(now: Monotonic, moments: [Monotonic; N]) -> [Shown; N] {
    let shown = Shown::from_ns(clock::shown_ns());
    moments.map(|moment| match moment {
        Monotonic::ZERO => Shown::ZERO,
        moment => shown.saturating_sub_ns(now.saturating_sub(moment)),
    })
}
