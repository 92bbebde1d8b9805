//! Begins sessions on authenticated connections and carries out the actions that `session::machine` decides.
//! `messages` handles the messages of a session, `ending` handles lost lanes, lost connections and lost peers.

use super::announce::Announced;
use super::conn::{ControlConn, Offered, State};
use super::dials::Target;
use super::restarts::IN_ITS_PLACE;
use super::Control;
use crate::command::Reply;
use crate::complete::Fence;
use crate::handle::Tag;
use crate::loss::{Cause, Loss};
use crate::notify::EventBody;
use crate::peer::{LaneNumbers, Peer, PeerIdentity, PeerState, Posted, SessionInfo};
use crate::session::handshake::Identity;
use crate::session::machine::{Action, Machine, Role};
use crate::status::Status;
use crate::sys::atomic::Ordering;
use crate::sys::clock;
use crate::sys::map::HashMap;
use crate::types::{Incarnation, LaneId, Monotonic, PeerId, SessionId};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

pub(super) type Actions = Vec<Action<Posted>>;

/// A peer and the state of its session. Removed when the session is given up and nothing waits for its records.
pub struct PeerSession {
    pub peer: Arc<Peer>,
    pub machine: Machine<Posted>,
    pub identity: Identity,
    pub session_id: SessionId,
    pub lane_key: [u8; 32],
    pub(super) lane_numbers: Arc<LaneNumbers>,
    pub remote: SocketAddr,
    /// Where this side dials the session again. Empty if it does not know where the peer listens.
    pub dial_at: Vec<SocketAddr>,
    /// This side has dialed there, and this engine answered.
    pub was_reached: bool,
    /// The address given to `connect`; empty if the peer dialed us.
    pub dialed: String,
    /// The token of the control connection, while the connection stands.
    pub conn: Option<u64>,
    /// Callers of `connect` that wait for the session to be up.
    pub waiting: Vec<u64>,
    /// Earlier peer objects of this engine's incarnation. The peer's Ready confirms that their lanes are closed.
    predecessors: Vec<PeerId>,
    /// The peer's association id for us, which our next Start repeats.
    remote_association: u64,
    pub(super) announced: Announced,
    pub(super) probes: Vec<(u64, Monotonic, Reply<u64>)>,
    pub(super) closing: Vec<Reply<()>>,
    pub(super) pidfd: Option<u64>,
    /// Lanes that are being closed (`Closed::Soon`); true if the peer asked for their fence on this connection.
    pub(super) late_lanes: HashMap<LaneId, bool>,
    /// Why the session was given up, and the fence that holds for its records.
    pub(super) ended: Option<(Status, Fence)>,
    /// The peer has said Bye, and the session ends when its lanes have received what arrived before.
    pub(super) has_parted: bool,
    /// The application was told that the session is up.
    pub(super) was_up: bool,
    /// Mask of the transports other than TCP that have reported whether a path exists.
    pub paths_settled: u64,
    /// True if a path broke for an unknown reason and the peer has not answered since.
    pub path_broken: bool,
    pub is_proven: bool,
    /// Lost peers whose engines were at the place or address of this one: other engines, unlike `predecessors`.
    pub forerunners: Vec<PeerId>,
}

impl PeerSession {
    /// Returns what transports need to know of the session.
    pub(super) fn session_info(&self, dialer: bool) -> SessionInfo {
        SessionInfo {
            peer: self.peer.clone(),
            dialer,
            session_id: self.session_id,
            remote: self.remote,
            key: self.lane_key,
            lane_numbers: self.lane_numbers.clone(),
        }
    }
}

impl Control {
    /// Returns the contents of our Start: the association with this engine that we remember, if any, and a new id.
    pub(super) fn offer(&self, theirs: &Identity) -> Offered {
        let known = self.by_engine.get(&theirs.engine_id).and_then(|peer| self.sessions.get(peer));
        let fresh = crate::sys::random_u64().max(1);
        match known.filter(|session| {
            session.identity.incarnation == theirs.incarnation && !session.machine.is_given_up()
        }) {
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
        if let Some(old) = self.by_engine.get(&theirs.engine_id).copied() {
            self.end_parted(old);
        }
        if !self.admit(control) {
            return None;
        }
        let old = self.by_engine.get(&theirs.engine_id).copied();
        let same = old.and_then(|old| self.sessions.get(&old)).is_some_and(|session| {
            session.identity.incarnation == theirs.incarnation && !session.machine.is_given_up()
        });
        let is_older = old.filter(|_| same).is_some_and(|old| self.is_older(old, control));
        let is_late = |old: &PeerId| resumes || self.has_role(*old, control.role) || self.is_down(*old);
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
        let known = old.or(forerunner).and_then(|known| self.sessions.get(&known));
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
        self.by_engine.insert(theirs.engine_id, peer);
        if let Some(place) = theirs.place {
            self.by_place.insert(place, peer);
        }
        if let Some(session) = self.sessions.get_mut(&peer) {
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
        self.sessions.get(&old).is_some_and(|it| Some(it.session_id) != control.offered.session_id)
    }

    pub(super) fn has_role(&self, peer: PeerId, role: Role) -> bool {
        self.sessions.get(&peer).is_some_and(|session| session.machine.role() == role)
    }

    /// Returns whether this connection may become a session. Since the handshake began, the application may have
    /// fenced the peer, or the session that was to be reached again may have been given up.
    fn admit(&mut self, control: &ControlConn) -> bool {
        if let Some(Target::Again { peer }) = &control.target {
            if self.sessions.get(peer).is_none_or(|session| session.machine.is_given_up()) {
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
        let Some(session) = self.sessions.get_mut(&peer) else { return };
        for old in std::mem::take(&mut session.predecessors) {
            let mut actions = Actions::new();
            if let Some(session) = self.sessions.get_mut(&old) {
                session.ended = Some((Status::PeerLost, Fence::Confirmed));
                session.machine.give_up(Status::PeerLost, Some(Fence::Confirmed), &mut actions);
            }
            self.act(old, actions);
        }
    }

    /// Returns whether the new connection loses against the session's. If both sides dialed at once, both keep the
    /// connection that the engine with the smaller id dialed.
    fn loses_the_tie(&self, old: PeerId, control: &ControlConn) -> bool {
        let Some(session) = self.sessions.get(&old).filter(|session| session.conn.is_some()) else {
            return false;
        };
        let stays = if self.context.local.engine_id < session.identity.engine_id {
            Role::Dialer
        } else {
            Role::Acceptor
        };
        session.machine.role() == stays && control.role != stays
    }

    /// Returns whether the session waits for a connection.
    pub(super) fn is_down(&self, peer: PeerId) -> bool {
        self.sessions
            .get(&peer)
            .is_some_and(|session| session.conn.is_none() && !session.machine.is_given_up())
    }

    fn replace_session(&mut self, peer: PeerId, token: u64, control: &mut ControlConn) {
        let waiting = self.adopt_target(control, peer);
        if let Some(session) = self.sessions.get_mut(&peer) {
            session.conn = Some(token);
            session.session_id = control.session_id;
            session.lane_key = control.lane_key;
            // `by_place` has the place from the session's beginning, and the session's end removes that place.
            session.identity = Identity { place: session.identity.place, ..control.identity.clone() };
            session.is_proven = control.is_proven;
            if let Some(at) = control.dialed_at() {
                session.remote = at;
                (session.dial_at, session.was_reached) = (vec![at], true);
            }
            session.waiting.extend(waiting);
        }
        self.name_session(peer);
    }

    /// Takes the callers that wait for this dial. If the dial was meant for another peer, `peer` replaces that peer.
    fn adopt_target(&mut self, control: &mut ControlConn, peer: PeerId) -> Vec<u64> {
        match control.target.take() {
            Some(Target::New { address, waiting, .. }) => {
                if let Some(session) = self.sessions.get_mut(&peer) {
                    session.dialed = address;
                    self.name_session(peer);
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
        let (dial_at, was_reached) = control.dialed_at().map_or(before, |at| (vec![at], true));
        let session = PeerSession {
            peer,
            machine,
            session_id: control.session_id,
            lane_key: control.lane_key,
            lane_numbers: Arc::default(),
            remote: control.remote,
            dial_at,
            was_reached,
            dialed: String::new(),
            conn: Some(token),
            waiting: Vec::new(),
            predecessors: Vec::new(),
            remote_association: fresh,
            announced: Announced::default(),
            probes: Vec::new(),
            closing: Vec::new(),
            pidfd: None,
            late_lanes: HashMap::default(),
            ended: None,
            has_parted: false,
            was_up: false,
            paths_settled: 0,
            path_broken: false,
            is_proven: control.is_proven,
            forerunners: Vec::new(),
            identity: theirs,
        };
        self.sessions.insert(handle, session);
        let waiting = self.adopt_target(control, handle);
        self.name_session(handle);
        self.join(handle, waiting);
        self.take_awaiting(handle, engine);
        Some(handle)
    }

    /// Begins the transports and announces our regions: the session's connection stands.
    pub(super) fn started(&mut self, peer: PeerId, token: u64) {
        let Some(State::Control(control)) = self.conns.get_mut(&token).map(|conn| &mut conn.state) else {
            return;
        };
        let (role, pidfd, clock_ns) = (control.role, control.pidfd.take(), control.identity.boottime_ns);
        let Some(session) = self.sessions.get_mut(&peer) else { return };
        session.peer.clock.sample(clock_ns, clock::boottime_ns());
        session.peer.remote.renew();
        if let Some(pidfd) = pidfd {
            self.watch_process(peer, pidfd);
        }
        if let Some(session) = self.sessions.get_mut(&peer) {
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
        let Some(session) = self.sessions.get_mut(&peer) else { return };
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
        let Some(session) = self.sessions.get_mut(&peer) else { return };
        let is_idle = session.machine.is_idle() && session.late_lanes.is_empty();
        let over = session.machine.is_given_up() && is_idle && session.peer.active() == 0;
        let next = if over { None } else { session.machine.next_timer().into_iter().chain(lanes).min() };
        self.alarms.set(peer, next);
        if over {
            if let Some(session) = self.sessions.remove(&peer) {
                self.checks.set(peer, None);
                session.peer.set_tcp_path(None);
                self.retire(peer);
                session.closing.into_iter().for_each(|reply| reply.send(Ok(())));
            }
        }
    }
}
