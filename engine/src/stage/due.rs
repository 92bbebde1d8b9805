//! What the stage's thread looks at in a turn: peers and operations that something concerns. What a turn costs
//! doesn't depend on how many others there are.

use super::operation::Step;
use super::service::Stage;
use crate::complete::Fence;
use crate::schedule::Schedule;
use crate::types::{Monotonic, PeerId};
use std::collections::{BTreeSet, HashSet, VecDeque};

/// By their handles.
pub struct Due {
    /// Peers for which something may be queued, in turn, each once.
    queued: VecDeque<PeerId>,
    is_queued: HashSet<PeerId>,
    /// Peers to which something is to be said.
    pub talking: BTreeSet<PeerId>,
    /// Peers of which something has ended: it may have been the last of a lost one.
    pub ended: BTreeSet<PeerId>,
    /// When operations that wait for an answer are looked at: no later than each has to be.
    pub looks: Schedule<Monotonic, (PeerId, u64)>,
    /// Peers and operations that were looked at.
    #[cfg(test)]
    pub looked: u64,
}

impl Due {
    pub fn new() -> Due {
        Due {
            queued: VecDeque::new(),
            is_queued: HashSet::new(),
            talking: BTreeSet::new(),
            ended: BTreeSet::new(),
            looks: Schedule::new(),
            #[cfg(test)]
            looked: 0,
        }
    }

    /// Something may be queued for this peer.
    pub fn queue(&mut self, peer: PeerId) {
        if self.is_queued.insert(peer) {
            self.queued.push_back(peer);
        }
    }

    /// The peer whose turn it is; whoever has more comes again.
    pub fn next_queued(&mut self) -> Option<PeerId> {
        let peer = self.queued.pop_front()?;
        self.is_queued.remove(&peer);
        self.look();
        Some(peer)
    }

    fn look(&mut self) {
        #[cfg(test)]
        {
            self.looked += 1;
        }
    }
}

impl Stage {
    /// When time asks for something next.
    pub fn next_look_ns(&self) -> Option<Monotonic> {
        self.due.looks.first()
    }

    /// An operation waits for an answer, or for less time than it did.
    pub fn plan(&mut self, peer: PeerId, op: u64) {
        let waiting = self.at(peer, op, Step::Answer).map(|operation| operation.look_ns());
        self.due.looks.set((peer, op), waiting.filter(|at_ns| *at_ns != Monotonic::NEVER));
    }

    pub fn look_at_time(&mut self, now_ns: Monotonic) {
        for (peer, op) in self.due.looks.take_due(now_ns) {
            self.due.look();
            let Some(operation) = self.at(peer, op, Step::Answer) else { continue };
            if operation.look_ns() > now_ns {
                self.plan(peer, op); // it has more time than it had
                continue;
            }
            let until_ns = operation.exposed_until_ns;
            match operation.is_struck() {
                // The target was not asked.
                true if until_ns == Monotonic::ZERO => self.finish(peer, op, Some(Fence::Confirmed)),
                // The target may not any more, and is silent.
                true if until_ns <= now_ns => {
                    self.retire_bridge(peer, op);
                    self.finish(peer, op, Some(Fence::Lease));
                }
                true => self.stop(peer, op),
                false => self.ask(peer, op),
            }
        }
    }

    /// Says what is to be said, and forgets lost peers of which nothing is left.
    pub fn flush(&mut self) {
        for peer in std::mem::take(&mut self.due.talking) {
            self.due.look();
            if let Some(side) = self.sides.get_mut(&peer) {
                side.flush(&self.commands);
            }
        }
        for peer in std::mem::take(&mut self.due.ended) {
            self.due.look();
            self.forget_if_over(peer);
        }
    }
}
