//! The recorded timeline: what happened to the handoffs of a cache, and when. Off unless the application starts it; the
//! machine then adds an entry for each step (`Machine::note`). Bounded: new entries overwrite the oldest ones.
//! `crate::timeline` plots the entries.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use ferry::status::{Error, Result};
use ferry::types::PeerId;
use ferry::Status;

use super::id::HandoffId;
use super::limits::TIMELINE_ENTRIES_MAX;
use super::machine::{Machine, PostId};
use super::remote::{Owner, Post};
use super::types::End;
use super::wire::Message;

/// One step of a handoff, or one of the application's marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Rises by one with each entry of a recording, from 0 on. The first number that is left tells how many entries were
    /// overwritten.
    pub number: u64,
    /// On CLOCK_MONOTONIC. Steps that take no time begin when they end.
    pub begin_ns: u64,
    pub end_ns: u64,
    /// The first four bytes of the handoff's id, as texts show them.
    pub id: u32,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Offered,
    Taken,
    /// In an offer: these layers are computed up to this token.
    Ready {
        layers: Range<u32>,
        tokens: u64,
    },
    /// In a pull, at either side: the producer told the consumer what it may read.
    Granted {
        peer: PeerId,
    },
    /// A transfer was posted.
    Posted(Moved),
    /// A transfer is final; it began when it was posted.
    Final(Moved, Status),
    /// In a push, at the consumer: these bytes are here. The transfer is the producer's, and has the number 0.
    Arrived(Moved),
    /// In a take: the layers before this one are complete.
    Layers(u32),
    Sealed {
        tokens: u64,
    },
    Ended(End, Status),
    /// By the application: its own work on a layer. The kinds are its own, but for `MARK_COMPUTE`.
    Mark {
        kind: u32,
        layer: u32,
    },
}

/// The kind of marks of compute.
pub const MARK_COMPUTE: u32 = 1;

/// The bytes that one transfer moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The same of a Posted and its Final.
    pub transfer: u64,
    pub peer: PeerId,
    /// Ordinals in the consumer's layout.
    pub layers: Range<u32>,
    pub tokens: Range<u64>,
    pub bytes: u64,
}

/// The entries of one recording.
#[derive(Clone, Debug)]
pub(super) struct Record {
    entries: VecDeque<Entry>,
    entries_max: usize,
    next: u64,
    /// The machine's time 0 on CLOCK_MONOTONIC.
    origin_ns: u64,
    /// When the transfers that are not final were posted.
    open: BTreeMap<PostId, (u64, Moved)>,
}

impl Record {
    /// Has room for all of its entries from the beginning.
    fn new(entries_max: usize, origin_ns: u64) -> Result<Record> {
        if !(1..=TIMELINE_ENTRIES_MAX).contains(&entries_max) {
            return Err(Error::invalid(format!(
                "entries_max: {entries_max} is not 1 to {TIMELINE_ENTRIES_MAX}"
            )));
        }
        let mut entries = VecDeque::new();
        let room = entries.try_reserve_exact(entries_max);
        room.map_err(|_| Error::new(Status::NoMemory, "entries_max: no memory for so many"))?;
        Ok(Record { entries, entries_max, next: 0, origin_ns, open: BTreeMap::new() })
    }

    /// Adds an entry. Returns how many were overwritten for it.
    fn add(&mut self, id: HandoffId, begin_ns: u64, end_ns: u64, what: What) -> u64 {
        let is_full = self.entries.len() >= self.entries_max;
        if is_full {
            self.entries.pop_front();
        }
        let [a, b, c, d, ..] = id.bytes();
        let (number, id) = (self.next, u32::from_be_bytes([a, b, c, d]));
        self.next += 1;
        self.entries.push_back(Entry { number, begin_ns, end_ns, id, what });
        is_full.into()
    }
}

impl Machine {
    /// Records from now on, and forgets what was recorded before. `origin_ns` is the machine's time 0 on
    /// CLOCK_MONOTONIC. INVALID unless `entries_max` is 1 to `TIMELINE_ENTRIES_MAX`.
    pub fn record(&mut self, entries_max: usize, origin_ns: u64) -> Result<()> {
        self.record = Some(Box::new(Record::new(entries_max, origin_ns)?));
        Ok(())
    }

    /// Ends the recording, and forgets it.
    pub fn stop_recording(&mut self) {
        self.record = None;
    }

    /// Returns up to `most` entries from this number on, the oldest first.
    pub fn recorded(&self, first: u64, most: usize) -> Vec<Entry> {
        let Some(entries) = self.record.as_ref().map(|record| &record.entries) else { return Vec::new() };
        // Numbers rise by one, so a number tells its place.
        let oldest = entries.front().map_or(0, |entry| entry.number);
        let place = first.saturating_sub(oldest).min(entries.len() as u64) as usize;
        entries.range(place..).take(most).cloned().collect()
    }

    /// Adds what the application did, on CLOCK_MONOTONIC. Nothing is recorded while no recording is on.
    pub fn mark(&mut self, id: HandoffId, kind: u32, layer: u32, ns: Range<u64>) -> Result<()> {
        if ns.start > ns.end {
            return Err(Error::invalid(format!("end_ns: {} is before begin_ns, {}", ns.end, ns.start)));
        }
        if let Some(record) = &mut self.record {
            let overwritten = record.add(id, ns.start, ns.end, What::Mark { kind, layer });
            self.counts.overwritten(overwritten);
        }
        Ok(())
    }

    /// Records what happens now. Costs one branch while no recording is on.
    pub(super) fn note(&mut self, id: HandoffId, what: impl FnOnce() -> What) {
        if let Some(record) = &mut self.record {
            let now = record.origin_ns.saturating_add(self.now);
            let overwritten = record.add(id, now, now, what());
            self.counts.overwritten(overwritten);
        }
    }

    /// Records an UPDATE that was sent to a peer or has come from it.
    pub(super) fn note_update(&mut self, peer: PeerId, message: &Message) {
        if let Message::Update { key, .. } = message {
            self.note(key.id, || What::Granted { peer });
        }
    }

    pub(super) fn note_posted(&mut self, id: PostId, post: &Post, bytes: u64) {
        let (Some(record), Some(handoff)) = (&mut self.record, handoff_of(post.owner)) else { return };
        let now = record.origin_ns.saturating_add(self.now);
        let (layers, tokens) = (post.work.layers.clone(), post.work.tokens.clone());
        let moved = Moved { transfer: id.0, peer: post.peer, layers, tokens, bytes };
        record.open.insert(id, (now, moved.clone()));
        let overwritten = record.add(handoff, now, now, What::Posted(moved));
        self.counts.overwritten(overwritten);
    }

    /// Records the end of a transfer that was posted during this recording.
    pub(super) fn note_final(&mut self, id: PostId, owner: Owner, status: Status) {
        let (Some(record), Some(handoff)) = (&mut self.record, handoff_of(owner)) else { return };
        let Some((begin, moved)) = record.open.remove(&id) else { return };
        let now = record.origin_ns.saturating_add(self.now);
        let overwritten = record.add(handoff, begin, now, What::Final(moved, status));
        self.counts.overwritten(overwritten);
    }
}

fn handoff_of(owner: Owner) -> Option<HandoffId> {
    match owner {
        Owner::Part(at) => Some(at.of.id()),
        Owner::Answer | Owner::Greeting | Owner::Goodbye => None,
    }
}
