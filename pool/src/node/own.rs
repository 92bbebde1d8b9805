//! Calls that a node makes by itself, for a prefetch, and room for the values that they bring.

use std::collections::BTreeSet;

use crate::key::{Digest, TenantTag};

use super::call::{Ask, Call};
use super::machine::Machine;

impl Machine {
    /// Begins a call of the node itself: no count has it, and what it puts stays in this node.
    pub fn call_own(&mut self, ask: Ask, now: u64) -> u64 {
        self.begin(Call { is_own: true, ..Call::new(ask) }, now)
    }

    /// Makes room for so many bytes beside those that eviction keeps free, and for so many of a tenant within its quota,
    /// without evicting these objects. False: there is less, because what was used before them is gone, or is in use;
    /// nothing is evicted for more than there can be.
    pub fn make_room(&mut self, bytes: u64, of: (TenantTag, u64), kept: &BTreeSet<Digest>, now: u64) -> bool {
        let (free, store) = (bytes + self.free_kept / 2, &self.owner.store);
        let may_fit = free <= store.capacity() && of.1 <= store.quota_of(of.0).0;
        let has_room = may_fit && self.owner.make_room_beside(free, of, kept);
        self.settle(now);
        has_room
    }
}
