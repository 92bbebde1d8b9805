//! A remote engine, seen from here: what it registered, what waits to be posted to it, which of its
//! notifications came, and when its leases end. Independent of any transport: a `Path` moves the frames.
//!
//! `api` submits here, lanes pull from `outbox` and settle through `Peer::confirm` and
//! `Peer::abandon`, the control loop strikes and requeues. Locks are leaves: none is held while a
//! transfer is made final or a link is called. A few lines above the usual number: whatever makes one final is here.

mod after;
mod identity;
pub mod inbox;
mod incoming;
mod lane_numbers;
pub mod lease;
pub mod outbox;
mod path;
mod paths;
mod posted;
mod release;
mod restage;
mod strike;
#[cfg(test)]
pub mod tests;
mod transport;

pub use after::{After, Left};
pub use identity::{PeerIdentity, PeerState, PeerStats, Surroundings};
pub use inbox::Arrival;
pub use incoming::Arriving;
pub use lane_numbers::LaneNumbers;
pub use path::{Condition, Devices, Kept, Path, PathStatus, SameHost};
pub use posted::{Posted, What};
pub use transport::{Closed, Installed, SessionInfo, TransportService};

use crate::command::Command;
use crate::complete::transfer::Failure;
use crate::complete::{Fence, Notification, State, Transfer, TransferFlags};
use crate::loss::{Cause, Loss};
use crate::notify::{Event, EventBody};
use crate::region::remote::RemoteRegions;
use crate::route::ORDER;
use crate::status::{Error, Result, Status};
use crate::sys::lock::{Mutex, RwLock};
use crate::types::{PeerId, Slice, Transport};
use inbox::Inbox;
use lease::LeaseClock;
use outbox::{Class, OrderedNext, Outbox, PullLimits, Pulled};
use paths::Standing;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use strike::SWEEP_TURN;

pub struct Peer {
    pub handle: PeerId,
    pub identity: PeerIdentity,
    pub remote: RemoteRegions,
    pub clock: LeaseClock,
    /// Names this object in session starts, so that both sides know whether the other still remembers.
    association_id: u64,
    pub stats: PeerStats,
    around: Surroundings,
    state: AtomicU32,
    /// Why the peer is lost, as a status number; 0 before.
    lost: AtomicU32,
    outbox: Mutex<Outbox>,
    inbox: Arc<Mutex<Inbox>>,
    path: RwLock<Option<Arc<dyn Path>>>,
    /// By the number of the transport; TCP's place is not used.
    paths: [RwLock<PathStatus>; Transport::COUNT],
    standing: Standing,
    active: AtomicU64,
    /// The control loop was asked to `sweep`, and has not come to the end of it. Partner: the outbox's lock, under
    /// which what it is asked for was put there.
    sweeping: AtomicBool,
    /// CLOCK_MONOTONIC time of the control loop's next look at this peer. See `look_at`.
    look_ns: AtomicU64,
    /// The last lane or connection that was lost otherwise than on purpose.
    last_loss: Mutex<Option<Loss>>,
    /// Called between taking something from the outbox and posting it.
    #[cfg(test)]
    pub pulled: tests::Hook<Pulled>,
    /// Called between taking an outcome from a lane and applying it.
    #[cfg(test)]
    pub taken: tests::Hook<Arc<Transfer>>,
}

/// See `Peer::busy`.
pub struct Busy<'a>(&'a Peer);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.one_less();
    }
}

impl Peer {
    pub fn new(handle: PeerId, identity: PeerIdentity, association_id: u64, around: Surroundings) -> Peer {
        Peer {
            handle,
            identity,
            remote: RemoteRegions::new(),
            clock: LeaseClock::new(around.lease_ns),
            association_id,
            stats: PeerStats::default(),
            state: AtomicU32::new(PeerState::Connecting as u32),
            lost: AtomicU32::new(0),
            outbox: Mutex::new(Outbox::new()),
            inbox: Arc::new(Mutex::new(Inbox::new())),
            path: RwLock::new(None),
            paths: std::array::from_fn(|_| {
                RwLock::new(PathStatus::Pending("the session is being established".into()))
            }),
            standing: Standing::default(),
            active: AtomicU64::new(0),
            sweeping: AtomicBool::new(false),
            look_ns: AtomicU64::new(u64::MAX),
            last_loss: Mutex::new(None),
            #[cfg(test)]
            pulled: tests::Hook::default(),
            #[cfg(test)]
            taken: tests::Hook::default(),
            around,
        }
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

    /// A lane or the connection to the peer was lost.
    pub fn note_loss(&self, loss: Loss) {
        self.around.stats.losses[loss.cause as usize].fetch_add(1, Ordering::Relaxed);
        if loss.cause != Cause::Ours {
            *self.last_loss.lock() = Some(loss);
        }
    }

    /// Why the last lane or connection to the peer was lost, unless that was done here on purpose.
    pub fn last_loss(&self) -> Option<Loss> {
        self.last_loss.lock().clone()
    }

    /// Marks the peer as lost for good.
    pub fn set_lost(&self, why: Status) {
        // SeqCst: see `one_less`.
        let _ = self.lost.compare_exchange(0, why as i32 as u32, Ordering::SeqCst, Ordering::Acquire);
        self.state.store(PeerState::Lost as u32, Ordering::Release);
        self.note_lost();
    }

    /// Why the peer is lost, if it is.
    pub fn lost(&self) -> Option<Status> {
        Status::from_number(self.lost.load(Ordering::Acquire) as i32).filter(|status| *status != Status::Ok)
    }

    /// Has what is left with no way to go struck, if there is something.
    fn strike_stranded(&self) {
        if self.outbox.lock().has_stranded() {
            self.sweep_soon();
        }
    }

    /// Transfers that are not final.
    pub fn active(&self) -> u64 {
        self.active.load(Ordering::SeqCst)
    }

    /// A transfer is final, or what counted as one has ended. Whoever closes a lost peer, or the engine, waits for the
    /// last.
    fn one_less(&self) {
        // Pairs with `set_lost`: either the control loop, which looks at the count after that, sees none left, or
        // the loss is seen here.
        if self.active.fetch_sub(1, Ordering::SeqCst) == 1 && self.lost.load(Ordering::SeqCst) != 0 {
            self.around.commands.push(Command::PeerIdle { peer: self.handle });
        }
    }

    /// Counts work that is no transfer among them, for as long as the guard lives.
    pub fn busy(&self) -> Busy<'_> {
        self.active.fetch_add(1, Ordering::AcqRel);
        Busy(self)
    }

    pub fn class_of(&self, transfer: &Transfer) -> Class {
        Outbox::class_of(transfer, self.around.express_bytes_max)
    }

    /// Queues a transfer and has it posted.
    pub fn submit(&self, transfer: Arc<Transfer>) -> Result<()> {
        let class = self.stats.submitted(self.class_of(&transfer));
        let transport;
        let has_no_data = transfer.spec.slices.is_empty();
        {
            let mut outbox = self.outbox.lock();
            // The peer is marked as lost before its transfers are struck: one that gets past here is
            // in the engine's table by then, and is found there.
            if let Some(why) = self.lost() {
                return Err(Error::new(why, "the peer is lost; connect again"));
            }
            self.active.fetch_add(1, Ordering::AcqRel);
            // A deadline in the past may have struck it before it got here.
            if transfer.is_pending() {
                let posted = outbox.submit(transfer.clone(), class);
                transport = transfer.transport();
                if !posted {
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
            (false, Some(path)) => path.post(class, Some(transfer.spec.submitted_ns), &mut after),
            (false, None) => {}
        }
        Ok(())
    }

    /// What a transfer was held for has come: has it posted. One that was struck meanwhile is left alone.
    pub fn start(&self, transfer: &Arc<Transfer>) {
        let class = self.class_of(transfer);
        if !self.outbox.lock().start(transfer, class) {
            return;
        }
        self.strike_stranded();
        let mut after = self.after();
        match transfer.spec.slices.is_empty() {
            true => self.post_notifications(&mut after),
            false => after.post(transfer.transport(), class),
        }
    }

    /// Ends a transfer that was struck before it was queued: its notification has no number to skip.
    fn end_unqueued(&self, transfer: &Arc<Transfer>) {
        if transfer.spec.notify.is_some() && transfer.take_notification() {
            transfer.set_notification(Notification::NotSent);
        }
        self.abandon(transfer, transfer.units(), Fence::Confirmed, &mut self.after());
    }

    /// What is to be done at the end of a turn for this peer.
    pub fn after(&self) -> After<'_> {
        After::new(self)
    }

    /// Has notifications posted that are queued.
    fn post_notifications(&self, after: &mut After) {
        after.post(Transport::Tcp, Class::Express);
        after.post(Transport::Rdma, Class::Express);
    }

    /// Has everything posted that is queued.
    pub fn post_all(&self) {
        let mut after = self.after();
        ORDER.iter().for_each(|transport| after.nudge(*transport));
    }

    pub fn pull(&self, transport: Transport, express: bool, limits: PullLimits) -> Option<Pulled> {
        let pulled = self.outbox.lock().pull(transport, express, limits);
        #[cfg(test)]
        self.pulled.call(pulled.as_ref());
        pulled
    }

    pub fn has_work(&self, transport: Transport, express: bool) -> bool {
        self.outbox.lock().has_work(transport, express)
    }

    /// What the next frame of this transport begins with, and whether nothing else waits; a hint.
    pub fn front(&self, transport: Transport, express: bool) -> Option<(Slice, bool)> {
        self.outbox.lock().front(transport, express)
    }

    /// A frame was acknowledged: slices [first, end) are done but for `failures`. `notified`: the frame
    /// carried the transfer's notification too.
    pub fn confirm(
        &self,
        transfer: &Arc<Transfer>,
        run: (u32, u32),
        bytes: u64,
        failures: &[Failure],
        notified: bool,
        after: &mut After,
    ) {
        #[cfg(test)]
        self.taken.call(Some(transfer));
        if notified && failures.is_empty() {
            transfer.set_notification(Notification::Delivered);
        } else if notified {
            // The target announces no data that it refused in part, and waits for what becomes of the number.
            transfer.set_notification(Notification::NotSent);
            self.skip(transfer, after);
        }
        let last = transfer.confirm(run.0, run.1, bytes, failures, notified as u32);
        self.settled(transfer, last, after);
    }

    /// A notification that went alone was acknowledged.
    pub fn confirm_notification(&self, transfer: &Arc<Transfer>, after: &mut After) {
        transfer.set_notification(Notification::Delivered);
        let last = transfer.settle(1);
        self.settled(transfer, last, after);
    }

    /// `units` of the transfer can no longer touch memory, unconfirmed.
    pub fn abandon(&self, transfer: &Arc<Transfer>, units: u32, fence: Fence, after: &mut After) {
        let last = transfer.abandon(units, fence);
        self.settled(transfer, last, after);
    }

    fn settled(&self, transfer: &Arc<Transfer>, last: bool, after: &mut After) {
        if last {
            return self.finish(transfer, after);
        }
        if transfer.awaits_notification() && transfer.take_notification() {
            if self.queue_notification(transfer) {
                self.post_notifications(after);
            } else {
                self.give_up_notification(transfer, after);
            }
        }
    }

    /// Queues a transfer's notification, unless it was struck. Under the lock, so that a strike that
    /// comes now finds the word and drops it: a peer that is down might never take it.
    fn queue_notification(&self, transfer: &Arc<Transfer>) -> bool {
        let mut outbox = self.outbox.lock();
        let queued = transfer.may_notify() && self.lost().is_none();
        if queued {
            outbox.push_notify(transfer.clone());
        }
        queued
    }

    /// The notification will not be sent, or not again.
    fn give_up_notification(&self, transfer: &Arc<Transfer>, after: &mut After) {
        transfer.give_up_notification();
        self.skip(transfer, after);
        if transfer.settle(1) {
            self.finish(transfer, after);
        }
    }

    /// Nobody will send this transfer's notification: the target is told, so that later ones are not held up. If it
    /// has had it, it takes that for a repetition.
    fn skip(&self, transfer: &Transfer, after: &mut After) {
        if self.lost().is_none() {
            self.outbox.lock().push_skip(transfer.notify_sequence.load(Ordering::Relaxed));
            self.post_notifications(after);
        }
    }

    /// Somebody is about to sleep until the transfer is final: what carries it hears of that.
    pub fn attend(&self, transfer: &Transfer) {
        if !transfer.is_final() && !transfer.is_attended() {
            transfer.attend();
            if let Some(path) = self.path(transfer.transport()) {
                path.attend(&mut self.after());
            }
        }
    }

    /// Everything that whoever sees the transfer final may rely on comes before `publish`: the
    /// statistics, the order of what follows, and the event in its queue.
    fn finish(&self, transfer: &Arc<Transfer>, after: &mut After) {
        if self.around.commands.health.is_broken() {
            return; // what settled it may be wrong: it is made final when the engine is over
        }
        let state = transfer.conclude();
        if !transfer.spec.flags.has(TransferFlags::PART) {
            self.around.stats.finished(state, transfer);
        }
        let express_bytes_max = self.around.express_bytes_max;
        let next = self.outbox.lock().ended(transfer, state == State::Done, express_bytes_max);
        match &transfer.spec.queue {
            Some(queue) => {
                let (handle, user_data) = (transfer.handle, transfer.spec.user_data);
                let status = transfer.concluded_status();
                let body = EventBody::Transfer { transfer: handle, user_data, status };
                queue.push_reserved(Event { peer: self.handle, body, credit: None }, || {
                    transfer.publish(state)
                });
            }
            None => transfer.publish(state),
        }
        if transfer.is_orphan() {
            // Whoever let go of it at this moment may have been first.
            let _ = self.around.transfers.remove(transfer.handle);
        }
        self.one_less();
        transfer.waiter.notify_all(after.wakers());
        after.wake(transfer.transport());
        match next {
            OrderedNext::Nothing => {}
            OrderedNext::Started(transport, class) => {
                self.strike_stranded();
                match transport {
                    Transport::Tcp => {
                        after.post(transport, class);
                        self.post_notifications(after); // it may be one without data
                    }
                    _ => after.nudge(transport),
                }
            }
            OrderedNext::Doomed => self.sweep_soon(),
        }
    }

    /// The target grants more notifications.
    pub fn grant(&self, limit: u64) {
        if self.outbox.lock().grant(limit) {
            self.post_notifications(&mut self.after());
        }
    }

    pub fn event(&self, body: EventBody) {
        self.around.hub.peer_event(Event { peer: self.handle, body, credit: None });
    }

    pub fn association_id(&self) -> u64 {
        self.association_id
    }

    pub fn around(&self) -> &Surroundings {
        &self.around
    }
}
