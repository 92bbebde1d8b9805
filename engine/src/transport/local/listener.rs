//! The AF_UNIX listener of the service, at which the processes of this host knock. Where the system has no descriptor
//! for one more it rests: asked again at once, it would say the same again, and the thread would do nothing else.

use crate::sys::clock;
use crate::sys::lock::{Mutex, MutexGuard};
use crate::sys::poller::{Interest, Poller};
use crate::sys::unix;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// After it ran into a limit of the system the listener rests for this long.
const REST: Duration = Duration::from_millis(100);

pub struct Listener {
    listener: OwnedFd,
    pub name: String,
    token: u64,
    /// Until when it rests. The service's thread's own.
    rests: Mutex<Option<Instant>>,
}

impl Listener {
    /// Listens on a new name, and has the poller say so when somebody knocks.
    pub fn open(poller: &Poller, token: u64) -> io::Result<Listener> {
        let (listener, name) = unix::listen_abstract(unix::PACKETS.into())?;
        poller.add(listener.as_raw_fd(), token, Interest { read: true, write: false })?;
        let name = String::from_utf8_lossy(&name).into_owned();
        Ok(Listener { listener, name, token, rests: Mutex::new(None) })
    }

    /// The next who waits, if there is one and he can be let in.
    pub fn accept(&self, poller: &Poller) -> Option<OwnedFd> {
        let accepted = unix::accept(self.listener.as_fd());
        if accepted.as_ref().is_err_and(unix::is_exhaustion) {
            *self.rests() = Some(clock::now() + REST);
            self.watch(poller, false);
        }
        accepted.ok()
    }

    /// How long it rests yet; not at all any more, when that is over.
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
        // Failing to watch shows as sessions without this path.
        let _ = poller.set(self.listener.as_raw_fd(), self.token, Interest { read, write: false });
    }
}
