//! Conditions that callers of `connect` wait for: a session that is UP, a peer that has room for another handshake, or
//! a peer that dials us at the same time. `callers` holds the callers; `dial` passes them on to this file.

use super::conn::{ControlConn, State, Target};
use super::names::Name;
use super::Control;
use crate::session::handshake::RefusalCode;
use crate::status::{Error, Status};
use crate::sys::clock;
use crate::sys::map::{Entry, HashMap};
use crate::types::{Incarnation, Monotonic, PeerId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

/// The shortest pause before a dial is repeated.
const PAUSE_MS: u64 = 50;

/// A dial to be repeated after a pause: the peer had no room for another handshake, or dials us itself.
pub struct RepeatedDial {
    pub at: Monotonic,
    target: Target,
    addresses: Vec<SocketAddr>,
    deadline: Monotonic,
    /// The error that the callers get when their deadline has passed.
    error: Error,
    /// The engine that dials us; the session of its dial may be established first.
    awaited: Option<Incarnation>,
}

impl RepeatedDial {
    pub fn new(
        target: Target,
        addresses: Vec<SocketAddr>,
        deadline: Monotonic,
        error: Error,
        awaited: Option<Incarnation>,
    ) -> RepeatedDial {
        // A random pause, so that dialers do not retry in step.
        let pause = Duration::from_millis(PAUSE_MS + crate::sys::random_u64() % PAUSE_MS);
        RepeatedDial { at: clock::monotonic_ns() + pause, target, addresses, deadline, error, awaited }
    }
}

/// The time of a repeated dial, and a unique number.
type Turn = (Monotonic, u64);

/// The dials to be repeated, by their time and by the engine that dials us.
#[derive(Default)]
pub struct RepeatedDials {
    by_time: BTreeMap<Turn, RepeatedDial>,
    by_engine: HashMap<Incarnation, BTreeSet<Turn>>,
    last: u64,
}

impl RepeatedDials {
    fn push(&mut self, repeated: RepeatedDial) {
        self.last += 1;
        let key = (repeated.at, self.last);
        if let Some(engine) = repeated.awaited {
            self.by_engine.entry(engine).or_default().insert(key);
        }
        self.by_time.insert(key, repeated);
    }

    /// Returns when the first dial is repeated.
    pub fn next(&self) -> Option<Monotonic> {
        self.by_time.first_key_value().map(|((at, _), _)| *at)
    }

    fn take(&mut self, key: (Monotonic, u64)) -> Option<RepeatedDial> {
        let repeated = self.by_time.remove(&key)?;
        if let Some(Entry::Occupied(mut keys)) = repeated.awaited.map(|engine| self.by_engine.entry(engine)) {
            keys.get_mut().remove(&key);
            if keys.get().is_empty() {
                keys.remove();
            }
        }
        Some(repeated)
    }

    fn take_due(&mut self, now: Monotonic) -> Vec<RepeatedDial> {
        let keys: Vec<_> = self.by_time.keys().take_while(|(at, _)| *at <= now).copied().collect();
        keys.into_iter().filter_map(|key| self.take(key)).collect()
    }

    fn take_awaiting(&mut self, engine: Incarnation) -> Vec<RepeatedDial> {
        let keys = self.by_engine.remove(&engine).unwrap_or_default();
        keys.into_iter().filter_map(|key| self.take(key)).collect()
    }

    pub fn clear(&mut self) {
        self.by_time.clear();
        self.by_engine.clear();
    }
}

impl Control {
    /// Adds callers of `connect` that get the session's peer, now or when the session is UP.
    pub(super) fn join(&mut self, peer: PeerId, waiting: Vec<u64>) {
        let Some(session) = self.sessions.get_mut(&peer) else { return };
        session.waiting.extend(waiting);
        self.answer_connects(peer);
    }

    /// Answers the callers that wait for the session when it is UP, every transport has reported whether a path exists,
    /// and the lane that a transfer would need is attached.
    pub(super) fn answer_connects(&mut self, peer: PeerId) {
        let mask = self.services_mask();
        let has_lane = self.has_lane_it_needs(peer);
        let Some(session) = self.sessions.get_mut(&peer) else { return };
        if session.machine.is_up() && session.paths_settled & mask == mask && has_lane {
            session.waiting.drain(..).for_each(|caller| self.callers.answer(caller, Ok(peer)));
        }
    }

    /// Answers the callers that waited for a connection on which no session began. They get the session that the peer
    /// has of another connection, if any.
    pub(super) fn not_begun(&mut self, control: &mut ControlConn, error: Error) {
        if let Some(peer) = self.session_of((control.identity.engine_id, control.identity.incarnation)) {
            self.leave_callers(control, peer);
        }
        if let Some(target) = control.target.take() {
            self.dial_failed(target, error, None);
        }
    }

    /// Gives the session that stays to the callers that wait for this connection, which is not needed.
    pub(super) fn leave_callers(&mut self, control: &mut ControlConn, stays: PeerId) {
        let at = control.dialed_at();
        if let Some(Target::New { address, waiting, .. }) =
            control.target.take_if(|target| matches!(target, Target::New { .. }))
        {
            self.join_by_name(stays, address, at.as_slice(), waiting);
        }
    }

    /// Takes the callers that wait for a session. They asked for the engine at an address, not for this session.
    pub(super) fn take_waiting(&mut self, peer: PeerId) -> Vec<u64> {
        self.sessions.get_mut(&peer).map(|session| std::mem::take(&mut session.waiting)).unwrap_or_default()
    }

    /// Dials for the callers that waited for a session which is lost: another engine, or the restarted one, may listen
    /// there by now. `dial_at`: the addresses of the lost session. If there are none, the callers' names are looked up.
    pub(super) fn connect_again(&mut self, waiting: Vec<u64>, dial_at: Vec<SocketAddr>, error: Error) {
        let asked = |caller| self.callers.asked(caller).map(|(address, until)| (caller, address, until));
        let asked: Vec<(u64, String, Monotonic)> = waiting.into_iter().filter_map(asked).collect();
        let Some((_, address, _)) = asked.first() else { return };
        if dial_at.is_empty() {
            return asked
                .into_iter()
                .for_each(|(caller, address, until)| self.look_up(address, until, caller));
        }
        let until = asked.iter().map(|(_, _, until)| *until).max().unwrap_or_default();
        let waiting = asked.iter().map(|(caller, _, _)| *caller).collect();
        let target = Target::New { address: address.clone(), asked: self.fenced.count(), waiting };
        self.repeat_dial(RepeatedDial::new(target, dial_at, until, error, None));
    }

    /// Adds callers that asked for the engine by this address, though its session may have another name. The callers
    /// get the existing session. A silent peer is asked for a sign of life, so that later callers get a new session if
    /// the peer is gone. `at`: where the address leads. If this side never reached the peer, it dials `at` when the
    /// session is down.
    pub(super) fn join_by_name(
        &mut self,
        peer: PeerId,
        address: String,
        at: &[SocketAddr],
        waiting: Vec<u64>,
    ) {
        let Some(session) = self.sessions.get_mut(&peer) else { return };
        session.peer.ask_if_silent();
        if !session.was_reached && !at.is_empty() {
            session.dial_at = at.to_vec();
        }
        if !session.dial_at.is_empty() {
            session.machine.dial_too();
        }
        if session.dialed.is_empty() {
            session.dialed = address;
            self.name_session(peer);
        }
        self.touch(peer);
        self.join(peer, waiting);
    }

    /// Repeats a dial after its pause, if its deadline has not passed by then. If the engine dials us and its session
    /// exists already, the callers get that session; it is found by engine id and incarnation.
    pub(super) fn repeat_dial(&mut self, repeated: RepeatedDial) {
        let here = repeated.awaited.and_then(|engine| self.session_of(engine));
        match (here, repeated) {
            (Some(peer), RepeatedDial { target: Target::New { address, waiting, .. }, addresses, .. }) => {
                self.join_by_name(peer, address, &addresses, waiting)
            }
            (_, RepeatedDial { at, target, deadline, mut error, awaited, .. }) if at >= deadline => {
                if awaited.is_some() {
                    error.status = Status::Timeout;
                    error.message += ": the peer dials this engine, but its session did not come in time";
                }
                self.dial_failed(target, error, None)
            }
            (_, repeated) => self.repeated_dials.push(repeated),
        }
    }

    /// Returns the peer of this engine and incarnation if its session is not given up.
    pub(super) fn session_of(&self, (engine_id, incarnation): Incarnation) -> Option<PeerId> {
        let peer = *self.by_engine.get(&engine_id)?;
        let session = self.sessions.get(&peer)?;
        (session.identity.incarnation == incarnation && !session.machine.is_given_up()).then_some(peer)
    }

    pub(super) fn dial_again(&mut self, now: Monotonic) {
        for repeated in self.repeated_dials.take_due(now) {
            match repeated.awaited.and_then(|engine| self.session_of(engine)) {
                Some(_) => self.repeat_dial(repeated),
                None => {
                    let RepeatedDial { target, addresses, deadline, error, .. } = repeated;
                    // A temporary refusal does not count as an answer: a later failure replaces it.
                    let failed = Error { status: Status::Unreachable, ..error };
                    self.dial_next(target, addresses, deadline, failed.into())
                }
            }
        }
    }

    /// Gives a new session to the callers that waited for its engine to dial us, and to those of dials to the address
    /// that it claims, which may never be answered.
    pub(super) fn take_awaiting(&mut self, peer: PeerId, engine: Incarnation) {
        for RepeatedDial { target, addresses, .. } in self.repeated_dials.take_awaiting(engine) {
            if let Target::New { address, waiting, .. } = target {
                self.join_by_name(peer, address, &addresses, waiting);
            }
        }
        let Some(session) = self.sessions.get(&peer) else { return };
        let (claimed, ip) = (session.identity.address.clone(), session.remote.ip());
        for token in self.pending.find(&Name::Given(claimed.clone())).collect::<Vec<u64>>() {
            let Some(State::Dialing(dialing)) = self.conns.get_mut(&token).map(|conn| &mut conn.state) else {
                continue;
            };
            let is_other = dialing.dialer.other_end().is_some_and(|other| other != engine);
            if let (Target::New { waiting, .. }, false) = (&mut dialing.target, is_other) {
                if dialing.remote.ip() == ip {
                    let (at, waiting) = (dialing.remote, std::mem::take(waiting));
                    self.join_by_name(peer, claimed.clone(), &[at], waiting);
                }
            }
        }
    }
}

/// Returns whether the peer had no room for another handshake: it said so, or the backlog of its proof socket was
/// full.
pub(super) fn lacks_room(error: &Error, refusal: Option<RefusalCode>) -> bool {
    refusal == Some(RefusalCode::TooMany) || error.os_error == libc::EAGAIN
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::EngineId;
    use proptest::prelude::*;

    /// Makes a dial that its target's peer identifies.
    fn repeated(peer: PeerId, at: Monotonic, awaited: Option<u64>) -> RepeatedDial {
        let error = Error::new(Status::Unreachable, "");
        let awaited = awaited.map(|engine| (EngineId([0; 16]), engine));
        RepeatedDial { at, ..RepeatedDial::new(Target::Again { peer }, Vec::new(), at, error, awaited) }
    }

    fn peers(taken: Vec<RepeatedDial>) -> Vec<PeerId> {
        let peer = |it: RepeatedDial| match it.target {
            Target::Again { peer } => Some(peer),
            Target::New { .. } => None,
        };
        let mut peers: Vec<PeerId> = taken.into_iter().filter_map(peer).collect();
        peers.sort_unstable();
        peers
    }

    proptest! {
        /// Compares the crowd with a plain list.
        #[test]
        fn repeated_dials_are_found_by_time_and_by_engine(
            steps in prop::collection::vec((0..3u8, 0..6u64, 0..20u64), 0..60),
        ) {
            let (begun, mut dials, mut last) = (Monotonic::ZERO, RepeatedDials::default(), 0);
            let mut list: Vec<(PeerId, Monotonic, Option<u64>)> = Vec::new();
            for (what, engine, ms) in steps {
                let at = begun + Duration::from_millis(ms);
                let mut gone: Vec<PeerId> = Vec::new();
                match what {
                    0 => {
                        last += 1;
                        let awaited = (engine > 0).then_some(engine);
                        dials.push(repeated(PeerId::from_raw(last), at, awaited));
                        list.push((PeerId::from_raw(last), at, awaited));
                    }
                    1 => {
                        gone.extend(list.extract_if(.., |it| it.1 <= at).map(|it| it.0));
                        prop_assert_eq!(peers(dials.take_due(at)), gone);
                    }
                    _ => {
                        gone.extend(list.extract_if(.., |it| it.2 == Some(engine)).map(|it| it.0));
                        prop_assert_eq!(peers(dials.take_awaiting((EngineId([0; 16]), engine))), gone);
                    }
                }
                prop_assert_eq!(dials.next(), list.iter().map(|it| it.1).min());
                let awaited = dials.by_engine.values().map(BTreeSet::len).sum::<usize>();
                prop_assert_eq!(awaited, list.iter().filter(|it| it.2.is_some()).count());
            }
        }
    }
}
