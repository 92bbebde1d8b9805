//! All operations under way. `Operations` bounds their number, numbers them, and knows when those that wait for the
//! peer must be looked at. Only this file adds and removes operations.

use super::operation::{Operation, OperationStep};
use crate::schedule::Schedule;
use crate::types::{Monotonic, OperationId, PeerId};
use std::collections::BTreeMap;

pub struct Operations {
    all: BTreeMap<(PeerId, OperationId), Operation>,
    /// The times at which waiting operations are looked at. A time may be too early, never too late.
    checks: Schedule<Monotonic, (PeerId, OperationId)>,
    next: u64,
    /// No queued slices are begun while there are this many.
    begun_max: usize,
}

impl Operations {
    pub fn new(begun_max: usize) -> Operations {
        Operations { all: BTreeMap::new(), checks: Schedule::new(), next: 1, begun_max }
    }

    /// Returns whether queued slices may be begun.
    pub fn has_room(&self) -> bool {
        self.all.len() < self.begun_max
    }

    /// Adds an operation under a new number.
    pub fn add(&mut self, peer: PeerId, operation: Operation) -> OperationId {
        let op = OperationId::from_raw(self.next);
        self.next += 1;
        self.all.insert((peer, op), operation);
        op
    }

    pub fn get(&self, peer: PeerId, op: OperationId) -> Option<&Operation> {
        self.all.get(&(peer, op))
    }

    pub fn get_mut(&mut self, peer: PeerId, op: OperationId) -> Option<&mut Operation> {
        self.all.get_mut(&(peer, op))
    }

    /// Returns the operation if it is at this step.
    pub fn at(&mut self, peer: PeerId, op: OperationId, step: OperationStep) -> Option<&mut Operation> {
        self.get_mut(peer, op).filter(|operation| operation.step == step)
    }

    /// Takes an operation out.
    pub fn take(&mut self, peer: PeerId, op: OperationId) -> Option<Operation> {
        self.checks.set((peer, op), None);
        self.all.remove(&(peer, op))
    }

    /// Returns the numbers of the peer's operations for which `is_so` is true, in order.
    pub fn of(&self, peer: PeerId, is_so: impl Fn(&Operation) -> bool) -> Vec<OperationId> {
        self.range(peer).filter(|(_, operation)| is_so(operation)).map(|(op, _)| op).collect()
    }

    pub fn has_any(&self, peer: PeerId) -> bool {
        self.range(peer).next().is_some()
    }

    fn range(&self, peer: PeerId) -> impl Iterator<Item = (OperationId, &Operation)> {
        let ends = [0, u64::MAX].map(|op| (peer, OperationId::from_raw(op)));
        self.all.range(ends[0]..=ends[1]).map(|((_, op), operation)| (*op, operation))
    }

    /// Schedules the look at an operation that waits for the peer, after its times changed.
    pub fn plan(&mut self, peer: PeerId, op: OperationId) {
        let waits =
            self.get(peer, op).filter(|it| matches!(it.step, OperationStep::Answer | OperationStep::Grant));
        let waiting = waits.map(Operation::check_ns);
        self.checks.set((peer, op), waiting.filter(|at_ns| *at_ns != Monotonic::NEVER));
    }

    /// Takes the operations whose time has come. Their steps may have changed since.
    pub fn take_due(&mut self, now_ns: Monotonic) -> Vec<(PeerId, OperationId)> {
        self.checks.take_due(now_ns)
    }

    pub fn next_check_ns(&self) -> Option<Monotonic> {
        self.checks.first()
    }

    /// Lets go of the mapped memory of peers that operations hold.
    pub fn let_go(&mut self) {
        self.all.values_mut().for_each(|operation| operation.held.clear());
    }

    /// Drops all operations. Their transfers are final.
    pub fn end(&mut self) {
        self.all.clear();
    }

    /// Has an operation looked at, whether it exists or not.
    #[cfg(test)]
    pub fn check_at(&mut self, peer: PeerId, op: OperationId, at_ns: Monotonic) {
        self.checks.set((peer, op), Some(at_ns));
    }
}
