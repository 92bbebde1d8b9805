//! A remote engine, as this engine sees it: the memory that it registered, the transfers that wait to be posted to it,
//! the order of its notifications, and the ends of its leases. Independent of any transport: a `Path` posts the frames.
//!
//! `api` submits transfers. Paths pull frames from `outbox` and settle them by `Peer::confirm` and `Peer::abandon`
//! (`finish`). The control loop strikes transfers and queues them again. No lock of a peer is held while a transfer is
//! made final or a path is called.

mod after;
mod finish;
mod identity;
pub mod inbox;
mod incoming;
mod lane_numbers;
pub mod lease;
#[cfg(test)]
mod lease_tests;
pub mod outbox;
mod path;
mod paths;
mod posted;
mod release;
mod restage;
mod strike;
#[cfg(test)]
pub mod tests;
pub mod transport;

pub use after::{After, Left};
pub use identity::{Conversation, EngineParts, PeerIdentity, PeerState, PeerStats};
pub use inbox::Arrival;
pub use incoming::Arriving;
pub use lane_numbers::LaneNumbers;
pub use path::{Condition, Devices, Kept, Path, PathStatus, SameHost};
pub use paths::OWN;
pub use posted::{Posted, What};
pub use transport::{Closed, Installed, SessionInfo, TransportService};

use crate::command::Command;
use crate::complete::Transfer;
use crate::handle;
use crate::limits::SILENCE_NS;
use crate::loss::{Cause, Loss};
use crate::notify::{Event, EventBody};
use crate::region::remote::RemoteRegions;
use crate::route::{NOTIFIERS, ORDER};
use crate::status::{Error, Result, Status};
use crate::sys::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sys::clock;
use crate::sys::hook::Hook;
use crate::sys::lock::{Mutex, RwLock};
use crate::types::{PeerId, Slice, Transport};
use inbox::Inboxes;
use lease::LeaseClock;
use outbox::{Class, Outbox, PullLimits, Pulled};
use paths::Standing;
use std::sync::Arc;
use strike::SWEEP_TURN;

pub struct Peer {
    pub handle: PeerId,
    pub identity: PeerIdentity,
    pub remote: Arc<RemoteRegions>,
    pub clock: LeaseClock,
    /// Identifies this object in session starts, so that each side learns whether the other side still has its state.
    association_id: u64,
    pub stats: PeerStats,
    engine: EngineParts,
    state: AtomicU32,
    /// Why the peer is lost, as a status number; 0 while it is not lost.
    lost: AtomicU32,
    /// The peer is lost, and nothing of it can land here any more.
    over: AtomicBool,
    outbox: Mutex<Outbox>,
    inbox: Arc<Mutex<Inboxes>>,
    /// Indexed by transport number.
    paths: [RwLock<PathStatus>; Transport::COUNT],
    standing: Standing,
    /// The same-host path has proven that the peer's process is on this host. Never unset.
    found_here: AtomicBool,
    active: AtomicU64,
    /// True from a request to `sweep` until the control loop has swept everything. Set after the work was put into the
    /// outbox; pairs with the outbox's lock.
    sweeping: AtomicBool,
    /// True from a call of `ask` until the control loop asks the peer.
    asking: AtomicBool,
    /// Time at which the control loop next checks this peer. See `check_at`.
    check_ns: AtomicU64,
    /// The last loss of a lane or of the control connection that this engine did not cause on purpose.
    last_loss: Mutex<Option<Loss>>,
    /// Called after a frame is taken from the outbox and before it is posted.
    pub pulled: Hook<Pulled>,
    /// Called after an outcome is taken from a lane and before it is applied.
    pub taken: Hook<Arc<Transfer>>,
}

/// See `Peer::busy`.
pub struct Busy<'a>(&'a Peer);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.one_less();
    }
}

impl Peer {
    pub fn new(handle: PeerId, identity: PeerIdentity, association_id: u64, engine: EngineParts) -> Peer {
        Peer {
            handle,
            identity,
            remote: Arc::new(RemoteRegions::new()),
            clock: LeaseClock::new(engine.lease_ns),
            association_id,
            stats: PeerStats::default(),
            state: AtomicU32::new(PeerState::Connecting as u32),
            lost: AtomicU32::new(0),
            over: AtomicBool::new(false),
            outbox: Mutex::new(Outbox::new()),
            inbox: Arc::new(Mutex::new(Inboxes::default())),
            paths: std::array::from_fn(|_| {
                RwLock::new(PathStatus::Pending("the session is being established".into()))
            }),
            standing: Standing::default(),
            found_here: AtomicBool::new(false),
            active: AtomicU64::new(0),
            sweeping: AtomicBool::new(false),
            asking: AtomicBool::new(false),
            check_ns: AtomicU64::new(u64::MAX),
            last_loss: Mutex::new(None),
            pulled: Hook::default(),
            taken: Hook::default(),
            engine,
        }
    }

    /// True if this is the engine itself (`Context::own`).
    pub fn is_own(&self) -> bool {
        handle::is_own(self.handle.raw())
    }

    pub fn state(&self) -> PeerState {
        match self.state.load(Ordering::Acquire) {
            0 => PeerState::Connecting,
            1 => PeerState::Up,
            2 => PeerState::Down,
            _ => PeerState::Lost,
        }
    }

    /// Moves to `state`; a lost peer stays lost.
    pub fn set_state(&self, state: PeerState) {
        let change = |old| (old != PeerState::Lost as u32).then_some(state as u32);
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok() {
            self.note_state(state);
        }
    }

    /// Counts and records the loss of a lane or of the control connection.
    pub fn note_loss(&self, loss: Loss) {
        self.engine.stats.losses[loss.cause as usize].fetch_add(1, Ordering::Relaxed);
        if loss.cause != Cause::Ours {
            *self.last_loss.lock() = Some(loss);
        }
    }

    /// Returns why the last lane or connection was lost; None if none was lost except on purpose by this engine.
    pub fn last_loss(&self) -> Option<Loss> {
        self.last_loss.lock().clone()
    }

    /// Marks the peer as permanently lost.
    pub fn set_lost(&self, why: Status) {
        // SeqCst: see `one_less`.
        let _ = self.lost.compare_exchange(0, why as i32 as u32, Ordering::SeqCst, Ordering::Acquire);
        self.state.store(PeerState::Lost as u32, Ordering::Release);
        self.note_lost();
    }

    /// Returns why the peer is lost; None if it is not lost.
    pub fn lost(&self) -> Option<Status> {
        Status::from_number(self.lost.load(Ordering::Acquire) as i32).filter(|status| *status != Status::Ok)
    }

    /// Requests a sweep if queued transfers have no path that may carry them: the sweep strikes them.
    fn strike_stranded(&self) {
        if self.outbox.lock().has_stranded() {
            self.sweep_soon();
        }
    }

    /// Asks the peer soon for a sign of life, which has a sample of its clock. A peer that does not answer is lost.
    /// Work that waits for the sample is posted when the sample arrives.
    pub fn ask(&self) {
        if !self.asking.swap(true, Ordering::AcqRel) {
            self.engine.commands.push(Command::Ask { peer: self.handle });
        }
    }

    /// Asks a peer that was silent for longer than SILENCE_NS: an application wants something of the peer, and perhaps
    /// nothing is posted that would show that the peer's host has crashed.
    pub fn ask_if_silent(&self) {
        if self.clock.age_ns(clock::boottime_ns()) > SILENCE_NS {
            self.ask();
        }
    }

    /// The control loop asks the peer now; a later `ask` asks again.
    pub fn asked(&self) {
        self.asking.store(false, Ordering::Release);
    }

    /// Returns the number of transfers that are not final, plus the `Busy` guards.
    pub fn active(&self) -> u64 {
        self.active.load(Ordering::SeqCst)
    }

    /// Counts down `active`. Closing a lost peer or the engine waits until `active` is zero.
    fn one_less(&self) {
        // Pairs with `set_lost`: either this thread sees the loss, or the control loop, which reads the count after the
        // loss, sees zero.
        if self.active.fetch_sub(1, Ordering::SeqCst) == 1 && self.lost.load(Ordering::SeqCst) != 0 {
            self.engine.commands.push(Command::PeerIdle { peer: self.handle });
        }
    }

    /// Counts work that is not a transfer in `active` while the guard lives.
    pub fn busy(&self) -> Busy<'_> {
        self.active.fetch_add(1, Ordering::AcqRel);
        Busy(self)
    }

    pub fn class_of(&self, transfer: &Transfer) -> Class {
        Outbox::class_of(transfer, self.engine.express_bytes_max)
    }

    /// Queues a transfer and posts what can be posted now.
    pub fn submit(&self, transfer: Arc<Transfer>) -> Result<()> {
        let class = self.class_of(&transfer);
        let transport;
        let has_no_data = transfer.spec.slices.is_empty();
        // A notification alone is no conversation: an application may send one for each layer that it has written.
        if class == Class::Express && !has_no_data {
            self.stats.conversation.extend_both(&self.engine.conversation);
        }
        {
            let mut outbox = self.outbox.lock();
            // A lost peer is marked before its transfers are struck. A transfer that passes this check is already in
            // the engine's table, where the strike finds it.
            if let Some(why) = self.lost() {
                return Err(Error::new(why, "the peer is lost; connect again"));
            }
            self.active.fetch_add(1, Ordering::AcqRel);
            // A transfer whose deadline is past may have been struck before this call.
            if transfer.is_pending() {
                let posted = outbox.submit(transfer.clone(), class);
                transport = transfer.transport();
                if !posted {
                    if outbox.has_doomed() {
                        self.sweep_soon();
                    }
                    return Ok(());
                }
            } else {
                drop(outbox);
                self.end_unqueued(&transfer);
                return Ok(());
            }
        }
        let path = self.path(transport);
        if transport != Transport::Tcp && path.is_none() {
            self.strike_stranded();
        }
        let mut after = self.after();
        match (has_no_data, path) {
            (true, _) => self.post_notifications(&mut after),
            (false, Some(path)) => path.post(class, path::submitted_ns(&transfer), &mut after),
            (false, None) => {}
        }
        Ok(())
    }

    /// Releases a held transfer when its start event has fired, and posts it. Does nothing if it was struck meanwhile.
    pub fn start(&self, transfer: &Arc<Transfer>) {
        let class = self.class_of(transfer);
        if !self.outbox.lock().start(transfer, class) {
            return;
        }
        self.strike_stranded();
        let mut after = self.after();
        if transfer.spec.slices.is_empty() {
            return self.post_notifications(&mut after);
        }
        after.post(transfer.transport(), class)
    }

    /// Returns an empty list of work to do after this thread has released its locks.
    pub fn after(&self) -> After<'_> {
        After::new(self)
    }

    /// Requests that queued notifications are posted.
    fn post_notifications(&self, after: &mut After) {
        NOTIFIERS.iter().for_each(|transport| after.post(*transport, Class::Express));
    }

    /// Posts everything that is queued, on all transports.
    pub fn post_all(&self) {
        let mut after = self.after();
        ORDER.iter().for_each(|transport| after.nudge(*transport));
    }

    /// Like `post_all`, but wakes no thread if nothing can wait, because idle peers send many answers.
    pub fn post_waiting(&self) {
        if self.active() > 0 || !self.outbox.lock().is_empty() {
            self.post_all();
        }
    }

    pub fn pull(&self, transport: Transport, express: bool, limits: PullLimits) -> Option<Pulled> {
        let pulled = self.outbox.lock().pull(transport, express, limits);
        pulled.iter().for_each(|pulled| self.pulled.call(pulled));
        pulled
    }

    pub fn has_work(&self, transport: Transport, express: bool) -> bool {
        self.outbox.lock().has_work(transport, express)
    }

    /// Returns the first slice of this transport's next frame, and whether its run is the only one that waits; a hint.
    pub fn front(&self, transport: Transport, express: bool) -> Option<(Slice, bool)> {
        self.outbox.lock().front(transport, express)
    }

    /// Tells the transfer's path, once, that a thread will sleep until the transfer is final.
    pub fn attend(&self, transfer: &Transfer) {
        if !transfer.is_final() && !transfer.is_attended() {
            transfer.attend();
            if let Some(path) = self.path(transfer.transport()) {
                path.attend(&mut self.after());
            }
        }
    }

    /// Raises the limit of a channel's notification numbers that the target accepts, and posts those that waited for
    /// it. Returns false if there is no such channel.
    pub fn grant(&self, limit: u64) -> bool {
        let granted = self.outbox.lock().grant(limit);
        if granted == Some(true) {
            self.post_notifications(&mut self.after());
        }
        granted.is_some()
    }

    pub fn event(&self, body: EventBody) {
        self.engine.hub.peer_event(Event { peer: self.handle, body, credit: None });
    }

    pub fn association_id(&self) -> u64 {
        self.association_id
    }

    pub fn engine(&self) -> &EngineParts {
        &self.engine
    }
}
