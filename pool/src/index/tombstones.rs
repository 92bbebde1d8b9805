//! Keys that were removed by name while an owner was absent. An owner that announces one of them afterwards is told, and
//! removes it by the whole digest: its fingerprint may name another key. `Table` decides which owner is told.

use super::check_count;
use crate::key::Digest;
use crate::limits::{TOMBSTONES_MAX, TOMBSTONE_NS};
use ferry::status::Result;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Debug, Default)]
pub(super) struct Tombstones {
    /// The number of a digest's last burial, and which removal it was.
    numbers: BTreeMap<(u64, Digest), (u64, u64)>,
    /// Burials, the oldest first, and their removals. One whose number is no longer the digest's has been repeated since.
    order: VecDeque<(u64, Digest, u64, u64)>,
    /// All removals in `order`.
    heard: BTreeSet<(Digest, u64)>,
    last: u64,
}

impl Tombstones {
    /// Returns the number of the last burial: they count from 1.
    pub fn last(&self) -> u64 {
        self.last
    }

    pub fn bury(&mut self, digest: Digest, removal: u64, now_ns: u64) -> Result<u64> {
        self.expire(now_ns);
        check_count("tombstones", self.order.len() + 1, TOMBSTONES_MAX)?;
        self.last += 1;
        self.numbers.insert((digest.fingerprint(), digest), (self.last, removal));
        self.order.push_back((now_ns.saturating_add(TOMBSTONE_NS), digest, self.last, removal));
        self.heard.insert((digest, removal));
        Ok(self.last)
    }

    /// Which removal a digest was buried by last.
    pub fn removal_of(&self, digest: &Digest) -> Option<u64> {
        self.numbers.get(&(digest.fingerprint(), *digest)).map(|(_, removal)| *removal)
    }

    pub fn has_heard(&self, digest: &Digest, removal: u64) -> bool {
        self.heard.contains(&(*digest, removal))
    }

    /// Returns the digests with this fingerprint whose burial has a number above `heard`, and at most `missed`.
    pub fn find(&self, fingerprint: u64, heard: u64, missed: u64) -> impl Iterator<Item = Digest> + '_ {
        let all = (fingerprint, Digest([0; 32]))..=(fingerprint, Digest([0xff; 32]));
        let found =
            self.numbers.range(all).filter(move |(_, (number, _))| heard < *number && *number <= missed);
        found.map(|((_, digest), _)| *digest)
    }

    /// Forgets what is due. A burial that is not due yet hides later ones, so a clock that jumps forgets nothing early.
    pub fn expire(&mut self, now_ns: u64) {
        while self.order.front().is_some_and(|(until_ns, ..)| *until_ns <= now_ns) {
            let Some((_, digest, number, removal)) = self.order.pop_front() else { return };
            self.heard.remove(&(digest, removal));
            let key = (digest.fingerprint(), digest);
            if self.numbers.get(&key).is_some_and(|(last, _)| *last == number) {
                self.numbers.remove(&key);
            }
        }
    }

    pub fn count(&self) -> usize {
        self.numbers.len()
    }
}
