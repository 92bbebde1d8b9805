//! Brings values into this node's memory: those of other nodes, and those that its own file alone has. Owners write
//! into memory that is for this alone (the scratch), and the node puts the values from there to itself. So the memory
//! that the node lends grants peers no rights.
//!
//! ```text
//! in memory? ─▶ lengths, by a get without memory ─▶ room ─▶ get into the scratch ─▶ put to this node alone
//!                                                    └───────────── the next batch ──────────────┘
//! ```
//! One prefetch is under way at a time, by calls of the node itself, which whoever drives carries on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use ferry::status::{Error, Result};
use ferry::{Access, RegionOptions, Status};

use super::{Call, Inner, Pool, Shared};
use crate::key::{Digest, TenantTag};
use crate::limits::{KEYS_OF_REQUEST_MAX, PREFETCHED_AT_ONCE_BYTES, PREFETCHED_VALUE_BYTES_MAX};
use crate::node::{Ask, KeyEnd, Machine};
use crate::outcome::Outcome;
use crate::wire::{Segment, Wanted};

/// Numbers of prefetches begin here, so that they are no call's of the machine.
const PREFETCHES_FROM: u64 = 1 << 63;

#[derive(Debug, Default)]
pub(super) struct Prefetches {
    /// The first one is under way.
    queue: VecDeque<Prefetch>,
    /// The node's call that it waits for, and when that began.
    call: Option<(u64, u64)>,
    scratch: Option<Segment>,
    begun: u64,
}

#[derive(Debug)]
struct Prefetch {
    number: u64,
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
}

impl Pool {
    /// Brings values into this node's memory, those of other nodes and those that its file alone has; makes room by
    /// evicting others. An end for each key: OK, it was brought; HERE, it was in memory; FULL, there is no room beside
    /// the keys before it and what is in use; TOO_LONG, the value has more bytes than the node lends, or than
    /// `PREFETCHED_VALUE_BYTES_MAX`; or the reason of a miss. `prefix`: the keys are the chunks of a prefix, in order;
    /// what follows the first miss is a miss. INVALID for a node that lends no memory.
    pub fn prefetch(&self, keys: &[Digest], prefix: bool, timeout: Option<Duration>) -> Result<Vec<KeyEnd>> {
        self.run(&Call::Prefetch { keys, prefix }, 0, timeout)
    }

    /// As `prefetch`, without waiting.
    pub fn submit_prefetch(&self, keys: &[Digest], prefix: bool, user_data: u64) -> Result<()> {
        self.submit(&Call::Prefetch { keys, prefix }, user_data)
    }
}

impl Prefetches {
    /// Takes a prefetch in, and returns its number.
    pub fn add(&mut self, digests: Vec<Digest>, is_prefix: bool) -> u64 {
        self.begun += 1;
        let number = PREFETCHES_FROM + self.begun;
        self.queue.push_back(Prefetch {
            number,
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
        });
        number
    }

    /// Nothing moves any more. Returns the numbers of all prefetches, and how many keys each has.
    pub fn give_up(&mut self) -> Vec<(u64, usize)> {
        self.call = None;
        self.queue.drain(..).map(|prefetch| (prefetch.number, prefetch.ends.len())).collect()
    }
}

impl Shared {
    /// Makes the scratch, if there is none. INVALID for a node that lends no memory.
    pub(super) fn prepare_prefetch(&self) -> Result<()> {
        let (lent, has_scratch) = {
            let inner = self.lock();
            (inner.machine.store().capacity(), inner.prefetches.scratch.is_some())
        };
        if lent == 0 {
            let text =
                "prefetch: this node lends no memory to bring values to: give it memory_bytes, or get them";
            return Err(Error::invalid(text));
        }
        if has_scratch {
            return Ok(());
        }
        let region = RegionOptions { access: Access::REMOTE_WRITE, ..RegionOptions::default() };
        let bytes = lent.min(PREFETCHED_VALUE_BYTES_MAX);
        let memory = self.engine.alloc(bytes as usize, &region)?;
        let region = self.engine.region_at(memory.address(), bytes)?.region.raw();
        let mut inner = self.lock();
        if inner.is_closing {
            return Err(Error::new(Status::Closed, "the pool is closed"));
        }
        // Another thread may have made one meanwhile.
        if inner.prefetches.scratch.is_none() {
            inner.prefetches.scratch = Some(Segment { address: memory.address(), bytes, region });
            inner.memory.push(memory);
        }
        Ok(())
    }

    /// Takes the end of a call that a prefetch has made. False: the call is the program's.
    pub(super) fn take_prefetched(&self, inner: &mut Inner, call: u64, ends: &[KeyEnd]) -> bool {
        let Some((_, began_ns)) = inner.prefetches.call.take_if(|(under_way, _)| *under_way == call) else {
            return false;
        };
        let me = inner.machine.my_id();
        if let Some(first) = inner.prefetches.queue.front_mut() {
            if first.step == Step::Get {
                // This node's own values were in its file.
                inner.rates.note(began_ns, self.now(), ends, me, true);
            }
            first.take(&inner.machine, ends);
        }
        true
    }

    /// Begins the next call of the prefetch that is under way, and delivers those that are over.
    pub(super) fn go_on_prefetching(&self, inner: &mut Inner) {
        while inner.prefetches.call.is_none() {
            let Some(mut first) = inner.prefetches.queue.pop_front() else { return };
            let scratch = inner.prefetches.scratch.filter(|_| !inner.is_closing);
            let now = self.now();
            if let Some(ask) = scratch.and_then(|scratch| first.next(&mut inner.machine, scratch, now)) {
                inner.prefetches.call = Some((inner.machine.call_own(ask, now), now));
                inner.prefetches.queue.push_front(first);
            } else {
                let closed = KeyEnd::of(Outcome::Closed);
                let ends = first.ends.into_iter().map(|end| end.unwrap_or(closed)).collect();
                self.deliver(inner, first.number, ends);
            }
        }
    }
}

impl Prefetch {
    /// The next call. None: all keys have ended.
    fn next(&mut self, machine: &mut Machine, scratch: Segment, now: u64) -> Option<Ask> {
        if self.step == Step::Begin {
            self.begin(machine);
        } else if self.to_put.is_empty() {
            self.begin_batch(machine, scratch, now);
        } else {
            (self.asked, self.step) = (std::mem::take(&mut self.to_put), Step::Put);
        }
        let wanted = |item: &Item| Wanted {
            digest: self.digests[item.at],
            checksum: None,
            segments: item.segments.clone(),
        };
        let keys: Vec<Wanted> = self.asked.iter().map(wanted).collect();
        match self.step {
            _ if keys.is_empty() => {
                self.note_gone(machine);
                // Batch by batch the head was stored before the tail, and would go before it.
                self.touch(machine);
                None
            }
            Step::Put => Some(Ask::Put { keys, replicas: 1, preferred: Some(machine.my_id()) }),
            step => Some(Ask::Get { checked: vec![step == Step::Get; keys.len()], keys }),
        }
    }

    /// Says which values are in memory. The others are asked for their lengths.
    fn begin(&mut self, machine: &mut Machine) {
        self.step = Step::Lengths;
        self.removals = self.digests.iter().map(|digest| machine.removal_of(digest)).collect();
        let (store, me) = (machine.store(), Some(machine.my_id()));
        for (at, digest) in self.digests.iter().enumerate() {
            match store.find(digest).map(|slot| store.length(slot)) {
                Some(bytes) => self.ends[at] = Some(KeyEnd { outcome: Outcome::Here, bytes, node: me }),
                None => {
                    self.asked.push(Item { at, found: KeyEnd::of(Outcome::Unknown), segments: Vec::new() })
                }
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
            let of_tenant = taken_of.entry(digest.tag()).or_default();
            if !machine.make_room(taken + units, (digest.tag(), *of_tenant + units), &self.kept, now) {
                self.end(&item, Outcome::Full);
                let rest = if self.is_prefix { std::mem::take(&mut self.to_bring) } else { VecDeque::new() };
                rest.iter().for_each(|item| self.end(item, Outcome::Full));
                continue;
            }
            let segment = Segment { address: scratch.address + used, bytes, region: scratch.region };
            item.segments = Some(segment).filter(|segment| segment.bytes > 0).into_iter().collect();
            self.asked.push(item);
            (used, taken, *of_tenant) = (used + bytes, taken + units, *of_tenant + units);
        }
    }

    /// Takes the ends of the call under way.
    fn take(&mut self, machine: &Machine, ends: &[KeyEnd]) {
        for (item, end) in std::mem::take(&mut self.asked).into_iter().zip(ends.iter().copied()) {
            let (at, is_from_file) = (item.at, end.node == Some(machine.my_id()));
            match (self.step, end.outcome) {
                // A value without bytes is whole already.
                (Step::Lengths, Outcome::Length | Outcome::Ok) => {
                    self.to_bring.push_back(Item { found: end, ..item })
                }
                (Step::Get, Outcome::Ok) if self.was_removed(machine, at) => self.end(&item, Outcome::Absent),
                (Step::Get, Outcome::Ok) if !is_from_file => self.to_put.push(Item { found: end, ..item }),
                // The key has another value now.
                (Step::Get, Outcome::Length) => self.end(&item, Outcome::Evicted),
                (Step::Put, outcome) => self.end(&item, outcome),
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
