//! Paths that have ended while a process still copied, the peer's in this process or this one for its own transfers, or
//! while the peer's had device memory mapped. They are checked until none of that is true.

use super::path::LocalPath;
use super::service::{Service, RETRY};
use super::session::Admitted;
use super::sessions::Sessions;
use crate::command::Command;
use crate::region::grants::Left;
use crate::sys::clock;
use crate::types::{Monotonic, PeerId};
use std::sync::{Arc, Weak};

pub struct Draining {
    pub admitted: Admitted,
    /// None if this side had no path yet: the other process may have had one.
    pub path: Option<Arc<LocalPath>>,
    /// Neither process copies any more.
    pub quiet: bool,
}

impl Draining {
    /// Returns whether a thread of this process copies for a transfer of its own.
    pub fn we_copy(&self) -> bool {
        self.path.as_ref().is_some_and(|path| path.is_copying())
    }
}

impl Service {
    /// Returns whether, after `shut`, no thread of this process copies by a path and no other process copies here.
    pub fn is_still(&self) -> bool {
        let now_ns = clock::monotonic_ns();
        let mut sessions = self.lock();
        for draining in sessions.draining.values_mut().flatten() {
            self.is_over(draining);
        }
        let admitted = sessions.all.values().filter_map(|session| session.admitted.as_ref());
        let ended = admitted.filter(|it| it.process.has_ended(now_ns));
        ended.for_each(|it| self.grants.bury(&it.tally));
        drop(sessions);
        let all_paths: Vec<_> = self.all_paths.lock().iter().filter_map(Weak::upgrade).collect();
        self.grants.all_quiet() && all_paths.iter().all(|path| path.copier().grant.is_quiet())
    }

    /// Returns whether neither process copies, and the peer's has no memory mapped.
    pub(super) fn is_over(&self, draining: &mut Draining) -> bool {
        let Admitted { tally, process } = &draining.admitted;
        if process.has_ended(clock::monotonic_ns()) {
            self.grants.bury(tally);
        }
        let left = match draining.we_copy() {
            true => Left::Copies,
            false => self.grants.forget(tally),
        };
        draining.quiet = left != Left::Copies;
        left == Left::Nothing
    }

    /// Checks a peer's ended paths, and forgets those on which nothing moves any more.
    pub(super) fn let_go(&self, sessions: &mut Sessions, peer: PeerId, now: Monotonic) {
        let Some(all) = sessions.draining.get_mut(&peer) else { return };
        let mut changed = false;
        all.retain_mut(|draining| {
            let before = draining.quiet;
            let over = self.is_over(draining);
            changed |= !before && draining.quiet;
            !over
        });
        match all.is_empty() {
            true => drop(sessions.draining.remove(&peer)),
            false => sessions.draining_times.set(peer, Some(now + RETRY)),
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
