//! Sessions and lives of the nodes: they connect, part, die, begin again, close and open again.

use std::collections::VecDeque;

use ferry::types::PeerId;

use crate::world::{Event, Life, Node, Session, World};

impl World {
    /// Two nodes that run, have no session and know that connect.
    pub fn connect_some(&mut self) -> bool {
        for one in 0..self.nodes.len() {
            for other in one + 1..self.nodes.len() {
                let lends = self.nodes[one].lends + self.nodes[other].lends > 0;
                if lends && self.may_connect(one, other) && self.random.one_in(2) {
                    self.connect(one, other);
                    return true;
                }
            }
        }
        false
    }

    pub fn may_connect_some(&self) -> bool {
        let lends = |node: usize| self.nodes[node].lends > 0;
        let count = self.nodes.len();
        (0..count).any(|one| {
            (one + 1..count).any(|other| (lends(one) || lends(other)) && self.may_connect(one, other))
        })
    }

    pub fn may_connect(&self, one: usize, other: usize) -> bool {
        let both = [one, other];
        let knows = |node: usize, of: usize| {
            let is_of = |event: &Event| match event {
                Event::Lost(peer) => self.sessions[self.peers[peer].0].ends.contains(&of),
                _ => false,
            };
            self.nodes[node].events.iter().any(is_of)
        };
        self.absent.is_none_or(|absent| !both.contains(&absent))
            && both.iter().all(|node| self.runs(*node) && !self.nodes[*node].is_closing)
            && self.session_of(one, other).is_none()
            && (self.is_hasty || !knows(one, other) && !knows(other, one))
    }

    fn connect(&mut self, one: usize, other: usize) {
        let at = self.sessions.len();
        let peers = [0, 1].map(|end| {
            let peer = PeerId::from_raw(2 * at as u64 + end + 1);
            self.peers.insert(peer, (at, end as usize));
            peer
        });
        self.sessions.push(Session { ends: [one, other], peers, is_open: true, wires: Default::default() });
        let dialer = self.random.below(3);
        for end in (0..2).filter(|end| dialer == 2 || dialer == *end) {
            let node = self.sessions[at].ends[end];
            self.nodes[node].events.push(Event::Connected(peers[end]));
        }
    }

    /// Ends a session: what is under way by it is over, and both nodes will hear of it.
    pub fn part(&mut self, session: usize) {
        if !std::mem::replace(&mut self.sessions[session].is_open, false) {
            return;
        }
        self.say(|| format!("{:?} part", self.sessions[session].ends));
        self.sessions[session].wires.iter_mut().for_each(VecDeque::clear);
        while let Some(at) = self.flights.iter().position(|flight| flight.session == Some(session)) {
            let flight = self.flights.swap_remove(at);
            let failed = (0..flight.requests).collect();
            self.nodes[flight.node].events.push(Event::Moved(flight.number, failed));
        }
        for end in 0..2 {
            let (node, peer) = (self.sessions[session].ends[end], self.sessions[session].peers[end]);
            self.nodes[node].calls.losses += 1;
            let is_it = |event: &Event| matches!(event, Event::Connected(of) if *of == peer);
            self.nodes[node].events.retain(|event| !is_it(event));
            self.nodes[node].events.push(Event::Lost(peer));
        }
    }

    /// Kills a node: its memory is gone, and its sessions end.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].life = Life::Dead;
        let of_node = |session: &Session| session.is_open && session.ends.contains(&node);
        let sessions: Vec<usize> =
            (0..self.sessions.len()).filter(|at| of_node(&self.sessions[*at])).collect();
        sessions.into_iter().for_each(|session| self.part(session));
        self.flights.retain(|flight| flight.node != node);
        self.nodes[node].events.clear();
    }

    /// A dead node begins again, with nothing.
    pub fn restart(&mut self, node: usize) {
        let (name, lends) = (self.nodes[node].name.clone(), self.nodes[node].lends);
        let ahead_ns = self.nodes[node].ahead_ns;
        let calls = std::mem::take(&mut self.nodes[node].calls).restarted();
        self.nodes[node] = Node { ahead_ns, calls, ..self.new_node(node, name, lends) };
    }

    /// The pool of a node that has closed is opened again on the same engine.
    pub fn reopen(&mut self, node: usize) {
        self.forget_calls(node);
        let events = std::mem::take(&mut self.nodes[node].events);
        self.restart(node);
        let is_of_engine = |event: &Event| matches!(event, Event::Lost(_) | Event::Connected(_));
        self.nodes[node].events = events.into_iter().filter(is_of_engine).collect();
        for session in self.sessions.iter().filter(|session| session.is_open) {
            for end in (0..2).filter(|end| session.ends[*end] == node) {
                self.nodes[node].events.push(Event::Connected(session.peers[end]));
            }
        }
    }

    /// Notes which nodes are in touch, and since when.
    pub fn note_greeted(&mut self) {
        for one in 0..self.nodes.len() {
            for other in one + 1..self.nodes.len() {
                if !self.is_greeted(one, other) {
                    self.greeted.remove(&(one, other));
                } else {
                    self.greeted.entry((one, other)).or_insert(self.step);
                }
            }
        }
    }

    /// Whether a transfer of this node, or into it, is under way.
    pub fn has_flights(&self, node: usize) -> bool {
        self.flights.iter().any(|flight| flight.node == node)
    }
}
