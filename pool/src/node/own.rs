//! Calls that a node makes by itself, for a prefetch, and room for the values that they bring.

use std::collections::BTreeSet;

use crate::key::Digest;

use super::call::{Ask, Call};
use super::machine::Machine;

impl Machine {
    /// Begins a call of the node itself: no count has it, and what it puts stays in this node.
    pub fn call_own(&mut self, ask: Ask, now: u64) -> u64 {
        self.begin(Call { is_own: true, ..Call::new(ask) }, now)
    }

    /// Makes room for so many bytes beside those that eviction keeps free, without evicting these objects. False: there
    /// is less, because what was used before them is gone, or is in use; nothing is evicted for more than there can be.
    pub fn make_room(&mut self, bytes: u64, kept: &BTreeSet<Digest>, now: u64) -> bool {
        let free = bytes + self.free_kept / 2;
        let has_room = free <= self.owner.store.capacity() && self.owner.make_room_beside(free, kept);
        self.settle(now);
        has_room
    }
}
