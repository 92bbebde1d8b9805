//! The `TransportService` of TCP: each session's lanes, from opening to closing. `opening` decides which lanes to open.
//! `control` dials and accepts their connections, and attaches those that have proven to belong to the session.

use super::lane::{Closing, Lane, LaneSpec};
use super::opening::{Opening, Pauses, Step};
use super::path::TcpPath;
use super::wire;
use super::worker::Workers;
use crate::command::Command;
use crate::context::Context;
use crate::limits::{LANES_MAX, LATE_LANES_MAX};
use crate::loss::{Cause, Failure, Loss};
use crate::peer::transport::{Candidate, LaneService, Parting};
use crate::peer::{Closed, LaneNumbers, Path, Peer, SessionInfo, TransportService};
use crate::status::Result;
use crate::sys::atomic::{AtomicU64, Ordering};
use crate::sys::clock;
use crate::sys::lock::{Mutex, MutexGuard};
use crate::sys::map::HashMap;
use crate::types::{Boottime, LaneId, Monotonic, PeerId, SessionId, TransferId};
use std::sync::Arc;

/// The longest pause before a lane is dialed again.
const PAUSE_NS_MAX: u64 = 1_000_000_000;
/// How long the lanes of a session that ends may take to send or receive the last bytes.
const PARTING_NS: u64 = 1_000_000_000;

pub struct Service {
    context: Arc<Context>,
    workers: Arc<Workers>,
    sessions: Mutex<HashMap<PeerId, Session>>,
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
    key: [u8; 32],
    numbers: Arc<LaneNumbers>,
}

impl Service {
    pub fn new(context: Arc<Context>, workers: Arc<Workers>) -> Service {
        let (sessions, late, partings) = Default::default();
        Service { context, workers, sessions, late, partings, next_token: AtomicU64::new(1) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PeerId, Session>> {
        self.sessions.lock()
    }

    fn with<T>(&self, peer: PeerId, body: impl FnOnce(&mut Session) -> T) -> Option<T> {
        self.lock().get_mut(&peer).map(body)
    }

    fn carry_out(&self, session: &Session, steps: impl IntoIterator<Item = Step>) {
        let (peer, session_id) = (session.peer.handle, session.id);
        for step in steps {
            self.context.commands.push(match step {
                Step::Open(slot) => {
                    let lane = session.numbers.draw();
                    Command::OpenLane { peer, session_id, slot, lane }
                }
                Step::Ask(kinds) => Command::AskForLanes { peer, session_id, kinds },
            });
        }
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
            session.path.set(lane.slot, None);
            let has_moved = lane.has_moved.load(Ordering::Relaxed);
            let step = session.opening.lost(clock::monotonic_ns(), lane.id, has_moved);
            self.carry_out(session, step);
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

impl TransportService for Service {
    fn prepare(&self) -> Result<()> {
        self.workers.start()
    }

    fn begin(&self, session_info: SessionInfo) {
        self.with(session_info.peer.handle, |session| {
            (session.id, session.key, session.dialed) =
                (session_info.session_id, session_info.key, session_info.dialer);
            session.numbers = session_info.lane_numbers;
            let steps = session.opening.begin(session_info.dialer);
            self.carry_out(session, steps);
        });
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
        self.with(peer, |session| session.opening.end());
        let lanes = self.lanes(peer);
        lanes.iter().filter_map(|lane| Some((lane.id, self.close_lane(peer, lane.id)?))).collect()
    }

    fn forget(&self, peer: PeerId) {
        self.lock().remove(&peer);
    }

    fn is_quiet(&self, peer: PeerId) -> bool {
        !self.late.lock().contains_key(&peer)
    }
}

impl LaneService for Service {
    fn add(&self, peer: Arc<Peer>) {
        let config = &self.context.config;
        let theirs = peer.identity.lanes_max;
        let lanes = self.context.local.lanes_max.min(theirs).clamp(1, LANES_MAX) + 1;
        let pauses = Pauses { min_ns: config.reconnect_backoff_ms * 1_000_000, max_ns: PAUSE_NS_MAX };
        let path = Arc::new(TcpPath::new(&peer, lanes, self.context.spin_ns, config.express_bytes_max));
        peer.set_tcp_path(Some(path.clone()));
        let session = Session {
            path,
            opening: Opening::new(lanes, pauses),
            lanes: HashMap::default(),
            dialed: false,
            id: SessionId::default(),
            key: [0; 32],
            numbers: Arc::default(),
            peer: peer.clone(),
        };
        self.lock().insert(peer.handle, session);
    }

    fn want(&self, peer: PeerId, kinds: u32) {
        self.with(peer, |session| {
            let steps = session.opening.want(kinds);
            self.carry_out(session, steps);
        });
    }

    fn asked(&self, peer: PeerId, kinds: u32) -> bool {
        let may_ask = self.with(peer, |session| session.opening.may_be_asked()).unwrap_or(true);
        if may_ask {
            self.want(peer, kinds);
        }
        may_ask
    }

    fn takes(&self, peer: PeerId, lane: LaneId, slot: u32) -> bool {
        // A peer that makes threads stick in memory faults gets no further ones.
        self.late_lanes(peer).len() < LATE_LANES_MAX
            && self.with(peer, |session| session.opening.takes(slot, lane)).unwrap_or(false)
    }

    fn attached(&self, peer: PeerId, slot: u32) -> Option<LaneId> {
        self.with(peer, |session| session.path.get(slot).map(|lane| lane.id)).flatten()
    }

    fn attach(&self, peer: PeerId, candidate: Candidate) -> bool {
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        let attached = self.with(peer, |session| {
            let Candidate { lane: id, slot, socket } = candidate;
            if !session.numbers.take(id) {
                return None;
            }
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
            let context = self.context.clone();
            let lane = Arc::new(Lane::new(spec, session.peer.clone(), context, worker.clone(), token));
            worker.add(&lane).ok()?;
            session.opening.attached(slot, id);
            session.lanes.insert(id, lane.clone());
            session.path.set(slot, Some(lane.clone()));
            Some(lane)
        });
        let Some(lane) = attached.flatten() else { return false };
        if lane.is_express() {
            lane.send(&mut lane.peer.after());
        } else {
            lane.kick();
        }
        true
    }

    fn not_opened(&self, peer: PeerId, slot: u32, loss: Loss) {
        self.with(peer, |session| {
            session.peer.note_loss(loss);
            session.opening.failed(clock::monotonic_ns(), slot);
        });
    }

    fn next_timer(&self, peer: PeerId) -> Option<Monotonic> {
        let opening = self.with(peer, |session| session.opening.next_timer()).flatten();
        let parted = self.partings.lock().get(&peer).copied();
        opening.into_iter().chain(parted).min()
    }

    fn timer(&self, peer: PeerId, now_ns: Monotonic) {
        self.with(peer, |session| {
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
