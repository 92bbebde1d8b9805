//! Work of the node itself: calls for prefetches and room for what they bring, repairs, and what a drain has moved.

use std::collections::BTreeSet;

use super::call::{Ask, Call, KeyEnd};
use super::machine::Machine;
use super::owner::Owner;
use crate::key::{Digest, TenantTag};
use crate::limits::{REPAIRED_AT_ONCE, REPAIRS_MAX};
use crate::outcome::Outcome;

/// The reason of a prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The program asked for it.
    Program,
    /// Copies of this node were bad, and are dropped: it brings the values again.
    Repair,
    /// This node is taken out: it moves its values to others.
    Drain,
}

impl Machine {
    /// Begins a call of the node itself: no count has it, and what it puts stays in this node, or leaves it by a drain.
    pub fn call_own(&mut self, ask: Ask, now: u64) -> u64 {
        self.begin(Call { is_own: true, ..Call::new(ask) }, now)
    }

    /// Makes room for so many bytes beside those that eviction keeps free, and for so many of a tenant within its quota,
    /// without evicting these objects. False: there is less, because what was used before them is gone, or is in use;
    /// nothing is evicted for more than there can be. A node that is drained has none.
    pub fn make_room(&mut self, bytes: u64, of: (TenantTag, u64), kept: &BTreeSet<Digest>, now: u64) -> bool {
        let (free, store) = (bytes + self.free_kept / 2, &self.owner.store);
        let may_fit = free <= store.capacity() && of.1 <= store.quota_of(of.0).0 && !self.is_draining();
        let has_room = may_fit && self.owner.make_room_beside(free, of, kept);
        self.settle(now);
        has_room
    }

    /// The length and the checksum of a value that this node holds, in memory or in its file.
    pub fn held_here(&self, digest: &Digest) -> Option<(u64, u64)> {
        self.owner.held(digest)
    }

    pub fn has_own_work(&self) -> bool {
        !self.owner.to_repair.is_empty() || self.drain.is_under_way
    }

    /// The values that the node is to bring again or to move next.
    pub(super) fn next_own(&mut self, now: u64) -> Option<(Purpose, Vec<Digest>)> {
        if let Some(digests) = self.next_drained(now) {
            return Some((Purpose::Drain, digests));
        }
        let next = std::iter::from_fn(|| self.owner.to_repair.pop_first());
        let digests: Vec<Digest> = next.take(REPAIRED_AT_ONCE).collect();
        (!digests.is_empty()).then_some((Purpose::Repair, digests))
    }

    /// How the values ended that `next_own` returned.
    pub(super) fn own_ended(
        &mut self,
        purpose: Purpose,
        digests: &[Digest],
        ends: &[Option<KeyEnd>],
        now: u64,
    ) {
        let ends = digests.iter().zip(ends.iter().map(|end| end.map_or(Outcome::Closed, |end| end.outcome)));
        if purpose == Purpose::Drain {
            return self.drained_some(ends, now);
        }
        for (_, outcome) in ends {
            match outcome {
                Outcome::Ok => self.owner.counts.repaired += 1,
                // Another copy came meanwhile, or there is none.
                Outcome::Here | Outcome::Absent | Outcome::Closed => {}
                _ => self.owner.counts.repairs_failed += 1,
            }
        }
    }

    /// There is no memory for the node's own work.
    pub fn give_up_own_work(&mut self) {
        self.owner.counts.repairs_failed += std::mem::take(&mut self.owner.to_repair).len() as u64;
        self.end_drain();
    }
}

impl Owner {
    /// The bytes of an object did not match their checksum, and are dropped: it is to be brought again.
    pub(super) fn was_bad(&mut self, digest: Digest) {
        self.counts.corrupt += 1;
        if self.to_repair.len() == REPAIRS_MAX {
            self.counts.repairs_failed += 1;
        } else if self.takes_puts {
            self.to_repair.insert(digest);
        }
    }
}
