//! The stage's thread and its interface. Only this thread knows the operations under way; other threads push an
//! `event`. The control loop begins and ends sessions (`TransportService`), devices and transfers report the end of a
//! step, and callers post or strike.

use super::due::Due;
use super::event::{Event, Inbox};
use super::lending::Loans;
use super::operations::Operations;
use super::path::StagedPath;
use super::quarantine::Running;
use super::ring::Ring;
use super::staged_peer::StagedPeer;
use super::wire::{Message, MESSAGE_BYTES};
use crate::command::{Command, Commands};
use crate::complete::Transfer;
use crate::device::{Drivers, Worker};
use crate::limits::STAGE_QUEUED_BYTES_MAX;
use crate::peer::{Closed, Path, Peer, SessionInfo, TransportService};
use crate::region::Registry;
use crate::status::{Error, Result, Status};
use crate::sys::lock::Mutex;
use crate::sys::map::{HashMap, HashSet};
use crate::sys::thread::JoinHandle;
use crate::sys::{clock, thread, turns};
use crate::types::{
    Access, BridgeId, LaneId, MemoryKind, Monotonic, Op, PeerId, RegionId, Request, Transport,
};
use std::sync::Arc;

/// A transfer of host memory that staging submits for a transfer of device memory.
pub struct StagedPart<'a> {
    pub op: Op,
    pub requests: &'a [Request],
    pub allowed: u64,
    pub priority: u32,
    pub checksum: bool,
}

/// Submits parts; implemented by `api`.
pub trait Mover: Send + Sync {
    /// Submits a part, which has no deadline and must be struck together with its transfer.
    fn submit(&self, peer: &Arc<Peer>, part: StagedPart) -> Result<Arc<Transfer>>;
    /// Forgets a final part, whose results were read.
    fn forget(&self, part: &Transfer);
}

#[derive(Clone, Copy, Debug)]
pub struct StageSettings {
    /// The number of slots of each ring.
    pub slots: u32,
}

/// The state that other threads may look at.
#[derive(Default)]
struct Shared {
    paths: HashMap<PeerId, Arc<StagedPath>>,
    /// The peers' copies from and to devices here. An entry exists while the peer's session stands or copies are under
    /// way.
    served: HashMap<PeerId, ServedPeer>,
}

#[derive(Default)]
struct ServedPeer {
    copying: u32,
    may_begin: bool,
    /// Bytes of messages from the peer that the thread has not decoded yet.
    queued_bytes: usize,
}

pub struct StageService {
    inbox: Arc<Inbox>,
    shared: Arc<Mutex<Shared>>,
    commands: Arc<Commands>,
    drivers: Arc<Drivers>,
    registry: Arc<Registry>,
    loans: Arc<Loans>,
    /// Starts with the first session.
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The stage before its thread runs, or after the thread panicked: its memory is kept as long as the engine.
    start: Arc<Mutex<Option<Stage>>>,
}

impl StageService {
    pub fn new(
        settings: StageSettings,
        registry: Arc<Registry>,
        drivers: Arc<Drivers>,
        commands: Arc<Commands>,
        mover: Box<dyn Mover>,
    ) -> Arc<StageService> {
        let (inbox, shared): (Arc<Inbox>, Arc<Mutex<Shared>>) = Default::default();
        let loans = Arc::new(Loans::new(inbox.clone(), drivers.clone()));
        let ring = |access| Ring::new(registry.clone(), drivers.clone(), settings.slots, access);
        let stage = Stage {
            inbox: inbox.clone(),
            shared: shared.clone(),
            outgoing: ring(Access(0)),
            incoming: ring(Access::BOTH),
            registry: registry.clone(),
            drivers: drivers.clone(),
            commands: commands.clone(),
            mover,
            loans: loans.clone(),
            sides: HashMap::default(),
            operations: Operations::new(settings.slots as usize * 2),
            due: Due::new(),
            attached: HashMap::default(),
            broken: HashSet::default(),
            next_bridge: 1,
            bridge_slots: settings.slots,
        };
        Arc::new(StageService {
            inbox,
            shared,
            commands,
            drivers,
            registry,
            loans,
            thread: Mutex::new(None),
            start: Arc::new(Mutex::new(Some(stage))),
        })
    }

    /// Returns the stage, for a test that runs it without the thread.
    #[cfg(test)]
    pub(super) fn take_stage(&self) -> Option<Stage> {
        self.registry.set_lender(self.loans.clone());
        self.start.lock().take()
    }

    /// Starts the thread, if it does not run.
    fn start_thread(&self) -> Result<()> {
        let mut thread = self.thread.lock();
        if thread.is_some() {
            return Ok(());
        }
        // The thread takes the stage over when it runs: one that could not be started leaves it here.
        let kept = self.start.clone();
        let started = turns::start("ferry-stage", "staging", self.inbox.clone(), move || {
            let stage = kept.lock().take();
            Some(Running { stage, kept })
        });
        *thread = Some(started.map_err(|error| thread::not_started("the thread for device memory", &error))?);
        // Nothing was lent before there was a peer.
        self.registry.set_lender(self.loans.clone());
        Ok(())
    }

    /// Ends the thread. All sessions have ended before, and all transfers are final.
    pub fn stop(&self) {
        self.inbox.push(Event::Stop);
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl TransportService for StageService {
    fn prepare(&self) -> Result<()> {
        self.start_thread()
    }

    fn stop(&self) {
        StageService::stop(self);
    }

    fn begin(&self, session_info: SessionInfo) {
        let peer = session_info.peer.handle;
        {
            let mut shared = self.shared.lock();
            let path = || Arc::new(StagedPath::new(peer, self.inbox.clone(), self.drivers.clone()));
            shared.paths.entry(peer).or_insert_with(path);
            shared.served.entry(peer).or_default().may_begin = true;
        }
        self.inbox.push(Event::Begin(session_info));
        let transport = Transport::Staged;
        self.commands.push(Command::PathSettled { peer, transport, why: None, pending: false });
    }

    fn message(&self, peer: PeerId, body: &[u8]) -> bool {
        if let Some(served_peer) = self.shared.lock().served.get_mut(&peer) {
            served_peer.queued_bytes += body.len();
            if served_peer.queued_bytes > STAGE_QUEUED_BYTES_MAX {
                return false;
            }
        }
        self.inbox.push(Event::Received(peer, body.to_vec()));
        true
    }

    /// Every engine of this version has a stage, so a refusal changes nothing.
    fn refused(&self, _peer: PeerId, _why: String) -> bool {
        true
    }

    fn path(&self, peer: PeerId) -> Option<(Arc<dyn Path>, String)> {
        let path: Arc<dyn Path> = self.shared.lock().paths.get(&peer)?.clone();
        Some((path, String::new()))
    }

    fn end(&self, peer: PeerId) -> Vec<(LaneId, Closed)> {
        if let Some(served_peer) = self.shared.lock().served.get_mut(&peer) {
            served_peer.may_begin = false;
        }
        self.inbox.push(Event::End(peer));
        Vec::new()
    }

    fn forget(&self, peer: PeerId) {
        self.shared.lock().paths.remove(&peer);
        self.inbox.push(Event::Forget(peer));
    }

    fn is_quiet(&self, peer: PeerId) -> bool {
        self.shared.lock().served.get(&peer).is_none_or(|served_peer| served_peer.copying == 0)
    }

    fn unrest(&self, peer: PeerId) -> Option<String> {
        let copying = self.shared.lock().served.get(&peer).map_or(0, |served_peer| served_peer.copying);
        (copying > 0).then(|| format!("{copying} of its copies run on devices here"))
    }

    /// Releases the mapped memory of peers that the kept stage's operations hold. The devices' threads have ended.
    fn bury(&self) -> bool {
        if let Some(stage) = &mut *self.start.lock() {
            stage.operations.let_go();
        }
        true
    }

    fn all_quiet(&self, peer: PeerId) {
        self.inbox.push(Event::Quiet(peer));
    }
}

/// The thread's own state. `steps` and `serve` have the operations' steps.
pub(super) struct Stage {
    pub inbox: Arc<Inbox>,
    shared: Arc<Mutex<Shared>>,
    pub outgoing: Ring,
    pub incoming: Ring,
    pub registry: Arc<Registry>,
    pub drivers: Arc<Drivers>,
    pub commands: Arc<Commands>,
    pub mover: Box<dyn Mover>,
    pub loans: Arc<Loans>,
    pub sides: HashMap<PeerId, StagedPeer>,
    pub operations: Operations,
    pub due: Due,
    /// The peers and threads of bridges, by bridge number.
    pub attached: HashMap<BridgeId, (PeerId, Arc<Worker>)>,
    /// Bridges that failed in use.
    pub broken: HashSet<BridgeId>,
    pub next_bridge: u64,
    /// The number of slots of each bridge.
    pub bridge_slots: u32,
}

impl Stage {
    /// Does the work that events and time have made due.
    pub fn turn(&mut self, now: Monotonic) {
        self.check_due(now);
        if self.incoming.next_tidy().is_some_and(|at| at <= now) {
            self.incoming.tidy(now);
            self.give_slots();
        }
        self.pump();
        self.flush();
    }

    pub fn end(&mut self) {
        for side in std::mem::take(&mut self.sides).into_values() {
            let served = side.served.into_values().filter_map(|served| served.slot);
            served.chain(side.lost_slots).for_each(|slot| self.incoming.give(slot));
        }
        self.operations.end();
        std::mem::take(&mut self.attached).into_values().for_each(|(_, worker)| worker.quit());
        self.outgoing.end();
        self.incoming.end();
    }

    pub fn event(&mut self, event: Event) {
        match event {
            Event::Begin(session_info) => self.begin_session(session_info),
            Event::End(peer) => {
                if let Some(side) = self.sides.get_mut(&peer) {
                    side.session = None;
                    side.out.clear();
                    side.reached.clear();
                    side.borrowers.clear();
                    side.bridges.retain(|_, bridge| bridge.stands());
                }
            }
            Event::Forget(peer) => {
                self.lost(peer);
                self.forget_bridges(peer);
                self.drop_served(peer, &HashSet::default());
                self.due.ended.insert(peer);
            }
            Event::Quiet(peer) => {
                self.loans.take_back_from(peer);
                let slots = self.sides.get_mut(&peer).map(|side| std::mem::take(&mut side.lost_slots));
                let regions: Vec<RegionId> =
                    slots.into_iter().flatten().map(|slot| self.incoming.retire(slot)).collect();
                if !regions.is_empty() {
                    self.commands.push(Command::RegionsRemoved(regions));
                    self.incoming.tidy(clock::monotonic_ns());
                }
                self.due.ended.insert(peer);
                self.give_slots();
            }
            Event::Received(peer, body) => self.received(peer, &body),
            Event::Post(peer) => {
                self.due.queue(peer);
                // The same-host path may have opened or closed too.
                self.lend_to_waiting(peer);
            }
            Event::Stop => {}
            Event::Struck(peer, transfer) => {
                // The transfer has woken the waker, so the waker is no longer registered.
                if let Some(side) = self.sides.get_mut(&peer) {
                    side.watched.remove(&transfer);
                }
                self.struck(peer, transfer);
            }
            Event::Moved { peer, op } => self.moved(peer, op),
            Event::Copied { peer, op, result } => self.copied(peer, op, result),
            Event::Served { peer, op, begun, result } => self.served(peer, op, begun, result),
            Event::Mapped { peer, session, key, result } => {
                if self.sides.get(&peer).is_some_and(|side| side.session == session) {
                    self.mapped(peer, key, result);
                }
            }
            Event::Exported { peer, region, result } => self.exported(peer, &region, result),
            Event::Recall(region) => self.recall(region),
            Event::Exposed { peer, bridge, result } => self.exposure_made(peer, bridge, result),
            Event::Attached { peer, bridge, result } => self.attached(peer, bridge, result),
            Event::Detached { peer, bridge } => self.detached(peer, bridge),
            Event::Carried { peer, op, bridge_slot, result } => self.carried(peer, op, bridge_slot, result),
        }
    }

    fn begin_session(&mut self, session_info: SessionInfo) {
        let handle = session_info.peer.handle;
        let side = self.sides.entry(handle).or_insert_with(|| StagedPeer::new(session_info.peer.clone()));
        side.session = Some(session_info.session_id);
        // Some bridges may have failed after the last session had ended.
        side.bridges.retain(|_, bridge| bridge.stands());
        side.lost = false;
        self.due.queue(handle);
        let ops = self.operations.of(handle, |_| true);
        self.send(handle, Message::Live { ops: ops.clone(), bridges: self.bridges(handle) });
        ops.into_iter().for_each(|op| self.repeat_messages(handle, op));
    }

    fn received(&mut self, peer: PeerId, body: &[u8]) {
        if let Some(served_peer) = self.shared.lock().served.get_mut(&peer) {
            served_peer.queued_bytes = served_peer.queued_bytes.saturating_sub(body.len());
        }
        match Message::decode_all(body) {
            Ok(messages) => messages.into_iter().for_each(|message| self.message_from(peer, message)),
            Err(_) => self.misbehaved(peer),
        }
    }

    /// Ends the session of a peer that sent a message which no correct engine sends.
    pub fn misbehaved(&self, peer: PeerId) {
        if let Some(session_id) = self.sides.get(&peer).and_then(StagedPeer::session) {
            self.commands.push(Command::Misbehaved { peer, session_id });
        }
    }

    fn message_from(&mut self, peer: PeerId, message: Message) {
        match message {
            Message::Want { op } => self.wanted(peer, op),
            Message::Commit { op, blocks } => self.committed(peer, op, blocks),
            Message::Fetch { op, blocks } => self.fetched(peer, op, blocks),
            Message::Release { op } => self.released(peer, op),
            Message::Live { ops, bridges } => {
                self.drop_served(peer, &ops.into_iter().collect());
                let bridges: HashSet<BridgeId> = bridges.into_iter().collect();
                if let Some(side) = self.sides.get_mut(&peer) {
                    side.exposures.retain(|bridge, _| bridges.contains(bridge));
                }
            }
            Message::Grant { op, region, address } => self.granted(peer, op, (region, address)),
            Message::Ready { op, region, address, faults } => {
                self.ready(peer, op, (region, address), &faults)
            }
            Message::Done { op, faults } => self.done(peer, op, &faults),
            Message::Unknown { op } => self.unknown(peer, op),
            Message::Stop { op } => self.stopped(peer, op),
            Message::Busy { op, timeout_ms } => self.busy(peer, op, timeout_ms),
            Message::Borrow { region, kind, process } => self.lend(peer, region, kind, process),
            Message::Lent { region, memory } => self.lent(peer, region, &memory),
            Message::Refused { region, status, why } => self.refused(peer, region, &Error::new(status, why)),
            Message::Recalled { region } => self.recalled(peer, region),
            Message::Expose { bridge, at, slots } => self.expose(peer, bridge, at, slots),
            Message::Exposed { bridge, slots, offer } => self.exposed(peer, bridge, slots, offer),
            Message::Hidden { bridge, status, why } => {
                self.refuse_bridge(peer, bridge, &Error::new(status, why))
            }
            Message::Conceal { bridge } => self.conceal(peer, bridge),
        }
    }

    /// Queues a message to the peer, which is sent at the end of this turn; drops it while there is no session.
    pub fn send(&mut self, peer: PeerId, message: Message) {
        let Some(side) = self.sides.get_mut(&peer).filter(|side| side.session.is_some()) else { return };
        message.encode(&mut side.out);
        self.due.talking.insert(peer);
        if side.out.len() > MESSAGE_BYTES {
            side.flush(&self.commands);
        }
    }

    pub fn forget_if_over(&mut self, peer: PeerId) {
        let is_over = |side: &StagedPeer| side.is_over() && !self.operations.has_any(peer);
        if self.sides.get(&peer).is_some_and(is_over) {
            self.sides.remove(&peer);
            self.shared.lock().served.remove(&peer);
        }
    }

    /// Records why memory of this kind could not be mapped, for the reason of the route.
    pub fn note_obstacle(&self, peer: PeerId, kind: MemoryKind, why: &str) {
        if let Some(path) = self.shared.lock().paths.get(&peer) {
            path.note_obstacle(kind, why);
        }
    }

    /// Begins a copy that the peer asked for; false when its session is over.
    pub fn begin_peer_copy(&self, peer: PeerId) -> bool {
        let mut shared = self.shared.lock();
        let served_peer = shared.served.get_mut(&peer).filter(|served_peer| served_peer.may_begin);
        served_peer.map(|served_peer| served_peer.copying += 1).is_some()
    }

    /// Ends a copy that `begin_peer_copy` began.
    pub fn end_peer_copy(&self, peer: PeerId) {
        let mut shared = self.shared.lock();
        let Some(served_peer) = shared.served.get_mut(&peer) else { return };
        served_peer.copying -= 1;
        if served_peer.copying == 0 && !served_peer.may_begin {
            self.commands.push(Command::TransportQuiet { peer });
        }
    }
}

/// Returns the part of an error that a result can carry.
pub(super) fn cause(error: &Error) -> (Status, i32) {
    (error.status, error.vendor_error)
}
