//! Clocks. Deadlines and results use the monotonic clock; leases use CLOCK_BOOTTIME, which also runs
//! while the machine sleeps. The engine reads no clock but here: `tests/imports.rs` holds that.

use std::time::{Instant, SystemTime};

use crate::types::{Boottime, Monotonic};

/// Returns the time on CLOCK_MONOTONIC.
pub fn monotonic_ns() -> Monotonic {
    Monotonic::from_ns(read(libc::CLOCK_MONOTONIC))
}

/// Returns the time on CLOCK_BOOTTIME.
pub fn boottime_ns() -> Boottime {
    Boottime::from_ns(read(libc::CLOCK_BOOTTIME))
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the duration of the call; the clock ids are constants
    // that every supported kernel knows, so the call cannot fail.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the time on the clock of `Instant`, for pauses and bounds that concern only this process.
pub fn now() -> Instant {
    Instant::now()
}

/// Returns the time of day, for people to read.
pub fn wall() -> SystemTime {
    SystemTime::now()
}
