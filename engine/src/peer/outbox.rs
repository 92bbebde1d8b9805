//! What waits to be posted to one peer. Submitters push transfers, transports pull frames; a frame is a
//! run of consecutive slices within the frame's limits. Each transport has a lineup of its own; notifications
//! that go alone have one for all, because the peer takes them in one order.
//!
//! Three classes keep small transfers moving beside large ones: EXPRESS has a lane of its own, MEDIUM
//! and LARGE take turns on the bulk lanes. Within a class, higher priority first, then in order of
//! submission, so that the first of many layers arrives first. READs and WRITEs queue apart, because a
//! READ also needs a credit of the target's.

use crate::complete::Transfer;
use crate::limits::{FRAME_DESCRIPTORS_MAX, NOTIFY_CREDITS, RDMA_WORD_BYTES_MAX};
use crate::types::{Op, Slice, Transport};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Up to this size a transfer goes between the frames of larger ones.
const MEDIUM_BYTES_MAX: u64 = 4 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Express = 0,
    Medium = 1,
    Large = 2,
}

/// Slices [next, end) of a transfer.
struct Run {
    transfer: Arc<Transfer>,
    next: u32,
    end: u32,
    /// The peer's memory turned out to be a device's.
    is_device: bool,
    /// All of a transfer that was posted in one frame with its notification, and may have been taken in.
    is_replay: bool,
}

/// Notifications apart from data.
enum Word {
    Notify(Arc<Transfer>),
    Skip(u64),
}

impl Word {
    fn bytes(&self) -> usize {
        match self {
            Word::Notify(transfer) => transfer.spec.notify.as_ref().map_or(0, |bytes| bytes.len()),
            Word::Skip(_) => 0,
        }
    }
}

/// One frame's worth of work.
pub enum Pulled {
    Slices {
        transfer: Arc<Transfer>,
        first: u32,
        end: u32,
        bytes: u32,
        with_notification: bool,
        /// The peer's memory turned out to be a device's, whatever is known of it here.
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
    /// Of a notification on its own; None: none of them.
    pub word_bytes_max: Option<usize>,
    pub read: bool,
    pub write: bool,
}

/// The runs that one transport carries.
#[derive(Default)]
struct Lineup {
    runs: [[VecDeque<Run>; 2]; 3],
    /// Whether LARGE had the last turn of the bulk lanes.
    large_was_last: bool,
    /// Which side of each class had the last turn.
    last_side: [usize; 3],
}

impl Lineup {
    /// The classes of the bulk lanes, the one that has its turn first.
    fn bulk(&self) -> [Class; 2] {
        match self.large_was_last {
            true => [Class::Medium, Class::Large],
            false => [Class::Large, Class::Medium],
        }
    }

    /// The sides of a class in the same way.
    fn sides(&self, class: Class) -> [usize; 2] {
        let last = self.last_side[class as usize];
        [1 - last, last]
    }
}

#[derive(Default)]
pub struct Outbox {
    words: VecDeque<Word>,
    /// By the number of the transport.
    lineups: [Lineup; Transport::COUNT],
    /// Transports besides TCP that can carry something now, or may again soon: masks of `Transport::bit`.
    open: u64,
    pending: u64,
    /// Queued for a transport that carries nothing now, and not allowed on TCP: about to be struck.
    stranded: Vec<Arc<Transfer>>,
    /// Have their turn, and wait to be started.
    held: Vec<(Arc<Transfer>, Class)>,
    notify_next: u64,
    notify_limit: u64,
    ordered_active: Option<u64>,
    ordered_waiting: VecDeque<Arc<Transfer>>,
    /// Waited behind an ORDERED transfer that failed, and are about to be struck for it. Apart, so that
    /// none of them starts and nothing submitted from here on fails with them.
    ordered_doomed: Vec<Arc<Transfer>>,
}

fn side(op: Op) -> usize {
    (op == Op::Write) as usize
}

impl Outbox {
    pub fn new() -> Outbox {
        Outbox { notify_limit: NOTIFY_CREDITS as u64, pending: u64::MAX, ..Outbox::default() }
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

    /// Queues a new transfer; gives its notification the next place. False when it is held back behind
    /// an earlier ORDERED transfer, so that there is nothing to post yet.
    pub fn submit(&mut self, transfer: Arc<Transfer>, class: Class) -> bool {
        if transfer.spec.notify.is_some() {
            transfer.notify_sequence.store(self.notify_next, Ordering::Relaxed);
            self.notify_next += 1;
        }
        if transfer.spec.ordered {
            if self.ordered_active.is_some() {
                self.ordered_waiting.push_back(transfer);
                return false;
            }
            self.ordered_active = Some(transfer.handle);
        }
        let starts = !transfer.is_held();
        self.push_all(transfer, class);
        starts
    }

    /// What it waited for has come. Its class, if it has its turn. One that is struck the strike takes out.
    pub fn start(&mut self, transfer: &Arc<Transfer>) -> Option<Class> {
        if !transfer.is_pending() {
            return None;
        }
        transfer.start();
        let place = self.held.iter().position(|(other, _)| other.handle == transfer.handle)?;
        let (transfer, class) = self.held.swap_remove(place);
        self.push_all(transfer, class);
        Some(class)
    }

    fn push_all(&mut self, transfer: Arc<Transfer>, class: Class) {
        if transfer.is_held() {
            return self.held.push((transfer, class));
        }
        if transfer.spec.slices.is_empty() {
            if transfer.take_notification() {
                self.words.push_back(Word::Notify(transfer));
            }
            return;
        }
        let end = transfer.spec.slices.len() as u32;
        self.push_run(Run { transfer, next: 0, end, is_device: false, is_replay: false }, class);
    }

    fn push_run(&mut self, run: Run, class: Class) {
        let lineup = self.lineup_of(&run.transfer);
        let queue = &mut lineup.runs[class as usize][side(run.transfer.spec.op)];
        let priority = run.transfer.spec.priority;
        let place = queue.iter().rposition(|other| other.transfer.spec.priority >= priority);
        queue.insert(place.map_or(0, |at| at + 1), run);
    }

    /// Queues slices again that a lost lane had carried; `notified`, together with the notification.
    pub fn requeue(
        &mut self,
        transfer: Arc<Transfer>,
        (first, end): (u32, u32),
        class: Class,
        notified: bool,
    ) {
        self.push_front(Run { transfer, next: first, end, is_device: false, is_replay: notified }, class);
    }

    /// Queues slices to be staged that another way could not reach.
    pub fn stage(&mut self, transfer: Arc<Transfer>, first: u32, end: u32, class: Class) {
        transfer.stage();
        self.push_front(Run { transfer, next: first, end, is_device: true, is_replay: false }, class);
    }

    fn push_front(&mut self, run: Run, class: Class) {
        // The target knows the notification's number, and by it whether it has had the data: only TCP carries both.
        let lineup = match run.is_replay {
            true => &mut self.lineups[Transport::Tcp as usize],
            false => self.lineup_of(&run.transfer),
        };
        lineup.runs[class as usize][side(run.transfer.spec.op)].push_front(run);
    }

    /// From here on the transport carries what is queued for it.
    pub fn open(&mut self, via: Transport) {
        self.open |= via.bit();
    }

    /// The transport carries nothing any more: what waits for it waits for TCP instead, or to be staged, where it may;
    /// what may not goes on waiting as long as it is `pending`.
    pub fn shut(&mut self, via: Transport, pending: bool) {
        self.open &= !via.bit();
        self.pending = if pending { self.pending | via.bit() } else { self.pending & !via.bit() };
        for class in [Class::Express, Class::Medium, Class::Large] {
            for side in 0..2 {
                let runs = std::mem::take(&mut self.lineups[via as usize].runs[class as usize][side]);
                runs.into_iter().for_each(|run| self.push_run(run, class));
            }
        }
    }

    /// What cannot go any way, to be struck.
    pub fn take_stranded(&mut self) -> Vec<Arc<Transfer>> {
        std::mem::take(&mut self.stranded)
    }

    /// The lineup for this transfer.
    fn lineup_of(&mut self, transfer: &Arc<Transfer>) -> &mut Lineup {
        let carries = |via: Transport| via == Transport::Tcp || self.open & via.bit() != 0;
        if !carries(transfer.via()) {
            transfer.reroute();
        }
        let via = transfer.via();
        if !carries(via) && self.pending & via.bit() == 0 {
            self.stranded.push(transfer.clone());
        }
        &mut self.lineups[transfer.via() as usize]
    }

    pub fn push_notify(&mut self, transfer: Arc<Transfer>) {
        self.words.push_back(Word::Notify(transfer));
    }

    pub fn push_skip(&mut self, sequence: u64) {
        self.words.push_back(Word::Skip(sequence));
    }

    /// The target takes notifications with sequences below `limit`. True when some were waiting for it.
    pub fn grant(&mut self, limit: u64) -> bool {
        self.notify_limit = self.notify_limit.max(limit);
        !self.words.is_empty()
    }

    /// The next frame for a transport: its express lane takes words and EXPRESS runs, the others the rest.
    pub fn pull(&mut self, via: Transport, express: bool, limits: PullLimits) -> Option<Pulled> {
        if express {
            let bytes_max = limits.word_bytes_max.filter(|_| limits.write);
            if let Some(word) = bytes_max.and_then(|bytes_max| self.pull_word(via, bytes_max)) {
                return Some(word);
            }
            return self.pull_run(via, Class::Express, limits);
        }
        let (class, pulled) = self.lineups[via as usize]
            .bulk()
            .into_iter()
            .find_map(|class| Some((class, self.pull_run(via, class, limits)?)))?;
        self.lineups[via as usize].large_was_last = class == Class::Large;
        Some(pulled)
    }

    fn pull_word(&mut self, via: Transport, bytes_max: usize) -> Option<Pulled> {
        let limit = self.notify_limit;
        let place = self.words.iter().position(|word| {
            let (sequence, bytes) = match word {
                Word::Notify(transfer) => (transfer.notify_sequence.load(Ordering::Relaxed), word.bytes()),
                Word::Skip(sequence) => (*sequence, 0),
            };
            sequence < limit && bytes <= bytes_max && self.way_of(word) == via
        })?;
        Some(match self.words.remove(place)? {
            Word::Notify(transfer) => Pulled::Notify(transfer),
            Word::Skip(sequence) => Pulled::Skip(sequence),
        })
    }

    /// How a notification travels: by RDMA where there is such a path and it is short enough, by TCP
    /// otherwise, whatever carried its data. The target puts them in order.
    fn way_of(&self, word: &Word) -> Transport {
        let may = |transfer: &Transfer| transfer.spec.allowed & Transport::Rdma.bit() != 0;
        let may = if let Word::Notify(transfer) = word { may(transfer) } else { true };
        match self.open & Transport::Rdma.bit() != 0 && may && word.bytes() <= RDMA_WORD_BYTES_MAX {
            true => Transport::Rdma,
            false => Transport::Tcp,
        }
    }

    fn pull_run(&mut self, via: Transport, class: Class, limits: PullLimits) -> Option<Pulled> {
        let notify_limit = self.notify_limit;
        let lineup = &mut self.lineups[via as usize];
        for side in lineup.sides(class) {
            if !(if side == 1 { limits.write } else { limits.read }) {
                continue;
            }
            let queue = &mut lineup.runs[class as usize][side];
            let Some(run) = queue.front_mut() else { continue };
            let (first, bytes) = (run.next, run.advance(limits));
            let (transfer, end, is_device, is_replay) =
                (run.transfer.clone(), run.next, run.is_device, run.is_replay);
            if run.next == run.end {
                queue.pop_front();
            }
            // Data and notification in one frame, when that frame is the whole transfer.
            lineup.last_side[class as usize] = side;
            let whole = first == 0 && end as usize == transfer.spec.slices.len();
            let may_notify = whole
                && via == Transport::Tcp
                && transfer.spec.op == Op::Write
                && transfer.spec.notify.is_some()
                // What is refused in this frame may be staged, and the notification comes after that.
                && !transfer.spec.has_unknown
                && transfer.notify_sequence.load(Ordering::Relaxed) < notify_limit;
            let with_notification = (is_replay || may_notify) && transfer.take_notification();
            return Some(Pulled::Slices { transfer, first, end, bytes, with_notification, is_device });
        }
        None
    }

    /// What the next frame would begin with, and whether it is of the only run that waits.
    pub fn front(&self, via: Transport, express: bool) -> Option<(Slice, bool)> {
        let lineup = &self.lineups[via as usize];
        let bulk = lineup.bulk();
        let classes = if express { &[Class::Express][..] } else { &bulk };
        let sides = |class: &Class| lineup.sides(*class).map(|side| &lineup.runs[*class as usize][side]);
        let mut runs = classes.iter().flat_map(sides).flatten();
        let front = runs.next()?;
        Some((front.transfer.spec.slices[front.next as usize], runs.next().is_none()))
    }

    /// Whether anything could be pulled with these limits.
    pub fn has_work(&self, via: Transport, express: bool) -> bool {
        let runs = &self.lineups[via as usize].runs;
        if express {
            self.words.iter().any(|word| self.way_of(word) == via)
                || runs[0].iter().any(|queue| !queue.is_empty())
        } else {
            runs[1..].iter().flatten().any(|queue| !queue.is_empty())
        }
    }

    /// Takes everything of a transfer that has not been posted: how many slices that were, and which
    /// ORDERED transfers waited behind it, to be struck because it will not be done.
    pub fn drop_unposted(&mut self, transfer: &Transfer) -> (u32, Vec<Arc<Transfer>>) {
        let mut dropped = 0;
        for queue in self.lineups.iter_mut().flat_map(|lineup| lineup.runs.iter_mut().flatten()) {
            queue.retain(|run| {
                let ours = run.transfer.handle == transfer.handle;
                dropped += if ours { run.end - run.next } else { 0 };
                !ours
            });
        }
        let same = |other: &Arc<Transfer>| other.handle == transfer.handle;
        if let Some(place) = self.held.iter().position(|(other, _)| same(other)) {
            self.held.swap_remove(place);
            dropped += transfer.spec.slices.len() as u32;
        }
        let mut behind = Vec::new();
        if let Some(place) = self.ordered_waiting.iter().position(same) {
            behind.extend(self.ordered_waiting.drain(place + 1..));
            self.ordered_waiting.pop_back();
            self.ordered_doomed.extend(behind.iter().cloned());
            dropped += transfer.spec.slices.len() as u32;
        } else if let Some(place) = self.ordered_doomed.iter().position(same) {
            self.ordered_doomed.swap_remove(place);
            dropped += transfer.spec.slices.len() as u32;
        }
        (dropped, behind)
    }

    /// Takes back a notification word that was queued but not posted.
    pub fn drop_word(&mut self, transfer: &Transfer) -> bool {
        let before = self.words.len();
        self.words.retain(|word| !matches!(word, Word::Notify(other) if other.handle == transfer.handle));
        self.words.len() < before
    }

    /// An ORDERED transfer ended. When it is done the next one starts; when it failed, all that waited
    /// behind it fail with it (returned to be struck).
    pub fn ordered_ended(&mut self, handle: u64, done: bool, express_bytes_max: u64) -> OrderedNext {
        if self.ordered_active != Some(handle) {
            return OrderedNext::Nothing;
        }
        self.ordered_active = None;
        if !done {
            let doomed: Vec<_> = self.ordered_waiting.drain(..).collect();
            self.ordered_doomed.extend(doomed.iter().cloned());
            return OrderedNext::Fail(doomed);
        }
        let Some(next) = self.ordered_waiting.pop_front() else { return OrderedNext::Nothing };
        let class = Outbox::class_of(&next, express_bytes_max);
        self.ordered_active = Some(next.handle);
        self.push_all(next.clone(), class);
        let via = next.via();
        OrderedNext::Started(via, class)
    }
}

pub enum OrderedNext {
    Nothing,
    /// Something of this class waits to be posted.
    Started(Transport, Class),
    Fail(Vec<Arc<Transfer>>),
}

impl Run {
    /// Moves `next` past one frame's slices, at least one, and returns their bytes. A slice fits any frame
    /// of its peer; the limit of the moment may be smaller. A replay was one frame and fits one again, as the limits of
    /// the peer don't change; in parts, those without the number would be applied over what the target's application
    /// made of them since.
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
