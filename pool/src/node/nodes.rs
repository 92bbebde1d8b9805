//! The nodes that this one is connected to: what each says of itself, and whether it gives signs of life.

use std::collections::BTreeMap;

use ferry::status::{Error, Result};
use ferry::types::PeerId;
use ferry::Status;

use crate::index::{Candidate, Members, NodeId};
use crate::key::Scheme;
use crate::limits::SILENCE_NS;
use crate::wire::Hello;

#[derive(Debug)]
pub struct Node {
    pub id: NodeId,
    pub hello: Hello,
    /// When its HELLO came, and when anything of it was heard last.
    pub came_ns: u64,
    pub heard_ns: u64,
    /// When it was asked for a sign of life, if it has not given one since.
    pub pinged_ns: Option<u64>,
    /// Requests and announcements that it has not answered.
    pub asked: usize,
    /// It did not answer in time: it is asked nothing more, and is fenced.
    pub is_suspect: bool,
    /// It closes: it is asked nothing more, and still owes answers.
    pub is_leaving: bool,
}

impl Node {
    /// Whether it can be asked, and counts for the others.
    pub fn is_here(&self) -> bool {
        !self.is_suspect && !self.is_leaving
    }
}

/// The connected nodes, and the membership that follows from them.
#[derive(Debug)]
pub struct Nodes {
    me: Hello,
    /// Its peers greeted each other.
    by_peer: BTreeMap<PeerId, Node>,
    by_id: BTreeMap<NodeId, PeerId>,
    members: Members,
}

impl Nodes {
    /// INVALID for a name that is empty or too long.
    pub fn new(me: Hello) -> Result<Nodes> {
        let mut nodes = Nodes {
            me,
            by_peer: BTreeMap::new(),
            by_id: BTreeMap::new(),
            members: Members::new(std::iter::empty())?,
        };
        // A client's name is checked as well.
        Members::new([(nodes.me.name.clone(), 0)])?;
        nodes.renew()?;
        Ok(nodes)
    }

    pub fn me(&self) -> &Hello {
        &self.me
    }

    pub fn my_id(&self) -> NodeId {
        NodeId::of(&self.me.name)
    }

    pub fn set_free(&mut self, free: u64) {
        self.me.load.free = free;
    }

    /// This node takes no puts any more.
    pub fn set_draining(&mut self, is_draining: bool) {
        self.me.load.is_draining = is_draining;
    }

    /// Whether puts may go to this node: another one that can be asked, or the one itself.
    pub fn takes_puts(&self, id: NodeId) -> bool {
        let other = self.peer_of(id).and_then(|peer| self.get(peer));
        let load = other.map(|node| node.hello.load).or((id == self.my_id()).then_some(self.me.load));
        load.is_some_and(|load| !load.is_draining)
    }

    /// Takes a node in. An error says why it cannot be one of this cluster.
    pub fn greet(&mut self, peer: PeerId, hello: Hello, now: u64) -> Result<()> {
        if hello.cluster != self.me.cluster {
            let text = format!(
                "the node {:?} is of cluster {:?}, this one of {:?}",
                hello.name, hello.cluster, self.me.cluster
            );
            return Err(Error::invalid(text));
        }
        if hello.scheme != self.me.scheme {
            let (theirs, mine) = (Scheme(hello.scheme), Scheme(self.me.scheme));
            let text = format!(
                "give all nodes the same chunk_tokens and version: the node {:?} hashes keys in another way ({theirs}; this \
                 node: {mine})",
                hello.name
            );
            return Err(Error::new(Status::Version, text));
        }
        Members::new([(hello.name.clone(), 0)])?;
        let id = NodeId::of(&hello.name);
        let is_mine = id == self.my_id();
        let other = self.by_id.get(&id).and_then(|other| self.by_peer.get(other));
        if is_mine || other.is_some_and(Node::is_here) {
            let text = format!("two nodes have the name {:?}: each needs one of its own", hello.name);
            return Err(Error::invalid(text));
        }
        let node = Node {
            id,
            hello,
            came_ns: now,
            heard_ns: now,
            pinged_ns: None,
            asked: 0,
            is_suspect: false,
            is_leaving: false,
        };
        self.by_peer.insert(peer, node);
        self.by_id.insert(id, peer);
        // There may be more members than a cluster can have.
        self.renew().inspect_err(|_| drop(self.remove(peer)))
    }

    /// Returns the peer that is known by the name of this HELLO, if it can still be asked.
    pub fn namesake(&self, hello: &Hello) -> Option<PeerId> {
        self.peer_of(NodeId::of(&hello.name))
    }

    pub fn get(&self, peer: PeerId) -> Option<&Node> {
        self.by_peer.get(&peer)
    }

    pub fn get_mut(&mut self, peer: PeerId) -> Option<&mut Node> {
        self.by_peer.get_mut(&peer)
    }

    /// A node is to answer, and may not be silent until it has.
    pub fn await_answer(&mut self, peer: PeerId, now: u64) {
        if let Some(node) = self.by_peer.get_mut(&peer) {
            if node.asked == 0 {
                node.heard_ns = now;
            }
            node.asked += 1;
        }
    }

    /// Nodes that have not been heard for a while.
    pub fn to_ping(&self, now: u64) -> Vec<PeerId> {
        let is_due =
            |node: &Node| node.pinged_ns.is_none() && node.heard_ns.saturating_add(SILENCE_NS / 2) <= now;
        self.iter().filter(|(_, node)| node.is_here() && is_due(node)).map(|(peer, _)| peer).collect()
    }

    pub fn answered(&mut self, peer: PeerId) {
        if let Some(node) = self.by_peer.get_mut(&peer) {
            node.asked = node.asked.saturating_sub(1);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (PeerId, &Node)> {
        self.by_peer.iter().map(|(peer, node)| (*peer, node))
    }

    /// The other nodes that lend memory and can be asked.
    pub fn members_here(&self) -> impl Iterator<Item = (PeerId, NodeId)> + '_ {
        let lends = |(_, node): &(PeerId, &Node)| node.hello.is_member && node.is_here();
        self.iter().filter(lends).map(|(peer, node)| (peer, node.id))
    }

    /// Returns the peer of a node that can be asked.
    pub fn peer_of(&self, id: NodeId) -> Option<PeerId> {
        let peer = *self.by_id.get(&id)?;
        self.by_peer.get(&peer).filter(|node| node.is_here()).map(|_| peer)
    }

    /// Forgets a node. Returns it if it was known.
    pub fn remove(&mut self, peer: PeerId) -> Option<Node> {
        let node = self.by_peer.remove(&peer)?;
        if self.by_id.get(&node.id) == Some(&peer) {
            self.by_id.remove(&node.id);
        }
        // The names were checked when they came.
        let _ = self.renew();
        Some(node)
    }

    /// A node that is suspect is no member until it greets again.
    pub fn suspect(&mut self, peer: PeerId) {
        if let Some(node) = self.by_peer.get_mut(&peer) {
            node.is_suspect = true;
            let _ = self.renew();
        }
    }

    /// A node that closes is no member. It is known until it is lost or greets anew: it answers, and is answered.
    pub fn leave(&mut self, peer: PeerId) {
        if let Some(node) = self.by_peer.get_mut(&peer) {
            node.is_leaving = true;
            let _ = self.renew();
        }
    }

    /// The members that this node sees, itself among them if it lends memory.
    pub fn members(&self) -> &Members {
        &self.members
    }

    pub fn view(&self) -> u64 {
        self.members.index().stamp()
    }

    /// Where an object may be placed on other nodes: their free bytes, of which a node that has come lately offers
    /// less.
    pub fn candidates(&self, now: u64) -> Vec<Candidate> {
        let takes = |node: &&Node| node.hello.is_member && node.is_here() && !node.hello.load.is_draining;
        let candidate = |node: &Node| Candidate {
            id: node.id,
            weight: crate::index::ramped(node.hello.load.free, now.saturating_sub(node.came_ns)),
        };
        self.by_peer.values().filter(takes).map(candidate).collect()
    }

    /// Returns the nodes that are silent: those to ask for a sign of life, those that gave none, and when to look
    /// again.
    pub fn silent(&self, now: u64) -> (Vec<PeerId>, Vec<PeerId>, Option<u64>) {
        let (mut to_ping, mut silent, mut due) = (Vec::new(), Vec::new(), None::<u64>);
        for (peer, node) in
            self.iter().filter(|(_, node)| !node.is_suspect && (node.asked > 0 || node.pinged_ns.is_some()))
        {
            let at = match node.pinged_ns {
                None => node.heard_ns.saturating_add(SILENCE_NS / 2),
                Some(pinged) => pinged.saturating_add(SILENCE_NS / 2),
            };
            match (at <= now, node.pinged_ns) {
                (false, _) => due = Some(due.map_or(at, |due| due.min(at))),
                (true, None) => to_ping.push(peer),
                (true, Some(_)) => silent.push(peer),
            }
        }
        (to_ping, silent, due)
    }

    fn renew(&mut self) -> Result<()> {
        let others = self
            .by_peer
            .values()
            .filter(|node| node.hello.is_member && node.is_here())
            .map(|node| &node.hello);
        let mine = self.me.is_member.then_some(&self.me);
        let all = others.chain(mine).map(|hello| (hello.name.clone(), hello.load.capacity));
        self.members = Members::new(all)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Load;

    fn hello(name: &str, incarnation: u64) -> Hello {
        let load = Load { capacity: 100, free: 100, is_draining: false };
        Hello { scheme: 1, incarnation, is_member: true, load, cluster: "c".into(), name: name.into() }
    }

    fn peer(number: u64) -> PeerId {
        PeerId::from_raw(number)
    }

    fn nodes() -> Nodes {
        let mut nodes = Nodes::new(hello("me", 1)).unwrap();
        nodes.greet(peer(1), hello("a", 2), 0).unwrap();
        nodes
    }

    #[test]
    fn nodes_that_cannot_be_of_the_cluster_are_named() {
        let mut nodes = nodes();
        let mut refused = |hello: Hello| nodes.greet(peer(9), hello, 0).unwrap_err().message;
        assert!(refused(hello("me", 7)).contains("two nodes have the name \"me\""));
        assert!(refused(hello("a", 7)).contains("two nodes have the name \"a\""));
        assert!(refused(Hello { cluster: "d".into(), ..hello("b", 7) }).contains("is of cluster \"d\""));
        assert!(refused(hello("", 7)).contains("a name of 0 bytes"));
        assert!(refused(Hello { scheme: 2, ..hello("b", 7) }).contains("hashes keys in another way"));
        // None of them keeps the next one out.
        assert!(nodes.greet(peer(2), hello("b", 8), 0).is_ok());
    }

    #[test]
    fn a_node_that_owes_an_answer_is_asked_for_a_sign_of_life_and_then_silent() {
        let mut nodes = nodes();
        let half = SILENCE_NS / 2;
        assert_eq!(nodes.silent(u64::MAX), (vec![], vec![], None));
        nodes.await_answer(peer(1), 10);
        assert_eq!(nodes.silent(9 + half), (vec![], vec![], Some(10 + half)));
        assert_eq!(nodes.silent(10 + half), (vec![peer(1)], vec![], None));
        nodes.get_mut(peer(1)).unwrap().pinged_ns = Some(10 + half);
        assert_eq!(nodes.silent(9 + 2 * half), (vec![], vec![], Some(10 + 2 * half)));
        assert_eq!(nodes.silent(10 + 2 * half), (vec![], vec![peer(1)], None));
        nodes.suspect(peer(1));
        assert_eq!((nodes.silent(u64::MAX), nodes.peer_of(NodeId::of("a"))), ((vec![], vec![], None), None));
    }

    #[test]
    fn a_node_that_closes_is_no_member_and_still_owes_its_answers() {
        let mut nodes = nodes();
        assert_eq!(nodes.members().list().len(), 2);
        nodes.await_answer(peer(1), 0);
        nodes.leave(peer(1));
        assert_eq!((nodes.members().list().len(), nodes.candidates(0).len()), (1, 0));
        assert_eq!(nodes.silent(SILENCE_NS).0, [peer(1)]);
    }
}
