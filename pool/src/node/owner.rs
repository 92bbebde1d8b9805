//! The owner's side: serves what nodes ask of the objects that this node holds. The owner moves the bytes in both
//! directions, so a count of holders protects a reader, and a writer that dies leaves nothing behind.
//!
//! ```text
//! get   find ─▶ hold ─▶ WRITE to the asker's memory, with the answer ─▶ release
//! put   begin ─▶ READ from the asker's memory ─▶ checksum ─▶ commit ─▶ told to the index ─▶ answer
//! ```
//! The owner has no I/O: it asks for it by `Effect`s, and hears how it ended. This node asks it in the same way as
//! others.

use std::collections::{BTreeMap, VecDeque};

use ferry::limits::NOTIFY_BYTES_MAX;
use ferry::types::{Op, PeerId, RegionId, Request};
use ferry_kv::messages::parts;

use crate::key::Digest;
use crate::limits::{ATTACHED_BYTES_MAX, ATTACHED_REQUESTS_MAX, EVICTIONS_OF_TURN_MAX, SERVED_OF_NODE_MAX};
use crate::outcome::Outcome;
use crate::store::{Begin, Piece, Slot, Store};
use crate::wire::{Answer, Message, Wanted};

use super::counts::OwnerCounts;

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
struct Served {
    asker: Asker,
    request: u64,
    keys: Vec<Wanted>,
    answers: Vec<Answer>,
    /// Keys whose end is open.
    open: usize,
    /// Fingerprints that were committed; None: the index is being told of them.
    came: Option<Vec<u64>>,
}

/// Bytes on their way, or the sum of some.
#[derive(Debug)]
struct Moving {
    served: u64,
    /// For each object: the key's place in the request, the object, and where its requests end in the transfer.
    objects: Vec<(usize, Slot, usize)>,
    op: Op,
    /// The answer travels behind the bytes.
    is_answered: bool,
}

#[derive(Debug)]
pub struct Owner {
    pub store: Store,
    /// Where the node's memory begins.
    base: u64,
    served: BTreeMap<u64, Served>,
    moving: BTreeMap<u64, Moving>,
    /// Objects whose sums are taken because an asker found them wrong.
    doubted: BTreeMap<u64, Vec<Slot>>,
    /// Keys of requests that wait for another's write of the same object.
    waiting: BTreeMap<Slot, Vec<(u64, usize)>>,
    of_askers: BTreeMap<Asker, usize>,
    effects: VecDeque<Effect>,
    next: u64,
    pub counts: OwnerCounts,
}

impl Owner {
    pub fn new(store: Store, base: u64) -> Owner {
        Owner {
            store,
            base,
            served: BTreeMap::new(),
            moving: BTreeMap::new(),
            doubted: BTreeMap::new(),
            waiting: BTreeMap::new(),
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

    pub fn leftovers(&self) -> [(&'static str, usize); 6] {
        [
            ("served", self.served.len()),
            ("moving", self.moving.len()),
            ("doubted", self.doubted.len()),
            ("waiting", self.waiting.len()),
            ("askers", self.of_askers.len()),
            ("objects in use", self.store.in_use()),
        ]
    }

    pub fn get(&mut self, asker: Asker, request: u64, keys: Vec<Wanted>) {
        let Some(number) = self.begin_serving(asker, request, keys) else { return };
        let (mut objects, mut requests, mut bytes) = (Vec::new(), Vec::new(), 0);
        let Some(served) = self.served.get_mut(&number) else { return };
        for (at, key) in served.keys.iter().enumerate() {
            served.answers[at] = match self.store.find(&key.digest) {
                None => Answer::of(Outcome::Absent),
                Some(slot) => {
                    let (length, checksum) = (self.store.length(slot), self.store.checksum(slot));
                    if length != key.bytes() {
                        Answer { outcome: Outcome::Length, length, checksum }
                    } else {
                        self.store.hold(slot);
                        lay_out(self.base, self.store.pieces(slot), key, &mut requests);
                        objects.push((at, slot, requests.len()));
                        bytes += length;
                        Answer { outcome: Outcome::Ok, length, checksum }
                    }
                }
            };
        }
        served.open = objects.len();
        self.counts.served_bytes += bytes;
        let is_short = bytes <= ATTACHED_BYTES_MAX && requests.len() <= ATTACHED_REQUESTS_MAX;
        let message = (asker.is_some() && is_short && !requests.is_empty()).then(|| {
            let answers = served.answers.clone();
            parts(&Message::Answer { request, answers }.encode(), NOTIFY_BYTES_MAX)
        });
        let notify = message.filter(|parts| parts.len() == 1).and_then(|mut parts| parts.pop());
        let is_answered = notify.is_some();
        self.post(Moving { served: number, objects, op: Op::Write, is_answered }, asker, requests, notify);
    }

    pub fn put(&mut self, asker: Asker, request: u64, keys: Vec<Wanted>) {
        let Some(number) = self.begin_serving(asker, request, keys) else { return };
        let keys = 0..self.served[&number].keys.len();
        self.write(number, keys.collect());
    }

    /// Says which of these are held here.
    pub fn have(&mut self, asker: Asker, request: u64, digests: &[Digest]) {
        let answers = digests.iter().map(|digest| match self.store.find(digest) {
            Some(slot) => Answer {
                outcome: Outcome::Ok,
                length: self.store.length(slot),
                checksum: self.store.checksum(slot),
            },
            None => Answer::of(Outcome::Absent),
        });
        let answers = answers.collect();
        self.effects.push_back(Effect::Answer { asker, request, answers });
    }

    /// Removes objects. Whoever reads them ends in peace.
    pub fn remove(&mut self, asker: Asker, request: u64, digests: &[Digest]) {
        let mut gone = Vec::new();
        let answers = digests.iter().map(|digest| {
            if !self.store.remove(digest) {
                return Answer::of(Outcome::Absent);
            }
            gone.push(digest.fingerprint());
            Answer::of(Outcome::Ok)
        });
        let answers = answers.collect();
        self.gone(gone);
        self.effects.push_back(Effect::Answer { asker, request, answers });
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
                if *sum != Some(self.store.checksum(*slot)) && self.store.remove(&digest) {
                    self.counts.corrupt += 1;
                    gone.push(digest.fingerprint());
                }
                self.store.release(*slot);
            }
            return self.gone(gone);
        }
        let Some(Moving { served, objects, .. }) = self.moving.remove(&number) else { return };
        for ((at, slot, _), sum) in objects.into_iter().zip(sums) {
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

    /// Takes a request in. A node that asks for more than its share is told that the node is full.
    fn begin_serving(&mut self, asker: Asker, request: u64, keys: Vec<Wanted>) -> Option<u64> {
        let of_asker = self.of_askers.entry(asker).or_default();
        if *of_asker >= SERVED_OF_NODE_MAX {
            let answers = vec![Answer::of(Outcome::Full); keys.len()];
            self.effects.push_back(Effect::Answer { asker, request, answers });
            return None;
        }
        *of_asker += 1;
        self.next += 1;
        let (answers, came) = (vec![Answer::of(Outcome::Ok); keys.len()], Some(Vec::new()));
        let open = keys.len();
        self.served.insert(self.next, Served { asker, request, keys, answers, open, came });
        Some(self.next)
    }

    /// Finds room for these keys of a put, and reads them from the asker.
    fn write(&mut self, number: u64, keys: Vec<usize>) {
        let (mut objects, mut requests) = (Vec::new(), Vec::new());
        for at in keys {
            let Some(served) = self.served.get(&number) else { return };
            let key = &served.keys[at];
            let (digest, length) = (key.digest, key.bytes());
            let outcome = match self.begin(&digest, length) {
                Begin::Write(slot) => {
                    if let Some(served) = self.served.get(&number) {
                        lay_out(self.base, self.store.pieces(slot), &served.keys[at], &mut requests);
                    }
                    objects.push((at, slot, requests.len()));
                    continue;
                }
                Begin::Written(slot) => {
                    self.waiting.entry(slot).or_default().push((number, at));
                    continue;
                }
                Begin::Here => Outcome::Here,
                Begin::Full => Outcome::Full,
                Begin::TooLong => Outcome::TooLong,
            };
            self.end_key(number, at, outcome);
        }
        let asker = self.served.get(&number).and_then(|served| served.asker);
        self.post(
            Moving { served: number, objects, op: Op::Read, is_answered: false },
            asker,
            requests,
            None,
        );
    }

    /// Begins an object, and evicts others where room is short.
    fn begin(&mut self, digest: &Digest, length: u64) -> Begin {
        let mut gone = Vec::new();
        let begin = loop {
            let begin = self.store.begin(digest, length);
            if begin != Begin::Full || gone.len() >= EVICTIONS_OF_TURN_MAX {
                break begin;
            }
            match self.store.evict() {
                Some(digest) => gone.push(digest.fingerprint()),
                None => break begin,
            }
        };
        self.counts.evicted += gone.len() as u64;
        self.gone(gone);
        begin
    }

    fn post(&mut self, moving: Moving, asker: Asker, requests: Vec<Request>, notify: Option<Vec<u8>>) {
        let (served, op) = (moving.served, moving.op);
        if moving.objects.is_empty() {
            return self.end_if_over(served);
        }
        self.next += 1;
        let number = self.next;
        self.moving.insert(number, moving);
        if requests.is_empty() {
            // Values without bytes.
            return self.moved(number, &[]);
        }
        self.effects.push_back(Effect::Move { number, asker, op, requests, notify });
    }

    /// The READ of a put has ended. What failed is given up; the sums of the others decide.
    fn read_ended(&mut self, number: u64, bad: &[(usize, Slot)]) {
        let Some(moving) = self.moving.get_mut(&number) else { return };
        let served = moving.served;
        moving.objects.retain(|(at, slot, _)| !bad.contains(&(*at, *slot)));
        let own = self.served.get(&served).filter(|served| served.asker.is_none());
        if own.is_some_and(|own| moving.objects.iter().all(|(at, ..)| own.keys[*at].checksum.is_some())) {
            // This process summed them, and copied them within its memory.
            let objects = std::mem::take(&mut moving.objects);
            self.moving.remove(&number);
            bad.iter().for_each(|(at, slot)| self.give_up(served, *at, *slot, Outcome::Failed));
            for (at, slot, _) in objects {
                let checksum = self.served.get(&served).and_then(|served| served.keys[at].checksum);
                self.commit(served, at, slot, checksum.unwrap_or_default());
            }
            return self.end_if_over(served);
        }
        let objects: Vec<Vec<Piece>> =
            moving.objects.iter().map(|(_, slot, _)| self.store.pieces(*slot).collect()).collect();
        for (at, slot) in bad {
            self.give_up(served, *at, *slot, Outcome::Failed);
        }
        if objects.is_empty() {
            self.moving.remove(&number);
            return self.end_if_over(served);
        }
        self.effects.push_back(Effect::Sum { number, objects });
    }

    fn commit(&mut self, number: u64, at: usize, slot: Slot, checksum: u64) {
        let (digest, length) = (self.store.digest(slot), self.store.length(slot));
        let is_readable = self.store.commit(slot, checksum);
        self.counts.stored += 1;
        self.counts.stored_bytes += length;
        if let Some(served) = self.served.get_mut(&number) {
            served.came.iter_mut().for_each(|came| came.extend(is_readable.then(|| digest.fingerprint())));
            served.answers[at] = Answer { outcome: Outcome::Ok, length, checksum };
            served.open -= 1;
        }
        for (number, at) in self.waiting.remove(&slot).unwrap_or_default() {
            self.end_key(number, at, Outcome::Here);
            self.end_if_over(number);
        }
    }

    /// A put of one key has failed. Those that waited for it write themselves.
    fn give_up(&mut self, number: u64, at: usize, slot: Slot, outcome: Outcome) {
        self.store.abort(slot);
        self.end_key(number, at, outcome);
        let mut waiting = BTreeMap::<u64, Vec<usize>>::new();
        for (number, at) in self.waiting.remove(&slot).unwrap_or_default() {
            waiting.entry(number).or_default().push(at);
        }
        waiting.into_iter().for_each(|(number, keys)| self.write(number, keys));
    }

    fn end_key(&mut self, number: u64, at: usize, outcome: Outcome) {
        if let Some(served) = self.served.get_mut(&number) {
            served.answers[at] = Answer::of(outcome);
            served.open -= 1;
        }
    }

    fn end_if_over(&mut self, number: u64) {
        let Some(served) = self.served.get_mut(&number).filter(|served| served.open == 0) else { return };
        let Some(mut came) = served.came.take() else { return };
        // What has gone meanwhile was told already, and is not to be told after it.
        came.retain(|fingerprint| self.store.find_fingerprint(*fingerprint).is_some());
        match came {
            came if came.is_empty() => self.told(number),
            came => self.effects.push_back(Effect::Tell { number, came }),
        }
    }

    /// A request whose answer went with its bytes.
    fn forget(&mut self, number: u64) {
        if let Some(served) = self.served.remove(&number) {
            self.leave(served.asker);
        }
    }

    fn leave(&mut self, asker: Asker) {
        if let Some(count) = self.of_askers.get_mut(&asker) {
            *count -= 1;
            if *count == 0 {
                self.of_askers.remove(&asker);
            }
        }
    }

    /// Tells that objects have gone. A fingerprint that another object has still is not told.
    fn gone(&mut self, mut gone: Vec<u64>) {
        gone.retain(|fingerprint| self.store.find_fingerprint(*fingerprint).is_none());
        if !gone.is_empty() {
            self.effects.push_back(Effect::Gone(gone));
        }
    }
}

/// Lays the pieces of an object beside the segments of the asker's memory, which have the same length.
fn lay_out(base: u64, pieces: impl Iterator<Item = Piece>, key: &Wanted, requests: &mut Vec<Request>) {
    let mut segments = key.segments.iter().copied();
    let mut segment = segments.next();
    for mut piece in pieces {
        while let Some(at) = segment.as_mut().filter(|_| piece.bytes > 0) {
            let length = at.bytes.min(piece.bytes);
            if length > 0 {
                let (local, remote_region) = (base + piece.offset, RegionId::from_raw(at.region));
                requests.push(Request { local, remote: at.address, length, remote_region });
            }
            (at.address, at.bytes) = (at.address.wrapping_add(length), at.bytes - length);
            (piece.offset, piece.bytes) = (piece.offset + length, piece.bytes - length);
            if at.bytes == 0 {
                segment = segments.next();
            }
        }
    }
}

#[cfg(test)]
#[path = "owner_tests.rs"]
mod tests;
