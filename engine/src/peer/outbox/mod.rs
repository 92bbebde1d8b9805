//! The work that waits to be posted to one peer. Submitters push transfers, paths pull frames; a frame is a run of
//! consecutive slices within the frame's limits. Each transport has its own lineup. Notifications that are posted on
//! their own share one queue, because the peer takes them in one order.
//!
//! Three classes keep small transfers moving beside large ones: EXPRESS has its own lane; MEDIUM and LARGE take turns
//! on the bulk lanes. Within a class, higher priority goes first, then the order of submission, so that the first of
//! many layers arrives first. READs and WRITEs are queued apart, because a READ also needs a credit of the target.
//!
//! No operation visits more runs than it moves: a transfer knows its position (`complete::position`). With N transfers
//! queued, inserting, pulling and removing one cost O(log N) each.

mod ends;
mod live;
mod notifications;
mod ordered;
#[cfg(test)]
mod tests;

use crate::complete::position::Place;
use crate::complete::{Transfer, TransferFlags};
use crate::limits::FRAME_DESCRIPTORS_MAX;
use crate::route::{self, Asked, Facts, Memory, PathState};
use crate::sys::atomic::Ordering;
use crate::types::{Op, Slice, SliceRange, Transport};
use ends::Stray;
use live::Live;
use notifications::{Notifications, Queued};
use ordered::Ordered;
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A transfer up to this size is posted between the frames of larger transfers.
const MEDIUM_BYTES_MAX: u64 = 4 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Express = 0,
    Medium = 1,
    Large = 2,
}

impl Class {
    pub const ALL: [Class; 3] = [Class::Express, Class::Medium, Class::Large];
}

/// Slices [next, end) of a transfer.
struct Run {
    transfer: Arc<Transfer>,
    next: u32,
    end: u32,
    /// The peer's memory turned out to be device memory.
    is_device: bool,
    /// A whole transfer that was posted in one frame with its notification, and may have been applied.
    is_replay: bool,
}

/// The position of a run: higher priority first, then the order of submission, then the order of slices. It uses the
/// run's end, which does not change when frames are pulled, and which is unique within the transfer.
type Spot = (Reverse<u32>, u64, u32);

impl Run {
    fn spot(&self) -> Spot {
        spot(&self.transfer, self.end)
    }
}

fn spot(transfer: &Transfer, end: u32) -> Spot {
    (Reverse(transfer.spec.priority), transfer.position.order(), end)
}

type Runs = BTreeMap<Spot, Run>;

/// One frame's worth of work.
pub enum Pulled {
    Slices {
        transfer: Arc<Transfer>,
        range: SliceRange,
        bytes: u32,
        with_notification: bool,
        /// The peer's memory turned out to be device memory, although no known region says so.
        is_device: bool,
    },
    Notify(Arc<Transfer>),
    Skip(u64),
}

#[derive(Clone, Copy)]
pub struct PullLimits {
    pub frame_bytes_max: u32,
    /// At most `FRAME_DESCRIPTORS_MAX`.
    pub descriptors_max: usize,
    /// The largest notification that may be posted on its own; None: notifications are not posted.
    pub notification_bytes_max: Option<usize>,
    pub read: bool,
    pub write: bool,
}

impl PullLimits {
    /// Data of both directions, without notifications.
    pub const fn data(frame_bytes_max: u32) -> PullLimits {
        let descriptors_max = FRAME_DESCRIPTORS_MAX;
        PullLimits { frame_bytes_max, descriptors_max, notification_bytes_max: None, read: true, write: true }
    }
}

/// The runs queued for one transport.
#[derive(Default)]
struct Lineup {
    runs: [[Runs; 2]; 3],
    /// Set when the transport carries nothing any more: how far `relocate` has come in moving its runs. None: no run is
    /// left to look at.
    strays: Option<Stray>,
    /// LARGE had the last turn on the bulk lanes.
    large_was_last: bool,
    /// The side (READ or WRITE) of each class that had the last turn.
    last_side: [usize; 3],
}

impl Lineup {
    /// Returns the classes of the bulk lanes, the next one to post first.
    fn bulk(&self) -> [Class; 2] {
        if self.large_was_last {
            [Class::Medium, Class::Large]
        } else {
            [Class::Large, Class::Medium]
        }
    }

    /// Returns the sides of a class, the next one to post first.
    fn sides(&self, class: Class) -> [usize; 2] {
        let last = self.last_side[class as usize];
        [1 - last, last]
    }
}

#[derive(Default)]
pub struct Outbox {
    notifications: Notifications,
    /// Indexed by transport number.
    lineups: [Lineup; Transport::COUNT],
    /// Transports other than TCP that are open, or may open soon: masks of `Transport::bit`.
    open: u64,
    pending: u64,
    /// Queued transfers that no transport may carry, now or soon. The next sweep strikes them.
    stranded: VecDeque<Arc<Transfer>>,
    live: Live,
    ordered: Ordered,
    next_order: u64,
}

fn side(op: Op) -> usize {
    (op == Op::Write) as usize
}

impl Outbox {
    pub fn new() -> Outbox {
        Outbox { pending: u64::MAX, ..Outbox::default() }
    }

    pub fn class_of(transfer: &Transfer, express_bytes_max: u64) -> Class {
        match transfer.spec.bytes {
            bytes if bytes <= express_bytes_max && transfer.spec.slices.len() <= FRAME_DESCRIPTORS_MAX => {
                Class::Express
            }
            bytes if bytes <= MEDIUM_BYTES_MAX => Class::Medium,
            _ => Class::Large,
        }
    }

    /// Queues a new transfer and gives its notification the next number. Returns false if it must wait for its start
    /// event or behind an earlier ORDERED transfer, so that nothing can be posted yet.
    pub fn submit(&mut self, transfer: Arc<Transfer>, class: Class) -> bool {
        transfer.position.set_order(self.next_order);
        self.next_order += 1;
        self.live.insert(&transfer);
        if transfer.spec.notify.is_some() {
            let number = self.notifications.next_number(transfer.spec.channel);
            transfer.notify_sequence.store(number, Ordering::Relaxed);
        }
        if transfer.spec.flags.has(TransferFlags::ORDERED) && !self.ordered.submit(&transfer) {
            return false;
        }
        let starts = !transfer.position.is_held();
        self.push_all(transfer, class);
        starts
    }

    /// Releases a held transfer when its start event has fired. Returns whether it has its turn, so that work can be
    /// posted. Does nothing for a struck transfer: the strike removes it.
    pub fn start(&mut self, transfer: &Arc<Transfer>, class: Class) -> bool {
        if !transfer.is_pending() {
            return false;
        }
        transfer.position.start();
        let starts = transfer.position.place() == Place::Held;
        if starts {
            self.push_all(transfer.clone(), class);
        }
        starts
    }

    fn push_all(&mut self, transfer: Arc<Transfer>, class: Class) {
        if transfer.position.is_held() {
            return transfer.position.set_place(Place::Held);
        }
        transfer.position.set_place(Place::Out);
        if transfer.spec.slices.is_empty() {
            if transfer.take_notification() {
                self.notifications.push_notify(transfer);
            }
            return;
        }
        let (routed, end) = (transfer.transport(), transfer.spec.slices.len() as u32);
        let run = Run { transfer, next: 0, end, is_device: false, is_replay: false };
        if routed == Transport::Tcp || self.is_open(routed) {
            return self.join(routed, run, class);
        }
        self.push_run(run, class);
    }

    fn push_run(&mut self, run: Run, class: Class) {
        let transport = self.lineup_of(&run.transfer, run.is_replay);
        self.join(transport, run, class);
    }

    fn join(&mut self, transport: Transport, run: Run, class: Class) {
        let runs = &mut self.lineups[transport as usize].runs;
        runs[class as usize][side(run.transfer.spec.op)].insert(run.spot(), run);
    }

    /// Queues slices of a lost lane again, at their old position. `notified`: together with the notification.
    pub fn requeue(&mut self, transfer: Arc<Transfer>, range: SliceRange, class: Class, notified: bool) {
        let (next, end) = (range.first, range.end);
        self.push_run(Run { transfer, next, end, is_device: false, is_replay: notified }, class);
    }

    /// Queues slices to be staged, because their path does not reach the memory.
    pub fn stage(&mut self, transfer: Arc<Transfer>, range: SliceRange, class: Class) {
        transfer.set_transport(Transport::Staged);
        let (next, end) = (range.first, range.end);
        self.push_run(Run { transfer, next, end, is_device: true, is_replay: false }, class);
    }

    /// Queues slices for TCP, because the transfer's path does not reach their memory. The transfer keeps its path.
    pub fn detour(&mut self, transfer: Arc<Transfer>, range: SliceRange, class: Class) {
        let run = Run { transfer, next: range.first, end: range.end, is_device: false, is_replay: false };
        self.join(Transport::Tcp, run, class);
    }

    /// Opens the transport: it carries what is queued for it.
    pub fn open(&mut self, transport: Transport) {
        self.open |= transport.bit();
        self.lineups[transport as usize].strays = None;
    }

    /// Shuts the transport. `relocate` moves its runs to TCP or to staging if that is allowed. The other runs wait
    /// while the transport is `pending`.
    pub fn shut(&mut self, transport: Transport, pending: bool) {
        self.open &= !transport.bit();
        self.pending = if pending { self.pending | transport.bit() } else { self.pending & !transport.bit() };
        let lineup = &mut self.lineups[transport as usize];
        let waits = lineup.runs.iter().flatten().any(|queue| !queue.is_empty());
        lineup.strays = waits.then(Stray::default);
    }

    /// Returns the transport whose lineup a run of this transfer joins. If no transport can carry the run now or later,
    /// the run stays in its lineup until the transfer is struck.
    fn lineup_of(&mut self, transfer: &Arc<Transfer>, is_replay: bool) -> Transport {
        let path = route::decide(&self.facts(transfer, is_replay)).path;
        match path {
            Transport::None => self.stranded.push_back(transfer.clone()),
            path if path != transfer.transport() => transfer.set_transport(path),
            _ => {}
        }
        transfer.transport()
    }

    /// Returns the routing facts of a transfer that was routed before: it keeps its path while that is open; otherwise
    /// TCP or staging takes it.
    fn facts(&self, transfer: &Transfer, is_replay: bool) -> Facts {
        let (spec, now) = (&transfer.spec, transfer.transport());
        let state = |transport: Transport| match () {
            _ if transport == Transport::Tcp || self.is_open(transport) => PathState::Open,
            _ if self.pending & transport.bit() != 0 => PathState::Pending,
            _ => PathState::Shut,
        };
        let asked = Asked {
            allowed: spec.allowed,
            checksum: spec.flags.has(TransferFlags::CHECKSUM),
            ordered: spec.flags.has(TransferFlags::ORDERED),
            notify: spec.notify.is_some(),
            held: spec.flags.has(TransferFlags::HELD),
        };
        // The version is not needed: the outbox's lock is held.
        let mut facts = Facts::new(0, [PathState::Shut; Transport::COUNT], asked);
        for transport in [Transport::Tcp, Transport::Staged, now] {
            facts.set_state(transport, state(transport));
        }
        // Staging also applies when the memory turned out to be device memory.
        let device_there = spec.flags.has(TransferFlags::DEVICE) || now == Transport::Staged;
        facts.memory =
            Memory { device_there, is_part: spec.flags.has(TransferFlags::PART), ..Memory::default() };
        facts.is_replay = is_replay;
        facts
    }

    pub fn push_notify(&mut self, transfer: Arc<Transfer>) {
        self.notifications.push_notify(transfer);
    }

    pub fn push_skip(&mut self, sequence: u64) {
        self.notifications.push_skip(sequence);
    }

    /// Raises the limit of a channel's notification numbers. Returns whether notifications are queued; None if there
    /// is no such channel.
    pub fn grant(&mut self, limit: u64) -> Option<bool> {
        self.notifications.grant(limit).then(|| !self.notifications.is_empty())
    }

    fn is_open(&self, transport: Transport) -> bool {
        self.open & transport.bit() != 0
    }

    /// Pulls the transport's next frame: notifications and EXPRESS runs for its express lane, other runs for bulk
    /// lanes.
    pub fn pull(&mut self, transport: Transport, express: bool, limits: PullLimits) -> Option<Pulled> {
        if transport != Transport::Tcp && !self.is_open(transport) {
            // Runs that are left here are about to move to another lineup.
            return None;
        }
        if express {
            let bytes_max = limits.notification_bytes_max.filter(|_| limits.write);
            if let Some(notification) =
                bytes_max.and_then(|bytes_max| self.pull_notification(transport, bytes_max))
            {
                return Some(notification);
            }
            return self.pull_run(transport, Class::Express, limits);
        }
        let (class, pulled) = self.lineups[transport as usize]
            .bulk()
            .into_iter()
            .find_map(|class| Some((class, self.pull_run(transport, class, limits)?)))?;
        self.lineups[transport as usize].large_was_last = class == Class::Large;
        Some(pulled)
    }

    fn pull_notification(&mut self, transport: Transport, bytes_max: usize) -> Option<Pulled> {
        Some(match self.notifications.pull(transport, self.open, bytes_max)? {
            (_, Queued::Notify(transfer)) => Pulled::Notify(transfer),
            (sequence, Queued::Skip) => Pulled::Skip(sequence),
        })
    }

    fn pull_run(&mut self, transport: Transport, class: Class, limits: PullLimits) -> Option<Pulled> {
        let notifications = &self.notifications;
        let lineup = &mut self.lineups[transport as usize];
        for side in lineup.sides(class) {
            if !(if side == 1 { limits.write } else { limits.read }) {
                continue;
            }
            let queue = &mut lineup.runs[class as usize][side];
            let Some(mut front) = queue.first_entry() else { continue };
            let run = front.get_mut();
            let (first, bytes) = (run.next, run.advance(limits));
            let (transfer, end, is_device, is_replay) =
                (run.transfer.clone(), run.next, run.is_device, run.is_replay);
            if run.next == run.end {
                front.remove();
            }
            // Data and notification share one frame if that frame is the whole transfer.
            lineup.last_side[class as usize] = side;
            let whole = first == 0 && end as usize == transfer.spec.slices.len();
            let may_notify = whole
                && transport == Transport::Tcp
                && transfer.spec.op == Op::Write
                && transfer.spec.notify.is_some()
                // Slices refused in this frame may be staged, and the notification must follow them.
                && !transfer.spec.flags.has(TransferFlags::UNKNOWN)
                && notifications.is_granted(transfer.notify_sequence.load(Ordering::Relaxed));
            let with_notification = (is_replay || may_notify) && transfer.take_notification();
            let range = SliceRange { first, end };
            return Some(Pulled::Slices { transfer, range, bytes, with_notification, is_device });
        }
        None
    }

    /// Returns the first slice of the next frame, and whether its run is the only one that waits.
    pub fn front(&self, transport: Transport, express: bool) -> Option<(Slice, bool)> {
        let lineup = &self.lineups[transport as usize];
        let bulk = lineup.bulk();
        let classes = if express { &[Class::Express][..] } else { &bulk };
        let sides = |class: &Class| lineup.sides(*class).map(|side| &lineup.runs[*class as usize][side]);
        let mut runs = classes.iter().flat_map(sides).flat_map(BTreeMap::values);
        let front = runs.next()?;
        Some((front.transfer.spec.slices[front.next as usize], runs.next().is_none()))
    }

    /// Returns whether work for this transport's express lane (or its bulk lanes) is queued.
    pub fn has_work(&self, transport: Transport, express: bool) -> bool {
        let runs = &self.lineups[transport as usize].runs;
        if express {
            self.notifications.has(transport, self.open) || runs[0].iter().any(|queue| !queue.is_empty())
        } else {
            runs[1..].iter().flatten().any(|queue| !queue.is_empty())
        }
    }

    /// Returns whether nothing waits to be posted.
    pub fn is_empty(&self) -> bool {
        let mut runs = self.lineups.iter().flat_map(|lineup| lineup.runs.iter().flatten());
        self.notifications.is_empty() && runs.all(BTreeMap::is_empty)
    }

    /// Removes all unposted slices of a struck transfer and returns their number. ORDERED transfers behind it are
    /// struck next, because it will not be done.
    pub fn drop_unposted(&mut self, transfer: &Transfer) -> u32 {
        self.live.remove(transfer);
        let place = transfer.position.place();
        transfer.position.set_place(Place::Out);
        if place == Place::Behind {
            self.ordered.drop_one(transfer);
        }
        match place {
            Place::New => 0,
            Place::Behind | Place::Held => transfer.spec.slices.len() as u32,
            Place::Out => self.drop_runs(transfer),
        }
    }

    fn drop_runs(&mut self, transfer: &Transfer) -> u32 {
        let (spots, side) = (spot(transfer, 0)..=spot(transfer, u32::MAX), side(transfer.spec.op));
        let queues = self.lineups.iter_mut().flat_map(|lineup| &mut lineup.runs);
        let mut dropped = 0;
        for queue in queues.map(|sides| &mut sides[side]) {
            while let Some(spot) = queue.range(spots.clone()).next().map(|(spot, _)| *spot) {
                dropped += queue.remove(&spot).map_or(0, |run| run.end - run.next);
            }
        }
        dropped
    }

    /// Removes the transfer's notification if it is queued. Returns whether it was.
    pub fn drop_notification(&mut self, transfer: &Transfer) -> bool {
        transfer.spec.notify.is_some() && self.notifications.drop_notify(transfer)
    }

    /// Removes an ended transfer. If it was the active ORDERED transfer, the next one starts if it is `done`; otherwise
    /// all transfers behind it are struck next.
    pub fn ended(&mut self, transfer: &Arc<Transfer>, done: bool, express_bytes_max: u64) -> OrderedNext {
        self.live.remove(transfer);
        if !transfer.spec.flags.has(TransferFlags::ORDERED) {
            return OrderedNext::Nothing;
        }
        match self.ordered.ended(transfer, done) {
            Some(next) => {
                let class = Outbox::class_of(&next, express_bytes_max);
                self.push_all(next.clone(), class);
                OrderedNext::Started(next.transport(), class)
            }
            None if self.ordered.has_doomed() => OrderedNext::Doomed,
            None => OrderedNext::Nothing,
        }
    }

    /// Returns whether ORDERED transfers wait to be struck because an earlier one failed.
    pub fn has_doomed(&self) -> bool {
        self.ordered.has_doomed()
    }
}

pub enum OrderedNext {
    Nothing,
    /// Work of this class can be posted.
    Started(Transport, Class),
    /// Transfers that waited must be struck.
    Doomed,
}

impl Run {
    /// Moves `next` past one frame's slices, at least one, and returns their bytes. The first slice always fits: no
    /// slice is longer than a frame of the peer, although the current limit may be smaller. A replay is never split. It
    /// was one frame and fits one again; parts without the number would overwrite later changes of the application.
    fn advance(&mut self, limits: PullLimits) -> u32 {
        let mut bytes = 0u32;
        let last =
            if self.is_replay { self.end } else { self.end.min(self.next + limits.descriptors_max as u32) };
        while self.next < last {
            let length = self.transfer.spec.slices[self.next as usize].length;
            if bytes > 0 && !self.is_replay && bytes + length > limits.frame_bytes_max {
                break;
            }
            bytes += length;
            self.next += 1;
        }
        bytes
    }
}
