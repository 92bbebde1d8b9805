//! The `TransportService` of TCP: each session's lanes, from opening to closing. `opening` decides which lanes to open,
//! `greetings` dials them. `control` polls their connections until they are attached, and hands over those that greet.

use super::greetings::{Dial, Dialed, Greetings};
use super::lane::{Closing, Lane, LaneSpec};
use super::opening::{self, LaneStep, Opening, Pauses};
use super::path::TcpPath;
use super::wire;
use super::worker::Workers;
use crate::command::Command;
use crate::config::Congestion;
use crate::context::Context;
use crate::limits::{LANES_MAX, LATE_LANES_MAX};
use crate::loss::{Cause, Failure, Loss};
use crate::peer::transport::{LaneService, Parting};
use crate::peer::{Closed, LaneNumbers, Path, Peer, SessionInfo, TransportService};
use crate::session::greeting::{Greeting, GREETING_BYTES};
use crate::status::Result;
use crate::sys::atomic::{AtomicU64, Ordering};
use crate::sys::fd::OwnedFd;
use crate::sys::lock::{Mutex, MutexGuard};
use crate::sys::map::HashMap;
use crate::sys::poller::Poller;
use crate::sys::stream::Stream;
use crate::sys::{clock, socket};
use crate::types::{Boottime, LaneId, Monotonic, PeerId, SessionId, TransferId, Transport};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

/// The longest pause before a lane is dialed again.
const PAUSE_NS_MAX: u64 = 1_000_000_000;
/// How long the lanes of a session that ends may take to send or receive the last bytes.
const PARTING_NS: u64 = 1_000_000_000;

pub struct TcpService {
    context: Arc<Context>,
    workers: Arc<Workers>,
    sessions: Mutex<HashMap<PeerId, Session>>,
    /// Sessions by the id that the greetings of their lanes carry.
    by_id: Mutex<HashMap<SessionId, PeerId>>,
    greetings: Mutex<Greetings>,
    /// Lanes that are closed and that a thread still uses, by their peers. They outlive their session.
    late: Mutex<HashMap<PeerId, Vec<Arc<Lane>>>>,
    /// The peers whose lanes are parting, and until when.
    partings: Mutex<HashMap<PeerId, Monotonic>>,
    next_token: AtomicU64,
}

struct Session {
    peer: Arc<Peer>,
    path: Arc<TcpPath>,
    opening: Opening,
    lanes: HashMap<LaneId, Arc<Lane>>,
    dialed: bool,
    id: SessionId,
    remote: SocketAddr,
    key: [u8; 32],
    numbers: Arc<LaneNumbers>,
}

impl Session {
    /// Returns the session of a peer that is not connected.
    fn new(peer: Arc<Peer>, path: Arc<TcpPath>, opening: Opening) -> Session {
        Session {
            peer,
            path,
            opening,
            lanes: HashMap::default(),
            dialed: false,
            id: SessionId::default(),
            remote: (Ipv4Addr::UNSPECIFIED, 0).into(),
            key: [0; 32],
            numbers: Arc::default(),
        }
    }

    /// Returns whether a lane with this greeting may be attached.
    fn takes(&self, greeting: &Greeting) -> bool {
        greeting.session_id == self.id
            && self.numbers.is_free(greeting.lane)
            && self.opening.takes(greeting.slot, greeting.lane)
    }
}

impl TcpService {
    /// `poller`: the control loop's, which reports the events of connections that greet.
    pub fn new(context: Arc<Context>, workers: Arc<Workers>, poller: Arc<Poller>) -> TcpService {
        let (sessions, by_id, late, partings) = Default::default();
        let greetings = Mutex::new(Greetings::new(poller));
        let next_token = AtomicU64::new(1);
        TcpService { context, workers, sessions, by_id, greetings, late, partings, next_token }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PeerId, Session>> {
        self.sessions.lock()
    }

    fn with<T>(&self, peer: PeerId, body: impl FnOnce(&mut Session) -> T) -> Option<T> {
        self.lock().get_mut(&peer).map(body)
    }

    fn carry_out(&self, session: &mut Session, steps: impl IntoIterator<Item = LaneStep>) {
        for step in steps {
            match step {
                LaneStep::Open(slot) => self.dial(session, slot),
                LaneStep::Ask(kinds) => session.peer.engine().commands.push(Command::ServiceMessage {
                    peer: session.peer.handle,
                    session_id: session.id,
                    transport: Transport::Tcp,
                    body: opening::ask(kinds),
                    why: String::new(),
                }),
            }
        }
    }

    fn dial(&self, session: &mut Session, slot: u32) {
        let config = &self.context.config;
        let greeting = Greeting { session_id: session.id, lane: session.numbers.draw(), slot };
        let dialed = self.greetings.lock().dial(Dial {
            peer: session.peer.handle,
            remote: session.remote,
            key: session.key,
            greeting,
            buffer_bytes: config.socket_buffer_bytes as usize,
            deadline: clock::monotonic_ns() + Duration::from_millis(config.handshake_timeout_ms),
        });
        if let Err(failure) = dialed {
            self.not_opened(session, &greeting, failure);
        }
    }

    /// Handles a lane that could not be opened. `opening` tries another lane later.
    fn not_opened(&self, session: &mut Session, greeting: &Greeting, failure: Failure) {
        let text = format!("TCP lane {}, to {}", greeting.lane, session.remote);
        session.peer.note_loss(Loss::new(failure, &text));
        session.opening.failed(clock::monotonic_ns(), greeting.slot);
        // Another engine may listen there now, while the control connection to the old engine is silent. Only an
        // unanswered Ping shows that. The check of a waiting transfer would send a Ping, but perhaps none waits.
        self.context.commands.push(Command::Ask { peer: session.peer.handle });
    }

    /// Attaches a lane whose greeting is complete, if the session still accepts the lane.
    fn attach(&self, peer: PeerId, greeting: &Greeting, socket: OwnedFd) -> Option<PeerId> {
        let lane = self.with(peer, |session| {
            let made = self.make_lane(session, greeting, socket);
            made.map_err(|failure| {
                if session.dialed {
                    self.not_opened(session, greeting, failure);
                }
            })
        });
        let lane = lane?.ok()?;
        if lane.is_express() {
            lane.send(&mut lane.peer.after());
        } else {
            lane.kick();
        }
        Some(peer)
    }

    fn make_lane(
        &self,
        session: &mut Session,
        greeting: &Greeting,
        socket: OwnedFd,
    ) -> std::result::Result<Arc<Lane>, Failure> {
        let Greeting { lane: id, slot, .. } = *greeting;
        let peer = session.peer.handle;
        if self.has_too_many_late(peer) || !session.takes(greeting) || !session.numbers.take(id) {
            return Err(Failure::new(Cause::Ours, "the session has ended, or takes no such lane now"));
        }
        self.tune(&socket, session.peer.identity.is_near());
        let spec = LaneSpec {
            id,
            slot,
            socket,
            send_key: wire::lane_key(&session.key, id, session.dialed),
            receive_key: wire::lane_key(&session.key, id, !session.dialed),
            peer_reads_max: session.peer.identity.reads_max,
            frame_bytes_max: session.peer.identity.frame_bytes_max,
        };
        let worker = self.workers.of(peer.raw() as u32, slot).clone();
        let (context, token) = (self.context.clone(), self.next_token.fetch_add(1, Ordering::Relaxed));
        let lane = Arc::new(Lane::new(spec, session.peer.clone(), context, worker.clone(), token));
        worker.add(&lane).map_err(|error| Failure::system("watching the socket", &error))?;
        if let Some(older) = session.path.get(slot) {
            // The peer lost the older lane, and this engine has not noticed.
            let loss = Loss::of(Cause::Closed, "the peer replaced the lane by another lane");
            self.context.commands.push(Command::LaneLost { peer, lane: older.id, loss });
        }
        session.opening.attached(slot, id);
        session.lanes.insert(id, lane.clone());
        session.path.set(lane.clone());
        Ok(lane)
    }

    /// Sets the congestion control of a lane. Within one host the default is an algorithm without pacing.
    fn tune(&self, socket: &OwnedFd, is_near: bool) {
        let name = match &self.context.config.tcp_congestion {
            Congestion::Auto if is_near => "reno",
            Congestion::Auto | Congestion::System => return,
            Congestion::Named(name) => name.as_str(),
        };
        // If the algorithm is missing or not permitted, the system's default stays.
        let _ = socket::set_congestion(socket.as_raw_fd(), name);
    }

    /// Returns the peer and the session's answer to a greeting that belongs to a session which takes the lane.
    fn welcome(&self, greeting: &Greeting, mac: &[u8; 16]) -> Option<(PeerId, [u8; 16])> {
        let peer = *self.by_id.lock().get(&greeting.session_id)?;
        self.with(peer, |session| {
            let is_theirs = !session.dialed && greeting.verify(&session.key, mac);
            let takes = session.takes(greeting) && !self.has_too_many_late(peer);
            (is_theirs && takes).then(|| (peer, greeting.welcome(&session.key)))
        })?
    }

    /// Returns whether the peer gets no further lanes, because it makes threads stick in memory faults.
    fn has_too_many_late(&self, peer: PeerId) -> bool {
        self.late.lock().get(&peer).is_some_and(|late| late.len() >= LATE_LANES_MAX)
    }

    fn late_lanes(&self, peer: PeerId) -> Vec<Arc<Lane>> {
        self.late.lock().get(&peer).cloned().unwrap_or_default()
    }

    fn all_lanes(&self, peer: PeerId) -> Vec<Arc<Lane>> {
        let mut lanes = self.lanes(peer);
        lanes.extend(self.late_lanes(peer));
        lanes
    }

    /// Removes a lane from its session, or from the late ones.
    fn take_lane(&self, peer: PeerId, lane: LaneId) -> Option<Arc<Lane>> {
        let attached = self.with(peer, |session| {
            let lane = session.lanes.remove(&lane)?;
            session.path.remove(&lane);
            Some(lane)
        });
        attached.flatten().or_else(|| {
            let mut late = self.late.lock();
            let lanes = late.get_mut(&peer)?;
            let at = lanes.iter().position(|it| it.id == lane)?;
            let lane = lanes.swap_remove(at);
            if lanes.is_empty() {
                late.remove(&peer);
            }
            Some(lane)
        })
    }

    fn lanes(&self, peer: PeerId) -> Vec<Arc<Lane>> {
        self.with(peer, |session| session.lanes.values().cloned().collect()).unwrap_or_default()
    }
}

impl TransportService for TcpService {
    fn prepare(&self) -> Result<()> {
        self.workers.start()
    }

    fn begin(&self, session_info: SessionInfo) {
        let SessionInfo { peer, dialer, session_id, remote, key, lane_numbers } = session_info;
        self.with(peer.handle, |session| {
            let mut by_id = self.by_id.lock();
            by_id.remove(&session.id);
            by_id.insert(session_id, peer.handle);
            drop(by_id);
            (session.id, session.remote, session.key) = (session_id, remote, key);
            (session.dialed, session.numbers) = (dialer, lane_numbers);
            let steps = session.opening.begin(dialer);
            self.carry_out(session, steps);
        });
    }

    /// The acceptor of a session asks its dialer for lanes.
    fn message(&self, peer: PeerId, body: &[u8]) -> bool {
        let Some(kinds) = opening::asked(body) else { return false };
        let may_ask = self.with(peer, |session| session.opening.may_be_asked()).unwrap_or(true);
        if may_ask {
            self.want(peer, kinds);
        }
        may_ask
    }

    fn wanted(&self, peer: PeerId) {
        let kinds = self.with(peer, |session| session.path.wanted());
        kinds.into_iter().for_each(|kinds| self.want(peer, kinds));
    }

    fn path(&self, peer: PeerId) -> Option<(Arc<dyn Path>, String)> {
        self.with(peer, |session| (session.path.clone() as Arc<dyn Path>, String::new()))
    }

    fn lanes_carrying(&self, peer: PeerId, transfer: TransferId) -> Vec<LaneId> {
        let carrying = self.all_lanes(peer).into_iter().filter(|lane| lane.carries(transfer));
        carrying.map(|lane| lane.id).collect()
    }

    fn close_lane(&self, peer: PeerId, lane: LaneId) -> Option<Closed> {
        let lane = self.take_lane(peer, lane)?;
        let closing = if lane.is_parting() {
            Closing { records: Vec::new(), is_quiet: false }
        } else {
            // Under no lock of the service: a thread that holds the lane's locks may request a lane.
            lane.close()
        };
        // After the close, which frees the descriptor.
        self.with(peer, |session| {
            let has_moved = lane.has_moved.load(Ordering::Relaxed);
            let step = session.opening.lost(clock::monotonic_ns(), lane.id, has_moved);
            self.carry_out(session, step);
        });
        if closing.is_quiet {
            if !self.is_parting(peer) {
                self.partings.lock().remove(&peer);
            }
            return Some(Closed::Quiet(closing.records));
        }
        self.late.lock().entry(peer).or_default().push(lane);
        Some(Closed::Soon(closing.records))
    }

    fn end(&self, peer: PeerId) -> Vec<(LaneId, Closed)> {
        self.greetings.lock().end(peer);
        self.with(peer, |session| session.opening.end());
        let lanes = self.lanes(peer);
        lanes.iter().filter_map(|lane| Some((lane.id, self.close_lane(peer, lane.id)?))).collect()
    }

    fn forget(&self, peer: PeerId) {
        if let Some(session) = self.lock().remove(&peer) {
            self.by_id.lock().remove(&session.id);
        }
    }

    fn is_quiet(&self, peer: PeerId) -> bool {
        !self.late.lock().contains_key(&peer)
    }
}

impl LaneService for TcpService {
    fn as_transport(&self) -> &dyn TransportService {
        self
    }

    fn add(&self, peer: Arc<Peer>) {
        let config = &self.context.config;
        let theirs = peer.identity.lanes_max;
        let lanes = self.context.local.lanes_max.min(theirs).clamp(1, LANES_MAX) + 1;
        let pauses = Pauses { min_ns: config.reconnect_backoff_ms * 1_000_000, max_ns: PAUSE_NS_MAX };
        let path = Arc::new(TcpPath::new(&peer, lanes, self.context.spin_ns, config.express_bytes_max));
        peer.set_tcp_path(Some(path.clone()));
        let session = Session::new(peer.clone(), path, Opening::new(lanes, pauses));
        self.lock().insert(peer.handle, session);
    }

    fn want(&self, peer: PeerId, kinds: u32) {
        self.with(peer, |session| {
            let steps = session.opening.want(kinds);
            self.carry_out(session, steps);
        });
    }

    fn has_express(&self, peer: PeerId) -> bool {
        self.with(peer, |session| session.path.get(0).is_some()).unwrap_or(false)
    }

    fn greeted(&self, mut stream: Stream, greeting: &[u8]) -> Option<PeerId> {
        let whole = <&[u8; GREETING_BYTES]>::try_from(greeting).ok();
        let greeting = whole.map(Greeting::decode);
        let welcome = greeting.and_then(|(greeting, mac)| Some((greeting, self.welcome(&greeting, &mac)?)));
        let Some((greeting, (peer, welcome))) = welcome else {
            self.context.stats.handshakes_refused.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        stream.out().extend_from_slice(&welcome);
        // A new socket takes sixteen bytes at once. If it does not, the connection is broken.
        if stream.flush().is_err() || stream.backlog() > 0 {
            return None;
        }
        self.attach(peer, &greeting, stream.release())
    }

    fn event(&self, token: u64) -> Option<PeerId> {
        let Dialed { peer, greeting, result } = self.greetings.lock().event(token)?;
        match result {
            Ok(socket) => self.attach(peer, &greeting, socket),
            Err(failure) => {
                self.with(peer, |session| self.not_opened(session, &greeting, failure));
                None
            }
        }
    }

    fn give_up(&self, peer: PeerId, lane: LaneId) {
        let dialed = self.greetings.lock().give_up(peer, lane);
        if let Some(greeting) = dialed {
            let failure = Failure::new(Cause::Closed, "the peer gave up the lane");
            self.with(peer, |session| self.not_opened(session, &greeting, failure));
        }
    }

    fn next_timer(&self, peer: PeerId) -> Option<Monotonic> {
        let opening = self.with(peer, |session| session.opening.next_timer()).flatten();
        let greeted = self.greetings.lock().next_timer(peer);
        let parted = self.partings.lock().get(&peer).copied();
        [opening, greeted, parted].into_iter().flatten().min()
    }

    fn timer(&self, peer: PeerId, now_ns: Monotonic) {
        let late = self.greetings.lock().expire(peer, now_ns);
        self.with(peer, |session| {
            let failure = Failure::new(Cause::Silent, "no welcome within handshake_timeout_ms");
            late.iter().for_each(|greeting| self.not_opened(session, greeting, failure));
            let steps = session.opening.timer(now_ns);
            self.carry_out(session, steps);
        });
        let is_over = self.partings.lock().get(&peer).is_some_and(|until_ns| *until_ns <= now_ns);
        if is_over {
            self.partings.lock().remove(&peer);
            self.all_lanes(peer).iter().for_each(|lane| lane.end_parting());
        }
    }

    fn stuck(&self, peer: PeerId, since_ns: Boottime) -> Vec<(LaneId, Loss)> {
        let silent = Failure::new(Cause::Silent, "nothing moved for progress_timeout_ms");
        let stuck = self.lanes(peer).into_iter().filter(|lane| lane.is_stuck(since_ns));
        stuck.map(|lane| (lane.id, lane.loss(silent))).collect()
    }

    fn lacks_lane(&self, peer: PeerId) -> bool {
        self.with(peer, |session| session.path.clone()).is_some_and(|path| path.lacks_lane())
    }

    fn part(&self, peer: PeerId, how: Parting) -> bool {
        let parting = self.lanes(peer).iter().filter(|lane| lane.part(how)).count();
        if parting > 0 {
            self.partings.lock().insert(peer, clock::monotonic_ns() + PARTING_NS);
        }
        parting > 0
    }

    fn is_parting(&self, peer: PeerId) -> bool {
        self.all_lanes(peer).iter().any(|lane| lane.is_parting())
    }

    fn watch(&self) -> bool {
        self.workers.watch()
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
