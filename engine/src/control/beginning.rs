//! Begins sessions on authenticated connections and carries out the actions that `session::machine` decides.
//! `messages` handles the messages of a session, `ending` handles lost lanes, lost connections and lost peers.

use super::conn::{ConnState, ControlConn, Offered};
use super::dials::Target;
use super::restarts::IN_ITS_PLACE;
use super::sessions::PeerSession;
use super::Control;
use crate::complete::Fence;
use crate::handle::Tag;
use crate::loss::{Cause, Loss};
use crate::notify::EventBody;
use crate::peer::{Peer, PeerIdentity, PeerState, Posted};
use crate::session::handshake::Identity;
use crate::session::machine::{Action, Machine, Role};
use crate::status::Status;
use crate::sys::atomic::Ordering;
use crate::sys::clock;
use crate::types::{Incarnation, PeerId};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

pub(super) type Actions = Vec<Action<Posted>>;

impl Control {
    /// Returns the contents of our Start: the association with this engine that we remember, if any, and a new id.
    pub(super) fn offer(&self, theirs: &Identity) -> Offered {
        let known = self.sessions.of((theirs.engine_id, theirs.incarnation));
        let fresh = crate::sys::random_u64().max(1);
        match known.and_then(|peer| self.sessions.get(peer)) {
            Some(session) => Offered {
                peer: Some(session.peer.handle),
                association: session.peer.association_id(),
                known: session.remote_association,
                fresh,
                session_id: Some(session.session_id),
            },
            None => Offered { peer: None, association: 0, known: 0, fresh, session_id: None },
        }
    }

    /// Returns the peer object of an authenticated connection: the existing one if both ends remember it, else a new
    /// one. None if the connection is not needed.
    pub(super) fn find_session(
        &mut self,
        token: u64,
        control: &mut ControlConn,
        resumes: bool,
        fresh: u64,
    ) -> Option<PeerId> {
        let theirs = control.identity.clone();
        if let Some(old) = self.sessions.of_engine(&theirs.engine_id) {
            self.end_parted(old);
        }
        if !self.admit(control) {
            return None;
        }
        let old = self.sessions.of_engine(&theirs.engine_id);
        let same = self.sessions.of((theirs.engine_id, theirs.incarnation)).is_some();
        let is_older = old.filter(|_| same).is_some_and(|old| self.is_older(old, control));
        let is_late = |old: &PeerId| {
            resumes || self.sessions.has_role(*old, control.role) || self.sessions.is_down(*old)
        };
        if let Some(old) = old.filter(|old| is_older && is_late(old)) {
            self.leave_callers(control, old);
            return None;
        }
        if resumes {
            // The peer resumes its association, which numbers notifications. If ours was given up after our Start
            // offered it, this connection cannot be used; the Start on the next connection no longer offers it.
            let old = old.filter(|old| same && control.offered.peer == Some(*old))?;
            self.drop_connection(old, Loss::of(Cause::Closed, "the peer has connected anew"));
            self.replace_session(old, token, control);
            return Some(old);
        }
        let forerunner = self.forerunner(control);
        let known = old.or(forerunner).and_then(|known| self.sessions.get(known));
        let dial_at = known.map(|known| known.dial_at.clone()).unwrap_or_default();
        let was_reached = known.is_some_and(|known| old.is_some() && known.was_reached);
        let mut waiting = Vec::new();
        let mut predecessors = Vec::new();
        if let Some(old) = old {
            if same && self.loses_the_tie(old, control) {
                self.leave_callers(control, old);
                self.adopt_target(control, old);
                return None;
            }
            waiting = self.take_waiting(old);
            if same && !is_older {
                // The peer may still have open lanes of this session. Its Ready confirms that they are closed.
                predecessors.push(old);
            }
            self.lose(old, Status::PeerLost, None, Loss::of(Cause::Ended, IN_ITS_PLACE));
        }
        let namesake = self.namesake(control);
        let peer = self.new_session(token, control, fresh, (dial_at, was_reached))?;
        if let Some(session) = self.sessions.get_mut(peer) {
            session.predecessors = predecessors;
        }
        self.join(peer, waiting);
        if let Some(old) = forerunner {
            self.succeed(old, peer);
        }
        if let Some(other) = namesake {
            self.ping(other, None);
        }
        Some(peer)
    }

    /// Returns whether the session has a connection that began after our Start was sent on this one. The peer may have
    /// sent Ready on this connection, and then given it up, before it opened the lanes of the newer connection.
    fn is_older(&self, old: PeerId, control: &ControlConn) -> bool {
        self.sessions.get(old).is_some_and(|it| Some(it.session_id) != control.offered.session_id)
    }

    /// Returns whether this connection may become a session. Since the handshake began, the application may have
    /// fenced the peer, or the session that was to be reached again may have been given up.
    fn admit(&mut self, control: &ControlConn) -> bool {
        if let Some(Target::Again { peer }) = &control.target {
            if self.sessions.get(*peer).is_none_or(|session| session.machine.is_given_up()) {
                return false;
            }
        }
        let theirs = (control.identity.engine_id, control.identity.incarnation);
        self.lift_fence(theirs, control.target.as_ref())
    }

    /// Lifts the application's fence of this incarnation if a later `connect` by the application reached it (contract
    /// 6); a redial does not lift a fence. Returns whether the incarnation is not fenced now.
    pub(super) fn lift_fence(&mut self, theirs: Incarnation, target: Option<&Target>) -> bool {
        let asked = match target {
            Some(Target::New { asked, .. }) => Some(*asked),
            _ => None,
        };
        self.fenced.lift(&theirs, asked)
    }

    /// Releases the records of earlier peer objects as CONFIRMED. The peer said Ready, so it has closed the lanes of
    /// every earlier session, including sessions of peer objects that are lost here.
    pub(super) fn confirm_predecessors(&mut self, peer: PeerId) {
        let Some(session) = self.sessions.get_mut(peer) else { return };
        for old in std::mem::take(&mut session.predecessors) {
            let mut actions = Actions::new();
            if let Some(session) = self.sessions.get_mut(old) {
                session.ended = Some((Status::PeerLost, Fence::Confirmed));
                session.machine.give_up(Status::PeerLost, Some(Fence::Confirmed), &mut actions);
            }
            self.act(old, actions);
        }
    }

    /// Returns whether the new connection loses against the session's. If both sides dialed at once, both keep the
    /// connection that the engine with the smaller id dialed.
    fn loses_the_tie(&self, old: PeerId, control: &ControlConn) -> bool {
        let Some(session) = self.sessions.get(old).filter(|session| session.conn.is_some()) else {
            return false;
        };
        let stays = if self.context.local.engine_id < session.identity.engine_id {
            Role::Dialer
        } else {
            Role::Acceptor
        };
        session.machine.role() == stays && control.role != stays
    }

    fn replace_session(&mut self, peer: PeerId, token: u64, control: &mut ControlConn) {
        let waiting = self.adopt_target(control, peer);
        if let Some(session) = self.sessions.get_mut(peer) {
            session.move_to(token, control);
            session.waiting.extend(waiting);
        }
        self.sessions.name(peer);
    }

    /// Takes the callers that wait for this dial. If the dial was meant for another peer, `peer` replaces that peer.
    fn adopt_target(&mut self, control: &mut ControlConn, peer: PeerId) -> Vec<u64> {
        match control.target.take() {
            Some(Target::New { address, waiting, .. }) => {
                if let Some(session) = self.sessions.get_mut(peer) {
                    session.dialed = address;
                    self.sessions.name(peer);
                }
                waiting
            }
            Some(Target::Again { peer: sought }) if sought != peer => {
                // Another engine answers at the address. Its host may know whether the old process lives.
                self.succeed(sought, peer);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// `before`: where an earlier session is dialed, and whether this engine answered there.
    fn new_session(
        &mut self,
        token: u64,
        control: &mut ControlConn,
        fresh: u64,
        before: (Vec<SocketAddr>, bool),
    ) -> Option<PeerId> {
        let theirs = control.identity.clone();
        let theirs_at = control.remote.ip();
        let ours_at = control.stream.local_address().map(|address| address.ip());
        let identity = PeerIdentity {
            engine_id: theirs.engine_id,
            incarnation: theirs.incarnation,
            address: theirs.address.clone(),
            tag: Tag::from_random(theirs.tag),
            same_host: control.same_host,
            hosts: (ours_at.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), theirs_at),
            frame_bytes_max: theirs.frame_bytes_max.min(self.context.local.frame_bytes_max),
            lanes_max: theirs.lanes_max,
            reads_max: theirs.reads_max,
        };
        let engine = (theirs.engine_id, theirs.incarnation);
        let (association_id, parts) = (control.offered.fresh, self.context.engine_parts());
        self.make_room_for_a_peer();
        let made =
            self.context.peers.insert(|handle| Arc::new(Peer::new(handle, identity, association_id, parts)));
        let peer = match made {
            Ok(peer) => peer,
            Err(error) => {
                if let Some(Target::New { waiting, .. }) = control.target.take() {
                    self.dials.fail(waiting, &error);
                }
                return None;
            }
        };
        let handle = peer.handle;
        self.lanes.add(peer.clone());
        let machine = Machine::new(control.role, self.timing(), clock::monotonic_ns());
        let reached = control.dialed_at().map_or(before, |at| (vec![at], true));
        let session = PeerSession::new(peer, machine, (token, control), reached, fresh);
        self.sessions.insert(handle, session);
        let waiting = self.adopt_target(control, handle);
        self.sessions.name(handle);
        self.join(handle, waiting);
        self.take_awaiting(handle, engine);
        Some(handle)
    }

    /// Begins the transports and announces our regions: the session's connection stands.
    pub(super) fn started(&mut self, peer: PeerId, token: u64) {
        let Some(ConnState::Control(control)) = self.conns.get_mut(&token).map(|conn| &mut conn.state) else {
            return;
        };
        let (role, pidfd, clock_ns) = (control.role, control.pidfd.take(), control.identity.boottime_ns);
        let Some(session) = self.sessions.get_mut(peer) else { return };
        session.peer.clock.sample(clock_ns, clock::boottime_ns());
        session.peer.remote.renew();
        if let Some(pidfd) = pidfd {
            self.watch_process(peer, pidfd);
        }
        if let Some(session) = self.sessions.get_mut(peer) {
            session.machine.connected(clock::monotonic_ns(), role);
        }
        self.begin_transports(peer, role == Role::Dialer);
        self.announce_all(peer);
        self.touch(peer);
        self.probe_again(peer);
        self.ask_for_forerunners(peer);
    }

    /// Carries out the machine's actions and sets its next alarm.
    pub(super) fn act(&mut self, peer: PeerId, actions: Actions) {
        let mut queue: VecDeque<Action<Posted>> = actions.into();
        while let Some(action) = queue.pop_front() {
            match action {
                Action::Send(message) => self.send(peer, message),
                Action::Dial => self.redial(peer),
                Action::DrainOver(transfer) => self.drain_over(peer, transfer),
                Action::Release(records, fence) => self.release(peer, records, fence),
                Action::Up => self.up(peer),
                Action::DropControl => {
                    let text = "the peer did not answer in time on the control connection";
                    self.drop_connection(peer, Loss::of(Cause::Silent, text))
                }
                Action::GiveUp(status) => self.given_up(peer, status),
            }
        }
        self.touch(peer);
    }

    fn up(&mut self, peer: PeerId) {
        let Some(session) = self.sessions.get_mut(peer) else { return };
        session.peer.set_state(PeerState::Up);
        session.peer.stats.sessions.fetch_add(1, Ordering::Relaxed);
        self.context.stats.sessions_up.fetch_add(1, Ordering::Relaxed);
        let again = std::mem::replace(&mut session.was_up, true);
        session.peer.event(EventBody::PeerUp { again });
        session.peer.post_all();
        self.answer_connects(peer);
    }

    /// Updates the session's alarm after a change, and removes the session when nothing depends on it any more.
    pub(super) fn touch(&mut self, peer: PeerId) {
        let lanes = self.lanes.next_timer(peer);
        let Some(session) = self.sessions.get_mut(peer) else { return };
        if !session.is_over() {
            let next = session.machine.next_timer().into_iter().chain(lanes).min();
            return self.sessions.set_alarm(peer, next);
        }
        let Some(session) = self.sessions.remove(peer) else { return };
        session.peer.set_tcp_path(None);
        if let Some(oldest) = self.sessions.lost.retire(peer) {
            let _ = self.context.peers.remove(oldest);
        }
        session.closing.into_iter().for_each(|reply| reply.send(Ok(())));
    }
}
