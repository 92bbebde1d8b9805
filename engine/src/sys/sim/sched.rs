//! The simulated side of `sys::sched`: the seed schedules.

pub fn take_long_slices() {}

pub fn sleep_exactly() {}
