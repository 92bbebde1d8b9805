//! A peer's pending transfers: neither struck nor final. Sorted by deadline, so that a timer check visits only those
//! that are due.

use crate::complete::Transfer;
use crate::types::Monotonic;
use std::collections::BTreeMap;
use std::sync::Arc;

/// By deadline, then by order of submission.
#[derive(Default)]
pub struct Live(BTreeMap<(Monotonic, u64), Arc<Transfer>>);

fn key(transfer: &Transfer) -> (Monotonic, u64) {
    (transfer.spec.deadline_ns, transfer.position.order())
}

impl Live {
    /// Inserts a transfer. Its order of submission must be set.
    pub fn insert(&mut self, transfer: &Arc<Transfer>) {
        self.0.insert(key(transfer), transfer.clone());
    }

    pub fn remove(&mut self, transfer: &Transfer) {
        // A transfer that was never queued has no order of its own; another transfer may have that number.
        if self.0.get(&key(transfer)).is_some_and(|other| other.handle == transfer.handle) {
            self.0.remove(&key(transfer));
        }
    }

    /// Returns the next deadline, u64::MAX if no pending transfer has one, None if none is pending.
    pub fn next_ns(&self) -> Option<Monotonic> {
        self.0.keys().next().map(|(deadline_ns, _)| *deadline_ns)
    }

    /// Removes the transfer with the first deadline.
    pub fn pop(&mut self) -> Option<Arc<Transfer>> {
        self.0.pop_first().map(|(_, transfer)| transfer)
    }
}
