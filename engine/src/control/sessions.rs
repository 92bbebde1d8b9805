//! Sessions: from an authenticated connection to a peer that carries transfers, and back down when
//! something fails. `session::machine` decides; here its actions are carried out.
//! `messages` has what the two ends say to each other meanwhile, `ending` what becomes of a session that is lost
//! or given up.

use super::announce::Hearing;
use super::conn::{ControlConn, Offered, State, Target};
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
use crate::sys::clock;
use crate::types::{Monotonic, PeerId};
use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::Arc;

pub(super) type Actions = Vec<Action<Posted>>;

/// A peer and all that its session needs; lives as long as the peer can matter.
pub struct PeerSession {
    pub peer: Arc<Peer>,
    pub machine: Machine<Posted>,
    pub identity: Identity,
    pub session_id: [u8; 16],
    pub lane_key: [u8; 32],
    pub(super) lane_numbers: Arc<LaneNumbers>,
    pub remote: SocketAddr,
    /// The address given to `connect`, "" for those who came to us.
    pub dialed: String,
    /// The control connection, while there is one.
    pub conn: Option<u64>,
    /// Callers of `connect` that wait for the session to be up.
    pub waiting: Vec<u64>,
    /// Lanes that we dialed and that the peer has not welcomed: their connections. They end with the session's.
    pub(super) greetings: HashMap<u32, u64>,
    /// Peers whose place this one took while the process behind them may have been the same: it has let go of them
    /// when it says Ready.
    predecessors: Vec<PeerId>,
    /// The peer's name for its memory of us.
    remote_link: u64,
    pub(super) hearing: Hearing,
    pub(super) probes: Vec<(u64, Monotonic, Reply<u64>)>,
    pub(super) closing: Vec<Reply<()>>,
    pub(super) pidfd: Option<u64>,
    /// Lanes of services that are closed soon; whether the peer waits to hear of it, on this connection.
    pub(super) late_lanes: HashMap<u32, bool>,
    /// Why it was given up, and what stands behind that.
    pub(super) ended: Option<(Status, Fence)>,
    was_up: bool,
    /// The transports beside TCP of which it is known whether there is a path: a mask.
    pub paths_settled: u64,
    /// Whether such a path broke for a reason unknown, and the peer has not answered since.
    pub path_broken: bool,
    pub is_proven: bool,
    /// Lost peers whose engines stood where this one's stands: other engines, unlike the predecessors.
    pub forerunners: Vec<PeerId>,
}

impl PeerSession {
    /// The session, as transports know it.
    pub(super) fn session_info(&self, dialer: bool) -> SessionInfo {
        SessionInfo {
            peer: self.peer.clone(),
            dialer,
            session_id: self.session_id,
            key: self.lane_key,
            lane_numbers: self.lane_numbers.clone(),
        }
    }
}

impl Control {
    /// What our Start says to this engine: which memory of it we have.
    pub(super) fn offer(&self, theirs: &Identity) -> Offered {
        let known = self.by_engine.get(&theirs.engine_id).and_then(|peer| self.sessions.get(peer));
        let fresh = crate::sys::random_u64().max(1);
        match known.filter(|session| {
            session.identity.incarnation == theirs.incarnation && !session.machine.is_given_up()
        }) {
            Some(session) => Offered {
                peer: Some(session.peer.handle),
                association: session.peer.association_id(),
                known: session.remote_link,
                fresh,
            },
            None => Offered { peer: None, association: 0, known: 0, fresh },
        }
    }

    /// The peer object of an authenticated connection: the one we both remember, or a new one.
    pub(super) fn find_session(
        &mut self,
        token: u64,
        control: &mut ControlConn,
        resumes: bool,
        fresh: u64,
    ) -> Option<PeerId> {
        let theirs = control.identity.clone();
        if !self.is_wanted(control) {
            return None;
        }
        let old = self.by_engine.get(&theirs.engine_id).copied();
        let same = old.and_then(|old| self.sessions.get(&old)).is_some_and(|session| {
            session.identity.incarnation == theirs.incarnation && !session.machine.is_given_up()
        });
        if resumes {
            // The peer goes on with its memory of us, in which notifications are numbered. Without ours, which has
            // been given up since we said that we have it, this connection is of no use: the next one says so.
            let old = old.filter(|old| same && control.offered.peer == Some(*old))?;
            self.drop_connection(old, Loss::told(Cause::Closed, "the peer has connected anew"));
            self.replace_session(old, token, control);
            return Some(old);
        }
        let mut waiting = Vec::new();
        let mut predecessors = Vec::new();
        if let Some(old) = old {
            if same && self.loses_the_tie(old, control) {
                let waiting = self.adopt_target(control, old);
                self.join(old, waiting);
                return None;
            }
            waiting = self.take_waiting(old);
            if same {
                // It may remember this session yet, with lanes that stand. When it says Ready it has closed them.
                predecessors.push(old);
            }
            self.lose(old, Status::PeerLost, None, Loss::told(Cause::Ended, IN_ITS_PLACE));
        }
        let forerunner = self.forerunner(control);
        let peer = self.new_session(token, control, fresh)?;
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
        Some(peer)
    }

    /// Whether a session may come of this connection: the application may have fenced the peer, or given up the one
    /// that was to be reached again, since the handshake began.
    fn is_wanted(&mut self, control: &ControlConn) -> bool {
        if let Some(Target::Again { peer }) = &control.target {
            if self.sessions.get(peer).is_none_or(|session| session.machine.is_given_up()) {
                return false;
            }
        }
        let theirs = (control.identity.engine_id, control.identity.incarnation);
        let Some(&fence) = self.fenced.get(&theirs) else { return true };
        // To connect to a peer is how the application lifts a fence that it put up before.
        let lifts = matches!(&control.target, Some(Target::New { asked, .. }) if *asked >= fence);
        if lifts {
            self.fenced.remove(&theirs);
        }
        lifts
    }

    /// The peer says Ready: it has closed the lanes of each earlier session, also of those that it shared with a peer
    /// object that is lost here.
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

    /// Two connections that were dialed from both sides at once came this far: both ends keep the one
    /// that the engine with the smaller id dialed.
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

    /// The peer of this engine's incarnation, if its session is up.
    pub(super) fn live_session(&self, theirs: &Identity) -> Option<PeerId> {
        let peer = *self.by_engine.get(&theirs.engine_id)?;
        let session = self.sessions.get(&peer)?;
        (session.identity.incarnation == theirs.incarnation && session.machine.is_up()).then_some(peer)
    }

    fn replace_session(&mut self, peer: PeerId, token: u64, control: &mut ControlConn) {
        let waiting = self.adopt_target(control, peer);
        if let Some(session) = self.sessions.get_mut(&peer) {
            session.conn = Some(token);
            self.by_session_id.remove(&session.session_id);
            self.by_session_id.insert(control.session_id, peer);
            session.session_id = control.session_id;
            session.lane_key = control.lane_key;
            // Where it listens was noted when the session began, and is forgotten with it.
            session.identity = Identity { place: session.identity.place, ..control.identity.clone() };
            session.is_proven = control.is_proven;
            if control.role == Role::Dialer {
                session.remote = control.remote;
            }
            session.waiting.extend(waiting);
        }
        self.name_session(peer);
    }

    /// Who waits for this dial; and what becomes of the peer it was meant for, if that is another one.
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
                // The address answers as somebody else. Whether the old process lives, that one may know.
                self.succeed(sought, peer);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn new_session(&mut self, token: u64, control: &mut ControlConn, fresh: u64) -> Option<PeerId> {
        let theirs = control.identity.clone();
        let theirs_at = control.remote.ip();
        let ours_at = control.stream.local_address().map(|address| address.ip());
        let identity = PeerIdentity {
            engine_id: theirs.engine_id,
            incarnation: theirs.incarnation,
            address: theirs.address.clone(),
            tag: Tag::from_random(theirs.tag),
            same_host: theirs_at.is_loopback() || Some(theirs_at) == ours_at,
            hosts: (ours_at.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), theirs_at),
            frame_bytes_max: theirs.frame_bytes_max.min(self.context.local.frame_bytes_max),
            lanes_max: theirs.lanes_max,
            reads_max: theirs.reads_max,
        };
        let engine = (theirs.engine_id, theirs.incarnation);
        let (association_id, around) = (control.offered.fresh, self.context.surroundings());
        let made = self
            .context
            .peers
            .insert(|handle| Arc::new(Peer::new(PeerId::from_raw(handle), identity, association_id, around)));
        let peer = match made {
            Ok(peer) => peer,
            Err(error) => {
                if let Some(Target::New { waiting, .. }) = control.target.take() {
                    self.callers.fail(waiting, &error);
                }
                return None;
            }
        };
        let handle = peer.handle;
        self.tcp.add(peer.clone());
        let machine = Machine::new(control.role, self.timing(), clock::monotonic_ns());
        let session = PeerSession {
            peer,
            machine,
            session_id: control.session_id,
            lane_key: control.lane_key,
            lane_numbers: Arc::default(),
            remote: control.remote,
            dialed: String::new(),
            conn: Some(token),
            waiting: Vec::new(),
            greetings: HashMap::new(),
            predecessors: Vec::new(),
            remote_link: fresh,
            hearing: Hearing::default(),
            probes: Vec::new(),
            closing: Vec::new(),
            pidfd: None,
            late_lanes: HashMap::new(),
            ended: None,
            was_up: false,
            paths_settled: 0,
            path_broken: false,
            is_proven: control.is_proven,
            forerunners: Vec::new(),
            identity: theirs,
        };
        self.sessions.insert(handle, session);
        self.by_session_id.insert(control.session_id, handle);
        let waiting = self.adopt_target(control, handle);
        self.name_session(handle);
        self.join(handle, waiting);
        self.take_awaiting(handle, engine);
        Some(handle)
    }

    /// The connection of a session is in place: open lanes, tell our regions.
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
        self.tell_all(peer);
        self.touch(peer);
        self.probe_again(peer);
        self.ask_for_forerunners(peer);
    }

    /// Carries out what the machine decided, and sets its next alarm.
    pub(super) fn act(&mut self, peer: PeerId, actions: Actions) {
        let mut queue: VecDeque<Action<Posted>> = actions.into();
        while let Some(action) = queue.pop_front() {
            match action {
                Action::Send(message) => self.say(peer, message),
                Action::Dial => self.redial(peer),
                Action::DrainOver(transfer) => self.drain_over(peer, transfer),
                Action::Release(records, fence) => self.release(peer, records, fence),
                Action::Up => self.up(peer),
                Action::DropControl => {
                    let text = "the peer did not answer in time on the control connection";
                    self.drop_connection(peer, Loss::told(Cause::Silent, text))
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
        if !std::mem::replace(&mut session.was_up, true) {
            session.peer.event(EventBody::PeerUp);
        }
        session.peer.post_all();
        self.answer_connects(peer);
    }

    /// The session changed: set its alarm anew; forget it when nothing depends on it any more.
    pub(super) fn touch(&mut self, peer: PeerId) {
        let lanes = self.tcp.next_timer(peer);
        let Some(session) = self.sessions.get_mut(&peer) else { return };
        let is_idle = session.machine.is_idle() && session.late_lanes.is_empty();
        let over = session.machine.is_given_up() && is_idle && session.peer.active() == 0;
        let next = if over { None } else { session.machine.next_timer().into_iter().chain(lanes).min() };
        self.alarms.set(peer, next);
        if over {
            if let Some(session) = self.sessions.remove(&peer) {
                self.by_session_id.remove(&session.session_id);
                self.looks.set(peer, None);
                session.peer.set_tcp_path(None);
                session.closing.into_iter().for_each(|reply| reply.send(Ok(())));
                self.retire(peer);
            }
        }
    }
}
