//! Who had a key when this node last heard of it: a get that follows an exists or a put asks the owner at once. A hint that
//! is wrong costs a message, and the index is asked as without it.

use hashbrown::HashTable;

use crate::index::NodeId;
use crate::limits::HINTS_MAX;

/// Hints in two generations: when the young one is full, it becomes the old one, and the old one is forgotten. A
/// fingerprint is a hash already.
#[derive(Debug, Default)]
pub struct Hints {
    young: HashTable<(u64, NodeId)>,
    old: HashTable<(u64, NodeId)>,
}

impl Hints {
    pub fn add(&mut self, fingerprint: u64, owner: NodeId) {
        if self.young.len() >= HINTS_MAX / 2 {
            std::mem::swap(&mut self.old, &mut self.young);
            self.young.clear();
        }
        let hint = self.young.entry(fingerprint, |hint| hint.0 == fingerprint, |hint| hint.0);
        hint.insert((fingerprint, owner));
    }

    pub fn get(&self, fingerprint: u64) -> Option<NodeId> {
        let of = |hints: &HashTable<(u64, NodeId)>| {
            hints.find(fingerprint, |hint| hint.0 == fingerprint).map(|hint| hint.1)
        };
        of(&self.young).or_else(|| of(&self.old))
    }

    pub fn remove(&mut self, fingerprint: u64) {
        for hints in [&mut self.young, &mut self.old] {
            if let Ok(hint) = hints.find_entry(fingerprint, |hint| hint.0 == fingerprint) {
                hint.remove();
            }
        }
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
