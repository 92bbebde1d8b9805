//! The offers that are sealed and that nobody has taken: how many blocks they hold, and which of them is the oldest.

use std::collections::{BTreeMap, BTreeSet};

use crate::handoff::id::HandoffId;

#[derive(Clone, Debug, Default)]
pub struct Leases {
    /// When the lease ends, and how many blocks the offer holds.
    by_id: BTreeMap<HandoffId, (u64, usize)>,
    order: BTreeSet<(u64, HandoffId)>,
    blocks: usize,
}

impl Leases {
    /// Notes that an offer is leased now as this says, or is not.
    pub fn set(&mut self, id: HandoffId, lease: Option<(u64, usize)>) {
        if let Some((until, blocks)) = self.by_id.remove(&id) {
            self.order.remove(&(until, id));
            self.blocks -= blocks;
        }
        if let Some((until, blocks)) = lease {
            self.by_id.insert(id, (until, blocks));
            self.order.insert((until, id));
            self.blocks += blocks;
        }
    }

    /// Returns how many blocks are leased.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// The offer whose lease ends first, with its blocks.
    pub fn oldest(&self) -> Option<(HandoffId, usize)> {
        let (_, id) = self.order.first()?;
        self.by_id.get(id).map(|(_, blocks)| (*id, *blocks))
    }
}
