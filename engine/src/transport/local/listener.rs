//! The AF_UNIX listener of the service, to which processes of this host connect. If the system has no descriptors left,
//! the listener pauses: an immediate retry would fail again and keep the thread busy.

use crate::sys::clock;
use crate::sys::lock::{Mutex, MutexGuard};
use crate::sys::poller::{Interest, Poller};
use crate::sys::unix;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// The pause after a limit of the system was reached.
const REST: Duration = Duration::from_millis(100);

pub struct Listener {
    listener: OwnedFd,
    pub name: String,
    token: u64,
    /// The end of the pause. Used only by the service's thread.
    rests: Mutex<Option<Instant>>,
}

impl Listener {
    /// Listens on a new name, and registers the socket with the poller.
    pub fn open(poller: &Poller, token: u64) -> io::Result<Listener> {
        let (listener, name) = unix::listen_abstract(unix::PACKETS.into())?;
        poller.add(listener.as_raw_fd(), token, Interest { read: true, write: false })?;
        let name = String::from_utf8_lossy(&name).into_owned();
        Ok(Listener { listener, name, token, rests: Mutex::new(None) })
    }

    /// Accepts the next connection. None if none waits or it cannot be accepted now.
    pub fn accept(&self, poller: &Poller) -> Option<OwnedFd> {
        let accepted = unix::accept(self.listener.as_fd());
        if accepted.as_ref().is_err_and(unix::is_exhaustion) {
            *self.rests() = Some(clock::now() + REST);
            self.watch(poller, false);
        }
        accepted.ok()
    }

    /// Ends the pause if it is over. Returns how long the pause still lasts; None if the listener does not pause.
    pub fn accept_again(&self, poller: &Poller) -> Option<Duration> {
        let mut rests = self.rests();
        let left = (*rests)?.saturating_duration_since(clock::now());
        if left.is_zero() {
            *rests = None;
            self.watch(poller, true);
        }
        Some(left)
    }

    fn rests(&self) -> MutexGuard<'_, Option<Instant>> {
        self.rests.lock()
    }

    fn watch(&self, poller: &Poller, read: bool) {
        // If this fails, sessions get no same-host path.
        let _ = poller.set(self.listener.as_raw_fd(), self.token, Interest { read, write: false });
    }
}
