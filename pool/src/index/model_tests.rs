//! One index member's table among owners that put, evict, lose their session, restart, join and leave in any order,
//! against what the owners hold in truth.

use super::{Answer, IndexMembers, Members, NodeId, Owner, Part, Table};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const NODES: usize = 12;
const KEYS: u64 = 48;

/// An owner's side, as the node machine will have it.
#[derive(Clone)]
struct Holder {
    owner: Owner,
    holds: BTreeSet<u64>,
    /// Its messages arrive.
    is_connected: bool,
    /// The list by which it announces, and the one for which its last inventory was complete, if nothing was lost since
    /// and it went straight from that to this one.
    index: IndexMembers,
    complete: Option<IndexMembers>,
    /// The inventory under way: its number, the next part, what it is since, the last fingerprint sent.
    running: Option<(u64, u32, Option<IndexMembers>, Option<u64>)>,
    inventories: u64,
}

struct World {
    me: NodeId,
    names: BTreeSet<usize>,
    table: Table,
    members: Members,
    holders: BTreeMap<NodeId, Holder>,
    lives: u64,
}

fn name(at: usize) -> String {
    format!("node-{at}")
}

fn key(at: u64) -> u64 {
    (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn members(names: &BTreeSet<usize>) -> Members {
    Members::new(names.iter().map(|&at| (name(at), 1))).unwrap()
}

impl World {
    fn new() -> World {
        let names: BTreeSet<usize> = (0..3).collect();
        let members = members(&names);
        let me = NodeId::of(&name(0));
        let table = Table::new(me, &members);
        World { me, names, table, members, holders: BTreeMap::new(), lives: 0 }
    }

    fn id(&self, pick: u64) -> NodeId {
        let at = pick as usize % self.names.len();
        self.names.iter().nth(at).map(|&at| NodeId::of(&name(at))).unwrap()
    }

    /// A node comes up: with what an earlier life left on its disk, or with nothing.
    fn start(&mut self, node: NodeId, keeps: bool) {
        self.lives += 1;
        let holds =
            self.holders.get(&node).filter(|_| keeps).map(|old| old.holds.clone()).unwrap_or_default();
        let owner = Owner { node, incarnation: self.lives };
        let index = self.members.index().clone();
        let (complete, running) = (None, None);
        let holder = Holder { owner, holds, is_connected: true, index, complete, running, inventories: 0 };
        self.holders.insert(node, holder);
        self.table.join(owner).unwrap();
    }

    fn put(&mut self, node: NodeId, fingerprint: u64, is_put: bool) {
        let Some(holder) = self.holders.get_mut(&node) else { return };
        let has_changed =
            if is_put { holder.holds.insert(fingerprint) } else { holder.holds.remove(&fingerprint) };
        if has_changed && holder.is_connected && holder.index.is_home(self.me, fingerprint) {
            if is_put {
                self.table.add(holder.owner, &[fingerprint]).unwrap();
            } else {
                self.table.remove(holder.owner, &[fingerprint]).unwrap();
            }
        }
    }

    /// Sends the next part of an inventory, or begins one if one is due.
    fn send(&mut self, node: NodeId) {
        let Some(holder) = self.holders.get_mut(&node).filter(|holder| holder.is_connected) else { return };
        if holder.running.is_none() {
            if holder.complete.as_ref() == Some(&holder.index) {
                if !self.table.lacking().any(|lacking| lacking == node) {
                    return;
                }
                holder.complete = None;
            }
            holder.inventories += 1;
            holder.running = Some((holder.inventories, 0, holder.complete.clone(), None));
        }
        let Some((inventory, number, since, after)) = holder.running.clone() else { return };
        let is_due = |at: &u64| {
            let is_new = !since.as_ref().is_some_and(|since| since.is_home(self.me, *at));
            is_new && holder.index.is_home(self.me, *at) && after.is_none_or(|after| *at > after)
        };
        let due: Vec<u64> = holder.holds.iter().copied().filter(is_due).collect();
        let fingerprints = &due[..due.len().min(3)];
        let part = Part {
            inventory,
            number,
            last: due.len() <= 3,
            members: holder.index.stamp(),
            since: since.as_ref().map(IndexMembers::stamp),
            fingerprints,
        };
        match self.table.part(holder.owner, &part) {
            Ok(_) if part.last => (holder.complete, holder.running) = (Some(holder.index.clone()), None),
            Ok(_) => {
                holder.running = Some((inventory, number + 1, since, fingerprints.last().copied().or(after)))
            }
            // The table is at another list, or does not know it as complete: the next one is whole. The holder may be
            // only ahead, and keeps what it is complete for while the table could come to the same list.
            Err(_) if part.members != self.members.index().stamp() => holder.running = None,
            Err(_) => (holder.complete, holder.running) = (None, None),
        }
    }

    fn lose(&mut self, node: NodeId) {
        if let Some(holder) = self.holders.get_mut(&node) {
            (holder.is_connected, holder.complete, holder.running) = (false, None, None);
            self.table.lose_session(node);
        }
    }

    /// An owner hears of the present list, and says so at once; the table's node has heard of it.
    fn hear(&mut self, node: NodeId) {
        let Some(holder) = self.holders.get_mut(&node) else { return };
        if holder.index != *self.members.index() {
            if holder.complete.as_ref() != Some(&holder.index) {
                holder.complete = None;
            }
            (holder.index, holder.running) = (self.members.index().clone(), None);
            self.send(node);
        }
    }

    fn toggle(&mut self, at: usize) {
        if at == 0 {
            return;
        }
        if !self.names.remove(&at) {
            self.names.insert(at);
        } else {
            self.holders.remove(&NodeId::of(&name(at)));
        }
        self.members = members(&self.names);
        self.table.set_members(&self.members);
    }

    /// Whatever happens, the table says no only of keys that no node holds.
    fn check(&self) {
        let keys: Vec<u64> = (0..KEYS).map(key).collect();
        let answers = self.table.lookup(&keys).unwrap();
        for (fingerprint, answer) in keys.into_iter().zip(answers) {
            let holders: Vec<NodeId> = self
                .holders
                .values()
                .filter(|holder| holder.holds.contains(&fingerprint))
                .map(|holder| holder.owner.node)
                .collect();
            if answer == Answer::No {
                assert!(holders.is_empty(), "no is said of {fingerprint:x}, which {holders:?} hold");
            }
        }
    }

    /// Everything arrives: then the table is exact.
    fn settle(&mut self) {
        for pick in 0..self.names.len() as u64 {
            let node = self.id(pick);
            if !self.holders.contains_key(&node) {
                self.start(node, false);
            }
            self.holders.get_mut(&node).unwrap().is_connected = true;
            self.hear(node);
            (0..KEYS).for_each(|_| self.send(node));
        }
        (0..1000).find(|_| !self.table.sweep(1)).expect("a sweep ends");
        let mut entries = 0;
        for fingerprint in (0..KEYS).map(key) {
            let is_home = self.members.index().is_home(self.me, fingerprint);
            let holds = |holder: &&Holder| is_home && holder.holds.contains(&fingerprint);
            let truth: BTreeSet<NodeId> =
                self.holders.values().filter(holds).map(|holder| holder.owner.node).collect();
            entries += truth.len();
            let owners: BTreeSet<NodeId> = self.table.owners(fingerprint).nodes().iter().copied().collect();
            assert!(owners.is_subset(&truth) && owners.len() == truth.len().min(4), "{owners:?} {truth:?}");
            let answer = self.table.lookup(&[fingerprint]).unwrap()[0];
            match (is_home, truth.is_empty()) {
                (true, true) => assert_eq!(answer, Answer::No),
                (false, _) => assert_eq!(answer, Answer::Unknown),
                _ => assert!(matches!(answer, Answer::Owners(_))),
            }
        }
        assert_eq!(self.table.entries(), entries, "nothing stale remains");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn no_is_never_said_of_what_a_node_holds(
        steps in proptest::collection::vec((0u8..32, any::<u16>(), 0..KEYS), 1..300)
    ) {
        let mut world = World::new();
        for (what, pick, at) in steps {
            let node = world.id(u64::from(pick));
            match what {
                0..8 => world.put(node, key(at), true),
                8..11 => world.put(node, key(at), false),
                11..22 => world.send(node),
                22 => world.lose(node),
                23 | 24 => {
                    if let Some(holder) = world.holders.get_mut(&node) {
                        holder.is_connected = true;
                    }
                }
                25 | 26 if !world.holders.contains_key(&node) => world.start(node, false),
                25 => world.start(node, at % 2 == 0),
                26 | 27 => world.hear(node),
                28 => world.toggle(usize::from(pick) % NODES),
                29 => { world.table.sweep(1); }
                30 if at % 4 == 0 => { world.table.forget(node); world.holders.remove(&node); }
                _ => world.settle(),
            }
            world.check();
        }
        world.settle();
    }
}
