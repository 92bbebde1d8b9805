//! The sessions of a transport's service, by peer, and which of them its thread must look after: those that changed,
//! and those whose time has come. The service has the table under its lock. A turn costs the sessions that it concerns.

use super::Schedule;
use crate::sys::map::HashMap;
use crate::types::{Monotonic, PeerId};
use std::collections::BTreeSet;

pub struct SessionTable<S> {
    /// From a session's beginning to its end.
    all: HashMap<PeerId, S>,
    /// Peers whose session changed and was not looked after since.
    changed: BTreeSet<PeerId>,
    /// When each session is looked after if it does not change.
    times: Schedule<Monotonic, PeerId>,
}

impl<S> SessionTable<S> {
    pub fn new() -> SessionTable<S> {
        SessionTable { all: HashMap::default(), changed: BTreeSet::new(), times: Schedule::new() }
    }

    pub fn begin(&mut self, peer: PeerId, session: S) {
        self.all.insert(peer, session);
        self.changed.insert(peer);
    }

    pub fn end(&mut self, peer: PeerId) -> Option<S> {
        self.times.set(peer, None);
        self.all.remove(&peer)
    }

    pub fn get(&self, peer: &PeerId) -> Option<&S> {
        self.all.get(peer)
    }

    /// A change that concerns the service's thread is noted by `changed`.
    pub fn get_mut(&mut self, peer: &PeerId) -> Option<&mut S> {
        self.all.get_mut(peer)
    }

    pub fn values(&self) -> impl ExactSizeIterator<Item = &S> {
        self.all.values()
    }

    /// Has a session looked after in the next turn.
    pub fn changed(&mut self, peer: PeerId) {
        self.changed.insert(peer);
    }

    /// Changes all sessions. Those for which `change` returns true are looked after in the next turn.
    pub fn change_all(&mut self, mut change: impl FnMut(&mut S) -> bool) {
        let changed = self.all.iter_mut().filter_map(|(peer, session)| change(session).then_some(*peer));
        self.changed.extend(changed);
    }

    /// Sets when a session is looked after if it does not change.
    pub fn plan(&mut self, peer: PeerId, at: Option<Monotonic>) {
        self.times.set(peer, at);
    }

    /// Takes the peers whose session changed or is due.
    pub fn take_due(&mut self, now: Monotonic) -> BTreeSet<PeerId> {
        let mut due = std::mem::take(&mut self.changed);
        due.extend(self.times.take_due(now));
        due
    }

    /// Returns when a session must be looked after: `now` if one changed.
    pub fn next_due(&self, now: Monotonic) -> Option<Monotonic> {
        if self.changed.is_empty() {
            self.times.first()
        } else {
            Some(now)
        }
    }
}
