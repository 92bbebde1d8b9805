//! What can be seen of a node: whom it knows, what it counts, what is under way.

use ferry::types::PeerId;

use crate::index::NodeId;
use crate::key::Digest;
use crate::store::Store;
use crate::wire::Hello;

use super::machine::Machine;

impl Machine {
    pub fn knows(&self, peer: PeerId) -> bool {
        self.nodes.get(peer).is_some()
    }

    /// The nodes that have greeted.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.nodes.iter().map(|(peer, _)| peer)
    }

    pub fn nodes_known(&self) -> usize {
        self.nodes.iter().filter(|(_, node)| node.is_here()).count()
    }

    pub fn hello_of(&self, peer: PeerId) -> Option<&Hello> {
        self.nodes.get(peer).map(|node| &node.hello)
    }

    pub fn stats(&self) -> crate::PoolStats {
        let store = &self.owner.store;
        let tier = self.tier();
        let (entries, bytes) = self.telling.entries();
        crate::PoolStats {
            calls: self.counts,
            owner: self.owner.counts,
            objects: store.len() as u64,
            capacity: store.capacity(),
            free: store.free_bytes(),
            tier_objects: tier.map_or(0, Store::len) as u64,
            tier_capacity: tier.map_or(0, Store::capacity),
            tier_free: tier.map_or(0, Store::free_bytes),
            index_entries: entries as u64,
            index_bytes: bytes as u64,
            nodes: self.nodes_known() as u64 + 1,
            is_draining: self.is_draining(),
        }
    }

    /// Returns what is under way, by name: all zero when nothing is.
    pub fn leftovers(&self) -> Vec<(&'static str, usize)> {
        let asked = self.nodes.iter().map(|(_, node)| node.asked).sum();
        let own = [
            ("calls", self.calls.len()),
            ("asked", self.asked.len()),
            ("came", self.came.len()),
            ("asked of nodes", asked),
            ("namesakes", self.namesakes.len()),
            ("questions", self.questions.len()),
            ("drain", usize::from(self.drain.is_under_way)),
        ];
        own.into_iter().chain(self.owner.leftovers()).chain(self.telling.leftovers()).collect()
    }

    /// The objects that this node holds, in memory and in its file. One may come twice.
    pub fn held(&self) -> Vec<Digest> {
        let (mut all, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next {
            let part = self.owner.list(from, usize::MAX);
            all.extend(part.0);
            next = part.1;
        }
        all
    }

    pub fn tier(&self) -> Option<&Store> {
        self.owner.tier.as_ref().map(|tier| &tier.store)
    }

    /// The objects in this node's memory.
    pub fn store(&self) -> &Store {
        &self.owner.store
    }

    pub fn my_id(&self) -> NodeId {
        self.nodes.my_id()
    }

    /// Which removal took a key last, as far as this node remembers.
    pub fn removal_of(&self, digest: &Digest) -> Option<u64> {
        self.telling.removal_of(digest)
    }

    pub fn me(&self) -> &Hello {
        self.nodes.me()
    }
}
