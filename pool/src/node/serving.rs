//! How an owner serves the keys of a request: those of a get go to the asker when they are in memory, those of a put are
//! read from it into room that is made for them.

use std::collections::BTreeMap;

use ferry::limits::NOTIFY_BYTES_MAX;
use ferry::types::{Op, RegionId, Request};
use ferry_kv::messages::parts;

use super::owner::{Asker, Effect, Moving, Owner};
use super::tier::{have, Tier};
use crate::key::Digest;
use crate::limits::{ATTACHED_BYTES_MAX, ATTACHED_REQUESTS_MAX, EVICTIONS_OF_TURN_MAX};
use crate::outcome::Outcome;
use crate::store::{Begin, Piece, Slot};
use crate::wire::{Answer, Message, Wanted};

impl Owner {
    fn is_moving(&self) -> bool {
        let is_saving = self.tier.as_ref().is_some_and(Tier::is_moving);
        is_saving || !self.moving.is_empty() || !self.doubted.is_empty()
    }

    /// Tries the gets again for which memory had no room.
    pub(super) fn serve_deferred(&mut self) {
        for _ in 0..self.deferred.len() {
            let Some((number, at)) = self.deferred.pop_front() else { return };
            self.serve(number, vec![at]);
            if self.deferred.back() == Some(&(number, at)) {
                return;
            }
        }
    }

    /// Serves these keys of a request.
    pub(super) fn serve(&mut self, number: u64, keys: Vec<usize>) {
        match self.served.get(&number).map(|served| served.op) {
            Some(Op::Write) => self.read(number, keys),
            Some(Op::Read) => self.write(number, keys),
            None => {}
        }
    }

    /// Sends these keys of a get to the asker, those that are in memory now.
    fn read(&mut self, number: u64, keys: Vec<usize>) {
        let (mut objects, mut requests, mut bytes) = (Vec::new(), Vec::new(), 0);
        for at in keys {
            let Some(key) = self.served.get(&number).map(|served| &served.keys[at]) else { return };
            let (digest, wanted) = (key.digest, key.bytes());
            let mut answer = have(self.held(&digest));
            if answer.outcome == Outcome::Ok && answer.length != wanted {
                answer.outcome = Outcome::Length;
            }
            if answer.outcome != Outcome::Ok {
                self.end_key(number, at, answer);
                continue;
            }
            match self.store.find(&digest).map_or_else(|| self.load(&digest), Ok) {
                Ok(slot) if self.store.find(&digest) == Some(slot) => {
                    self.store.hold(slot);
                    bytes += wanted;
                    if let Some(served) = self.served.get_mut(&number) {
                        lay_out(self.base, self.store.pieces(slot), &served.keys[at], &mut requests);
                        served.answers[at] = answer;
                    }
                    objects.push((at, slot, requests.len()));
                }
                Ok(slot) => self.waiting.entry(slot).or_default().push((number, at)),
                // A transfer that is under way gives room when it has ended.
                Err(Outcome::Full) if !objects.is_empty() || self.is_moving() => {
                    self.deferred.push_back((number, at));
                }
                Err(_) => self.end_key(number, at, Answer::of(Outcome::Unknown)),
            }
        }
        self.counts.served_bytes += bytes;
        let Some(served) = self.served.get(&number) else { return };
        let (asker, request) = (served.asker, served.request);
        let is_short = bytes <= ATTACHED_BYTES_MAX && requests.len() <= ATTACHED_REQUESTS_MAX;
        let is_last = served.open == objects.len();
        let message = (asker.is_some() && is_short && is_last && !requests.is_empty()).then(|| {
            let answers = served.answers.clone();
            parts(&Message::Answer { request, answers }.encode(), NOTIFY_BYTES_MAX)
        });
        let notify = message.filter(|parts| parts.len() == 1).and_then(|mut parts| parts.pop());
        let is_answered = notify.is_some();
        self.post(Moving { served: number, objects, op: Op::Write, is_answered }, asker, requests, notify);
    }

    /// Finds room for these keys of a put, and reads them from the asker.
    fn write(&mut self, number: u64, keys: Vec<usize>) {
        let (mut objects, mut requests) = (Vec::new(), Vec::new());
        for at in keys {
            let Some(served) = self.served.get(&number) else { return };
            let key = &served.keys[at];
            let (digest, length) = (key.digest, key.bytes());
            let in_file = self.store.find(&digest).is_none() && self.held(&digest).is_some();
            // Two nodes that are drained do not rely on each other's values.
            let begin = match () {
                _ if !self.takes_puts => Begin::Full,
                _ if in_file => Begin::Here,
                () => self.begin(&digest, length),
            };
            let outcome = match begin {
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
                Begin::Here => {
                    self.end_here(number, at);
                    continue;
                }
                Begin::Full | Begin::OverQuota => Outcome::Full,
                Begin::TooLong => Outcome::TooLong,
            };
            self.end_key(number, at, Answer::of(outcome));
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
    pub(super) fn begin(&mut self, digest: &Digest, length: u64) -> Begin {
        let mut gone = Vec::new();
        let most = self.store.units_of(length).map_or(0, |units| units as usize).max(EVICTIONS_OF_TURN_MAX);
        let begin = loop {
            let begin = self.store.begin(digest, length);
            let evicted = match begin {
                _ if gone.len() >= most => None,
                Begin::Full => self.store.evict(),
                // Nothing of another tenant goes for it.
                Begin::OverQuota => self.store.evict_of(digest.tag()),
                _ => None,
            };
            match evicted {
                Some(digest) => gone.push(digest.fingerprint()),
                None => break begin,
            }
        };
        self.counts.evicted += gone.len() as u64;
        self.gone(gone);
        begin
    }

    pub(super) fn post(
        &mut self,
        moving: Moving,
        asker: Asker,
        requests: Vec<Request>,
        notify: Option<Vec<u8>>,
    ) {
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

    /// The READ of a put has ended. Keys that failed are given up; the sums of the others decide.
    pub(super) fn read_ended(&mut self, number: u64, bad: &[(usize, Slot)]) {
        let Some(moving) = self.moving.get_mut(&number) else { return };
        let served = moving.served;
        moving.objects.retain(|(at, slot, _)| !bad.contains(&(*at, *slot)));
        let own = self.served.get(&served).filter(|served| served.asker.is_none());
        if own.is_some_and(|own| moving.objects.iter().all(|(at, ..)| own.keys[*at].checksum.is_some())) {
            // This process summed them, and copied them within its memory.
            let objects = std::mem::take(&mut moving.objects);
            self.moving.remove(&number);
            bad.iter().for_each(|(at, slot)| self.give_up(served, *at, *slot, Outcome::Failed));
            for (at, slot, _) in objects.into_iter().rev() {
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

    pub(super) fn commit(&mut self, number: u64, at: usize, slot: Slot, checksum: u64) {
        let (digest, length) = (self.store.digest(slot), self.store.length(slot));
        let is_readable = self.store.commit(slot, checksum);
        if is_readable {
            self.untold.insert(digest.fingerprint(), number);
        }
        self.counts.stored += 1;
        self.counts.stored_bytes += length;
        if let Some(served) = self.served.get_mut(&number) {
            served.came.iter_mut().for_each(|came| came.extend(is_readable.then(|| digest.fingerprint())));
            served.answers[at] = Answer { outcome: Outcome::Ok, length, checksum };
            served.open -= 1;
        }
        self.save(digest);
        self.resume(slot, true);
    }

    /// A put of one key has failed. The others that waited for it write themselves.
    pub(super) fn give_up(&mut self, number: u64, at: usize, slot: Slot, outcome: Outcome) {
        self.store.abort(slot);
        self.end_key(number, at, Answer::of(outcome));
        self.resume(slot, false);
    }

    /// Ends the gets that waited for an object, which could not be brought. A put learns that it is here.
    pub(super) fn end_waiting(&mut self, slot: Slot, outcome: Outcome) {
        for (number, at) in self.waiting.remove(&slot).unwrap_or_default() {
            if self.served.get(&number).is_some_and(|served| served.op == Op::Read) {
                self.serve(number, vec![at]);
            } else {
                self.end_key(number, at, Answer::of(outcome));
                self.end_if_over(number);
            }
        }
    }

    /// Goes on with the keys that waited for an object, which is in memory now, or is not.
    pub(super) fn resume(&mut self, slot: Slot, is_stored: bool) {
        let mut waiting = BTreeMap::<u64, Vec<usize>>::new();
        for (number, at) in self.waiting.remove(&slot).unwrap_or_default() {
            waiting.entry(number).or_default().push(at);
        }
        for (number, keys) in waiting {
            if is_stored && self.served.get(&number).is_some_and(|served| served.op == Op::Read) {
                keys.into_iter().for_each(|at| self.end_here(number, at));
                self.end_if_over(number);
            } else {
                self.serve(number, keys);
            }
        }
    }

    fn end_key(&mut self, number: u64, at: usize, answer: Answer) {
        if let Some(served) = self.served.get_mut(&number) {
            served.answers[at] = answer;
            served.open -= 1;
        }
    }

    /// A put of what is here has ended. The index may not know that yet: then this request tells it, too, because its
    /// caller takes the value for visible.
    fn end_here(&mut self, number: u64, at: usize) {
        let Some(served) = self.served.get_mut(&number) else { return };
        let fingerprint = served.keys[at].digest.fingerprint();
        if self.untold.contains_key(&fingerprint) {
            served.came.iter_mut().for_each(|came| came.push(fingerprint));
        }
        self.end_key(number, at, Answer::of(Outcome::Here));
    }

    pub(super) fn end_if_over(&mut self, number: u64) {
        let Some(served) = self.served.get_mut(&number).filter(|served| served.open == 0) else { return };
        let Some(mut came) = served.came.take() else { return };
        // An object that has gone meanwhile was told already, and is not to be told after it.
        came.retain(|fingerprint| self.holds(*fingerprint));
        match came {
            came if came.is_empty() => self.told(number),
            came => self.effects.push_back(Effect::Tell { number, came }),
        }
    }

    /// A request whose answer went with its bytes.
    pub(super) fn forget(&mut self, number: u64) {
        if let Some(served) = self.served.remove(&number) {
            self.leave(served.asker);
        }
    }

    pub(super) fn leave(&mut self, asker: Asker) {
        if let Some(count) = self.of_askers.get_mut(&asker) {
            *count -= 1;
            if *count == 0 {
                self.of_askers.remove(&asker);
            }
        }
    }

    /// Tells that objects have gone. A fingerprint that another object has still is not told.
    pub(super) fn gone(&mut self, mut gone: Vec<u64>) {
        gone.retain(|fingerprint| !self.holds(*fingerprint));
        if !gone.is_empty() {
            self.effects.push_back(Effect::Gone(gone));
        }
    }
}

/// Lays the pieces of an object beside the segments of the asker's memory, which have the same length.
pub(super) fn lay_out(
    base: u64,
    pieces: impl Iterator<Item = Piece>,
    key: &Wanted,
    requests: &mut Vec<Request>,
) {
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
