//! The stage's thread and its interface. Only this thread knows the operations under way; other threads push an
//! `event`. The control loop begins and ends sessions (`TransportService`), devices and transfers report the end of a
//! step, and callers post or strike.

use super::bridges::Bridges;
use super::due::Due;
use super::event::{Event, Inbox};
use super::lending::Loans;
use super::operations::Operations;
use super::path::StagedPath;
use super::quarantine::Running;
use super::ring::Ring;
use super::shared::Shared;
use super::staged_peer::StagedPeer;
use super::wire::Message;
use crate::command::{Command, Commands};
use crate::complete::transfer::Failure;
use crate::complete::Transfer;
use crate::device::Drivers;
use crate::peer::{Closed, Path, Peer, SessionInfo, TransportService};
use crate::region::Registry;
use crate::status::{Error, Result};
use crate::sys::lock::Mutex;
use crate::sys::map::{HashMap, HashSet};
use crate::sys::thread::JoinHandle;
use crate::sys::{clock, thread, turns};
use crate::types::{Access, LaneId, MemoryKind, Monotonic, Op, PeerId, RegionId, Request, Transport};
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

pub struct StageService {
    inbox: Arc<Inbox>,
    shared: Arc<Shared>,
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
        let (inbox, shared) = (Arc::<Inbox>::default(), Arc::new(Shared::new(commands.clone())));
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
            due: Due::default(),
            bridges: Bridges::new(settings.slots),
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
        self.shared.begin(peer, || StagedPath::new(peer, self.inbox.clone(), self.drivers.clone()));
        self.inbox.push(Event::Begin(session_info));
        let transport = Transport::Staged;
        self.commands.push(Command::PathSettled { peer, transport, why: None, pending: false });
    }

    fn message(&self, peer: PeerId, body: &[u8]) -> bool {
        let is_taken = self.shared.received(peer, body.len());
        if is_taken {
            self.inbox.push(Event::Received(peer, body.to_vec()));
        }
        is_taken
    }

    /// Every engine of this version has a stage, so a refusal changes nothing.
    fn refused(&self, _peer: PeerId, _why: String) -> bool {
        true
    }

    fn path(&self, peer: PeerId) -> Option<(Arc<dyn Path>, String)> {
        let path: Arc<dyn Path> = self.shared.path(peer)?;
        Some((path, String::new()))
    }

    fn end(&self, peer: PeerId) -> Vec<(LaneId, Closed)> {
        self.shared.end(peer);
        self.inbox.push(Event::End(peer));
        Vec::new()
    }

    fn forget(&self, peer: PeerId) {
        self.shared.forget_path(peer);
        self.inbox.push(Event::Forget(peer));
    }

    fn is_quiet(&self, peer: PeerId) -> bool {
        self.shared.copying(peer) == 0
    }

    fn unrest(&self, peer: PeerId) -> Option<String> {
        let copying = self.shared.copying(peer);
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
    pub(super) inbox: Arc<Inbox>,
    pub(super) shared: Arc<Shared>,
    pub(super) outgoing: Ring,
    pub(super) incoming: Ring,
    pub(super) registry: Arc<Registry>,
    pub(super) drivers: Arc<Drivers>,
    pub(super) commands: Arc<Commands>,
    pub(super) mover: Box<dyn Mover>,
    pub(super) loans: Arc<Loans>,
    pub(super) sides: HashMap<PeerId, StagedPeer>,
    pub(super) operations: Operations,
    pub(super) due: Due,
    pub(super) bridges: Bridges,
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
            side.served.into_slots().for_each(|slot| self.incoming.give(slot));
        }
        self.operations.end();
        self.bridges.end();
        self.outgoing.end();
        self.incoming.end();
    }

    pub fn event(&mut self, event: Event) {
        match event {
            Event::Begin(session_info) => self.begin_session(session_info),
            Event::End(peer) => {
                if let Some(side) = self.sides.get_mut(&peer) {
                    side.end();
                }
                self.bridges.disconnected(peer);
            }
            Event::Forget(peer) => {
                self.lost(peer);
                self.bridges.forget(peer);
                self.sides.get_mut(&peer).into_iter().for_each(|side| side.exposures.keep(&[]));
                self.drop_served(peer, &HashSet::default());
                self.due.end(peer);
            }
            Event::Quiet(peer) => {
                self.loans.take_back_from(peer);
                let slots = self.sides.get_mut(&peer).map(|side| side.served.take_lost_slots());
                let regions: Vec<RegionId> =
                    slots.into_iter().flatten().map(|slot| self.incoming.retire(slot)).collect();
                if !regions.is_empty() {
                    self.commands.push(Command::RegionsRemoved(regions));
                    self.incoming.tidy(clock::monotonic_ns());
                }
                self.due.end(peer);
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
                if self.sides.get(&peer).is_some_and(|side| side.session() == session) {
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
        side.begin(session_info.session_id);
        // Some bridges may have failed after the last session had ended.
        self.bridges.disconnected(handle);
        self.due.queue(handle);
        let ops = self.operations.of(handle, |_| true);
        self.send(handle, Message::Live { ops: ops.clone(), bridges: self.bridges.kept(handle) });
        ops.into_iter().for_each(|op| self.repeat_messages(handle, op));
    }

    fn received(&mut self, peer: PeerId, body: &[u8]) {
        self.shared.taken_in(peer, body.len());
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
                self.sides.get_mut(&peer).into_iter().for_each(|side| side.exposures.keep(&bridges));
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
        if let Some(side) = self.sides.get_mut(&peer).filter(|side| side.is_connected()) {
            side.push(&message, &self.commands);
            self.due.talk(peer);
        }
    }

    pub fn forget_if_over(&mut self, peer: PeerId) {
        let is_over = |side: &StagedPeer| side.is_over() && !self.operations.has_any(peer);
        if self.sides.get(&peer).is_some_and(is_over) {
            self.sides.remove(&peer);
            self.shared.forget_copies(peer);
        }
    }

    /// Records why memory of this kind could not be mapped, for the reason of the route.
    pub fn note_obstacle(&self, peer: PeerId, kind: MemoryKind, why: &str) {
        if let Some(path) = self.shared.path(peer) {
            path.note_obstacle(kind, why);
        }
    }
}

/// Returns the part of an error that a result can carry, for any slice.
pub(super) fn cause(error: &Error) -> Failure {
    let Error { status, os_error, vendor_error, .. } = *error;
    Failure { slice: 0, status, os_error, vendor_error }
}
