//! Takes this node out of the pool. It takes no puts any more, and moves its values to other nodes, those used longest ago
//! first, so that others evict them first: a value leaves when another node has it and the index knows that, so a
//! get finds it all the while.
//!
//! ```text
//! longest unused ─▶ get into the scratch ─▶ put elsewhere ─▶ dropped here      no place ─▶ stays, and is counted as left
//! ```
//! `prefetch` carries the calls on.

use std::collections::BTreeSet;

use ferry::status::{Error, Result};
use ferry::types::{Op, PeerId};

use super::call::Ask;
use super::machine::Machine;
use super::owner::Owner;
use crate::key::Digest;
use crate::limits::{DRAIN_LEFT_MAX, DRAIN_MOVED_MAX, KEYS_OF_REQUEST_MAX, PREFETCHED_AT_ONCE_BYTES};
use crate::outcome::Outcome;
use crate::store::Store;
use crate::wire::{Message, Told};

/// The values of a node that is taken out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Moved to another node, or found there, since the node was opened.
    pub moved: u64,
    pub here: u64,
    /// Still in this node: no other one took them, or they were not to be moved.
    pub left: u64,
    /// They were to be moved.
    pub copies: bool,
}

#[derive(Debug, Default)]
pub(super) struct Drain {
    pub is_under_way: bool,
    copies: bool,
    over: Option<Drained>,
    /// A caller of this node waits for the end, or has given up waiting and not seen it.
    is_awaited: bool,
    /// Values that no other node took.
    left: BTreeSet<Digest>,
    /// Values that were moved lately: a removal that comes now has missed them where they are. When the second set is
    /// full it takes the place of the first.
    moved: [BTreeSet<Digest>; 2],
    /// Nodes that asked for the drain, and the numbers of their questions.
    askers: Vec<(PeerId, u64)>,
}

impl Drain {
    /// How many nodes wait for its end.
    pub fn askers(&self) -> usize {
        self.askers.len()
    }

    fn note_moved(&mut self, digest: Digest) {
        if self.moved[1].len() == DRAIN_MOVED_MAX {
            self.moved = [std::mem::take(&mut self.moved[1]), BTreeSet::new()];
        }
        self.moved[1].insert(digest);
    }

    fn forget_moved(&mut self, digest: &Digest) -> bool {
        self.moved.iter_mut().any(|moved| moved.remove(digest))
    }

    pub fn forget(&mut self, peer: PeerId) {
        self.askers.retain(|(asker, _)| *asker != peer);
    }
}

impl Machine {
    /// The node takes no puts any more.
    pub fn is_draining(&self) -> bool {
        self.nodes.me().load.is_draining
    }

    /// How the last drain ended.
    pub fn drained(&self) -> Option<Drained> {
        self.drain.over
    }

    /// As `drained`, for a caller that waits for it.
    pub fn take_drained(&mut self) -> Option<Drained> {
        self.drain.is_awaited &= self.drain.over.is_none();
        self.drain.over
    }

    /// The node takes no puts any more, and moves its values to others; a drain that is under way goes on. Not `copies`: it
    /// keeps them until it closes. INVALID for a client, and for the only node that takes puts.
    pub fn drain(&mut self, copies: bool, asker: Option<(PeerId, u64)>, now: u64) -> Result<()> {
        if asker.is_none() && self.drain.is_awaited && self.drain.over.is_some() {
            // The end of the drain that this caller, or the one before it, has not waited for.
            return Ok(());
        }
        let name = &self.nodes.me().name;
        if !self.nodes.me().is_member {
            return Err(Error::invalid(format!("drain: {name:?} lends no memory: it has nothing to move")));
        }
        if copies && self.nodes.candidates(now).is_empty() {
            return Err(Error::invalid(format!(
                "drain: {name:?} is the only node that takes values: connect another one, or close this one and lose \
                 its values"
            )));
        }
        let asker_is_own = asker.is_none();
        self.drain.askers.extend(asker);
        if !self.is_draining() {
            self.set_draining(true, now);
            self.owner.to_repair.clear();
        }
        if !self.drain.is_under_way {
            self.drain.left.clear();
            (self.drain.is_under_way, self.drain.over) = (true, None);
        }
        self.drain.is_awaited |= asker_is_own;
        self.drain.copies = copies;
        if !copies {
            self.end_drain();
        }
        Ok(())
    }

    fn set_draining(&mut self, is_draining: bool, now: u64) {
        self.nodes.set_draining(is_draining);
        self.owner.takes_puts = !is_draining;
        self.told_ns = now;
        self.tell_all(&Message::Load(self.nodes.me().load));
    }

    /// The values that are moved next. Ends the drain if all others are in use no more.
    pub(super) fn next_drained(&mut self, now: u64) -> Option<Vec<Digest>> {
        if !self.drain.is_under_way {
            return None;
        }
        let has_nowhere = self.nodes.candidates(now).is_empty();
        if has_nowhere && self.owner.is_reading() {
            return None;
        }
        if has_nowhere || self.drain.left.len() >= DRAIN_LEFT_MAX {
            self.end_drain();
            if has_nowhere && self.drain.over.is_some_and(|over| over.left > 0) {
                // Otherwise no node might take puts any more.
                self.set_draining(false, now);
            }
            return None;
        }
        let left = &self.drain.left;
        let stores: Vec<&Store> = [Some(self.store()), self.tier()].into_iter().flatten().collect();
        let aged = |store: &&Store| store.aged(left.len() + KEYS_OF_REQUEST_MAX);
        let mut bytes = 0;
        let fits = |digest: &Digest| {
            let is_first = bytes == 0;
            bytes += self.held_here(digest).map_or(0, |(length, _)| length.max(1));
            is_first || bytes <= PREFETCHED_AT_ONCE_BYTES
        };
        // Memory first: what its file alone has comes back into memory, and would evict the values there.
        let mut by_store = stores.iter().map(aged);
        let others = by_store.find_map(|mut digests| {
            digests.retain(|digest| !left.contains(digest));
            (!digests.is_empty()).then_some(digests)
        });
        if let Some(digests) = others {
            let mut next: Vec<Digest> =
                digests.into_iter().take_while(fits).take(KEYS_OF_REQUEST_MAX).collect();
            // The first value of a request is stored last.
            next.reverse();
            return Some(next);
        }
        let stay = |store: &&Store| left.iter().filter(|digest| store.find(digest).is_some()).count();
        if !self.owner.is_reading() && stores.iter().all(|store| store.len() == stay(store)) {
            self.end_drain();
        }
        None
    }

    /// Values were moved, or were not: those that another node has are dropped here.
    pub(super) fn drained_some<'a>(&mut self, ends: impl Iterator<Item = (&'a Digest, Outcome)>, now: u64) {
        for (digest, outcome) in ends {
            match outcome {
                Outcome::Ok => self.owner.counts.drained += 1,
                Outcome::Here => self.owner.counts.drained_here += 1,
                _ => {
                    let stays = self.owner.held(digest).is_some();
                    self.drain.left.extend(stays.then_some(*digest));
                    continue;
                }
            }
            self.owner.drop_one(digest);
            if outcome == Outcome::Ok {
                self.drain.note_moved(*digest);
            }
        }
        self.settle(now);
    }

    /// Keys are removed, and other nodes may have heard that before this node's values came to them: they hear it again.
    pub(super) fn remove_moved(&mut self, digests: &[Digest], now: u64) {
        let moved = |digest: &&Digest| self.drain.forget_moved(digest);
        let digests: Vec<Digest> = digests.iter().filter(moved).copied().collect();
        if !digests.is_empty() {
            self.call_own(Ask::Remove { digests }, now);
        }
    }

    /// The values that are here stay here. The nodes that asked for the drain are told.
    pub(super) fn end_drain(&mut self) {
        if !std::mem::take(&mut self.drain.is_under_way) {
            return;
        }
        let stay = self.drain.left.iter().filter(|digest| self.owner.held(digest).is_some()).count();
        // More than these if it ended early.
        let left = stay.max(self.store().len()).max(self.tier().map_or(0, Store::len)) as u64;
        let counts = self.owner.counts;
        let (moved, here, copies) = (counts.drained, counts.drained_here, self.drain.copies);
        self.drain.over = Some(Drained { moved, here, left, copies });
        let told = Told::Counts(self.stats().prometheus());
        for (peer, request) in std::mem::take(&mut self.drain.askers) {
            self.send(peer, &Message::Told { request, told: told.clone() });
        }
    }
}

impl Owner {
    /// Whether values of puts are on their way into this node.
    fn is_reading(&self) -> bool {
        self.served.values().any(|served| served.op == Op::Read)
    }

    /// Another node has this value: it leaves memory and file. Its readers end in peace.
    fn drop_one(&mut self, digest: &Digest) {
        let in_file = self.forget_in_file(digest);
        if self.store.remove(digest) || in_file {
            self.gone(vec![digest.fingerprint()]);
        }
    }
}
