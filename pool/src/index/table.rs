//! The entries of one index member: which owners said that they hold a key. The answer for a key without a known owner
//! is `No` only while every node of the cluster has sent its inventory; otherwise it is `Unknown`.
//!
//! ```text
//! owner joins ─ part 0 ─ … ─ last part ─▶ complete ─ adds, removes ─▶ forgotten: dead at once, swept in steps
//!                ▲   session lost, or index members changed   │
//!                └────────────────────────────────────────────┘
//! ```
//!
//! After a change of the index members that makes this node a home of other fingerprints too, only these are unknown,
//! until each owner has sent them. An owner's messages arrive in order, or its session is lost.

use super::buckets::Buckets;
use super::standing::{stale, Owner, Part, Standing};
use super::tombstones::Tombstones;
use super::{check_count, IndexMembers, Members, NodeId};
use crate::key::Digest;
use crate::limits::{
    ANSWER_OWNERS_MAX, BATCH_FINGERPRINTS_MAX, DEAD_SLOTS_MAX, ENTRIES_MAX, OWNER_SLOTS_MAX,
};
use ferry::status::Result;
use ferry::{Error, Status};
use std::collections::BTreeMap;

/// An index member's answer for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// These said that they hold a key of this fingerprint.
    Owners(Owners),
    /// No node holds it.
    No,
    /// It may be held: this member does not know yet, or is no home of it.
    Unknown,
}

/// Some owners of a key, each once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owners {
    nodes: [NodeId; ANSWER_OWNERS_MAX],
    count: usize,
}

impl Owners {
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes[..self.count]
    }
}

/// The state of a slot, whose number marks entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// Free: there are no entries.
    Nobody,
    Node(NodeId),
    /// Not shown, and swept.
    Dead(NodeId),
}

#[derive(Debug)]
struct Slot {
    of: Of,
    entries: usize,
}

/// One index member's table.
#[derive(Debug)]
pub struct Table {
    me: NodeId,
    /// The nodes of the cluster, sorted.
    nodes: Vec<NodeId>,
    index: IndexMembers,
    /// The index members before these, or these once all inventories are complete. Keys of which this node is a home
    /// by both lists have come by each owner's last complete inventory.
    settled: IndexMembers,
    standings: BTreeMap<NodeId, Standing>,
    /// Nodes without a complete inventory for `index`; for neither `index` nor `settled`.
    lacking: usize,
    lacking_both: usize,
    slots: Vec<Slot>,
    free: Vec<u16>,
    buckets: Buckets,
    /// `ENTRIES_MAX`, and less in tests.
    entries_max: usize,
    /// The next bucket to sweep, while there is something to sweep; whether another round follows.
    sweep_next: Option<usize>,
    sweep_again: bool,
    tombstones: Tombstones,
}

impl Table {
    pub fn new(me: NodeId, members: &Members) -> Table {
        let mut table = Table {
            me,
            nodes: Vec::new(),
            index: members.index().clone(),
            settled: IndexMembers::default(),
            standings: BTreeMap::new(),
            lacking: 0,
            lacking_both: 0,
            slots: Vec::new(),
            free: Vec::new(),
            buckets: Buckets::new(),
            entries_max: ENTRIES_MAX,
            sweep_next: None,
            sweep_again: false,
            tombstones: Tombstones::default(),
        };
        table.set_members(members);
        table
    }

    /// Takes the nodes of the cluster. Nodes that left are forgotten. Where the index members changed, each owner has to
    /// send an inventory for them: [`Part::since`] tells how much.
    pub fn set_members(&mut self, members: &Members) {
        self.nodes = members.list().iter().map(|member| member.id).collect();
        self.nodes.sort_unstable();
        let is_gone = |node: &NodeId| self.nodes.binary_search(node).is_err();
        let gone: Vec<NodeId> = self.standings.keys().copied().filter(is_gone).collect();
        gone.into_iter().for_each(|node| self.forget(node));
        if self.index != *members.index() {
            self.settled = std::mem::replace(&mut self.index, members.index().clone());
            for standing in self.standings.values_mut() {
                standing.interrupt();
                standing.is_settled = std::mem::take(&mut standing.is_current);
            }
        }
        self.recount();
    }

    /// Takes note of an owner: its inventory is to come. Another incarnation of its node is forgotten.
    pub fn join(&mut self, owner: Owner) -> Result<()> {
        if self.nodes.binary_search(&owner.node).is_err() {
            return Err(Error::invalid(format!("node {:?}: not in the cluster", owner.node)));
        }
        if self.standings.get(&owner.node).is_some_and(|standing| standing.owner == owner) {
            return Ok(());
        }
        self.forget(owner.node);
        let slot = self.take_slot(owner.node)?;
        self.standings.insert(owner.node, Standing::new(owner, slot, self.tombstones.last()));
        self.recount();
        Ok(())
    }

    /// Forgets what a node holds: it is lost. Its entries are not shown from now on; `sweep` frees their memory.
    pub fn forget(&mut self, node: NodeId) {
        if let Some(standing) = self.standings.remove(&node) {
            self.retire(standing.slot);
            standing.previous.into_iter().for_each(|slot| self.retire(slot));
            self.recount();
        }
    }

    /// The session with a node ended, and messages may be lost: its entries remain, and are complete again after a whole
    /// inventory.
    pub fn lose_session(&mut self, node: NodeId) {
        if let Some(standing) = self.standings.get_mut(&node) {
            standing.doubt();
            self.recount();
        }
    }

    /// Takes a part of an inventory. STALE: the owner has to begin again, with a whole one if `since` named a list that
    /// the table does not know it for. Returns the keys among them that were removed while the owner was absent.
    pub fn part(&mut self, owner: Owner, part: &Part<'_>) -> Result<Vec<Digest>> {
        check_count("fingerprints", part.fingerprints.len(), BATCH_FINGERPRINTS_MAX)?;
        let (settled, burials) = (self.settled.stamp(), self.tombstones.last());
        let known = standing(&mut self.standings, owner)?;
        known.stamp = part.members;
        if part.members != self.index.stamp() {
            known.interrupt();
            self.recount();
            return Err(stale("inventory: it is for other index members"));
        }
        let is_whole = part.number == 0 && part.since.is_none();
        let fresh = is_whole.then(|| self.take_slot(owner.node)).transpose()?;
        let taken = standing(&mut self.standings, owner)?.take(part, settled, burials, fresh);
        if part.number == 0 || taken.is_err() {
            self.recount();
        }
        taken?.into_iter().for_each(|slot| self.retire(slot));
        let removed = self.add(owner, part.fingerprints)?;
        let ended = standing(&mut self.standings, owner)?.taken(part);
        ended.into_iter().for_each(|slot| self.retire(slot));
        if part.last {
            self.recount();
        }
        Ok(removed)
    }

    /// Adds entries. Returns the keys among them that were removed while the owner was absent: it may hold them still.
    /// LIMIT: the table is full, and the owner incomplete until a whole inventory fits.
    pub fn add(&mut self, owner: Owner, fingerprints: &[u64]) -> Result<Vec<Digest>> {
        check_count("fingerprints", fingerprints.len(), BATCH_FINGERPRINTS_MAX)?;
        let known = standing(&mut self.standings, owner)?;
        if self.buckets.entries() + fingerprints.len() > self.entries_max {
            known.doubt();
            self.recount();
            return Err(Error::new(
                Status::Limit,
                format!("entries of the index: {} are the most", self.entries_max),
            ));
        }
        let (slot, (heard, missed)) = (known.slot, known.missed_burials());
        let mut removed = Vec::new();
        for &fingerprint in fingerprints {
            self.slots[usize::from(slot)].entries += usize::from(self.buckets.insert(fingerprint, slot));
            if heard < missed {
                let room = BATCH_FINGERPRINTS_MAX.saturating_sub(removed.len());
                removed.extend(self.tombstones.find(fingerprint, heard, missed).take(room));
            }
        }
        Ok(removed)
    }

    /// Removes entries; the owner no longer holds the keys.
    pub fn remove(&mut self, owner: Owner, fingerprints: &[u64]) -> Result<()> {
        check_count("fingerprints", fingerprints.len(), BATCH_FINGERPRINTS_MAX)?;
        let known = standing(&mut self.standings, owner)?;
        for slot in [Some(known.slot), known.previous].into_iter().flatten() {
            for &fingerprint in fingerprints {
                self.slots[usize::from(slot)].entries -= usize::from(self.buckets.remove(fingerprint, slot));
            }
        }
        Ok(())
    }

    /// Returns up to four owners of a fingerprint.
    pub fn owners(&self, fingerprint: u64) -> Owners {
        let mut owners = Owners { nodes: [NodeId(0); ANSWER_OWNERS_MAX], count: 0 };
        for slot in self.buckets.slots(fingerprint) {
            let Of::Node(node) = self.slots[usize::from(slot)].of else { continue };
            if owners.count < ANSWER_OWNERS_MAX && !owners.nodes().contains(&node) {
                owners.nodes[owners.count] = node;
                owners.count += 1;
            }
        }
        owners
    }

    /// Answers for each fingerprint, in the order of the arguments.
    pub fn lookup(&self, fingerprints: &[u64]) -> Result<Vec<Answer>> {
        check_count("fingerprints", fingerprints.len(), BATCH_FINGERPRINTS_MAX)?;
        let answer = |&fingerprint: &u64| match self.owners(fingerprint) {
            owners if owners.count > 0 => Answer::Owners(owners),
            _ if self.is_complete_for(fingerprint) => Answer::No,
            _ => Answer::Unknown,
        };
        Ok(fingerprints.iter().map(answer).collect())
    }

    /// Returns the incarnation of a node that has joined.
    pub fn owner(&self, node: NodeId) -> Option<Owner> {
        self.standings.get(&node).map(|standing| standing.owner)
    }

    /// Returns the nodes whose inventory is not complete: they are asked for one, if they have not begun. An owner that
    /// is asked and believes that it is complete sends a whole one: index members that come and go leave no trace here.
    pub fn lacking(&self) -> impl Iterator<Item = NodeId> + '_ {
        let stamp = self.index.stamp();
        let lacks = move |known: &Standing| !(known.is_current && known.stamp == stamp);
        self.nodes.iter().copied().filter(move |node| self.standings.get(node).is_none_or(lacks))
    }

    /// Returns the index members before these, or these once all inventories are complete.
    pub fn settled(&self) -> &IndexMembers {
        &self.settled
    }

    /// Looks at up to `buckets` buckets for entries that are dead, or that this node is no home of, and gives memory
    /// back. Returns whether there is more to do.
    pub fn sweep(&mut self, buckets: usize) -> bool {
        let Some(start) = self.sweep_next else { return (0..buckets).all(|_| self.buckets.merge()) };
        let end = start.saturating_add(buckets).min(self.buckets.count());
        for at in start..end {
            self.buckets.sweep(at, |fingerprint, slot| {
                let slot = &mut self.slots[usize::from(slot)];
                let is_home = |index: &IndexMembers| index.is_home(self.me, fingerprint);
                let is_kept =
                    !matches!(slot.of, Of::Dead(_)) && (is_home(&self.index) || is_home(&self.settled));
                slot.entries -= usize::from(!is_kept);
                is_kept
            });
        }
        self.sweep_next = Some(end);
        if end == self.buckets.count() {
            self.sweep_next = std::mem::take(&mut self.sweep_again).then_some(0);
            for (number, slot) in self.slots.iter_mut().enumerate() {
                if matches!(slot.of, Of::Dead(_)) && slot.entries == 0 {
                    slot.of = Of::Nobody;
                    self.free.push(number as u16);
                }
            }
        }
        true
    }

    /// Remembers for 10 minutes that a key was removed while these nodes were absent: each that comes back is told when
    /// it announces the key. So is each node that is not known now. `removal` names the removal. LIMIT: there are too many.
    pub fn bury(&mut self, digest: Digest, removal: u64, absent: &[NodeId], now_ns: u64) -> Result<()> {
        let number = self.tombstones.bury(digest, removal, now_ns)?;
        for node in absent {
            if let Some(standing) = self.standings.get_mut(node) {
                standing.miss_burial(number);
            }
        }
        Ok(())
    }

    /// Whether a key was buried by this removal.
    pub fn has_heard(&self, digest: &Digest, removal: u64) -> bool {
        self.tombstones.has_heard(digest, removal)
    }

    /// Which removal took a key last, as far as it is remembered.
    pub fn removal_of(&self, digest: &Digest) -> Option<u64> {
        self.tombstones.removal_of(digest)
    }

    /// Forgets the tombstones that are due.
    pub fn expire(&mut self, now_ns: u64) {
        self.tombstones.expire(now_ns);
    }

    /// Returns the entries, with those that a sweep will remove.
    pub fn entries(&self) -> usize {
        self.buckets.entries()
    }

    pub fn tombstones(&self) -> usize {
        self.tombstones.count()
    }

    /// Returns the bytes that the entries take, with what the allocator adds.
    pub fn bytes(&self) -> usize {
        self.buckets.bytes()
    }

    /// Returns whether every node has sent what it holds of this fingerprint.
    fn is_complete_for(&self, fingerprint: u64) -> bool {
        self.index.is_home(self.me, fingerprint)
            && (self.lacking == 0 || self.lacking_both == 0 && self.settled.is_home(self.me, fingerprint))
    }

    /// Counts the nodes that lack an inventory, after any change of one.
    fn recount(&mut self) {
        let (now, before) = (self.index.stamp(), self.settled.stamp());
        // An owner that announces for yet another list may keep from this node what it is a home of.
        let has_either = |known: &Standing| match known.stamp {
            stamp if stamp == now => known.is_current || known.is_settled,
            stamp => known.is_settled && stamp == before,
        };
        let known = self.nodes.iter().map(|node| self.standings.get(node));
        self.lacking_both = known.filter(|known| !known.is_some_and(has_either)).count();
        self.lacking = self.lacking().count();
        if self.lacking == 0 && self.settled != self.index {
            self.settled = self.index.clone();
            // Entries of which this node is no home any more go.
            self.start_sweep();
        }
    }

    fn take_slot(&mut self, node: NodeId) -> Result<u16> {
        // A node that restarts faster than the sweep goes on has its own bound.
        let dead = self.slots.iter().filter(|slot| slot.of == Of::Dead(node)).count();
        if dead >= DEAD_SLOTS_MAX {
            return Err(Error::new(
                Status::Busy,
                format!("node {node:?}: {dead} earlier inventories are being swept"),
            ));
        }
        let of = Of::Node(node);
        if let Some(number) = self.free.pop() {
            self.slots[usize::from(number)].of = of;
            return Ok(number);
        }
        check_count("owner slots", self.slots.len() + 1, OWNER_SLOTS_MAX)?;
        self.slots.push(Slot { of, entries: 0 });
        Ok((self.slots.len() - 1) as u16)
    }

    fn retire(&mut self, number: u16) {
        let slot = &mut self.slots[usize::from(number)];
        match slot.of {
            Of::Node(node) if slot.entries > 0 => {
                slot.of = Of::Dead(node);
                self.start_sweep();
            }
            _ => {
                slot.of = Of::Nobody;
                self.free.push(number);
            }
        }
    }

    fn start_sweep(&mut self) {
        self.sweep_again = self.sweep_next.is_some();
        self.sweep_next = self.sweep_next.or(Some(0));
    }
}

/// Returns an owner's standing; STALE for an incarnation that has not joined, or is over.
fn standing(standings: &mut BTreeMap<NodeId, Standing>, owner: Owner) -> Result<&mut Standing> {
    let found = standings.get_mut(&owner.node).filter(|standing| standing.owner == owner);
    found.ok_or_else(|| {
        stale(&format!("node {:?}: incarnation {} is not the present one", owner.node, owner.incarnation))
    })
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
