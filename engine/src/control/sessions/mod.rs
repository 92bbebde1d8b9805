//! The sessions of an engine: by peer, by the engine at the other end, by its place and by its names; their timers;
//! their late lanes; and the peers that are lost. `Sessions` keeps these in step. What happens in a session is decided
//! by its machine, and done by `Control`.

mod lost;
mod session;

#[cfg(test)]
pub(super) use lost::LOST_PEERS_KEPT;
pub(super) use session::PeerSession;

use super::names::{address_names, Name, Names};
use crate::schedule::Schedule;
use crate::session::machine::Role;
use crate::sys::map::{Entry, HashMap};
use crate::types::{EngineId, Incarnation, LaneId, Monotonic, PeerId, PlaceId, SessionId};
use lost::Lost;
use std::net::SocketAddr;

#[derive(Default)]
pub(super) struct Sessions {
    all: HashMap<PeerId, PeerSession>,
    /// Sessions that are not given up, by the names of their peers.
    names: Names<PeerId>,
    /// The current session of each engine.
    by_engine: HashMap<EngineId, PeerId>,
    /// The latest peer that listened at each place (`Identity::place`).
    by_place: HashMap<PlaceId, PeerId>,
    /// When the timer of each session's machine, or of its lanes, is due.
    alarms: Schedule<Monotonic, PeerId>,
    /// When each peer's transfers are checked for deadlines, and its lanes for progress.
    checks: Schedule<Monotonic, PeerId>,
    /// The number of late lanes of each engine, in any of its sessions.
    late: HashMap<EngineId, usize>,
    pub lost: Lost,
}

impl Sessions {
    pub fn get(&self, peer: PeerId) -> Option<&PeerSession> {
        self.all.get(&peer)
    }

    pub fn get_mut(&mut self, peer: PeerId) -> Option<&mut PeerSession> {
        self.all.get_mut(&peer)
    }

    pub fn has(&self, peer: PeerId) -> bool {
        self.all.contains_key(&peer)
    }

    pub fn all(&self) -> impl Iterator<Item = (PeerId, &PeerSession)> {
        self.all.iter().map(|(peer, session)| (*peer, session))
    }

    /// Returns the token of the session's connection.
    pub fn conn(&self, peer: PeerId) -> Option<u64> {
        self.get(peer)?.conn
    }

    /// Returns whether this is the id of the peer's session: it changes with each connection.
    pub fn is_current(&self, peer: PeerId, session_id: SessionId) -> bool {
        self.get(peer).is_some_and(|session| session.session_id == session_id)
    }

    pub fn is_down(&self, peer: PeerId) -> bool {
        self.get(peer).is_some_and(PeerSession::is_down)
    }

    pub fn has_role(&self, peer: PeerId, role: Role) -> bool {
        self.get(peer).is_some_and(|session| session.machine.role() == role)
    }

    /// Adds a session, which becomes the current one of its engine and place.
    pub fn insert(&mut self, peer: PeerId, session: PeerSession) {
        self.by_engine.insert(session.identity.engine_id, peer);
        self.by_place.extend(session.identity.place.map(|place| (place, peer)));
        self.all.insert(peer, session);
    }

    /// Removes a session that is over.
    pub fn remove(&mut self, peer: PeerId) -> Option<PeerSession> {
        self.alarms.set(peer, None);
        self.checks.set(peer, None);
        self.all.remove(&peer)
    }

    /// Forgets the names of a session that is given up. It remains until it is over.
    pub fn disown(&mut self, peer: PeerId) {
        self.names.set(peer, Vec::new());
        let Some(session) = self.all.get(&peer) else { return };
        let (engine, place) = (session.identity.engine_id, session.identity.place);
        if self.by_engine.get(&engine) == Some(&peer) {
            self.by_engine.remove(&engine);
        }
        if let Some(place) = place.filter(|place| self.by_place.get(place) == Some(&peer)) {
            self.by_place.remove(&place);
        }
    }

    /// Updates the names of a session that has begun or whose names may have changed.
    pub fn name(&mut self, peer: PeerId) {
        self.names.set(peer, self.all.get(&peer).map(PeerSession::names).unwrap_or_default());
    }

    /// Returns the current session of an engine.
    pub fn of_engine(&self, engine: &EngineId) -> Option<PeerId> {
        self.by_engine.get(engine).copied()
    }

    /// Returns the peer of this engine and incarnation if its session is not given up.
    pub fn of(&self, (engine, incarnation): Incarnation) -> Option<PeerId> {
        let peer = self.of_engine(&engine)?;
        self.get(peer)?.is_of(incarnation).then_some(peer)
    }

    /// Returns the latest peer that listened at this place.
    pub fn at_place(&self, place: &PlaceId) -> Option<PeerId> {
        self.by_place.get(place).copied()
    }

    /// Returns the session that a caller of `connect` with this address gets. The session need not be UP.
    pub fn at_address(&self, address: &str, resolved: &[SocketAddr]) -> Option<PeerId> {
        address_names(address, resolved).find_map(|name| self.names.latest(&name))
    }

    /// Returns the latest peer with this name.
    pub fn latest(&self, name: &Name) -> Option<PeerId> {
        self.names.latest(name)
    }

    /// Sets when the session's alarm is due; None: never.
    pub fn set_alarm(&mut self, peer: PeerId, at: Option<Monotonic>) {
        self.alarms.set(peer, at);
    }

    /// Has the peer checked at this time, or earlier if that is due.
    pub fn check_by(&mut self, peer: PeerId, at: Monotonic) {
        self.checks.lower(peer, at);
    }

    pub fn next_timer(&self) -> Option<Monotonic> {
        self.alarms.first().into_iter().chain(self.checks.first()).min()
    }

    pub fn due_alarms(&mut self, now: Monotonic) -> Vec<PeerId> {
        self.alarms.take_due(now)
    }

    pub fn due_checks(&mut self, now: Monotonic) -> Vec<PeerId> {
        self.checks.take_due(now)
    }

    /// Notes that a lane is late. A lane that was late before keeps its flag: the answer to the peer's fence is still
    /// owed.
    pub fn add_late(&mut self, peer: PeerId, lane: LaneId) {
        let Some(session) = self.all.get_mut(&peer) else { return };
        if let Entry::Vacant(late) = session.late_lanes.entry(lane) {
            late.insert(false);
            *self.late.entry(session.identity.engine_id).or_default() += 1;
        }
    }

    /// Notes that a lane is closed. Returns whether its fence was asked for; None if it was not late.
    pub fn remove_late(&mut self, peer: PeerId, lane: LaneId) -> Option<bool> {
        let session = self.all.get_mut(&peer)?;
        let is_asked = session.late_lanes.remove(&lane)?;
        if let Entry::Occupied(mut count) = self.late.entry(session.identity.engine_id) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(is_asked)
    }

    /// Returns whether this engine has late lanes, in any of its sessions.
    pub fn has_late(&self, engine: &EngineId) -> bool {
        self.late.contains_key(engine)
    }
}
