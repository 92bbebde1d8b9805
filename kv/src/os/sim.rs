//! The simulated side of `system`: what the engine's simulated kernel has, in the same shapes.

use std::time::Duration;

use ferry::internals::simulated::{self, poll, AsRawFd, Interest};

pub use simulated::bare::thread::available_parallelism;
pub use simulated::bare::{Condvar, Mutex, MutexGuard, PoisonError};
pub use simulated::{random, sleep, AsFd, BorrowedFd, EventFd};

/// A time of the monotonic clock of this host.
#[derive(Clone, Copy, Debug)]
pub struct Instant(std::time::Instant);

impl Instant {
    pub fn now() -> Instant {
        Instant(simulated::now())
    }

    pub fn elapsed(&self) -> Duration {
        Instant::now().saturating_duration_since(*self)
    }

    pub fn checked_add(&self, duration: Duration) -> Option<Instant> {
        self.0.checked_add(duration).map(Instant)
    }

    pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }
}

pub fn wait_readable(one: BorrowedFd<'_>, other: BorrowedFd<'_>, timeout: Option<Duration>) {
    let read = Interest { read: true, write: false };
    let timeout_ns = timeout.map(|left| left.as_nanos().try_into().unwrap_or(u64::MAX));
    let _ = poll(&[(one.as_raw_fd(), read), (other.as_raw_fd(), read)], timeout_ns);
}

pub fn monotonic_ns() -> u64 {
    simulated::monotonic_ns().ns()
}
