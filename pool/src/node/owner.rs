//! The owner's side: serves what nodes ask of the objects that this node holds. The owner moves the bytes in both
//! directions, so a count of holders protects a reader, and a writer that dies leaves nothing behind.
//!
//! ```text
//! get   find ─▶ hold ─▶ WRITE to the asker's memory, with the answer ─▶ release
//! put   begin ─▶ READ from the asker's memory ─▶ checksum ─▶ commit ─▶ told to the index ─▶ answer
//! ```
//! The owner has no I/O: it asks for it by `Effect`s, and hears how it ended. This node asks it in the same way as
//! others. `tier` has the file behind the memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ferry::types::{Op, PeerId, RegionId, Request};

use crate::key::{Digest, TenantTag};
use crate::limits::{EVICTIONS_OF_TURN_MAX, SERVED_OF_NODE_MAX};
use crate::outcome::Outcome;
use crate::store::{Piece, Slot, Store};
use crate::wire::{Answer, Wanted};

use super::counts::OwnerCounts;
use super::tier::{have, Tier};

/// Who asks: another node, or this one.
pub type Asker = Option<PeerId>;

#[derive(Debug)]
pub enum Effect {
    /// Move bytes between the asker's memory and this node's, and call `moved`. `notify` goes behind the bytes.
    Move {
        number: u64,
        asker: Asker,
        op: Op,
        requests: Vec<Request>,
        notify: Option<Vec<u8>>,
    },
    /// Move bytes between this node's memory and its file, durably, and call `moved`.
    Copy {
        number: u64,
        op: Op,
        requests: Vec<Request>,
    },
    /// Write these pages of the file, durably, and call `moved`.
    Table {
        number: u64,
        region: RegionId,
        pages: Vec<(u64, Vec<u8>)>,
    },
    /// Sum these objects, and call `summed`.
    Sum {
        number: u64,
        objects: Vec<Vec<Piece>>,
    },
    /// The index is to learn what came; then call `told`.
    Tell {
        number: u64,
        came: Vec<u64>,
    },
    /// The index is to learn what went.
    Gone(Vec<u64>),
    Answer {
        asker: Asker,
        request: u64,
        answers: Vec<Answer>,
    },
}

/// A request that is being served.
#[derive(Debug)]
pub(super) struct Served {
    pub asker: Asker,
    pub request: u64,
    /// WRITE for a get, READ for a put.
    pub op: Op,
    pub keys: Vec<Wanted>,
    pub answers: Vec<Answer>,
    /// Keys whose end is open.
    pub open: usize,
    /// Fingerprints that were committed; None: the index is being told of them.
    pub came: Option<Vec<u64>>,
}

/// Bytes on their way, or the sum of some.
#[derive(Debug)]
pub(super) struct Moving {
    pub served: u64,
    /// For each object: the key's place in the request, the object, and where its requests end in the transfer.
    pub objects: Vec<(usize, Slot, usize)>,
    pub op: Op,
    /// The answer travels behind the bytes.
    pub is_answered: bool,
}

#[derive(Debug)]
pub struct Owner {
    pub store: Store,
    pub tier: Option<Tier>,
    /// Not while the node is drained.
    pub takes_puts: bool,
    /// Objects that were bad and are dropped, to be brought again.
    pub(super) to_repair: BTreeSet<Digest>,
    /// Where the node's memory begins.
    pub(super) base: u64,
    pub(super) served: BTreeMap<u64, Served>,
    pub(super) moving: BTreeMap<u64, Moving>,
    /// Objects whose sums are taken because an asker found them wrong.
    pub(super) doubted: BTreeMap<u64, Vec<Slot>>,
    /// Keys of requests that wait until the object is written by another one, or is in memory.
    pub(super) waiting: BTreeMap<Slot, Vec<(u64, usize)>>,
    /// Fingerprints that were committed by a request whose `told` is still to come.
    pub(super) untold: BTreeMap<u64, u64>,
    /// Keys of gets for whose objects memory has no room now.
    pub(super) deferred: VecDeque<(u64, usize)>,
    pub(super) of_askers: BTreeMap<Asker, usize>,
    pub(super) effects: VecDeque<Effect>,
    pub(super) next: u64,
    pub counts: OwnerCounts,
}

impl Owner {
    pub fn new(store: Store, base: u64) -> Owner {
        Owner {
            store,
            tier: None,
            takes_puts: true,
            to_repair: BTreeSet::new(),
            base,
            served: BTreeMap::new(),
            moving: BTreeMap::new(),
            doubted: BTreeMap::new(),
            waiting: BTreeMap::new(),
            untold: BTreeMap::new(),
            deferred: VecDeque::new(),
            of_askers: BTreeMap::new(),
            effects: VecDeque::new(),
            next: 0,
            counts: OwnerCounts::default(),
        }
    }

    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Requests that are being served.
    pub fn serving(&self) -> usize {
        self.served.len()
    }

    pub fn leftovers(&self) -> [(&'static str, usize); 8] {
        [
            ("served", self.served.len()),
            ("moving", self.moving.len()),
            ("doubted", self.doubted.len()),
            ("waiting", self.waiting.len()),
            ("untold", self.untold.len()),
            ("askers", self.of_askers.len()),
            ("objects in use", self.store.in_use()),
            ("tier", self.tier.as_ref().map_or(0, Tier::busy)),
        ]
    }

    pub fn get(&mut self, asker: Asker, request: u64, keys: Vec<Wanted>) {
        self.begin_serving(asker, request, Op::Write, keys);
    }

    pub fn put(&mut self, asker: Asker, request: u64, keys: Vec<Wanted>) {
        self.begin_serving(asker, request, Op::Read, keys);
    }

    /// Says which of these are held here.
    pub fn have(&mut self, asker: Asker, request: u64, digests: &[Digest]) {
        let answers = digests.iter().map(|digest| have(self.held(digest))).collect();
        self.effects.push_back(Effect::Answer { asker, request, answers });
    }

    /// Removes objects. Whoever reads them ends in peace.
    pub fn remove(&mut self, asker: Asker, request: u64, digests: &[Digest]) {
        let mut gone = Vec::new();
        let answers = digests.iter().map(|digest| {
            let in_file = self.forget_in_file(digest);
            self.to_repair.remove(digest);
            if !self.store.remove(digest) && !in_file {
                return Answer::of(Outcome::Absent);
            }
            gone.push(digest.fingerprint());
            Answer::of(Outcome::Ok)
        });
        let answers = answers.collect();
        self.gone(gone);
        self.answer_when_cleared(Effect::Answer { asker, request, answers });
    }

    /// An asker got bytes of these that did not match their checksum: this node looks at its own.
    pub fn doubt(&mut self, digests: &[Digest]) {
        let slots: Vec<Slot> = digests.iter().filter_map(|digest| self.store.find(digest)).collect();
        if slots.is_empty() {
            return;
        }
        slots.iter().for_each(|slot| self.store.hold(*slot));
        let objects = slots.iter().map(|slot| self.store.pieces(*slot).collect()).collect();
        self.next += 1;
        self.doubted.insert(self.next, slots);
        self.effects.push_back(Effect::Sum { number: self.next, objects });
    }

    /// Who asked for the bytes of a transfer.
    pub fn asker_of(&self, number: u64) -> Asker {
        self.served.get(&self.moving.get(&number)?.served)?.asker
    }

    /// A transfer has ended; `failed` are the requests that did, in order.
    pub fn moved(&mut self, number: u64, failed: &[usize]) {
        if self.tier_moved(number, !failed.is_empty()) {
            return;
        }
        let Some(moving) = self.moving.get(&number) else { return };
        let mut begin = 0;
        let mut bad = Vec::new();
        for (at, slot, end) in &moving.objects {
            let first = failed.partition_point(|request| *request < begin);
            if failed.get(first).is_some_and(|request| request < end) {
                bad.push((*at, *slot));
            }
            begin = *end;
        }
        if moving.op == Op::Read {
            return self.read_ended(number, &bad);
        }
        let Some(Moving { served, objects, is_answered, .. }) = self.moving.remove(&number) else { return };
        // The tail of a prefix is the less valuable end.
        objects.iter().rev().for_each(|(_, slot, _)| self.store.release(*slot));
        let Some(request) = self.served.get_mut(&served) else { return };
        bad.iter().for_each(|(at, _)| request.answers[*at] = Answer::of(Outcome::Failed));
        request.open -= objects.len();
        if request.open == 0 {
            self.touch_both(served);
        }
        if is_answered && bad.is_empty() {
            self.forget(served);
        } else {
            self.end_if_over(served);
        }
    }

    /// The sums of a transfer's objects, or of doubted ones, in their order. None: the memory could not be read.
    pub fn summed(&mut self, number: u64, sums: &[Option<u64>]) {
        if let Some(slots) = self.doubted.remove(&number) {
            let mut gone = Vec::new();
            for (slot, sum) in slots.iter().zip(sums) {
                let digest = self.store.digest(*slot);
                // The key may have another object by now.
                let is_bad =
                    *sum != Some(self.store.checksum(*slot)) && self.store.find(&digest) == Some(*slot);
                if is_bad && self.store.remove(&digest) {
                    self.was_bad(digest);
                    gone.push(digest.fingerprint());
                }
                self.store.release(*slot);
            }
            return self.gone(gone);
        }
        if self.loaded(number, sums.first().copied().flatten()) {
            return;
        }
        let Some(Moving { served, objects, .. }) = self.moving.remove(&number) else { return };
        // The tail of a prefix first: it is to go before the head.
        for ((at, slot, _), sum) in objects.into_iter().zip(sums).rev() {
            let expected = self.served.get(&served).and_then(|served| served.keys[at].checksum);
            match sum {
                Some(sum) if expected.is_none_or(|expected| expected == *sum) => {
                    self.commit(served, at, slot, *sum)
                }
                _ => self.give_up(served, at, slot, Outcome::Corrupt),
            }
        }
        self.end_if_over(served);
    }

    /// The index has learned what the request brought, or nobody there can be told now.
    pub fn told(&mut self, number: u64) {
        let Some(served) = self.served.remove(&number) else { return };
        self.leave(served.asker);
        for key in served.keys.iter().filter(|_| served.op == Op::Read) {
            let fingerprint = key.digest.fingerprint();
            if self.untold.get(&fingerprint) == Some(&number) {
                self.untold.remove(&fingerprint);
            }
        }
        let Served { asker, request, answers, .. } = served;
        self.effects.push_back(Effect::Answer { asker, request, answers });
    }

    /// Evicts until this many bytes are free, a bounded number of objects. Returns whether more is to be done.
    pub fn make_room(&mut self, free: u64) -> bool {
        let mut gone = Vec::new();
        while self.store.free_bytes() < free && gone.len() < EVICTIONS_OF_TURN_MAX {
            let Some(digest) = self.store.evict() else { break };
            gone.push(digest.fingerprint());
        }
        self.counts.evicted += gone.len() as u64;
        let is_cut = gone.len() == EVICTIONS_OF_TURN_MAX;
        self.gone(gone);
        is_cut
    }

    /// Evicts until this many bytes are free, and so many are left of a tenant's quota, but not these objects, and nothing
    /// that was used after one of them. Returns whether there is room.
    pub fn make_room_beside(
        &mut self,
        free: u64,
        (tenant, left): (TenantTag, u64),
        kept: &BTreeSet<Digest>,
    ) -> bool {
        let mut gone = Vec::new();
        let has_room = loop {
            let (quota, taken) = self.store.quota_of(tenant);
            let is_over = taken + left > quota;
            if !is_over && self.store.free_bytes() >= free {
                break true;
            }
            let oldest = if is_over { self.store.oldest_of(tenant) } else { self.store.oldest() };
            let Some(oldest) = oldest.filter(|oldest| !kept.contains(oldest)) else { break false };
            if is_over {
                self.store.evict_of(tenant);
            } else {
                self.store.remove(&oldest);
            }
            gone.push(oldest.fingerprint());
        };
        self.counts.evicted += gone.len() as u64;
        self.gone(gone);
        has_room
    }

    /// Takes a request in. A node that asks for more than its share is told that the node is full.
    fn begin_serving(&mut self, asker: Asker, request: u64, op: Op, keys: Vec<Wanted>) {
        let of_asker = self.of_askers.entry(asker).or_default();
        if *of_asker >= SERVED_OF_NODE_MAX {
            let answers = vec![Answer::of(Outcome::Full); keys.len()];
            return self.effects.push_back(Effect::Answer { asker, request, answers });
        }
        *of_asker += 1;
        self.next += 1;
        let (answers, came) = (vec![Answer::of(Outcome::Ok); keys.len()], Some(Vec::new()));
        let open = keys.len();
        self.served.insert(self.next, Served { asker, request, op, keys, answers, open, came });
        self.serve(self.next, (0..open).collect());
    }
}

#[cfg(test)]
#[path = "quota_tests.rs"]
mod quota_tests;
#[cfg(test)]
#[path = "owner_tests.rs"]
mod tests;
