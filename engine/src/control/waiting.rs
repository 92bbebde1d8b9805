//! Conditions that callers of `connect` wait for: a session that is UP, a peer that has room for another handshake, or
//! a peer that dials us at the same time. `Dials` has the callers; `dial` passes them on to this file.

use super::conn::{ConnState, ControlConn};
use super::dials::{RepeatedDial, Target};
use super::Control;
use crate::status::{Error, Status};
use crate::types::{Incarnation, Monotonic, PeerId};
use std::net::SocketAddr;

impl Control {
    /// Adds callers to a dial in progress, or to a connection whose session is about to begin. Returns the callers if
    /// there is none. `since`: as `asked` in `Target::New`.
    pub(super) fn wait_with(
        &mut self,
        address: &str,
        resolved: &[SocketAddr],
        since: u64,
        deadline: Monotonic,
        callers: Vec<u64>,
    ) -> Option<Vec<u64>> {
        for token in self.dials.pending_at(address, resolved) {
            let target = match self.conns.get_mut(&token).map(|conn| &mut conn.state) {
                Some(ConnState::Dialing(dialing)) => {
                    dialing.deadline = dialing.deadline.max(deadline);
                    &mut dialing.target
                }
                // The peer dialed us.
                Some(ConnState::Control(control)) => control.target.get_or_insert_with(|| Target::New {
                    address: address.to_owned(),
                    asked: since,
                    waiting: Vec::new(),
                }),
                _ => continue,
            };
            if let Target::New { asked, waiting, .. } = target {
                *asked = since.max(*asked);
                waiting.extend(callers);
                return None;
            }
        }
        Some(callers)
    }

    /// Adds callers of `connect` that get the session's peer, now or when the session is UP.
    pub(super) fn join(&mut self, peer: PeerId, waiting: Vec<u64>) {
        let Some(session) = self.sessions.get_mut(peer) else { return };
        session.waiting.extend(waiting);
        self.answer_connects(peer);
    }

    /// Answers the callers that wait for the session when it is UP, every transport has reported whether a path exists,
    /// and the lane that a transfer would need is attached.
    pub(super) fn answer_connects(&mut self, peer: PeerId) {
        let mask = self.services_mask();
        let has_lane = self.has_lane_it_needs(peer);
        let Some(session) = self.sessions.get_mut(peer) else { return };
        if session.machine.is_up() && session.paths_settled & mask == mask && has_lane {
            let waiting = std::mem::take(&mut session.waiting);
            self.dials.answer(waiting, &Ok(peer));
        }
    }

    /// Answers the callers that waited for a connection on which no session began. They get the session that the peer
    /// has of another connection, if any.
    pub(super) fn not_begun(&mut self, control: &mut ControlConn, error: Error) {
        if let Some(peer) = self.sessions.of((control.identity.engine_id, control.identity.incarnation)) {
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
        self.sessions.get_mut(peer).map(|session| std::mem::take(&mut session.waiting)).unwrap_or_default()
    }

    /// Dials for the callers that waited for a session which is lost: another engine, or the restarted one, may listen
    /// there by now. `dial_at`: the addresses of the lost session. If there are none, the callers' names are looked up.
    pub(super) fn connect_again(&mut self, waiting: Vec<u64>, dial_at: Vec<SocketAddr>, error: Error) {
        let asked = self.dials.asked(waiting);
        let Some((_, address, _)) = asked.first() else { return };
        if dial_at.is_empty() {
            let fences = self.fenced.count();
            let look_up = |(caller, address, until)| self.dials.look_up(address, until, caller, fences);
            return asked.into_iter().for_each(look_up);
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
        let Some(session) = self.sessions.get_mut(peer) else { return };
        session.peer.ask_if_silent();
        if !session.was_reached && !at.is_empty() {
            session.dial_at = at.to_vec();
        }
        if !session.dial_at.is_empty() {
            session.machine.dial_too();
        }
        if session.dialed.is_empty() {
            session.dialed = address;
            self.sessions.name(peer);
        }
        self.touch(peer);
        self.join(peer, waiting);
    }

    /// Repeats a dial after its pause, if its deadline has not passed by then. If the engine dials us and its session
    /// exists already, the callers get that session; it is found by engine id and incarnation.
    pub(super) fn repeat_dial(&mut self, repeated: RepeatedDial) {
        let here = repeated.awaited.and_then(|engine| self.sessions.of(engine));
        match (here, repeated) {
            (Some(peer), RepeatedDial { target: Target::New { address, waiting, .. }, addresses, .. }) => {
                self.join_by_name(peer, address, &addresses, waiting)
            }
            (_, RepeatedDial { at, target, deadline, mut error, awaited, .. }) if at >= deadline => {
                if awaited.is_some() {
                    error.status = Status::Timeout;
                    error.message += ": the peer dials this engine, but its session did not come";
                }
                self.dial_failed(target, error, None)
            }
            (_, repeated) => self.dials.repeat(repeated),
        }
    }

    pub(super) fn dial_again(&mut self, now: Monotonic) {
        for repeated in self.dials.due(now) {
            match repeated.awaited.and_then(|engine| self.sessions.of(engine)) {
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
        for RepeatedDial { target, addresses, .. } in self.dials.take_awaiting(engine) {
            if let Target::New { address, waiting, .. } = target {
                self.join_by_name(peer, address, &addresses, waiting);
            }
        }
        let Some(session) = self.sessions.get(peer) else { return };
        let (claimed, ip) = (session.identity.address.clone(), session.remote.ip());
        for token in self.dials.pending_at(&claimed, &[]) {
            let Some(ConnState::Dialing(dialing)) = self.conns.get_mut(&token).map(|conn| &mut conn.state)
            else {
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
