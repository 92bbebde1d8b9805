//! Submits an application's transfers: drawn requests in ranges that are free at both ends.

use crate::actor::Actor;
use crate::calls::SUBMITS;
use crate::ledger::{Kind, Ledger, LifeId, Piece, TransferId, Wish};
use crate::memory::{Block, MemoryId};
use crate::notes::{payload, BYTES_MIN};
use ferry::limits::NOTIFY_CREDITS;
use ferry::status::{Error, Status};
use ferry::types::{Op, PeerId, RegionId, Request};
use ferry::{Deadline, Notification, TransferOptions};
use ferry_sim_kernel::{clock, moment, task};
use std::time::Duration;

pub const SKIPPED: &str = "more numbers are given up in a row than a channel has credits";

/// The memories, the ranges and the requests of a transfer.
struct Shape {
    blocks: Vec<[Block; 2]>,
    pieces: Vec<Piece>,
    requests: Vec<Request>,
    kind: Kind,
    names_none: bool,
}

impl Actor {
    /// Submits something to some peer.
    pub fn transfer(&mut self) {
        let slot = self.any_peer();
        let Some((peer, to)) = self.peer(slot) else {
            return task::sleep(Duration::from_millis(self.draw.log_uniform(1, 50)));
        };
        // Notifications that an application takes from a channel give credits back, too.
        if self.draw.percent(4) && !self.program.plan.skips {
            return self.notify(slot, peer, to);
        }
        let op = if self.draw.percent(65) { Op::Write } else { Op::Read };
        let Some(shape) = self.shape(op, to) else { return };
        let at_once = self.draw.percent(8);
        let queued = !at_once && self.draw.percent(40);
        self.submit((slot, peer, to), op, shape, queued, at_once);
    }

    /// Submits something inside a callback, which neither connects nor waits.
    pub fn transfer_inside(&mut self) {
        let (slot, life) = (self.any_peer(), self.program.life);
        let known = self.program.world.book.with(|ledger| ledger.lives[life].peers.get(&slot).copied());
        let Some((peer, to)) = known.and_then(|peer| Some((peer, self.program.life_behind(peer)?))) else {
            return;
        };
        let op = if self.draw.percent(65) { Op::Write } else { Op::Read };
        let Some(shape) = self.shape(op, to) else { return };
        moment::reached(SUBMITS);
        let queued = self.draw.percent(60);
        self.submit((slot, peer, to), op, shape, queued, false);
    }

    fn submit(
        &mut self,
        (slot, handle, to): (usize, PeerId, LifeId),
        op: Op,
        shape: Shape,
        queued: bool,
        at_once: bool,
    ) {
        let book = self.program.world.book.clone();
        let from = self.program.life;
        let (deadline, deadline_ns) = self.deadline();
        let has_note = std::mem::take(&mut self.notes) | (self.draw.percent(30) && !self.program.plan.skips);
        let bytes = has_note.then(|| self.note_bytes());
        let channel = if bytes.is_some() { self.channel() } else { 0 };
        let mut wish = Wish {
            from,
            to,
            handle,
            op,
            kind: shape.kind,
            names_none: shape.names_none,
            ordered: self.draw.percent(12),
            checksum: self.draw.percent(if self.program.world.plan.alters { 80 } else { 10 }),
            queued,
            deadline_ns,
            note: None,
        };
        let (ordered, checksum) = (wish.ordered, wish.checksum);
        let (id, notify) = book.with(|ledger| {
            let note = bytes.map(|bytes| (ledger.new_note(from, to, channel, bytes), bytes));
            wish.note = note.map(|(number, _)| number);
            let id = ledger.begin(wish, shape.blocks, shape.pieces);
            if let Some((number, _)) = note {
                ledger.notes[number].transfer = Some(id);
            }
            (id, note.map(|(number, bytes)| payload(number, bytes)))
        });
        let options = TransferOptions {
            no_coalesce: self.draw.percent(15),
            ordered,
            checksum,
            deadline,
            user_data: id as u64,
            queue: queued.then(|| self.queue.clone()),
            notify: notify.as_deref(),
            channel,
            priority: self.draw.between(0, 3) as u32,
            ..TransferOptions::default()
        };
        let (engine, requests) = (&self.program.engine, &shape.requests[..]);
        if at_once {
            let result = match op {
                Op::Write => engine.write(handle, requests, &options),
                Op::Read => engine.read(handle, requests, &options),
            };
            if let Err(error) = &result {
                self.note_failure(slot, handle, error);
            }
            return book.with(|ledger| {
                ledger.concluded_at_once(id, result);
                ledger.count(from);
            });
        }
        match engine.submit_core(handle, op, requests, &options) {
            Ok(core) => {
                let own_ns = clock::monotonic_ns();
                book.with(|ledger| {
                    ledger.accepted(id, core.clone(), own_ns);
                    ledger.count(from);
                });
                self.fly(id, core);
            }
            Err(error) => {
                self.note_failure(slot, handle, &error);
                book.with(|ledger| {
                    ledger.check_call("submitting", &error);
                    ledger.refused(id, &error);
                });
            }
        }
    }

    /// Forgets a peer that is lost.
    fn note_failure(&self, slot: usize, peer: PeerId, error: &Error) {
        use Status::*;
        if matches!(error.status, PeerLost | Stale | Closed | Unreachable | Refused) {
            self.forget_if_lost(slot, peer);
        }
    }

    fn forget_if_lost(&self, slot: usize, peer: PeerId) {
        let is_there =
            self.program.engine.peer_info(peer).is_ok_and(|info| info.state != ferry::PeerState::Lost);
        if !is_there {
            self.forget(slot, peer);
        }
    }

    fn deadline(&mut self) -> (Deadline, Option<u64>) {
        match self.draw.between(0, 99) {
            0..=49 => (Deadline::Default, Some(self.program.plan.deadline_ns).filter(|ns| *ns > 0)),
            50..=92 => {
                let ms = self.draw.log_uniform(5, 5_000);
                (Deadline::After(Duration::from_millis(ms)), Some(ms * 1_000_000))
            }
            _ => (Deadline::Never, None),
        }
    }

    fn note_bytes(&mut self) -> usize {
        if self.draw.percent(95) {
            BYTES_MIN + self.draw.below(100)
        } else {
            self.draw.log_uniform(BYTES_MIN as u64, 16 << 10) as usize
        }
    }

    /// Draws the channel of a notification, where there are several.
    fn channel(&mut self) -> u16 {
        match &self.program.plan.channels[..] {
            [only] => *only,
            all => *self.draw.pick(all),
        }
    }

    /// Sends a notification without data.
    fn notify(&mut self, slot: usize, peer: PeerId, to: LifeId) {
        let (book, from) = (self.program.world.book.clone(), self.program.life);
        let bytes = self.note_bytes();
        let channel = self.channel();
        let number = book.with(|ledger| ledger.new_note(from, to, channel, bytes));
        let (deadline, _) = self.deadline();
        let (engine, bytes) = (&self.program.engine, payload(number, bytes));
        let options =
            TransferOptions { deadline, channel, notify: Some(&bytes), ..TransferOptions::default() };
        let result = match channel {
            0 => engine.notify(peer, &bytes, deadline),
            _ => engine.submit(peer, Op::Write, &[], &options).and_then(|it| it.wait_done().map(drop)),
        };
        if let Err(error) = &result {
            self.note_failure(slot, peer, error);
        }
        book.with(|ledger| {
            ledger.notes[number].returned = ledger.tick();
            match result {
                Ok(()) => ledger.note_ended(number, Notification::Delivered),
                Err(error) => {
                    ledger.check_call("notifying", &error);
                    ledger.note_ended(number, Notification::Unknown);
                }
            }
        });
    }

    /// A write that must be DONE, to a peer that must be reached.
    pub fn exam(&mut self, slot: usize) -> bool {
        let Some((peer, to)) = self.peer(slot) else { return false };
        let (own, theirs) = self.program.world.book.with(|ledger| {
            let theirs = ledger.usable(to, Op::Write, Kind::Good);
            (ledger.for_exam(self.program.life), ledger.devices_first(theirs))
        });
        if theirs.is_empty() {
            // Perhaps that life is over, and nothing else finds that out.
            self.forget(slot, peer);
            return false;
        }
        // A memory may be full of claims that stay, of transfers that ended by their lease.
        let mut pairs = own.iter().flat_map(|own| theirs.iter().map(|theirs| (*own, *theirs)));
        let Some(shape) = pairs.find_map(|(own, theirs)| self.shape_in(&[(own, theirs)], &[64], Kind::Good))
        else {
            self.ask_for_room(to);
            // A life that is over makes no room.
            self.forget_if_lost(slot, peer);
            ferry_sim_kernel::trace::event("unplaced", &[slot as u64], || {
                format!("finds no free memory for a transfer to e{slot}")
            });
            return false;
        };
        let before = self.program.world.book.with(|ledger| ledger.transfers.len());
        // Where numbers were given up, the channel must still carry notifications.
        self.notes = self.program.plan.skips;
        self.submit((slot, peer, to), Op::Write, shape, false, true);
        self.program.world.book.with(|ledger| {
            let life = self.program.life;
            let all = (before..ledger.transfers.len()).filter(|id| ledger.transfers[*id].wish.from == life);
            all.collect::<Vec<TransferId>>().into_iter().any(|id| ledger.is_done(id))
        })
    }

    /// Gives more numbers of notifications up in a row than a channel has credits: each goes with a request that the
    /// target refuses.
    pub fn give_numbers_up(&mut self) {
        let slot = self.any_peer();
        let Some((peer, to)) = self.peer(slot) else { return };
        let kind = *self.draw.pick(&[Kind::Stale, Kind::Denied]);
        let (own, theirs) = self
            .program
            .world
            .book
            .with(|ledger| (ledger.for_exam(self.program.life), ledger.usable(to, Op::Write, kind)));
        let (Some(own), Some(theirs)) = (own.first(), theirs.first()) else { return };
        for _ in 0..u64::from(NOTIFY_CREDITS) + self.draw.between(1, 100) {
            if self.program.is_leaving() {
                return;
            }
            let Some(shape) = self.shape_in(&[(*own, *theirs)], &[8], kind) else { return };
            self.notes = true;
            self.submit((slot, peer, to), Op::Write, shape, false, true);
        }
        moment::reached(SKIPPED);
    }

    fn shape(&mut self, op: Op, to: LifeId) -> Option<Shape> {
        let kind = match self.draw.between(0, 99) {
            0..=2 => Kind::Stale,
            3..=5 => Kind::Denied,
            _ => Kind::Good,
        };
        let (own, theirs) = self.program.world.book.with(|ledger| {
            let own = &ledger.lives[self.program.life].memories;
            let own: Vec<MemoryId> =
                own.iter().copied().filter(|id| ledger.memories[*id].region.is_some()).collect();
            (own, ledger.usable(to, op, kind))
        });
        if own.is_empty() || theirs.is_empty() {
            return None;
        }
        let mut pairs = vec![(*self.draw.pick(&own), *self.draw.pick(&theirs))];
        if self.program.plan.is_wide && self.draw.percent(50) {
            let more = self.draw.between(1, 3);
            pairs.extend((0..more).map(|_| (*self.draw.pick(&own), *self.draw.pick(&theirs))));
        }
        let count = *self.draw.pick(&[1, 1, 1, 2, 3, 7]);
        let most = self.program.plan.bytes_max;
        let lengths: Vec<u64> = (0..count)
            .map(|_| {
                if self.draw.percent(80) {
                    self.draw.log_uniform(1, most.min(4 << 10))
                } else {
                    self.draw.log_uniform(1, most)
                }
            })
            .collect();
        let shape = self.shape_in(&pairs, &lengths, kind);
        if shape.is_none() {
            self.ask_for_room(to);
        }
        shape
    }

    /// Lays requests of these lengths out: side by side, or each at a place of its own. Places are in these pairs of
    /// memories by turns, of this end and of the other.
    fn shape_in(&mut self, pairs: &[(MemoryId, MemoryId)], lengths: &[u64], kind: Kind) -> Option<Shape> {
        let book = self.program.world.book.clone();
        let is_together = self.draw.percent(50);
        let groups: Vec<Vec<u64>> = if is_together && pairs.len() == 1 {
            vec![lengths.to_vec()]
        } else {
            lengths.iter().map(|length| vec![*length]).collect()
        };
        let names_none = kind == Kind::Good && self.draw.percent(if pairs.len() > 1 { 30 } else { 5 });
        let mut shape =
            Shape { blocks: Vec::new(), pieces: Vec::new(), requests: Vec::new(), kind, names_none };
        for (nth, group) in groups.into_iter().enumerate() {
            let (own, theirs) = pairs[nth % pairs.len()];
            let remote_region = if names_none {
                RegionId::NONE
            } else {
                book.with(|ledger| ledger.region_for(theirs, kind))?
            };
            let length = group.iter().sum();
            let found = book.with(|ledger| {
                let memories = [own, theirs].map(|id| &ledger.memories[id]);
                let places = memories.map(|memory| memory.find(&mut self.draw, length));
                let addresses = memories.map(|memory| memory.address);
                Some(([places[0]?, places[1]?], addresses))
            });
            let Some((offsets, addresses)) = found else { continue };
            let blocks = [(own, offsets[0]), (theirs, offsets[1])].map(|(memory, offset)| Block {
                memory,
                offset,
                length,
            });
            if shape.blocks.iter().flatten().any(|block| blocks.iter().any(|other| block.is_near(other))) {
                continue;
            }
            let mut at = 0;
            for length in group {
                let [local, remote] = [0, 1].map(|side| addresses[side] + offsets[side] + at);
                shape.requests.push(Request { local, remote, length, remote_region });
                shape.pieces.push(Piece { at, block: shape.blocks.len(), length });
                at += length;
            }
            shape.blocks.push(blocks);
        }
        // The plan's order is not the caller's.
        if shape.requests.len() > 1 && self.draw.percent(50) {
            shape.requests.reverse();
            shape.pieces.reverse();
        }
        (!shape.blocks.is_empty()).then_some(shape)
    }
}

impl Ledger {
    /// Returns the memories of a life that requests of this kind may name.
    fn usable(&self, life: LifeId, op: Op, kind: Kind) -> Vec<MemoryId> {
        let needed = match op {
            Op::Read => 1,
            Op::Write => 2,
        };
        let all = self.lives[life].memories.iter().copied();
        all.filter(|id| {
            let memory = &self.memories[*id];
            let grants = memory.access & needed != 0;
            match kind {
                Kind::Good => grants && memory.region.is_some(),
                Kind::Denied => !grants && memory.region.is_some(),
                Kind::Stale => !memory.old.is_empty(),
            }
        })
        .collect()
    }

    fn region_for(&self, memory: MemoryId, kind: Kind) -> Option<RegionId> {
        match kind {
            Kind::Stale => self.memories[memory].old.last().copied(),
            _ => self.memories[memory].region,
        }
    }

    /// Counts an accepted transfer.
    fn count(&mut self, life: LifeId) {
        let left = &mut self.slots[self.lives[life].slot].left;
        *left = left.saturating_sub(1);
    }
}
