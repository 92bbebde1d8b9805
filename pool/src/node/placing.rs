//! Where a put goes: the preferred node, this one, or others by rendezvous; and when one is full or lost, the next. A node
//! that is drained takes none. And what the others hear of this node's room.

use std::collections::BTreeMap;

use ferry::types::PeerId;

use crate::index::{place, Candidate, NodeId};
use crate::limits::LOAD_NS;
use crate::outcome::Outcome;
use crate::wire::{Load, Message};

use super::call::{KeyEnd, Kind};
use super::calls::What;
use super::machine::Machine;
use super::owner::Asker;

impl Machine {
    /// Sends a put to the nodes that shall have it, or to further ones.
    pub(super) fn place(&mut self, id: u64, keys: Vec<usize>, now: u64) {
        // A drain puts its values elsewhere.
        let stays = self.calls.get(&id).is_some_and(|call| call.is_own) && !self.is_draining();
        let mut candidates = if stays { Vec::new() } else { self.nodes.candidates(now) };
        let me = (self.nodes.my_id(), self.nodes.me().is_member);
        let has_room = self.owner.store.free_bytes() > self.free_kept || candidates.is_empty();
        let mut by_node = BTreeMap::<Asker, Vec<usize>>::new();
        for at in keys {
            let Some(call) = self.calls.get_mut(&id) else { return };
            let Kind::Put { replicas, preferred } = call.kind else { return };
            let key = &mut call.keys[at];
            let takes_puts = |node: &NodeId| self.nodes.takes_puts(*node);
            let wanted = if key.tried.is_empty() { replicas } else { 1 };
            let order = order(key.wanted.digest.fingerprint(), &mut candidates, preferred, me, has_room);
            let order: Vec<NodeId> = order
                .into_iter()
                .filter(takes_puts)
                .filter(|node| !key.tried.contains(node))
                .take(wanted)
                .collect();
            key.tried.extend(&order);
            let askers: Vec<Asker> = order
                .iter()
                .filter_map(
                    |node| if *node == me.0 { Some(None) } else { self.nodes.peer_of(*node).map(Some) },
                )
                .collect();
            key.awaited += askers.len();
            if key.awaited == 0 {
                let end = key.best.unwrap_or(KeyEnd::of(Outcome::Full));
                self.end_key(id, at, end);
                continue;
            }
            askers.into_iter().for_each(|asker| by_node.entry(asker).or_default().push(at));
        }
        for (asker, keys) in by_node {
            self.ask(id, keys, asker, What::Put, now);
        }
    }

    /// Tells the others how much is free if that has changed, and not too often. Returns when to tell it.
    pub(super) fn tell_load(&mut self, now: u64) -> Option<u64> {
        let load = Load { free: self.owner.store.free_bytes(), ..self.nodes.me().load };
        let at = self.told_ns.saturating_add(LOAD_NS);
        if !self.nodes.me().is_member || load.free == self.told_free {
            return None;
        }
        if now < at {
            return Some(at);
        }
        (self.told_free, self.told_ns) = (load.free, now);
        self.tell_all(&Message::Load(load));
        None
    }

    /// Sends a message to all nodes that are here, and returns them.
    pub(super) fn tell_all(&mut self, message: &Message) -> Vec<PeerId> {
        let here = self.nodes.iter().filter(|(_, node)| node.is_here());
        let peers: Vec<PeerId> = here.map(|(peer, _)| peer).collect();
        peers.iter().for_each(|peer| self.send(*peer, message));
        peers
    }
}

/// The nodes that may take an object, the best first: the preferred one, this one while it has room, the others by
/// rendezvous weighted by their free bytes, and this one at last.
fn order(
    fingerprint: u64,
    candidates: &mut [Candidate],
    preferred: Option<NodeId>,
    (me, is_member): (NodeId, bool),
    has_room: bool,
) -> Vec<NodeId> {
    let mut order: Vec<NodeId> = preferred.into_iter().collect();
    let mine = is_member.then_some(me);
    if has_room {
        order.extend(mine);
    }
    // A node that says that it is full may have evicted meanwhile.
    candidates.iter_mut().for_each(|candidate| candidate.weight = candidate.weight.max(1));
    order.extend(place(fingerprint, candidates, candidates.len()));
    order.extend(mine);
    let mut seen = Vec::new();
    order.retain(|node| !seen.contains(node) && (seen.push(*node), true).1);
    order
}
