//! Waits for readiness of many descriptors on one thread. The lanes and the control plane register their sockets here
//! and move the bytes themselves. `epoll` and `uring` are the two kernel interfaces, with the same level-triggered
//! meaning.
//!
//! Both kinds move bytes with plain `sendmsg`/`recvmsg`. `Auto` means epoll: for 4 KiB answered by 64 B over loopback
//! both kinds measured within 3 % of each other (one CPU, two CPUs asleep, two CPUs spinning), because the wake-up
//! dominates and not the interface. Epoll is in every kernel and sandbox, applies `set` in one system call from any
//! thread, releases a removed file at once, and lets any thread wait.

mod epoll;
mod registry;
#[cfg(test)]
mod tests;
mod uring;

use crate::status::{Error, Result, Status};
use crate::sys::eventfd::EventFd;
use crate::sys::health;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};

/// The most registrations that one `wait` returns; the next wait returns the rest.
const READY_MAX: usize = 256;
/// The token under which the wake eventfd is registered; no caller may use it.
const TOKEN_WAKE: u64 = u64::MAX;

/// The kernel interface to wait with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollerKind {
    /// Epoll (the head of this file says why).
    Auto,
    Epoll,
    IoUring,
}

/// The events that a registration wants. Errors and hang-ups are reported in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Interest {
    pub read: bool,
    pub write: bool,
}

/// The readiness of one registration.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    pub token: u64,
    pub readable: bool,
    pub writable: bool,
    /// An error, a hang-up or, with read interest, the peer's end of stream.
    pub hangup: bool,
}

/// Waits for descriptors. `add`, `set`, `remove` and `wake` may be called by any thread at any time;
/// `wait` by one thread at a time.
///
/// The poller does not own the descriptors: `remove` one before closing it.
pub struct Poller {
    backend: Backend,
    doorbell: Doorbell,
}

enum Backend {
    Epoll(epoll::Epoll),
    Uring(Box<uring::Uring>),
}

impl Poller {
    /// Makes a poller. Fails with `Unavailable` and the reason if io_uring is asked for but the kernel or a sandbox
    /// refuses it, and with `System` if no descriptor is left.
    pub fn new(kind: PollerKind) -> Result<Poller> {
        let doorbell = Doorbell::new().map_err(|error| Error::system("eventfd", &error))?;
        let backend = match kind {
            PollerKind::Auto | PollerKind::Epoll => {
                let epoll = epoll::Epoll::new().map_err(|error| Error::system("epoll_create1", &error))?;
                epoll
                    .add(doorbell.event.as_raw_fd(), TOKEN_WAKE, Interest { read: true, write: false })
                    .map_err(|error| Error::system("epoll_ctl of the wake eventfd", &error))?;
                Backend::Epoll(epoll)
            }
            PollerKind::IoUring => {
                Poller::probe_io_uring().map_err(|reason| Error::new(Status::Unavailable, reason))?;
                let uring = uring::Uring::new().map_err(|error| Error::system("epoll_create1", &error))?;
                Backend::Uring(Box::new(uring))
            }
        };
        Ok(Poller { backend, doorbell })
    }

    /// Checks whether `PollerKind::IoUring` works here, or returns why not. Builds and drops a ring, so it is not for
    /// hot paths.
    pub fn probe_io_uring() -> Result<(), String> {
        uring::probe()
    }

    /// Returns the kind in use: `Epoll` or `IoUring`, never `Auto`.
    #[cfg(test)]
    pub fn kind(&self) -> PollerKind {
        match &self.backend {
            Backend::Epoll(_) => PollerKind::Epoll,
            Backend::Uring(_) => PollerKind::IoUring,
        }
    }

    /// Registers `fd`. A wait in progress on another thread covers it at once. EEXIST if `fd` is
    /// registered, EINVAL for the reserved token `u64::MAX`.
    pub fn add(&self, fd: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        refuse_reserved(token)?;
        match &self.backend {
            Backend::Epoll(epoll) => epoll.add(fd, token, interest),
            Backend::Uring(uring) => uring.add(&self.doorbell, fd, token, interest),
        }
    }

    /// Replaces the token and interest of `fd`, also for a wait in progress. ENOENT if `fd` is not registered.
    pub fn set(&self, fd: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        refuse_reserved(token)?;
        match &self.backend {
            Backend::Epoll(epoll) => epoll.set(fd, token, interest),
            Backend::Uring(uring) => uring.set(&self.doorbell, fd, token, interest),
        }
    }

    /// Forgets `fd`, which is registered with `token`. Readiness that a concurrent wait has already collected may
    /// still be returned once. With io_uring the kernel releases the file only at the next wait (or in the one in
    /// progress): use `shutdown(2)` rather than `close(2)` if the peer must notice at once.
    pub fn remove(&self, fd: RawFd, token: u64) {
        match &self.backend {
            Backend::Epoll(epoll) => epoll.remove(fd),
            Backend::Uring(uring) => uring.remove(&self.doorbell, fd, token),
        }
    }

    /// Replaces the contents of `out` with the ready registrations, at most 256 entries and one per descriptor. Sleeps
    /// until there is one, a wake, a signal or the timeout. `None` sleeps without limit, `Some(0)` does not sleep.
    /// Nothing else cuts a timeout short.
    ///
    /// With io_uring the waiting thread may change, which costs a new ring. A thread whose engine is broken stops
    /// here.
    pub(in crate::sys) fn wait(&self, out: &mut Vec<Ready>, timeout_ns: Option<u64>) -> io::Result<()> {
        health::check();
        out.clear();
        match &self.backend {
            Backend::Epoll(epoll) => {
                if epoll.wait(out, timeout_ns)? {
                    self.doorbell.consume();
                }
                Ok(())
            }
            Backend::Uring(uring) => uring.wait(&self.doorbell, out, timeout_ns),
        }
    }

    /// Makes the wait in progress return, or else the next one. Wakes that no wait has consumed yet count as one and
    /// cost one atomic operation. The waiting thread sees what the caller wrote before.
    pub fn wake(&self) {
        self.doorbell.ring(Doorbell::WAKE);
    }
}

fn refuse_reserved(token: u64) -> io::Result<()> {
    if token == TOKEN_WAKE {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    Ok(())
}

/// The eventfd that interrupts a wait, and the reasons it was raised for.
struct Doorbell {
    event: EventFd,
    /// Reasons not yet consumed. The thread that makes it non-zero raises the eventfd; `ring` pairs with `consume`.
    pending: AtomicU8,
}

impl Doorbell {
    /// The user called `wake`.
    const WAKE: u8 = 1;
    /// The registrations changed while the waiting thread slept; io_uring only, no reason to return.
    const CHANGED: u8 = 2;

    fn new() -> io::Result<Doorbell> {
        Ok(Doorbell { event: EventFd::new()?, pending: AtomicU8::new(0) })
    }

    fn ring(&self, reason: u8) {
        // AcqRel, with `consume`: a reason found pending is consumed by a swap that comes later in the
        // order of this atomic, so that thread sees what was written before.
        if self.pending.fetch_or(reason, Ordering::AcqRel) == 0 {
            self.event.raise();
        }
    }

    /// Lowers the eventfd, then takes the reasons. In the other order, a ring in between would be lowered with its
    /// reason left pending, and no later ring would raise the eventfd again.
    fn consume(&self) -> u8 {
        self.event.clear();
        self.pending.swap(0, Ordering::AcqRel)
    }
}
