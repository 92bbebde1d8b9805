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
use crate::limits::{EVICTIONS_OF_TURN_MAX, PAGES_OF_FLUSH, SAVES_MAX, SAVING_BYTES_MAX};
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
    saving_bytes: u64,
    /// Pages of the table that the file has as they were.
    dirty: BTreeSet<u32>,
    /// Objects that are gone, and whose entries the file still has; answers that say so.
    cleared: Vec<Slot>,
    cleared_bytes: u64,
    answers: Vec<Effect>,
    flush: Option<Flush>,
    /// The table cannot be written: nothing more is copied to the file.
    pub is_broken: bool,
}

#[derive(Debug)]
struct Flush {
    number: u64,
    cleared: Vec<Slot>,
    answers: Vec<Effect>,
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
            saving_bytes: 0,
            dirty: BTreeSet::new(),
            cleared: Vec::new(),
            cleared_bytes: 0,
            answers: Vec::new(),
            flush: None,
            is_broken: false,
        }
    }

    /// Copies and writes of the table that are under way, and what waits for them.
    pub fn busy(&self) -> usize {
        self.queue.len() + self.moving.len() + self.dirty.len() + usize::from(self.flush.is_some())
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
        if !self.is_broken {
            self.dirty.insert(slot.0 / ENTRIES_OF_PAGE);
        }
    }

    /// Nobody finds the object any more. Its units are free when the file has no entry of it.
    fn forget(&mut self, digest: &Digest) -> bool {
        let Some(slot) = self.store.find(digest) else {
            // One that is being copied there ends in peace.
            self.store.remove(digest);
            return false;
        };
        self.store.hold(slot);
        self.store.remove(digest);
        self.note_entry(slot);
        self.cleared_bytes += self.store.length(slot);
        self.cleared.push(slot);
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

    /// The next write of the table, if one is to be made now.
    fn begin_flush(&mut self, number: u64) -> Option<Effect> {
        if self.flush.is_some() || self.dirty.is_empty() || self.is_broken {
            return None;
        }
        let numbers: Vec<u32> = self.dirty.iter().copied().take(PAGES_OF_FLUSH).collect();
        self.dirty.retain(|page| numbers.binary_search(page).is_err());
        let in_flush = |slot: &Slot| numbers.binary_search(&(slot.0 / ENTRIES_OF_PAGE)).is_ok();
        let (cleared, kept) = std::mem::take(&mut self.cleared).into_iter().partition(in_flush);
        self.cleared = kept;
        // An answer waits for all pages that were dirty when it was given.
        let answers = if self.dirty.is_empty() { std::mem::take(&mut self.answers) } else { Vec::new() };
        self.flush = Some(Flush { number, cleared, answers });
        let address = |page: u32| self.base + self.layout.table() + u64::from(page) * PAGE as u64;
        let pages = numbers.iter().map(|page| (address(*page), self.store.table_page(*page))).collect();
        Some(Effect::Table { number, region: self.region, pages })
    }

    /// A write of the table has ended. Returns the answers that it makes true.
    fn flushed(&mut self, has_failed: bool) -> Vec<Effect> {
        let Some(Flush { cleared, mut answers, .. }) = self.flush.take() else { return Vec::new() };
        if has_failed {
            // What the file says is not known now: its units are given to nobody.
            self.is_broken = true;
            self.queue.clear();
            self.dirty.clear();
            answers.append(&mut self.answers);
            return answers;
        }
        for slot in cleared {
            self.cleared_bytes -= self.store.length(slot);
            self.store.release(slot);
        }
        answers
    }
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
        let slot = match self.begin(digest, length) {
            Begin::Write(slot) => slot,
            Begin::Written(slot) => return Ok(slot),
            Begin::TooLong => return Err(Outcome::TooLong),
            Begin::Full | Begin::Here => return Err(Outcome::Full),
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
        match &mut self.tier {
            Some(tier) if !tier.dirty.is_empty() => tier.answers.push(answer),
            Some(Tier { flush: Some(flush), .. }) => flush.answers.push(answer),
            _ => self.effects.push_back(answer),
        }
    }

    pub(super) fn save(&mut self, digest: Digest) {
        let tier = self.tier.as_mut().filter(|tier| !tier.is_broken && tier.queue.len() < SAVES_MAX);
        tier.into_iter().for_each(|tier| tier.queue.push_back(digest));
    }

    /// Copies what waits, makes room, and writes the table.
    pub fn go_on(&mut self) {
        self.serve_deferred();
        let Some(tier) = self.tier.as_mut().filter(|tier| tier.busy() > 0) else { return };
        let mut gone = Vec::new();
        while tier.saving_bytes < SAVING_BYTES_MAX && !tier.is_broken {
            let Some(digest) = tier.queue.front().copied() else { break };
            let Some(slot) = self.store.find(&digest) else {
                tier.queue.pop_front();
                continue;
            };
            let length = self.store.length(slot);
            let begin = if length == 0 { Begin::TooLong } else { tier.store.begin(&digest, length) };
            if begin == Begin::Full {
                gone.extend(tier.make_room((tier.store.capacity() / 20).max(length)));
                if tier.cleared_bytes > 0 || !tier.moving.is_empty() {
                    break;
                }
            }
            tier.queue.pop_front();
            let Begin::Write(file) = begin else { continue };
            self.store.hold(slot);
            tier.saving_bytes += length;
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
        tier.saving_bytes -= self.store.length(slot);
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
            // One that was removed meanwhile is nobody's loss.
            if tier.store.find(&digest) == Some(file) {
                tier.forget(&digest);
                match sum {
                    Some(_) => self.counts.corrupt += 1,
                    None => self.counts.tier_failed += 1,
                }
            }
            self.store.abort(slot);
        }
        if let Some(tier) = &mut self.tier {
            tier.store.release(file);
        }
        if !is_good {
            self.gone(vec![digest.fingerprint()]);
        }
        self.resume(slot, is_good);
        true
    }
}

/// What a node says of keys that it holds.
pub(super) fn have(held: Option<(u64, u64)>) -> Answer {
    match held {
        Some((length, checksum)) => Answer { outcome: Outcome::Ok, length, checksum },
        None => Answer::of(Outcome::Absent),
    }
}
