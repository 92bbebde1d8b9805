//! The AF_UNIX listener of the service, to which processes of this host connect. If the system has no descriptors left,
//! the listener pauses: an immediate retry would fail again and keep the thread busy.

use crate::sys::clock;
use crate::sys::fd::{AsFd, OwnedFd};
use crate::sys::lock::{Mutex, MutexGuard};
use crate::sys::poller::{Interest, Poller};
use crate::sys::unix;
use crate::types::Monotonic;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The pause after a limit of the system was reached.
const PAUSE: Duration = Duration::from_millis(100);

pub struct Listener {
    listener: OwnedFd,
    pub name: String,
    token: u64,
    /// The end of the pause. Used only by the service's thread.
    paused_until: Mutex<Option<Monotonic>>,
}

impl Listener {
    /// Listens on a new name, and registers the socket with the poller.
    pub fn open(poller: &Poller, token: u64) -> io::Result<Listener> {
        let (listener, name) = unix::listen_abstract(unix::PACKETS.into())?;
        poller.add(listener.as_raw_fd(), token, Interest { read: true, write: false })?;
        let name = String::from_utf8_lossy(&name).into_owned();
        Ok(Listener { listener, name, token, paused_until: Mutex::new(None) })
    }

    /// Accepts the next connection. None if none waits or it cannot be accepted now.
    pub fn accept(&self, poller: &Poller) -> Option<OwnedFd> {
        let accepted = unix::accept(self.listener.as_fd());
        if accepted.as_ref().is_err_and(unix::is_exhaustion) {
            *self.paused_until() = Some(clock::monotonic_ns() + PAUSE);
            self.watch(poller, false);
        }
        accepted.ok()
    }

    /// Ends the pause if it is over. Returns the end of the pause; None if the listener does not pause.
    pub fn accept_again(&self, poller: &Poller, now: Monotonic) -> Option<Monotonic> {
        let mut paused_until = self.paused_until();
        if paused_until.take_if(|until| *until <= now).is_some() {
            self.watch(poller, true);
        }
        *paused_until
    }

    fn paused_until(&self) -> MutexGuard<'_, Option<Monotonic>> {
        self.paused_until.lock()
    }

    fn watch(&self, poller: &Poller, read: bool) {
        // If this fails, sessions get no same-host path.
        let _ = poller.set(self.listener.as_raw_fd(), self.token, Interest { read, write: false });
    }
}
