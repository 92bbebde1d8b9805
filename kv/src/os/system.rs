//! The operating system: the standard library's locks, and eventfds.

use std::io;
use std::time::Duration;

use rustix::event::{eventfd, EventfdFlags, PollFd, PollFlags, Timespec};

pub use std::os::fd::{AsFd, BorrowedFd};
pub use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
pub use std::thread::{available_parallelism, sleep};
pub use std::time::Instant;

/// A counter that a thread raises and a poller sees as readable. Non-blocking and close-on-exec.
#[derive(Debug)]
pub struct EventFd(rustix::fd::OwnedFd);

impl EventFd {
    pub fn new() -> io::Result<EventFd> {
        Ok(EventFd(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes the descriptor readable. A counter at its maximum is readable anyway.
    pub fn raise(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable again.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns when one of these is readable, or the time is over, or without a cause.
pub fn wait_readable(one: BorrowedFd<'_>, other: BorrowedFd<'_>, timeout: Option<Duration>) {
    let timeout = timeout.map(|left| Timespec {
        tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    });
    let mut fds =
        [PollFd::from_borrowed_fd(one, PollFlags::IN), PollFd::from_borrowed_fd(other, PollFlags::IN)];
    // An interrupted poll returns too early, which does no harm.
    let _ = rustix::event::poll(&mut fds, timeout.as_ref());
}

/// Returns CLOCK_MONOTONIC.
pub fn monotonic_ns() -> u64 {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (clock.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(clock.tv_nsec as u64)
}

/// Fills with bytes of the operating system's generator.
pub fn random(bytes: &mut [u8]) -> io::Result<()> {
    Ok(getrandom::fill(bytes)?)
}
