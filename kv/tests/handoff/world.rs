//! Caches that hand sequences over, in a world without engines: a random scheduler delivers messages, ends transfers,
//! lets time pass, and kills and stops caches. The bytes are real, so what comes too early, too late or to the wrong
//! place is seen.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ferry::status::Error;
use ferry::types::{Op, PeerId};
use ferry::Status;
use ferry_kv::handoff::{Action, End, Event, HandoffId, Machine, Owner, PostId};
use ferry_kv::layout::Layout;
use ferry_kv::messages::parts;
use ferry_kv::plan::Strided;

use crate::caches::{address, canary, Cell};

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((value ^ (value >> 31)) % end.max(1) as u64) as usize
    }

    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Runs,
    /// Does nothing until the world lets it go on.
    Stopped,
    Dead,
}

pub struct Node {
    pub machine: Machine,
    pub layout: Arc<Layout>,
    pub memory: Vec<u8>,
    pub life: Life,
    /// Terminal events, in their order.
    pub ends: Vec<Event>,
    pub layers_told: BTreeMap<HandoffId, u32>,
    /// Bytes of its own transfers that were done, WRITEs and READs, and of its peers'.
    pub written: u64,
    pub read: u64,
    pub written_by_peers: u64,
    pub read_by_peers: u64,
}

/// A transfer that is under way. Some of its pieces may have moved.
struct Posted {
    node: usize,
    post: PostId,
    peer: usize,
    op: Op,
    /// (local address, remote address, bytes) that have not moved.
    left: Vec<(u64, u64, u64)>,
    bytes: u64,
    is_cancelled: bool,
}

/// The parts of messages on their way, the last part of a message with what counts it.
type Wire = VecDeque<(Vec<u8>, Option<Owner>)>;

pub struct World {
    pub nodes: Vec<Node>,
    wires: BTreeMap<(usize, usize), Wire>,
    posted: Vec<Posted>,
    /// Fences that were asked for: (who, of whom).
    fences: Vec<(usize, usize)>,
    /// Probes that are not answered, the same.
    probes: Vec<(usize, usize)>,
    pub now: u64,
    pub random: Random,
    pub fenced: usize,
}

/// End, status, valid tokens, and blocks that are not to be trusted.
pub type Ended = (End, Status, u64, Vec<(u32, u32)>);

pub const SILENCE: Duration = Duration::from_millis(4_000);

pub fn peer(node: usize) -> PeerId {
    PeerId::from_raw(node as u64 + 1)
}

/// Whether no more parts of its message follow.
fn is_last(part: &[u8]) -> bool {
    part[0] & 1 == 0
}

fn node_of(peer: PeerId) -> usize {
    peer.raw() as usize - 1
}

impl World {
    pub fn new(layouts: Vec<Layout>, seed: u64) -> World {
        let nodes = layouts.into_iter().enumerate().map(|(number, layout)| {
            layout.check().expect("a valid layout");
            let end =
                layout.layers.iter().filter_map(|layer| layer.extent(&layout)).map(|range| range.end).max();
            let layout = Arc::new(layout);
            let bytes = end.unwrap_or(address(number)) - address(number);
            Node {
                machine: Machine::new(layout.clone(), 100 + number as u64, Vec::new(), SILENCE),
                layout,
                memory: (0..bytes).map(|at| canary(number, at)).collect(),
                life: Life::Runs,
                ends: Vec::new(),
                layers_told: BTreeMap::new(),
                written: 0,
                read: 0,
                written_by_peers: 0,
                read_by_peers: 0,
            }
        });
        let nodes: Vec<Node> = nodes.collect();
        World {
            nodes,
            wires: BTreeMap::new(),
            posted: Vec::new(),
            fences: Vec::new(),
            probes: Vec::new(),
            now: 0,
            random: Random(seed),
            fenced: 0,
        }
    }

    /// Does what the machines want, and takes their events.
    pub fn settle(&mut self) -> Vec<(usize, Event)> {
        let mut told = Vec::new();
        for node in 0..self.nodes.len() {
            for action in self.nodes[node].machine.take_actions() {
                self.act(node, action);
            }
            while let Some(event) = self.nodes[node].machine.take_event() {
                match &event {
                    Event::Layers { id, layers } => {
                        let before = self.nodes[node].layers_told.insert(*id, *layers);
                        assert!(before.is_none_or(|before| before < *layers), "layers are told once");
                    }
                    Event::Ended { .. } => self.nodes[node].ends.push(event.clone()),
                }
                told.push((node, event));
            }
        }
        told
    }

    fn act(&mut self, node: usize, action: Action) {
        match action {
            Action::Send { peer, message, of } => {
                let wire = self.wires.entry((node, node_of(peer))).or_default();
                // Small parts, so that messages have several.
                wire.extend(parts(&message, 64).into_iter().map(|part| (part, of)));
            }
            Action::Post { post, peer, op, moves } => {
                let pieces = moves.iter().flat_map(Strided::requests);
                let left = pieces.map(|piece| match op {
                    Op::Write => (piece.source, piece.target, piece.bytes),
                    Op::Read => (piece.target, piece.source, piece.bytes),
                });
                let (left, peer): (Vec<_>, _) = (left.collect(), node_of(peer));
                let bytes = left.iter().map(|(_, _, bytes)| bytes).sum();
                self.posted.push(Posted { node, post, peer, op, left, bytes, is_cancelled: false });
            }
            Action::Cancel { post } => {
                let mut own = self.posted.iter_mut().filter(|it| it.node == node && it.post == post);
                own.by_ref().for_each(|it| it.is_cancelled = true);
            }
            Action::Probe { peer } => self.probes.push((node, node_of(peer))),
            Action::Fence { peer } => self.fences.push((node, node_of(peer))),
        }
    }

    /// One random step of the world.
    pub fn step(&mut self) {
        match self.random.below(10) {
            0..=4 => self.deliver(),
            5..=7 => self.move_on(),
            8 => self.fence_one(),
            // The more nodes, the longer a message waits for its turn.
            _ => self.pass(40_000_000 / self.nodes.len() as u64),
        }
    }

    /// Lets time pass.
    pub fn pass(&mut self, ns: u64) {
        self.now += ns;
        for (asking, asked) in std::mem::take(&mut self.probes) {
            match (self.nodes[asking].life, self.nodes[asked].life) {
                (Life::Runs, Life::Runs) => self.nodes[asking].machine.engine_answered(peer(asked), self.now),
                (Life::Dead, _) | (_, Life::Dead) => {}
                _ => self.probes.push((asking, asked)),
            }
        }
        for node in self.nodes.iter_mut().filter(|node| node.life == Life::Runs) {
            node.machine.tick(self.now);
        }
    }

    fn deliver(&mut self) {
        let full = self
            .wires
            .iter()
            .filter(|((_, to), wire)| !wire.is_empty() && self.nodes[*to].life == Life::Runs);
        let keys: Vec<(usize, usize)> = full.map(|(key, _)| *key).collect();
        if keys.is_empty() {
            return;
        }
        let key = keys[self.random.below(keys.len())];
        let Some((part, of)) = self.wires.get_mut(&key).and_then(VecDeque::pop_front) else { return };
        self.nodes[key.1].machine.notification(peer(key.0), &part, self.now);
        if is_last(&part) && self.nodes[key.0].life == Life::Runs {
            self.nodes[key.0].machine.sent(peer(key.1), of, Ok(()), self.now);
        }
    }

    /// Moves a piece of a transfer, or ends the transfer.
    fn move_on(&mut self) {
        // A stopped target's memory is reached by its host's kernel, a dead one's is not.
        let open = |it: &Posted| self.nodes[it.node].life == Life::Runs;
        let open: Vec<usize> = (0..self.posted.len()).filter(|at| open(&self.posted[*at])).collect();
        if open.is_empty() {
            return;
        }
        let at = open[self.random.below(open.len())];
        let target_is_dead = self.nodes[self.posted[at].peer].life == Life::Dead;
        if self.posted[at].is_cancelled && self.random.one_in(2) {
            return self.finish(at, Err(Error::new(Status::Cancelled, "cancelled")));
        }
        if target_is_dead {
            return self.finish(at, Err(Error::new(Status::PeerLost, "the peer is gone")));
        }
        if self.posted[at].left.is_empty() {
            return self.finish(at, Ok(()));
        }
        self.move_piece(at);
    }

    fn move_piece(&mut self, at: usize) {
        let piece = self.random.below(self.posted[at].left.len());
        let Posted { node, peer, op, .. } = self.posted[at];
        let (local, remote, bytes) = self.posted[at].left.swap_remove(piece);
        let (from, to) = match op {
            Op::Write => ((node, local), (peer, remote)),
            Op::Read => ((peer, remote), (node, local)),
        };
        let place = |(node, at): (usize, u64)| (at - address(node)) as usize;
        let (source, target) = (place(from), place(to));
        let moved = self.nodes[from.0].memory[source..source + bytes as usize].to_vec();
        self.nodes[to.0].memory[target..target + bytes as usize].copy_from_slice(&moved);
    }

    fn finish(&mut self, at: usize, result: Result<(), Error>) {
        let posted = self.posted.swap_remove(at);
        if result.is_ok() {
            let (own, of_peer) = (posted.node, posted.peer);
            match posted.op {
                Op::Write => {
                    self.nodes[own].written += posted.bytes;
                    self.nodes[of_peer].written_by_peers += posted.bytes;
                }
                Op::Read => {
                    self.nodes[own].read += posted.bytes;
                    self.nodes[of_peer].read_by_peers += posted.bytes;
                }
            }
        }
        self.nodes[posted.node].machine.moved(posted.post, result, self.now);
    }

    fn fence_one(&mut self) {
        if self.fences.is_empty() {
            return;
        }
        let at = self.random.below(self.fences.len());
        let (who, of) = self.fences.swap_remove(at);
        if self.nodes[who].life == Life::Runs {
            self.part(who, of);
            self.fenced += 1;
        }
    }

    /// Ends the session of two nodes: what is under way between them is over, and both are told.
    pub fn part(&mut self, one: usize, other: usize) {
        for key in [(one, other), (other, one)] {
            for (part, of) in self.wires.remove(&key).unwrap_or_default() {
                if is_last(&part) {
                    let lost = Err(Error::new(Status::PeerLost, "the peer is fenced"));
                    self.nodes[key.0].machine.sent(peer(key.1), of, lost, self.now);
                }
            }
        }
        let between = |it: &Posted| [(one, other), (other, one)].contains(&(it.node, it.peer));
        while let Some(at) = self.posted.iter().position(between) {
            let posted = self.posted.swap_remove(at);
            let lost = Err(Error::new(Status::PeerLost, "the peer is fenced"));
            self.nodes[posted.node].machine.moved(posted.post, lost, self.now);
        }
        for (node, of) in [(one, other), (other, one)] {
            self.nodes[node].machine.peer_lost(peer(of), "the peer is fenced", self.now);
        }
    }

    /// Kills a node: what it posted never moves again once its peers know, and they are told at random later.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].life = Life::Dead;
        let others = (0..self.nodes.len()).filter(|other| *other != node);
        let told: Vec<(usize, usize)> = others.map(|other| (other, node)).collect();
        self.fences.extend(told);
    }

    /// Whether any transfer that is under way touches these cells of a node.
    pub fn touches(&self, node: usize, cells: &[Range<u64>]) -> bool {
        self.posted.iter().any(|it| {
            it.left.iter().any(|(local, remote, bytes)| {
                let own = (it.node == node).then_some(*local).into_iter();
                let theirs = (it.peer == node).then_some(*remote);
                own.chain(theirs).any(|at| cells.iter().any(|cell| at < cell.end && cell.start < at + bytes))
            })
        })
    }

    pub fn byte(&mut self, node: usize, cell: &Cell) -> &mut u8 {
        &mut self.nodes[node].memory[(cell.address - address(node)) as usize]
    }

    pub fn is_quiet(&self) -> bool {
        let runs = |node: usize| self.nodes[node].life == Life::Runs;
        let wires = self.wires.iter().all(|((from, to), wire)| wire.is_empty() || !runs(*to) || !runs(*from));
        wires && self.posted.iter().all(|it| !runs(it.node)) && self.fences.is_empty()
    }

    pub fn end_of(&self, node: usize, id: HandoffId) -> Option<Ended> {
        let mut found = None;
        for event in &self.nodes[node].ends {
            if let Event::Ended { id: of, end, status, valid_tokens, untrusted, .. } = event {
                if *of == id {
                    assert!(found.is_none(), "two terminal events");
                    found = Some((*end, *status, *valid_tokens, untrusted.clone()));
                }
            }
        }
        found
    }
}
