//! The simulated side of `sys::origin`: tasks have no signal mask and no CPUs.

pub struct Origin;

impl Origin {
    pub fn of_this_thread() -> Origin {
        Origin
    }

    pub fn take_on(&self) {}
}

pub fn undisturbed<T>(start: impl FnOnce() -> T) -> T {
    start()
}

pub fn schedule_as_others() {}
