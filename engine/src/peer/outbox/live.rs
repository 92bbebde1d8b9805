//! A peer's transfers that are pending: neither struck nor final. By deadline, so that a look at the time
//! touches what is due and nothing else.

use crate::complete::Transfer;
use crate::types::Monotonic;
use std::collections::BTreeMap;
use std::sync::Arc;

/// By deadline, and among equals in order of submission.
#[derive(Default)]
pub struct Live(BTreeMap<(Monotonic, u64), Arc<Transfer>>);

fn key(transfer: &Transfer) -> (Monotonic, u64) {
    (transfer.spec.deadline_ns, transfer.position.order())
}

impl Live {
    /// Its place among the peer's transfers must be known.
    pub fn insert(&mut self, transfer: &Arc<Transfer>) {
        self.0.insert(key(transfer), transfer.clone());
    }

    pub fn remove(&mut self, transfer: &Transfer) {
        // One that the outbox never had has no place, and another may have that number.
        if self.0.get(&key(transfer)).is_some_and(|other| other.handle == transfer.handle) {
            self.0.remove(&key(transfer));
        }
    }

    /// The next deadline, u64::MAX where none has one; None when nothing is pending.
    pub fn next_ns(&self) -> Option<Monotonic> {
        self.0.keys().next().map(|(deadline_ns, _)| *deadline_ns)
    }

    /// Takes out the one whose deadline is first.
    pub fn pop(&mut self) -> Option<Arc<Transfer>> {
        self.0.pop_first().map(|(_, transfer)| transfer)
    }
}
