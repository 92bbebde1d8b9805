//! Paths that have ended, but are still in use: the peer's process copies here, this process copies for its own
//! transfers, or the peer's process has device memory mapped. These paths are checked until no use is left.
//!
//! A program that is gone never lowers its count of copies. Its process may still live: another program took its place
//! by exec, or its memory is being dumped. So each side keeps the path's socket until it copies no more by the path. In
//! an exec, the kernel closes the socket when the old program's threads have ended, and the other side sees that.

use super::path::LocalPath;
use super::service::{LocalService, RETRY};
use super::session::Admitted;
use super::sessions::Sessions;
use crate::command::Command;
use crate::region::grants::{Grants, Left};
use crate::sys::clock;
use crate::sys::fd::{AsFd, OwnedFd};
use crate::sys::proven::is_hung_up;
use crate::types::{Monotonic, PeerId};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often a peer's process is looked at for a core dump: that takes a few system calls for each of its threads.
const DUMP_LOOKS: Duration = Duration::from_millis(100);

pub struct Draining {
    pub admitted: Admitted,
    /// None if this side had no path yet: the other process may have had one.
    pub path: Option<Arc<LocalPath>>,
    /// The path's socket, until this process copies no more by the path.
    pub socket: Option<Arc<OwnedFd>>,
    /// Neither process copies any more.
    pub quiet: bool,
    /// When to look for a dump again.
    pub dump_look: Monotonic,
}

impl Admitted {
    /// Voids the counts of a program that is gone. `socket`: the path's.
    fn bury_the_gone(&self, grants: &Grants, socket: Option<&Arc<OwnedFd>>, now: Monotonic) {
        if self.process.has_ended(now) {
            grants.bury(&self.tally);
        } else if socket.is_some_and(|socket| is_hung_up((**socket).as_fd())) {
            grants.end_copies(&self.tally);
        }
    }
}

impl Draining {
    pub fn new(admitted: Admitted, path: Option<Arc<LocalPath>>, socket: Option<Arc<OwnedFd>>) -> Draining {
        Draining { admitted, path, socket, quiet: false, dump_look: Monotonic::ZERO }
    }

    /// Returns whether a thread of this process copies for a transfer of its own.
    pub fn we_copy(&self) -> bool {
        self.path.as_ref().is_some_and(|path| path.is_copying())
    }
}

impl LocalService {
    /// Ends the counts of processes that are gone. Returns whether, after `shut`, no thread of this process copies by a
    /// path and no other process copies here.
    pub fn bury(&self) -> bool {
        let now_ns = clock::monotonic_ns();
        let mut sessions = self.lock();
        for draining in sessions.draining.values_mut().flatten() {
            self.wind_up(draining);
        }
        for session in sessions.all.values() {
            if let Some(admitted) = &session.admitted {
                admitted.bury_the_gone(&self.grants, session.socket.as_ref(), now_ns);
            }
        }
        drop(sessions);
        let all_paths: Vec<_> = self.all_paths.lock().iter().filter_map(Weak::upgrade).collect();
        self.grants.all_quiet() && all_paths.iter().all(|path| path.copier().grant.is_quiet())
    }

    /// Ends the count of a process that is gone, and closes the socket of a path by which nobody copies. Returns
    /// whether neither process copies, and the peer's has no memory mapped.
    pub(super) fn wind_up(&self, draining: &mut Draining) -> bool {
        let now = clock::monotonic_ns();
        draining.admitted.bury_the_gone(&self.grants, draining.socket.as_ref(), now);
        let Admitted { tally, process } = &draining.admitted;
        if now >= draining.dump_look && !self.grants.is_quiet(tally) {
            draining.dump_look = now + DUMP_LOOKS;
            if process.is_being_dumped() {
                self.grants.end_copies(tally);
            }
        }
        let left = if draining.we_copy() { Left::Copies } else { self.grants.forget(tally) };
        draining.quiet = left != Left::Copies;
        // A device's copy needs no thread in the path.
        if draining.quiet && draining.path.as_ref().is_none_or(|path| path.copier().grant.is_quiet()) {
            draining.socket = None;
        }
        left == Left::Nothing && draining.socket.is_none()
    }

    /// Checks a peer's ended paths, and forgets those on which nothing moves any more.
    pub(super) fn let_go(&self, sessions: &mut Sessions, peer: PeerId, now: Monotonic) {
        let Some(all) = sessions.draining.get_mut(&peer) else { return };
        let mut changed = false;
        all.retain_mut(|draining| {
            let before = draining.quiet;
            let over = self.wind_up(draining);
            changed |= !before && draining.quiet;
            !over
        });
        if all.is_empty() {
            drop(sessions.draining.remove(&peer))
        } else {
            sessions.draining_times.set(peer, Some(now + RETRY))
        }
        if changed && !sessions.is_draining(peer) {
            self.commands.push(Command::TransportQuiet { peer });
        }
    }
}

impl Sessions {
    /// Returns whether a process of this peer still copies here, or this process for transfers with it.
    pub fn is_draining(&self, peer: PeerId) -> bool {
        self.draining.get(&peer).is_some_and(|all| all.iter().any(|it| !it.quiet))
    }
}
