//! Ids that have ended, and how: an id is never used again while it is remembered.

use std::collections::{BTreeMap, VecDeque};

use ferry::Status;

use super::id::HandoffId;
use super::limits::{TOMBSTONES_MAX, TOMBSTONE_NS};
use super::types::End;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tomb {
    pub end: End,
    pub status: Status,
    pub why: String,
}

#[derive(Clone, Debug, Default)]
pub struct Tombs {
    by_id: BTreeMap<HandoffId, Tomb>,
    /// Oldest first.
    order: VecDeque<(u64, HandoffId)>,
}

impl Tombs {
    pub fn add(&mut self, id: HandoffId, tomb: Tomb, now: u64) {
        while self.order.len() >= TOMBSTONES_MAX {
            self.forget_first();
        }
        if self.by_id.insert(id, tomb).is_none() {
            self.order.push_back((now, id));
        }
    }

    /// Forgets those that are too old.
    pub fn age(&mut self, now: u64) {
        while self.order.front().is_some_and(|(at, _)| at + TOMBSTONE_NS <= now) {
            self.forget_first();
        }
    }

    pub fn get(&self, id: HandoffId) -> Option<&Tomb> {
        self.by_id.get(&id)
    }

    fn forget_first(&mut self) {
        if let Some((_, id)) = self.order.pop_front() {
            self.by_id.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> HandoffId {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        HandoffId::from_bytes(bytes)
    }

    #[test]
    fn they_are_bounded_in_number_and_time() {
        let tomb = Tomb { end: End::Sent, status: Status::Ok, why: String::new() };
        let mut tombs = Tombs::default();
        for number in 0..=TOMBSTONES_MAX as u64 {
            tombs.add(id(number), tomb.clone(), number);
        }
        assert!(tombs.get(id(0)).is_none() && tombs.get(id(1)).is_some());
        tombs.age(TOMBSTONE_NS + 4);
        assert!(tombs.get(id(4)).is_none() && tombs.get(id(5)).is_some());
        assert_eq!(tombs.by_id.len(), tombs.order.len());
    }
}
