//! The objects of a store in the order of their last use.

use super::{Store, NONE};
use crate::key::Digest;

impl Store {
    /// Returns objects that nobody holds, at most `most`, those used last first: from the beginning, or from behind the
    /// object of this fingerprint on. None: that object is held, or gone.
    pub fn recent(&self, after: Option<u64>, most: usize) -> Option<Vec<Digest>> {
        let mut at = match after {
            None => self.newest,
            Some(after) => {
                let object = self.object(self.find_fingerprint(after)?.0);
                (object.holders == 0).then_some(object.older)?
            }
        };
        let mut found = Vec::new();
        while at != NONE && found.len() < most {
            let object = self.object(at);
            found.push(object.digest);
            at = object.older;
        }
        Some(found)
    }

    /// Returns objects that nobody holds, at most `most`, those used longest ago first.
    pub fn aged(&self, most: usize) -> Vec<Digest> {
        let (mut at, mut found) = (self.oldest, Vec::new());
        while at != NONE && found.len() < most {
            let object = self.object(at);
            found.push(object.digest);
            at = object.newer;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Begin;

    #[test]
    fn what_was_used_last_comes_first_and_what_is_held_or_written_does_not() {
        let mut store = Store::new(64 << 10, 4096);
        let digest = |number: u8| Digest([number; 32]);
        let slots: Vec<_> = (1..=5)
            .map(|number| match store.begin(&digest(number), 1) {
                Begin::Write(slot) => slot,
                other => panic!("{other:?}"),
            })
            .collect();
        slots[..4].iter().for_each(|slot| assert!(store.commit(*slot, 0)));
        store.touch(slots[1]);
        store.hold(slots[2]);
        let recent = |store: &Store, after: Option<u8>, most| {
            store.recent(after.map(|it| digest(it).fingerprint()), most)
        };
        assert_eq!(recent(&store, None, 9), Some([2, 4, 1].map(digest).to_vec()));
        assert_eq!(recent(&store, None, 1), Some(vec![digest(2)]));
        assert_eq!(
            (store.aged(9), store.aged(2)),
            ([1, 4, 2].map(digest).to_vec(), [1, 4].map(digest).to_vec())
        );
        assert_eq!(recent(&store, Some(2), 1), Some(vec![digest(4)]));
        assert_eq!(recent(&store, Some(1), 1), Some(Vec::new()));
        for gone in [3, 5, 6] {
            assert_eq!(recent(&store, Some(gone), 1), None, "{gone}");
        }
        store.release(slots[2]);
        assert_eq!(recent(&store, None, 1), Some(vec![digest(3)]));
    }
}
