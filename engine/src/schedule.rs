//! The times at which keys are due: at most one time for each key, with the first due key found at once.
//! `session_table` keeps sessions by it.

mod session_table;

use crate::sys::map::HashMap;
pub use session_table::SessionTable;
use std::collections::BTreeSet;
use std::hash::Hash;

pub struct Schedule<T, K = u64> {
    by_time: BTreeSet<(T, K)>,
    by_key: HashMap<K, T>,
}

impl<T, K> Default for Schedule<T, K> {
    fn default() -> Schedule<T, K> {
        Schedule { by_time: BTreeSet::new(), by_key: HashMap::default() }
    }
}

impl<T: Copy + Ord, K: Copy + Ord + Hash> Schedule<T, K> {
    pub fn new() -> Schedule<T, K> {
        Schedule::default()
    }

    /// Sets when the key is due; None removes the key.
    pub fn set(&mut self, key: K, at: Option<T>) {
        let before = match at {
            Some(at) => self.by_key.insert(key, at),
            None => self.by_key.remove(&key),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.by_time.remove(&(before, key));
        }
        if let Some(at) = at {
            self.by_time.insert((at, key));
        }
    }

    /// Makes the key due no later than `at`.
    pub fn lower(&mut self, key: K, at: T) {
        if self.by_key.get(&key).is_none_or(|planned| *planned > at) {
            self.set(key, Some(at));
        }
    }

    pub fn first(&self) -> Option<T> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Removes and returns the keys that are due, each once. A key that is set to a past time meanwhile is due at the
    /// next call.
    pub fn take_due(&mut self, now: T) -> Vec<K> {
        let mut due = Vec::new();
        while let Some((at, key)) = self.by_time.pop_first() {
            if at > now {
                self.by_time.insert((at, key));
                break;
            }
            self.by_key.remove(&key);
            due.push(key);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::cmp::Ordering;

    thread_local!(static COMPARED: Cell<u64> = const { Cell::new(0) });

    /// A time or a key that counts how often it is compared.
    #[derive(Clone, Copy)]
    struct Counted(u64);

    impl Hash for Counted {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }

    impl PartialEq for Counted {
        fn eq(&self, other: &Counted) -> bool {
            self.cmp(other) == Ordering::Equal
        }
    }

    impl Eq for Counted {}

    impl Ord for Counted {
        fn cmp(&self, other: &Counted) -> Ordering {
            COMPARED.set(COMPARED.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Counted) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    /// The cost depends on the number of due keys, not on the number of all keys.
    #[test]
    fn one_among_many_costs_little() {
        const COUNT: u64 = 100_000;
        let mut times = Schedule::new();
        (0..COUNT).for_each(|key| times.set(Counted(key), Some(Counted(COUNT + key * 7919 % COUNT))));
        COMPARED.set(0);
        for key in 0..100 {
            times.set(Counted(key), Some(Counted(2 * COUNT + key)));
            times.lower(Counted(key), Counted(key));
            assert!(times.first().is_some_and(|at| at.0 == key));
            assert!(matches!(times.take_due(Counted(key))[..], [due] if due.0 == key));
        }
        // Five searches in a tree of this size for each round, 5 or 6 nodes of up to 11 entries deep.
        assert!(COMPARED.get() < 100 * 8 * 66, "{} comparisons", COMPARED.get());
    }

    proptest! {
        /// Compares the schedule with a plain list that is searched.
        #[test]
        fn each_has_one_time_and_what_is_due_comes_in_order(
            steps in prop::collection::vec((0..4u8, 0..8u64, 0..20u64), 0..60),
        ) {
            let (mut times, mut list) = (Schedule::new(), HashMap::<u64, u64>::default());
            for (what, key, at) in steps {
                match what {
                    0 => {
                        times.set(key, Some(at));
                        list.insert(key, at);
                    }
                    1 => {
                        times.set(key, None);
                        list.remove(&key);
                    }
                    2 => {
                        times.lower(key, at);
                        list.entry(key).and_modify(|old| *old = at.min(*old)).or_insert(at);
                    }
                    _ => {
                        let mut due: Vec<_> = list.iter().map(|(key, it)| (*key, *it)).filter(|(_, it)| *it <= at).collect();
                        list.retain(|_, it| *it > at);
                        due.sort_by_key(|(key, at)| (*at, *key));
                        let due: Vec<u64> = due.into_iter().map(|(key, _)| key).collect();
                        prop_assert_eq!(times.take_due(at), due);
                    }
                }
                prop_assert_eq!(times.first(), list.values().min().copied());
                prop_assert_eq!(times.by_time.len(), times.by_key.len());
            }
        }
    }
}
