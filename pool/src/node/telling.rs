//! The index, from both sides: what this node tells the index members of its objects, and what it knows as one of them.
//!
//! ```text
//! commit ─▶ ANNOUNCE to both members of each key ─ ANNOUNCED by both ─▶ the put is answered
//! the members change ─▶ INVENTORY, part by part, of what a member is newly to know ─▶ it says "no" again
//! ```
//! What this node holds itself is not in its own table: its store answers for that.

use std::collections::BTreeMap;

use ferry::status::Result;
use ferry::types::PeerId;
use ferry::Status;

use crate::index::{Answer, IndexMembers, NodeId, Owner, Part, Table};
use crate::key::Digest;
use crate::limits::{AGAIN_NS, AGAIN_NS_MAX, INVENTORY_PLACES_MAX, SWEEP_BUCKETS};
use crate::wire::{Message, FOUND_NO, FOUND_OWNER, FOUND_UNKNOWN};

use super::machine::Machine;
use super::nodes::Nodes;

#[derive(Debug)]
pub struct Telling {
    table: Table,
    me: Owner,
    inventories: BTreeMap<NodeId, Inventory>,
    /// The list of index members for which each of them has this node's inventory.
    done: BTreeMap<NodeId, IndexMembers>,
    /// How long the next inventory waits that a member asks for.
    pauses: BTreeMap<NodeId, u64>,
    /// Commits that wait for a member: (member, number of the ANNOUNCE), and how many each of them waits for.
    awaited: BTreeMap<(PeerId, u64), u64>,
    waits: BTreeMap<u64, usize>,
    next: u64,
    expire_ns: u64,
}

/// An inventory on its way to one index member.
#[derive(Debug)]
struct Inventory {
    number: u64,
    part: u32,
    /// Where the next part begins in the store.
    from: u32,
    /// The list by which the member knows what it was home of; None: it gets everything.
    since: Option<IndexMembers>,
    not_before_ns: u64,
}

impl Telling {
    pub fn new(nodes: &Nodes) -> Result<Telling> {
        let me = Owner { node: nodes.my_id(), incarnation: nodes.me().incarnation };
        Ok(Telling {
            table: Table::new(me.node, nodes.members()),
            me,
            inventories: BTreeMap::new(),
            done: BTreeMap::new(),
            pauses: BTreeMap::new(),
            awaited: BTreeMap::new(),
            waits: BTreeMap::new(),
            next: 0,
            expire_ns: 0,
        })
    }

    /// Whether this node has heard of a removal of a key: if it holds the key, then it was put after that.
    pub fn has_heard(&self, digest: &Digest, removal: u64) -> bool {
        self.table.has_heard(digest, removal)
    }

    /// Which removal took a key last, as far as this node remembers.
    pub fn removal_of(&self, digest: &Digest) -> Option<u64> {
        self.table.removal_of(digest)
    }

    /// Remembers that keys were removed, for nodes that are not here to hear of it.
    pub fn bury(&mut self, digests: &[Digest], removal: u64, now: u64) {
        for digest in digests {
            // Beyond the bound a removed key may come back with a node that was absent: it is a cache.
            let _ = self.table.bury(*digest, removal, &[], now);
        }
    }

    /// Entries of this member's table, and the bytes that they take.
    pub fn entries(&self) -> (usize, usize) {
        (self.table.entries(), self.table.bytes())
    }

    pub fn leftovers(&self) -> [(&'static str, usize); 3] {
        [
            ("announced", self.awaited.len()),
            ("commits", self.waits.len()),
            ("inventories", self.inventories.len()),
        ]
    }

    /// A node is gone. Returns the commits that waited for it alone.
    pub fn forget(&mut self, peer: PeerId) -> Vec<u64> {
        let of_peer = self.awaited.range((peer, 0)..=(peer, u64::MAX));
        let numbers: Vec<u64> = of_peer.map(|((_, number), _)| *number).collect();
        numbers.into_iter().filter_map(|number| self.acknowledged(peer, number)).collect()
    }

    /// A member has answered an ANNOUNCE. Returns the commit if it waits for no further one.
    fn acknowledged(&mut self, peer: PeerId, number: u64) -> Option<u64> {
        let commit = self.awaited.remove(&(peer, number))?;
        let left = self.waits.get_mut(&commit)?;
        *left -= 1;
        (*left == 0).then(|| self.waits.remove(&commit)).flatten().map(|_| commit)
    }
}

impl Machine {
    /// The members that this node sees have changed.
    pub(super) fn view_changed(&mut self, now: u64) {
        let (nodes, telling) = (&self.nodes, &mut self.telling);
        let members = nodes.members();
        telling.table.set_members(members);
        let others =
            nodes.iter().map(|(_, node)| Owner { node: node.id, incarnation: node.hello.incarnation });
        let mine = nodes.me().is_member.then_some(telling.me);
        for owner in others.chain(mine) {
            // A client is no member, and owns nothing.
            let _ = telling.table.join(owner);
        }
        if mine.is_some() {
            telling.next += 1;
            let part = Part {
                inventory: telling.next,
                number: 0,
                last: true,
                members: members.index().stamp(),
                since: None,
                fingerprints: &[],
            };
            let _ = telling.table.part(telling.me, &part);
        }
        let is_member = |id: &NodeId| members.index().ids().contains(id);
        telling.inventories.retain(|id, _| is_member(id));
        telling.done.retain(|id, _| is_member(id));
        telling.pauses.clear();
        if mine.is_none() {
            return;
        }
        for id in members.index().ids().iter().filter(|id| **id != telling.me.node) {
            // An inventory that is under way was for another list.
            let whole = telling.inventories.remove(id).is_some();
            let since = telling.done.remove(id).filter(|_| !whole);
            if since.as_ref() == Some(members.index()) {
                telling.done.insert(*id, members.index().clone());
                continue;
            }
            telling.next += 1;
            let inventory = Inventory { number: telling.next, part: 0, from: 0, since, not_before_ns: now };
            telling.inventories.insert(*id, inventory);
        }
    }

    /// Sends the next part of each inventory, and tidies this member's table. Returns whether there is more to do at
    /// once.
    pub(super) fn tell_on(&mut self, now: u64) -> bool {
        if now >= self.telling.expire_ns {
            self.telling.table.expire(now);
            self.telling.expire_ns = now.saturating_add(AGAIN_NS * 10);
        }
        let mut has_more = self.telling.table.sweep(SWEEP_BUCKETS);
        let ids: Vec<NodeId> = self.telling.inventories.keys().copied().collect();
        for id in ids {
            has_more |= self.tell_part(id, now);
        }
        has_more
    }

    fn tell_part(&mut self, id: NodeId, now: u64) -> bool {
        let (Some(inventory), Some(peer)) = (self.telling.inventories.get_mut(&id), self.nodes.peer_of(id))
        else {
            return false;
        };
        if inventory.not_before_ns > now {
            return false;
        }
        let index = self.nodes.members().index();
        let (digests, next) = self.owner.list(inventory.from, INVENTORY_PLACES_MAX);
        let is_new = |fingerprint: &u64| {
            let knows = |list: &IndexMembers| list.is_home(id, *fingerprint);
            knows(index) && !inventory.since.as_ref().is_some_and(knows)
        };
        let fingerprints = digests.iter().map(Digest::fingerprint).filter(is_new).collect();
        let message = Message::Inventory {
            inventory: inventory.number,
            number: inventory.part,
            is_last: next.is_none(),
            view: index.stamp(),
            since: inventory.since.as_ref().map(IndexMembers::stamp),
            fingerprints,
        };
        inventory.part += 1;
        match next {
            Some(next) => inventory.from = next,
            None => {
                self.telling.inventories.remove(&id);
                self.telling.done.insert(id, index.clone());
            }
        }
        self.send(peer, &message);
        next.is_some()
    }

    /// Objects were committed: their put waits for both members of each, because either may be asked next and say "no".
    pub(super) fn tell_came(&mut self, commit: u64, came: Vec<u64>, now: u64) {
        let by_peer = self.by_home(came);
        if by_peer.is_empty() {
            return self.owner.told(commit);
        }
        self.telling.waits.insert(commit, by_peer.len());
        for (peer, came) in by_peer {
            self.telling.next += 1;
            let number = self.telling.next;
            self.telling.awaited.insert((peer, number), commit);
            // A put waits no longer for a silent member than for a silent owner.
            self.nodes.await_answer(peer, now);
            self.send(peer, &Message::Announce { number, came, went: Vec::new() });
        }
    }

    pub(super) fn tell_went(&mut self, went: Vec<u64>) {
        for (peer, went) in self.by_home(went) {
            self.send(peer, &Message::Announce { number: 0, came: Vec::new(), went });
        }
    }

    /// Fingerprints by the other members that keep them.
    fn by_home(&self, fingerprints: Vec<u64>) -> BTreeMap<PeerId, Vec<u64>> {
        let mut by_peer = BTreeMap::<PeerId, Vec<u64>>::new();
        for fingerprint in fingerprints {
            let homes = self.nodes.members().index().homes(fingerprint);
            for peer in homes.ids().iter().filter_map(|home| self.nodes.peer_of(*home)) {
                by_peer.entry(peer).or_default().push(fingerprint);
            }
        }
        by_peer
    }

    pub(super) fn hear_announce(&mut self, peer: PeerId, number: u64, came: &[u64], went: &[u64]) {
        let Some(owner) = self.owner_of(peer) else { return };
        let removed = self.telling.table.add(owner, came).unwrap_or_default();
        // An owner that this node does not count as a member has nothing here to remove.
        let _ = self.telling.table.remove(owner, went);
        self.tell_removed(peer, removed);
        if number != 0 {
            self.send(peer, &Message::Announced { number });
        }
    }

    pub(super) fn hear_announced(&mut self, peer: PeerId, number: u64) {
        if !self.telling.awaited.contains_key(&(peer, number)) {
            return;
        }
        self.nodes.answered(peer);
        if let Some(commit) = self.telling.acknowledged(peer, number) {
            self.owner.told(commit);
        }
    }

    pub(super) fn hear_inventory(&mut self, peer: PeerId, part: &Part, now: u64) {
        let Some(owner) = self.owner_of(peer) else { return };
        match self.telling.table.part(owner, part) {
            Ok(removed) => self.tell_removed(peer, removed),
            Err(error) if error.status == Status::Stale => {
                self.send(peer, &Message::Again);
                self.doubt_view(part.members, now);
            }
            // More fingerprints than a message may have were refused when it was read.
            Err(_) => {}
        }
    }

    /// A member cannot use this node's inventory: it gets a whole one, unless it gets one already.
    pub(super) fn hear_again(&mut self, peer: PeerId, now: u64) {
        let Some(id) = self.nodes.get(peer).map(|node| node.id) else { return };
        if !self.nodes.me().is_member || !self.nodes.members().index().ids().contains(&id) {
            return;
        }
        self.telling.done.remove(&id);
        self.telling.next += 1;
        // The two see different members; one of them is about to hear of the change, unless it reaches a node that the
        // other one does not reach.
        let pause = self.telling.pauses.entry(id).or_insert(AGAIN_NS);
        let not_before_ns = now.saturating_add(*pause);
        *pause = (*pause * 2).min(AGAIN_NS_MAX);
        let inventory = Inventory { number: self.telling.next, part: 0, from: 0, since: None, not_before_ns };
        self.telling.inventories.insert(id, inventory);
    }

    /// When an inventory that waits goes on.
    pub(super) fn tell_at(&self, now: u64) -> Option<u64> {
        let at = self.telling.inventories.values().map(|inventory| inventory.not_before_ns);
        at.filter(|at| *at > now).min()
    }

    /// Who has these keys, as this node knows: owners, and for each key its place among them, or that there is none, or
    /// that this node does not know.
    pub(super) fn find(&mut self, view: u64, fingerprints: &[u64], now: u64) -> (Vec<u64>, Vec<u8>) {
        self.doubt_view(view, now);
        let agrees = view == self.nodes.view();
        let answers = self.telling.table.lookup(fingerprints).unwrap_or_default();
        let mut owners = Vec::<u64>::new();
        let me = self.nodes.my_id();
        let mut place = |owner: NodeId| {
            let at = owners.iter().position(|known| *known == owner.0).unwrap_or_else(|| {
                owners.push(owner.0);
                owners.len() - 1
            });
            // A member that has more owners than a byte counts calls the others unknown.
            u8::try_from(at + usize::from(FOUND_OWNER)).unwrap_or(FOUND_UNKNOWN)
        };
        let found = fingerprints.iter().zip(answers).map(|(fingerprint, answer)| {
            if self.owner.holds(*fingerprint) {
                return place(me);
            }
            match answer {
                Answer::Owners(owners) => owners.nodes().first().map_or(FOUND_UNKNOWN, |owner| place(*owner)),
                Answer::No if agrees => FOUND_NO,
                _ => FOUND_UNKNOWN,
            }
        });
        let found = found.collect();
        // A value that is asked for is used. The tail of a prefix is the less valuable end.
        fingerprints.iter().rev().for_each(|fingerprint| self.owner.touch(*fingerprint));
        (owners, found)
    }

    /// Another node sees other members. If one of those is silent, this node is to find out.
    fn doubt_view(&mut self, view: u64, now: u64) {
        if view != self.nodes.view() {
            self.nodes.to_ping(now).into_iter().for_each(|peer| self.ping(peer, now));
        }
    }

    /// Passes a removal on to nodes that nobody before has seen. Each node passes it on once.
    pub(super) fn pass_on(&mut self, removal: u64, mut asked: Vec<u64>, digests: &[Digest]) {
        let is_asked = |id: NodeId| digests.is_empty() || asked.contains(&id.0);
        let others: Vec<(PeerId, NodeId)> =
            self.nodes.members_here().filter(|(_, id)| !is_asked(*id)).collect();
        asked.extend(others.iter().map(|(_, id)| id.0));
        for (peer, _) in others {
            let (asked, digests) = (asked.clone(), digests.to_vec());
            self.send(peer, &Message::Remove { request: 0, removal, asked, digests });
        }
    }

    fn owner_of(&self, peer: PeerId) -> Option<Owner> {
        let node = self.nodes.get(peer)?;
        Some(Owner { node: node.id, incarnation: node.hello.incarnation })
    }

    /// Keys that were removed while their owner was absent are removed there too.
    fn tell_removed(&mut self, peer: PeerId, digests: Vec<Digest>) {
        let mut removals = BTreeMap::<u64, Vec<Digest>>::new();
        for digest in digests {
            let removal = self.telling.table.removal_of(&digest).unwrap_or_default();
            removals.entry(removal).or_default().push(digest);
        }
        for (removal, digests) in removals {
            self.send(peer, &Message::Remove { request: 0, removal, asked: Vec::new(), digests });
        }
    }
}
