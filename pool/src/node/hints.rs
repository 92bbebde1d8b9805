//! Who had a key when this node last heard of it: a get that follows an exists or a put asks the owner at once. A hint that
//! is wrong costs a message, and the index is asked as without it.

use std::collections::HashMap;

use crate::index::NodeId;
use crate::limits::HINTS_MAX;

/// Hints in two generations: when the young one is full, it becomes the old one, and the old one is forgotten.
#[derive(Debug, Default)]
pub struct Hints {
    young: HashMap<u64, NodeId>,
    old: HashMap<u64, NodeId>,
}

impl Hints {
    pub fn add(&mut self, fingerprint: u64, owner: NodeId) {
        if self.young.len() >= HINTS_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(fingerprint, owner);
    }

    pub fn get(&self, fingerprint: u64) -> Option<NodeId> {
        self.young.get(&fingerprint).or_else(|| self.old.get(&fingerprint)).copied()
    }

    pub fn remove(&mut self, fingerprint: u64) {
        self.young.remove(&fingerprint);
        self.old.remove(&fingerprint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_kept() {
        let mut hints = Hints::default();
        let all = HINTS_MAX as u64;
        (0..all).for_each(|fingerprint| hints.add(fingerprint, NodeId(fingerprint)));
        assert_eq!(hints.get(all - 1), Some(NodeId(all - 1)));
        hints.add(all, NodeId(1));
        assert_eq!(
            (hints.get(0), hints.get(all), hints.get(all - 1)),
            (None, Some(NodeId(1)), Some(NodeId(all - 1)))
        );
        hints.remove(all - 1);
        assert_eq!(hints.get(all - 1), None);
        assert!(hints.young.len() + hints.old.len() <= HINTS_MAX);
    }
}
