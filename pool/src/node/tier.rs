//! The second tier of an owner: a file with copies of the objects of its memory, and objects that have left it. No I/O:
//! bytes move by `Effect`s, as between memories.
//!
//! ```text
//! commit in memory ─▶ queue ─▶ WRITE to the file, durable ─▶ commit in the tier ─▶ its entry in the file's table
//! get of what is in the file alone ─▶ READ into memory ─▶ checksum ─▶ the get goes on
//! evict, remove ─▶ the entry is cleared in the file ─▶ the units are free, the removal is answered
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ferry::types::{Op, RegionId, Request};

use super::owner::{Effect, Owner};
use super::serving::lay_out;
use crate::key::Digest;
use crate::limits::{
    EVICTIONS_OF_TURN_MAX, INVENTORY_PLACES_MAX, LOADS_MAX, PAGES_OF_FLUSH, SAVES_MAX, SAVING_BYTES_MAX,
    SAVING_MAX, TABLE_PAUSE_NS,
};
use crate::outcome::Outcome;
use crate::store::table::{Layout, ENTRIES_OF_PAGE, PAGE};
use crate::store::{Begin, Slot, Store};
use crate::wire::{Answer, Segment, Wanted};

/// Objects of the second tier are listed from here on.
const LISTED_FROM: u32 = 1 << 31;

#[derive(Debug)]
pub struct Tier {
    pub store: Store,
    layout: Layout,
    /// The file, and the address of its first byte.
    region: RegionId,
    base: u64,
    /// Objects to be copied to the file, in the order of their puts.
    queue: VecDeque<Digest>,
    /// Copies under way: from or to this object in memory, to or from that one in the file.
    moving: BTreeMap<u64, (Op, Slot, Slot)>,
    saving: usize,
    saving_bytes: u64,
    /// Pages of the table that the file has as they were, in the order in which they are written.
    dirty: BTreeSet<u32>,
    order: VecDeque<u32>,
    written: u64,
    /// Objects that are gone, and whose entries the file still has, by their pages; and the bytes of their units.
    cleared: BTreeMap<u32, Vec<Slot>>,
    cleared_bytes: u64,
    /// Answers that are true when so many pages were written.
    answers: VecDeque<(u64, Effect)>,
    flush: Option<Flush>,
    /// The table could not be written: nothing is copied to the file until it is tried again, at this time if it is set.
    is_paused: bool,
    retry_ns: Option<u64>,
}

#[derive(Debug)]
struct Flush {
    number: u64,
    pages: Vec<u32>,
    cleared: BTreeMap<u32, Vec<Slot>>,
}

impl Tier {
    /// `store` has what the file's table has. `base` is the address of the file's first byte in `region`.
    pub fn new(store: Store, layout: Layout, region: RegionId, base: u64) -> Tier {
        Tier {
            store,
            layout,
            region,
            base,
            queue: VecDeque::new(),
            moving: BTreeMap::new(),
            saving: 0,
            saving_bytes: 0,
            dirty: BTreeSet::new(),
            order: VecDeque::new(),
            written: 0,
            cleared: BTreeMap::new(),
            cleared_bytes: 0,
            answers: VecDeque::new(),
            flush: None,
            is_paused: false,
            retry_ns: None,
        }
    }

    /// Forgets the objects that this memory is too small for, or what their tenants may have of it or of the file.
    pub fn forget_longer(&mut self, memory: &Store) {
        let mut next = Some(0);
        while let Some(from) = next {
            let digests;
            (digests, next) = self.store.list(from, INVENTORY_PLACES_MAX);
            for digest in digests {
                let slot = self.store.find(&digest);
                let is_too_long = |store: &Store, length| store.bytes_for(&digest, length).is_none();
                let length = slot.map(|slot| self.store.length(slot));
                if length
                    .is_some_and(|length| is_too_long(memory, length) || is_too_long(&self.store, length))
                {
                    self.forget(&digest);
                }
            }
        }
    }

    /// Copies and writes of the table that are under way, and what waits for them; a node that closes does not wait for
    /// a disk that fails.
    pub fn busy(&self) -> usize {
        let waiting = if self.is_paused { 0 } else { self.queue.len() + self.dirty.len() };
        waiting + self.moving.len() + usize::from(self.flush.is_some())
    }

    /// Tries a table that could not be written again after a pause. Returns when.
    pub fn retry(&mut self, now: u64) -> Option<u64> {
        if !self.is_paused {
            return None;
        }
        let at = *self.retry_ns.get_or_insert(now.saturating_add(TABLE_PAUSE_NS));
        if at <= now {
            (self.is_paused, self.retry_ns) = (false, None);
        }
        Some(at)
    }

    pub fn is_moving(&self) -> bool {
        !self.moving.is_empty()
    }

    fn move_requests(&self, memory: &Store, from: u64, slot: Slot, file: Slot) -> Vec<Request> {
        let data = self.base + self.layout.data();
        let segments = self.store.pieces(file).map(|piece| Segment {
            address: data + piece.offset,
            bytes: piece.bytes,
            region: self.region.raw(),
        });
        let digest = self.store.digest(file);
        let key = Wanted { digest, checksum: None, segments: segments.collect() };
        let mut requests = Vec::new();
        lay_out(from, memory.pieces(slot), &key, &mut requests);
        requests
    }

    /// The file's entry of this object is to be written.
    fn note_entry(&mut self, slot: Slot) {
        let page = slot.0 / ENTRIES_OF_PAGE;
        if self.dirty.insert(page) {
            self.order.push_back(page);
        }
    }

    /// Nobody finds the object any more. Its units are free when the file has no entry of it.
    fn forget(&mut self, digest: &Digest) -> bool {
        let Some(slot) = self.store.find(digest) else {
            // A copy that is under way ends in peace.
            self.store.remove(digest);
            return false;
        };
        self.store.hold(slot);
        self.store.remove(digest);
        self.note_entry(slot);
        self.cleared_bytes += self.store.taken(slot);
        self.cleared.entry(slot.0 / ENTRIES_OF_PAGE).or_default().push(slot);
        self.store.discharge(slot);
        true
    }

    /// Forgets the objects that were used least recently until so many bytes are, or will be, free.
    fn make_room(&mut self, bytes: u64) -> Vec<u64> {
        let mut gone = Vec::new();
        while self.store.free_bytes() + self.cleared_bytes < bytes && gone.len() < EVICTIONS_OF_TURN_MAX {
            let Some(digest) = self.store.oldest() else { break };
            self.forget(&digest);
            gone.push(digest.fingerprint());
        }
        gone
    }

    /// Begins an object, and forgets others of its tenant, noted in `gone`, while the tenant's quota is short.
    fn begin(&mut self, digest: &Digest, length: u64, gone: &mut Vec<u64>) -> Begin {
        loop {
            let begin = self.store.begin(digest, length);
            let may_evict = begin == Begin::OverQuota && gone.len() < EVICTIONS_OF_TURN_MAX;
            let Some(oldest) = self.store.oldest_of(digest.tag()).filter(|_| may_evict) else { return begin };
            self.forget(&oldest);
            gone.push(oldest.fingerprint());
        }
    }

    /// The next write of the table, if one is to be made now.
    fn begin_flush(&mut self, number: u64) -> Option<Effect> {
        if self.flush.is_some() || self.order.is_empty() || self.is_paused {
            return None;
        }
        let pages: Vec<u32> = self.order.drain(..PAGES_OF_FLUSH.min(self.order.len())).collect();
        let mut cleared = BTreeMap::new();
        for page in &pages {
            self.dirty.remove(page);
            cleared.extend(self.cleared.remove_entry(page));
        }
        let address = |page: u32| self.base + self.layout.table() + u64::from(page) * PAGE as u64;
        let bytes = pages.iter().map(|page| (address(*page), self.store.table_page(*page))).collect();
        self.flush = Some(Flush { number, pages, cleared });
        Some(Effect::Table { number, region: self.region, pages: bytes })
    }

    /// A write of the table has ended. Returns the answers that it makes true, or that are given up.
    fn flushed(&mut self, has_failed: bool) -> Vec<Effect> {
        let Some(Flush { pages, cleared, .. }) = self.flush.take() else { return Vec::new() };
        if has_failed {
            // The contents of the table are not known now. Its units are given to nobody before they are.
            self.is_paused = true;
            for page in pages.into_iter().rev().filter(|page| self.dirty.insert(*page)) {
                self.order.push_front(page);
            }
            for (page, slots) in cleared {
                self.cleared.entry(page).or_default().extend(slots);
            }
            return std::mem::take(&mut self.answers)
                .into_iter()
                .map(|(_, answer)| not_cleared(answer))
                .collect();
        }
        self.written += pages.len() as u64;
        for slot in cleared.into_values().flatten() {
            self.cleared_bytes -= self.store.taken(slot);
            self.store.release(slot);
        }
        let is_true = |(at, _): &(u64, Effect)| *at <= self.written;
        let count = self.answers.iter().take_while(|answer| is_true(answer)).count();
        self.answers.drain(..count).map(|(_, answer)| answer).collect()
    }
}

/// The answer to a removal that the file may not have.
fn not_cleared(mut answer: Effect) -> Effect {
    if let Effect::Answer { answers, .. } = &mut answer {
        answers.iter_mut().for_each(|answer| *answer = Answer::of(Outcome::Failed));
    }
    answer
}

impl Owner {
    /// The length and the checksum of an object that is here, in memory or in the file.
    pub fn held(&self, digest: &Digest) -> Option<(u64, u64)> {
        let of = |store: &Store| store.find(digest).map(|slot| (store.length(slot), store.checksum(slot)));
        of(&self.store).or_else(|| of(&self.tier.as_ref()?.store))
    }

    pub fn holds(&self, fingerprint: u64) -> bool {
        let has = |store: &Store| store.find_fingerprint(fingerprint).is_some();
        has(&self.store) || self.tier.as_ref().is_some_and(|tier| has(&tier.store))
    }

    /// An object with this fingerprint is used: in memory, and in the file.
    pub fn touch(&mut self, fingerprint: u64) {
        let touch = |store: &mut Store| {
            let slot = store.find_fingerprint(fingerprint);
            slot.into_iter().for_each(|slot| store.touch(slot));
        };
        touch(&mut self.store);
        self.tier.iter_mut().for_each(|tier| touch(&mut tier.store));
    }

    /// The keys of a get are used, in memory and in the file, and the tail of a prefix is the less valuable end: they may
    /// have come from the file one by one.
    pub(super) fn touch_both(&mut self, served: u64) {
        let Some(served) = self.served.get(&served).filter(|_| self.tier.is_some()) else { return };
        let keys: Vec<u64> = served.keys.iter().rev().map(|key| key.digest.fingerprint()).collect();
        keys.into_iter().for_each(|key| self.touch(key));
    }

    /// As `Store::list`, of both tiers. An object of both may come twice.
    pub fn list(&self, from: u32, most: usize) -> (Vec<Digest>, Option<u32>) {
        let of_tier = |from: u32| {
            let (digests, next) = self.tier.as_ref()?.store.list(from, most);
            Some((digests, next.map(|next| next + LISTED_FROM)))
        };
        if let Some(from) = from.checked_sub(LISTED_FROM) {
            return of_tier(from).unwrap_or_default();
        }
        let (digests, next) = self.store.list(from, most);
        (digests, next.or_else(|| self.tier.as_ref().map(|_| LISTED_FROM)))
    }

    /// Brings an object of the file into memory. Returns where it will be, or what to answer.
    pub(super) fn load(&mut self, digest: &Digest) -> Result<Slot, Outcome> {
        let Some((length, _)) = self.held(digest) else { return Err(Outcome::Absent) };
        if self.tier.as_ref().is_some_and(|tier| tier.moving.len() - tier.saving >= LOADS_MAX) {
            return Err(Outcome::Full);
        }
        let slot = match self.begin(digest, length) {
            Begin::Write(slot) => slot,
            Begin::Written(slot) => return Ok(slot),
            Begin::TooLong => return Err(Outcome::TooLong),
            Begin::Full | Begin::OverQuota | Begin::Here => return Err(Outcome::Full),
        };
        self.next += 1;
        let Some(tier) = &mut self.tier else { return Err(Outcome::Absent) };
        // To make room in memory does not take it from the file.
        let Some(file) = tier.store.find(digest) else { return Err(Outcome::Absent) };
        tier.store.hold(file);
        let requests = tier.move_requests(&self.store, self.base, slot, file);
        tier.moving.insert(self.next, (Op::Read, slot, file));
        let number = self.next;
        self.effects.push_back(Effect::Copy { number, op: Op::Read, requests });
        Ok(slot)
    }

    /// Removes an object of the file.
    pub(super) fn forget_in_file(&mut self, digest: &Digest) -> bool {
        self.tier.as_mut().is_some_and(|tier| tier.forget(digest))
    }

    /// Answers when the file's table is as the node's.
    pub(super) fn answer_when_cleared(&mut self, answer: Effect) {
        let Some(tier) = &mut self.tier else { return self.effects.push_back(answer) };
        let under_way = tier.flush.as_ref().map_or(0, |flush| flush.pages.len());
        match tier.order.len() + under_way {
            0 => self.effects.push_back(answer),
            pages => tier.answers.push_back((tier.written + pages as u64, answer)),
        }
    }

    pub(super) fn save(&mut self, digest: Digest) {
        let tier = self.tier.as_mut().filter(|tier| tier.queue.len() < SAVES_MAX);
        tier.into_iter().for_each(|tier| tier.queue.push_back(digest));
    }

    /// Copies what waits, makes room, and writes the table.
    pub fn go_on(&mut self) {
        self.serve_deferred();
        let Some(tier) = self.tier.as_mut().filter(|tier| tier.busy() > 0) else { return };
        let mut gone = Vec::new();
        let has_room = |tier: &Tier| tier.saving < SAVING_MAX && tier.saving_bytes < SAVING_BYTES_MAX;
        while has_room(tier) && !tier.is_paused {
            let Some(digest) = tier.queue.front().copied() else { break };
            let Some(slot) = self.store.find(&digest) else {
                tier.queue.pop_front();
                continue;
            };
            let length = self.store.length(slot);
            let begin = if length == 0 { Begin::TooLong } else { tier.begin(&digest, length, &mut gone) };
            if begin == Begin::OverQuota && (gone.len() >= EVICTIONS_OF_TURN_MAX || tier.saving > 0) {
                // The tenant had far more than its quota, or all that it has is being saved: a later turn goes on.
                break;
            }
            if begin == Begin::Full {
                // Also where what is free is too scattered.
                let wanted = tier.store.free_bytes() + length;
                gone.extend(tier.make_room((tier.store.capacity() / 20).max(wanted)));
                if tier.cleared_bytes > 0 || !tier.moving.is_empty() {
                    break;
                }
            }
            tier.queue.pop_front();
            let Begin::Write(file) = begin else { continue };
            self.store.hold(slot);
            (tier.saving, tier.saving_bytes) = (tier.saving + 1, tier.saving_bytes + length);
            self.next += 1;
            tier.moving.insert(self.next, (Op::Write, slot, file));
            let requests = tier.move_requests(&self.store, self.base, slot, file);
            self.effects.push_back(Effect::Copy { number: self.next, op: Op::Write, requests });
        }
        self.next += 1;
        let flush = tier.begin_flush(self.next);
        self.effects.extend(flush);
        self.counts.tier_evicted += gone.len() as u64;
        self.gone(gone);
    }

    /// A copy, or a write of the table, has ended. False if the number is none of these.
    pub(super) fn tier_moved(&mut self, number: u64, has_failed: bool) -> bool {
        let Some(tier) = &mut self.tier else { return false };
        if tier.flush.as_ref().is_some_and(|flush| flush.number == number) {
            let answers = tier.flushed(has_failed);
            self.effects.extend(answers);
            self.counts.tier_failed += u64::from(has_failed);
            return true;
        }
        let Some(&(op, slot, file)) = tier.moving.get(&number) else { return false };
        if op == Op::Read {
            if has_failed {
                self.loaded(number, None);
            } else {
                let objects = vec![self.store.pieces(slot).collect()];
                self.effects.push_back(Effect::Sum { number, objects });
            }
            return true;
        }
        tier.moving.remove(&number);
        (tier.saving, tier.saving_bytes) = (tier.saving - 1, tier.saving_bytes - self.store.length(slot));
        if has_failed {
            tier.store.abort(file);
            self.counts.tier_failed += 1;
        } else if tier.store.commit(file, self.store.checksum(slot)) {
            tier.note_entry(file);
            self.counts.saved += 1;
        }
        self.store.release(slot);
        true
    }

    /// An object of the file is in memory, with this sum. None: it could not be read. False if the number is no copy's.
    pub(super) fn loaded(&mut self, number: u64, sum: Option<u64>) -> bool {
        let Some(tier) = &mut self.tier else { return false };
        let Some((_, slot, file)) = tier.moving.remove(&number) else { return false };
        let (digest, checksum) = (self.store.digest(slot), tier.store.checksum(file));
        let is_good = sum == Some(checksum);
        if is_good {
            self.store.commit(slot, checksum);
            self.counts.loaded += 1;
        } else {
            // An object that was removed meanwhile is nobody's loss.
            if sum.is_some() && tier.store.find(&digest) == Some(file) {
                tier.forget(&digest);
                self.was_bad(digest);
            }
            self.counts.tier_failed += u64::from(sum.is_none());
            self.store.abort(slot);
        }
        if let Some(tier) = &mut self.tier {
            tier.store.release(file);
        }
        if sum.is_none() {
            // The file may have it all the same: who waits does not try again at once.
            self.end_waiting(slot, Outcome::Unknown);
            return true;
        }
        if !is_good {
            self.gone(vec![digest.fingerprint()]);
        }
        self.resume(slot, is_good);
        true
    }
}

/// A node's answer for a key that it may hold.
pub(super) fn have(held: Option<(u64, u64)>) -> Answer {
    match held {
        Some((length, checksum)) => Answer { outcome: Outcome::Ok, length, checksum },
        None => Answer::of(Outcome::Absent),
    }
}
