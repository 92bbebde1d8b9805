//! How a thread waits without a lock: it sleeps, gives its CPU away, or spins. The engine does none of it but here:
//! `tests/imports.rs` holds that.

use std::time::Duration;

pub fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}

/// Lets another thread run on this CPU.
pub fn yield_now() {
    std::thread::yield_now();
}

/// One turn of a loop that polls.
#[inline]
pub fn spin() {
    std::hint::spin_loop();
}
