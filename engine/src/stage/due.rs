//! The work of a turn of the stage's thread: the peers that have something to do, and the operations whose time has
//! come. The cost of a turn does not depend on the number of other peers and operations.

use super::operation::OperationStep;
use super::service::Stage;
use crate::complete::Fence;
use crate::sys::clock;
use crate::sys::map::HashSet;
use crate::types::{Monotonic, PeerId};
use std::collections::{BTreeSet, VecDeque};

/// Peers that have something to do, by handle.
#[derive(Default)]
pub struct Due {
    /// Peers that may have queued slices, in turn, each once.
    queued: VecDeque<PeerId>,
    is_queued: HashSet<PeerId>,
    /// Peers with messages to send.
    talking: BTreeSet<PeerId>,
    /// Peers for which something has ended, perhaps the last thing of a lost peer.
    ended: BTreeSet<PeerId>,
    /// The number of peers and operations looked at.
    #[cfg(test)]
    pub checked: u64,
}

impl Due {
    /// Records that slices may be queued for this peer.
    pub fn queue(&mut self, peer: PeerId) {
        if self.is_queued.insert(peer) {
            self.queued.push_back(peer);
        }
    }

    /// Returns the peer whose turn it is. A peer with more slices is queued again.
    pub fn next_queued(&mut self) -> Option<PeerId> {
        let peer = self.queued.pop_front()?;
        self.is_queued.remove(&peer);
        self.count_check();
        Some(peer)
    }

    /// Records that messages are queued for this peer.
    pub fn talk(&mut self, peer: PeerId) {
        self.talking.insert(peer);
    }

    /// Records that something of this peer has ended.
    pub fn end(&mut self, peer: PeerId) {
        self.ended.insert(peer);
    }

    fn count_check(&mut self) {
        #[cfg(test)]
        {
            self.checked += 1;
        }
    }
}

impl Stage {
    /// Returns the next time at which an operation, or slots that were given up, must be looked at.
    pub fn next_check_ns(&self) -> Option<Monotonic> {
        self.operations.next_check_ns().into_iter().chain(self.incoming.next_tidy()).min()
    }

    /// Handles the loss of the peer: copies that its devices still run are awaited for at most one lease from now.
    pub fn lost(&mut self, peer: PeerId) {
        let Some(side) = self.sides.get_mut(&peer) else { return };
        side.lose();
        let until_ns = clock::monotonic_ns() + side.peer.clock.lease_ns();
        for op in self.operations.of(peer, |_| true) {
            self.operations.get_mut(peer, op).into_iter().for_each(|it| it.wait_no_longer_than(until_ns));
            self.operations.plan(peer, op);
        }
    }

    pub fn check_due(&mut self, now_ns: Monotonic) {
        for (peer, op) in self.operations.take_due(now_ns) {
            self.due.count_check();
            if self.operations.at(peer, op, OperationStep::Grant).is_some() {
                self.look_after(peer, op, now_ns);
                continue;
            }
            let Some(operation) = self.operations.at(peer, op, OperationStep::Answer) else { continue };
            if operation.check_ns() > now_ns {
                self.operations.plan(peer, op); // its time was extended
                continue;
            }
            let until_ns = operation.exposed_until_ns;
            if !operation.is_struck() {
                self.ask(peer, op);
            } else if until_ns == Monotonic::ZERO {
                // The target was never asked.
                self.finish(peer, op, Some(Fence::Confirmed));
            } else if until_ns <= now_ns {
                // Contract 4: the time for the target, and for its devices if they copy, is over.
                self.retire_bridge(peer, op);
                self.finish(peer, op, Some(Fence::Lease));
            } else {
                self.stop(peer, op);
            }
        }
    }

    /// Sends the queued messages, and forgets lost peers that have nothing left.
    pub fn flush(&mut self) {
        for peer in std::mem::take(&mut self.due.talking) {
            self.due.count_check();
            if let Some(side) = self.sides.get_mut(&peer) {
                side.flush(&self.commands);
            }
        }
        for peer in std::mem::take(&mut self.due.ended) {
            self.due.count_check();
            self.forget_if_over(peer);
        }
    }
}
