//! A cache's counts: handoffs by their end, bytes, and what is under way now. `machine` tells it what happens; the
//! numbers of what exists are taken from the offers and takes themselves (`producer::counting`, `consumer::counting`).

use std::collections::BTreeMap;
use std::time::Duration;

use ferry::Status;

use super::id::HandoffId;
use super::machine::{Machine, PostId};
use super::types::{End, Event};
use crate::page::Page;
use crate::plan::Strided;

/// Counters since the cache was opened, and the current number of what exists. Taken at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Offers and takes that have not ended.
    pub offers: u64,
    pub takes: u64,
    /// Takes of peers that wait for an offer of this cache.
    pub takes_waiting: u64,
    /// Exchanges between a rank of a producer and one of a consumer that are not over, of offers and of takes.
    pub parts: u64,
    /// Transfers that are not final.
    pub transfers: u64,
    /// Blocks of sealed offers that have not ended.
    pub leased_blocks: u64,
    /// How long ago the first of these was sealed; zero if there is none.
    pub oldest_lease: Duration,
    /// Blocks of handoffs with silent peers that could not be fenced.
    pub unfenced_blocks: u64,
    /// Payload bytes of WRITEs of offers that are final, and, once, of takes by pull whose consumer has read everything.
    pub bytes_sent: u64,
    /// Payload bytes of READs of takes that are final, and of producers' WRITEs that have arrived.
    pub bytes_received: u64,
    pub ends: Ends,
    /// LATE_APPLY events in blocks of an offer or a take, which failed for it.
    pub late_applies: u64,
    /// Entries of the timeline that newer ones have overwritten.
    pub timeline_overwritten: u64,
}

/// Offers and takes that have ended, by the cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    pub sent: u64,
    pub received: u64,
    pub cancelled: u64,
    /// The lease was over.
    pub expired_lease: u64,
    /// Reclaimed.
    pub expired_pressure: u64,
    pub peer_lost: u64,
    /// By the place in `Status::ALL`.
    failed: [u64; Status::ALL.len()],
}

impl Ends {
    /// All that failed.
    pub fn failed(&self) -> u64 {
        self.failed.iter().sum()
    }

    /// Returns how many failed with this status.
    pub fn failed_with(&self, status: Status) -> u64 {
        let mut all = Status::ALL.iter().zip(&self.failed);
        all.find(|(of, _)| **of == status).map_or(0, |(_, count)| *count)
    }

    fn count(&mut self, end: End, status: Status) {
        let place = Status::ALL.iter().position(|of| *of == status).unwrap_or(0);
        let count = match end {
            End::Sent => Some(&mut self.sent),
            End::Received => Some(&mut self.received),
            End::Cancelled => Some(&mut self.cancelled),
            End::Expired if status == Status::Limit => Some(&mut self.expired_pressure),
            End::Expired => Some(&mut self.expired_lease),
            End::PeerLost => Some(&mut self.peer_lost),
            End::Failed => self.failed.get_mut(place),
        };
        count.into_iter().for_each(|count| *count += 1);
    }
}

impl Stats {
    /// Returns all of them in Prometheus' text format.
    pub fn prometheus(&self) -> String {
        let mut page = Page::default();
        page.one("ferry_kv_offers", "gauge", "Offers that have not ended.", self.offers);
        page.one("ferry_kv_takes", "gauge", "Takes that have not ended.", self.takes);
        let help = "Takes of peers that wait for an offer.";
        page.one("ferry_kv_takes_waiting", "gauge", help, self.takes_waiting);
        let help = "Pairs of a producer's and a consumer's rank whose exchange is not over.";
        page.one("ferry_kv_parts", "gauge", help, self.parts);
        page.one("ferry_kv_transfers", "gauge", "Transfers of handoffs that are not final.", self.transfers);
        let help = "Blocks of sealed offers that have not ended.";
        page.one("ferry_kv_leased_blocks", "gauge", help, self.leased_blocks);
        let help = "Seconds since the oldest of these offers was sealed.";
        page.one("ferry_kv_oldest_lease_seconds", "gauge", help, self.oldest_lease.as_secs_f64());
        let help = "Blocks of handoffs with silent peers that could not be fenced.";
        page.one("ferry_kv_unfenced_blocks", "gauge", help, self.unfenced_blocks);
        let help = "Payload bytes of offers that were written to consumers, or read by them.";
        page.one("ferry_kv_bytes_sent_total", "counter", help, self.bytes_sent);
        let help = "Payload bytes of takes that have arrived.";
        page.one("ferry_kv_bytes_received_total", "counter", help, self.bytes_received);
        let Ends { sent, received, cancelled, expired_lease, expired_pressure, peer_lost, .. } = self.ends;
        let ends = [
            ("sent", sent),
            ("received", received),
            ("failed", self.ends.failed()),
            ("cancelled", cancelled),
            ("expired_lease", expired_lease),
            ("expired_pressure", expired_pressure),
            ("peer_lost", peer_lost),
        ];
        let help = "Offers and takes that have ended, by their end.";
        page.labelled("ferry_kv_handoffs_total", "counter", "end", help, ends);
        let errors = Status::ALL.iter().filter(|status| (**status as i32) < 0);
        let failures = errors.map(|status| (status.name(), self.ends.failed_with(*status)));
        let help = "Offers and takes that have failed, by the status of their event.";
        page.labelled("ferry_kv_failures_total", "counter", "status", help, failures);
        let help = "Late bytes in blocks of offers and takes, which failed for it.";
        page.one("ferry_kv_late_applies_total", "counter", help, self.late_applies);
        let help = "Entries of the timeline that newer ones have overwritten.";
        page.one("ferry_kv_timeline_overwritten_total", "counter", help, self.timeline_overwritten);
        page.text()
    }
}

/// The counters of a machine, and what the numbers of the present need besides the offers and takes.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    counted: Stats,
    /// The bytes of transfers that are not final, and whether they are READs.
    bytes: BTreeMap<PostId, (u64, bool)>,
    /// When an offer was sealed.
    sealed_at: BTreeMap<HandoffId, u64>,
}

impl Counts {
    /// Returns the bytes of the transfer.
    pub fn posted(&mut self, post: PostId, moves: &[Strided], is_read: bool) -> u64 {
        let bytes = moves.iter().map(|moves| moves.pieces().saturating_mul(moves.bytes));
        let bytes = bytes.fold(0, u64::saturating_add);
        self.bytes.insert(post, (bytes, is_read));
        bytes
    }

    pub fn moved(&mut self, post: PostId, is_done: bool) {
        match self.bytes.remove(&post).filter(|_| is_done) {
            Some((bytes, true)) => self.received(bytes),
            Some((bytes, false)) => self.sent(bytes),
            None => {}
        }
    }

    pub fn sent(&mut self, bytes: u64) {
        self.counted.bytes_sent = self.counted.bytes_sent.saturating_add(bytes);
    }

    pub fn received(&mut self, bytes: u64) {
        self.counted.bytes_received = self.counted.bytes_received.saturating_add(bytes);
    }

    pub fn sealed(&mut self, id: HandoffId, now: u64) {
        self.sealed_at.insert(id, now);
    }

    pub fn ended(&mut self, event: &Event) {
        if let Event::Ended { id, end, status, .. } = event {
            self.sealed_at.remove(id);
            self.counted.ends.count(*end, *status);
        }
    }

    pub fn overwritten(&mut self, entries: u64) {
        self.counted.timeline_overwritten += entries;
    }

    pub fn late_apply(&mut self, harmed: usize) {
        self.counted.late_applies += u64::from(harmed > 0);
    }
}

impl Machine {
    /// Returns what was counted, and what there is at `now`.
    pub fn stats(&self, now: u64) -> Stats {
        // A retract takes the seal back.
        let leases = || self.counts.sealed_at.iter().filter(|(id, _)| self.is_sealed(**id));
        let leased = leases().map(|(id, _)| self.blocks_offered(*id) as u64).sum();
        let oldest = leases().map(|(_, at)| *at).min().map_or(0, |at| now.saturating_sub(at));
        Stats {
            offers: self.offers.len() as u64,
            takes: self.takes.len() as u64,
            takes_waiting: self.waiting.len() as u64,
            parts: (self.open_parts_of_offers() + self.open_parts_of_takes()) as u64,
            transfers: self.posts.len() as u64,
            leased_blocks: leased,
            oldest_lease: Duration::from_nanos(oldest),
            unfenced_blocks: self.unfenced_blocks() as u64,
            ..self.counts.counted
        }
    }
}
