//! Brings values into this node's memory: those of other nodes, and those that its own file alone has. Owners write
//! into memory that is for this alone (the scratch), and the node puts the values from there to itself. So the memory
//! that the node lends grants peers no rights.
//!
//! ```text
//! in memory? ─▶ lengths, by a get without memory ─▶ room ─▶ get into the scratch ─▶ put to this node alone
//!                                                    └───────────── the next batch ──────────────┘
//! drain:   this node's own values ─▶ get into the scratch ─▶ put to another node ─▶ this node drops them (`drain`)
//! repair:  values whose copy was bad and is dropped, as a prefetch of their keys (`own`)
//! ```
//! One prefetch is under way at a time, by calls of the node itself, which whoever drives carries on. The node's own work
//! comes in short prefetches, between those of the program.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::call::{Ask, KeyEnd};
use super::machine::{End, Machine};
use super::own::Purpose;
use crate::key::{Digest, TenantTag};
use crate::limits::{KEYS_OF_REQUEST_MAX, PREFETCHED_AT_ONCE_BYTES};
use crate::outcome::Outcome;
use crate::wire::{Segment, Wanted};

/// Numbers of prefetches begin here, so that they are no call's of the machine.
const PREFETCHES_FROM: u64 = 1 << 63;

#[derive(Debug, Default)]
pub struct Prefetches {
    /// Memory of this node that peers may write and read, and that nothing else uses.
    pub scratch: Option<Segment>,
    /// The first one is under way.
    queue: VecDeque<Prefetch>,
    /// The node's call that it waits for, and when that began.
    call: Option<(u64, u64)>,
    begun: u64,
    /// The last prefetch that ended was the program's: the node's own work is next.
    own_is_next: bool,
}

#[derive(Debug)]
struct Prefetch {
    number: u64,
    purpose: Purpose,
    digests: Vec<Digest>,
    is_prefix: bool,
    ends: Vec<Option<KeyEnd>>,
    /// The last removal of each key when the prefetch began: a value that is removed after it is not stored.
    removals: Vec<Option<u64>>,
    /// The keys that do not go to make room: those before the one that it is made for.
    kept: BTreeSet<Digest>,
    kept_until: usize,
    /// The purpose of the call under way, and its values.
    step: Step,
    asked: Vec<Item>,
    to_bring: VecDeque<Item>,
    to_put: Vec<Item>,
    /// Values that another node has stored after they were removed.
    to_remove: Vec<Digest>,
}

/// A value that is not in memory: its place among the keys, what is known of it, and where it is in the scratch.
#[derive(Debug)]
struct Item {
    at: usize,
    found: KeyEnd,
    segments: Vec<Segment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Begin,
    Lengths,
    Get,
    Put,
    Remove,
}

impl Prefetches {
    /// Takes a prefetch of the program in, and returns its number.
    pub fn add(&mut self, digests: Vec<Digest>, is_prefix: bool) -> u64 {
        let prefetch = self.new_one(Purpose::Program, digests, is_prefix);
        let number = prefetch.number;
        self.queue.push_back(prefetch);
        number
    }

    fn new_one(&mut self, purpose: Purpose, digests: Vec<Digest>, is_prefix: bool) -> Prefetch {
        self.begun += 1;
        Prefetch {
            number: PREFETCHES_FROM + self.begun,
            purpose,
            ends: vec![None; digests.len()],
            removals: Vec::new(),
            kept: BTreeSet::new(),
            kept_until: 0,
            digests,
            is_prefix,
            step: Step::Begin,
            asked: Vec::new(),
            to_bring: VecDeque::new(),
            to_put: Vec::new(),
            to_remove: Vec::new(),
        }
    }

    /// The node's own work waits for a scratch.
    pub fn lacks_scratch(&self, machine: &Machine) -> bool {
        self.scratch.is_none() && machine.has_own_work()
    }

    /// Takes the end of a call that a prefetch has made: when it began, and whether it brought values of others. None: the
    /// call is the program's.
    pub fn take(&mut self, machine: &Machine, call: u64, ends: &[KeyEnd]) -> Option<(u64, bool)> {
        let (_, began_ns) = self.call.take_if(|(under_way, _)| *under_way == call)?;
        let Some(first) = self.queue.front_mut() else { return Some((began_ns, false)) };
        let brings = first.step == Step::Get && first.purpose != Purpose::Drain;
        first.take(machine, ends);
        Some((began_ns, brings))
    }

    /// Begins the next call of the prefetch that is under way. Returns the program's prefetches that are over. `is_closing`:
    /// all are.
    pub fn go_on(&mut self, machine: &mut Machine, is_closing: bool, now: u64) -> Vec<End> {
        let scratch = self.scratch.filter(|_| !is_closing);
        let mut over = Vec::new();
        while self.call.is_none() {
            let takes_own =
                self.queue.front().is_none_or(|first| first.step == Step::Begin && self.own_is_next);
            let own = scratch.filter(|_| takes_own).and_then(|_| machine.next_own(now));
            let own = own.map(|(purpose, digests)| self.new_one(purpose, digests, false));
            let Some(mut first) = own.or_else(|| self.queue.pop_front()) else { break };
            self.own_is_next = first.purpose == Purpose::Program;
            if let Some(ask) = scratch.and_then(|scratch| first.next(machine, scratch, now)) {
                self.call = Some((machine.call_own(ask, now), now));
                self.queue.push_front(first);
            } else if first.purpose == Purpose::Program {
                let closed = KeyEnd::of(Outcome::Closed);
                let keys = first.ends.into_iter().map(|end| end.unwrap_or(closed)).collect();
                over.push(End { call: first.number, keys });
            } else {
                machine.own_ended(first.purpose, &first.digests, &first.ends, now);
            }
        }
        over
    }

    /// Nothing moves any more. Returns the numbers of all prefetches, and how many keys each has.
    pub fn give_up(&mut self) -> Vec<(u64, usize)> {
        self.call = None;
        self.queue.drain(..).map(|prefetch| (prefetch.number, prefetch.ends.len())).collect()
    }
}

impl Prefetch {
    /// The next call. None: all keys have ended.
    fn next(&mut self, machine: &mut Machine, scratch: Segment, now: u64) -> Option<Ask> {
        if self.step == Step::Begin {
            self.begin(machine);
        }
        if !self.to_remove.is_empty() {
            self.step = Step::Remove;
            return Some(Ask::Remove { digests: std::mem::take(&mut self.to_remove) });
        }
        if self.purpose != Purpose::Drain && machine.is_draining() {
            // The values on their way would go to another node.
            std::mem::take(&mut self.to_put).iter().for_each(|item| self.end(item, Outcome::Full));
        }
        if !self.to_put.is_empty() {
            (self.asked, self.step) = (std::mem::take(&mut self.to_put), Step::Put);
        } else if self.asked.is_empty() {
            self.begin_batch(machine, scratch, now);
        }
        let is_drain = self.purpose == Purpose::Drain;
        // A value that is moved keeps the checksum of its first put.
        let known = |digest| machine.held_here(digest).map(|(_, checksum)| checksum);
        let wanted = |item: &Item| Wanted {
            digest: self.digests[item.at],
            checksum: known(&self.digests[item.at]).filter(|_| is_drain),
            segments: item.segments.clone(),
        };
        let keys: Vec<Wanted> = self.asked.iter().map(wanted).collect();
        match self.step {
            _ if keys.is_empty() => {
                if !is_drain {
                    self.note_gone(machine);
                    // Batch by batch the head was stored before the tail, and would go before it.
                    self.touch(machine);
                }
                None
            }
            Step::Put if is_drain => Some(Ask::Put { keys, replicas: 1, preferred: None }),
            Step::Put => Some(Ask::Put { keys, replicas: 1, preferred: Some(machine.my_id()) }),
            step => Some(Ask::Get { checked: vec![step == Step::Get; keys.len()], keys }),
        }
    }

    /// Says which values are in memory. The others are asked for their lengths, which a drain knows.
    fn begin(&mut self, machine: &mut Machine) {
        self.step = Step::Lengths;
        self.removals = self.digests.iter().map(|digest| machine.removal_of(digest)).collect();
        let me = Some(machine.my_id());
        for (at, digest) in self.digests.iter().enumerate() {
            let store = machine.store();
            let in_memory = store.find(digest).map(|slot| store.length(slot));
            let end = |outcome, bytes| KeyEnd { outcome, bytes, node: me };
            let segments = Vec::new();
            match (self.purpose, in_memory) {
                (Purpose::Drain, _) => match machine.held_here(digest) {
                    Some((bytes, _)) => {
                        self.to_bring.push_back(Item { at, found: end(Outcome::Ok, bytes), segments })
                    }
                    None => self.ends[at] = Some(KeyEnd::of(Outcome::Absent)),
                },
                (_, Some(bytes)) => self.ends[at] = Some(end(Outcome::Here, bytes)),
                (_, None) => self.asked.push(Item { at, found: KeyEnd::of(Outcome::Unknown), segments }),
            }
        }
        self.touch(machine);
    }

    /// Chooses as many values as the scratch and this node's memory have room for.
    fn begin_batch(&mut self, machine: &mut Machine, scratch: Segment, now: u64) {
        self.step = Step::Get;
        let (mut used, mut taken, mut taken_of) = (0, 0, BTreeMap::<TenantTag, u64>::new());
        while let Some(mut item) = self.to_bring.pop_front() {
            let (bytes, digest) = (item.found.bytes, self.digests[item.at]);
            let units = machine.store().bytes_for(&digest, bytes).filter(|_| bytes <= scratch.bytes);
            let Some(units) = units else {
                self.end(&item, Outcome::TooLong);
                continue;
            };
            let is_full = used + bytes > scratch.bytes.min(PREFETCHED_AT_ONCE_BYTES);
            if !self.asked.is_empty() && (is_full || self.asked.len() == KEYS_OF_REQUEST_MAX) {
                return self.to_bring.push_front(item);
            }
            // The head of a prefix is worth more than its tail.
            self.kept.extend(&self.digests[self.kept_until..item.at]);
            self.kept_until = item.at;
            let needs_room = self.purpose != Purpose::Drain;
            let of_tenant = taken_of.entry(digest.tag()).or_default();
            let of = (digest.tag(), *of_tenant + units);
            if needs_room && !machine.make_room(taken + units, of, &self.kept, now) {
                self.end(&item, Outcome::Full);
                let rest = if self.is_prefix { std::mem::take(&mut self.to_bring) } else { VecDeque::new() };
                rest.iter().for_each(|item| self.end(item, Outcome::Full));
                continue;
            }
            let segment = Segment { address: scratch.address + used, bytes, region: scratch.region };
            item.segments = Some(segment).filter(|segment| segment.bytes > 0).into_iter().collect();
            self.asked.push(item);
            (used, taken, *of_tenant) = (used + bytes, taken + units, of.1);
        }
    }

    /// Takes the ends of the call under way.
    fn take(&mut self, machine: &Machine, ends: &[KeyEnd]) {
        for (item, end) in std::mem::take(&mut self.asked).into_iter().zip(ends.iter().copied()) {
            let at = item.at;
            let is_put_on = self.purpose == Purpose::Drain || end.node != Some(machine.my_id());
            match (self.step, end.outcome) {
                // A value without bytes is whole already.
                (Step::Lengths, Outcome::Length | Outcome::Ok) => {
                    self.to_bring.push_back(Item { found: end, ..item })
                }
                (Step::Get, Outcome::Ok) if self.was_removed(machine, at) => self.end(&item, Outcome::Absent),
                (Step::Get, Outcome::Ok) if is_put_on => self.to_put.push(Item { found: end, ..item }),
                // The key has another value now.
                (Step::Get, Outcome::Length) => self.end(&item, Outcome::Evicted),
                (Step::Put, outcome) => {
                    // Another node may have heard of the removal before it heard of the put.
                    if self.purpose == Purpose::Drain
                        && outcome == Outcome::Ok
                        && self.was_removed(machine, at)
                    {
                        self.to_remove.push(self.digests[at]);
                    }
                    self.end(&item, outcome);
                }
                _ => self.ends[at] = Some(end),
            }
        }
        let is_there = |outcome: Outcome| outcome.is_ok() || outcome == Outcome::Full;
        let is_miss = |end: &Option<KeyEnd>| end.is_some_and(|end| !is_there(end.outcome));
        let first_miss = self.ends.iter().position(is_miss).filter(|_| self.is_prefix);
        if let Some(miss) = first_miss {
            self.to_bring.retain(|item| item.at < miss);
            self.to_put.retain(|item| item.at < miss);
            self.ends[miss + 1..].fill(Some(KeyEnd::of(Outcome::Absent)));
        }
    }

    fn end(&mut self, item: &Item, outcome: Outcome) {
        self.ends[item.at] = Some(match outcome {
            Outcome::Absent | Outcome::Evicted => KeyEnd::of(outcome),
            outcome => KeyEnd { outcome, ..item.found },
        });
    }

    fn was_removed(&self, machine: &Machine, at: usize) -> bool {
        let last = machine.removal_of(&self.digests[at]);
        // It is forgotten after a while.
        last.is_some() && last != self.removals[at]
    }

    /// Values of the tail may have gone for the head, and others for calls of the program.
    fn note_gone(&mut self, machine: &Machine) {
        for at in 0..self.ends.len() {
            if let Some(end) = self.ends[at].filter(|end| end.outcome.is_ok()) {
                if machine.store().find(&self.digests[at]).is_none() {
                    self.ends[at] = Some(if self.was_removed(machine, at) {
                        KeyEnd::of(Outcome::Absent)
                    } else {
                        KeyEnd { outcome: Outcome::Full, ..end }
                    });
                }
            }
        }
    }

    /// The values that are in memory are used. The tail of a prefix is the less valuable end.
    fn touch(&self, machine: &mut Machine) {
        let ended = self.digests.iter().zip(&self.ends).rev();
        let held = ended.filter(|(_, end)| end.is_some_and(|end| end.outcome.is_ok()));
        let held: Vec<u64> = held.map(|(digest, _)| digest.fingerprint()).collect();
        machine.touch(&held);
    }
}

#[cfg(test)]
#[path = "prefetch_tests.rs"]
mod tests;
