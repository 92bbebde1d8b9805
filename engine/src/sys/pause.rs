//! How a thread waits without a lock: it sleeps, yields its CPU, or spins. The engine waits only through this file,
//! which `tests/imports.rs` enforces.

use std::time::Duration;

pub fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}

/// Lets another thread run on this CPU.
pub fn yield_now() {
    std::thread::yield_now();
}

/// One iteration of a polling loop.
#[inline]
pub fn spin() {
    std::hint::spin_loop();
}
