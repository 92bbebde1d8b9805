//! The memory of the table's entries, by linear hashing: buckets of about 32 entries of 10 bytes, and one bucket splits
//! for each 32 entries more. So no growth stops the table to move all of it, and memory follows the count: a table with
//! a power of two of places would need 12 to 23 bytes an entry.
//!
//! ```text
//! 5 buckets: the next power of two is 8.   fingerprint mod 8:  0 1 2 3 4 5 6 7
//!                                          bucket:             0 1 2 3 4 1 2 3     (5 to 7 do not exist yet: less 4)
//! the sixth bucket takes from bucket 1 what is 5 mod 8
//! ```

use crate::limits::BUCKET_ENTRIES;

/// By how many entries a bucket's memory grows, and with how many unused ones it stays.
const STEP: usize = 8;

#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed)]
struct Entry {
    fingerprint: u64,
    slot: u16,
}

#[derive(Debug)]
pub(super) struct Buckets {
    /// Never empty. The entries of a bucket are sorted by fingerprint.
    buckets: Vec<Vec<Entry>>,
    entries: usize,
}

impl Buckets {
    pub fn new() -> Buckets {
        Buckets { buckets: vec![Vec::new()], entries: 0 }
    }

    pub fn entries(&self) -> usize {
        self.entries
    }

    pub fn count(&self) -> usize {
        self.buckets.len()
    }

    /// Returns the bytes of all entries and buckets, with 16 that the allocator adds to each.
    pub fn bytes(&self) -> usize {
        let taken = |bucket: &Vec<Entry>| (bucket.capacity() * size_of::<Entry>()).next_multiple_of(16) + 16;
        self.buckets.capacity() * size_of::<Vec<Entry>>() + self.buckets.iter().map(taken).sum::<usize>()
    }

    /// Returns the slots of a fingerprint.
    pub fn slots(&self, fingerprint: u64) -> impl Iterator<Item = u16> + '_ {
        let bucket = &self.buckets[self.bucket_of(fingerprint)];
        let found = bucket[first_of(bucket, fingerprint)..].iter();
        found.take_while(move |entry| entry.fingerprint == fingerprint).map(|entry| entry.slot)
    }

    /// Returns whether the entry is new.
    pub fn insert(&mut self, fingerprint: u64, slot: u16) -> bool {
        let entry = Entry { fingerprint, slot };
        let at = self.bucket_of(fingerprint);
        let bucket = &mut self.buckets[at];
        let Err(place) = find(bucket, entry) else { return false };
        if bucket.len() == bucket.capacity() {
            bucket.reserve_exact(STEP);
        }
        bucket.insert(place, entry);
        self.entries += 1;
        if self.entries > self.buckets.len() * BUCKET_ENTRIES {
            self.split();
        }
        true
    }

    /// Returns whether there was such an entry.
    pub fn remove(&mut self, fingerprint: u64, slot: u16) -> bool {
        let at = self.bucket_of(fingerprint);
        let bucket = &mut self.buckets[at];
        let Ok(found) = find(bucket, Entry { fingerprint, slot }) else { return false };
        bucket.remove(found);
        trim(bucket);
        self.entries -= 1;
        true
    }

    /// Keeps the entries of one bucket for which `is_kept` answers so.
    pub fn sweep(&mut self, at: usize, mut is_kept: impl FnMut(u64, u16) -> bool) {
        let Some(bucket) = self.buckets.get_mut(at) else { return };
        let before = bucket.len();
        bucket.retain(|entry| is_kept(entry.fingerprint, entry.slot));
        self.entries -= before - bucket.len();
        trim(bucket);
    }

    /// Gives back the last bucket where the buckets are less than half full, and returns whether it did.
    pub fn merge(&mut self) -> bool {
        if self.buckets.len() == 1 || self.entries * 2 >= self.buckets.len() * BUCKET_ENTRIES {
            return false;
        }
        let moved = self.buckets.pop().unwrap_or_default();
        let parent = parent_of(self.buckets.len());
        let parent = &mut self.buckets[parent];
        parent.reserve_exact(moved.len());
        parent.extend(moved);
        parent.sort_unstable_by_key(|entry| entry.fingerprint);
        if self.buckets.capacity() > 4 * self.buckets.len() {
            self.buckets.shrink_to(2 * self.buckets.len());
        }
        true
    }

    fn bucket_of(&self, fingerprint: u64) -> usize {
        let end = self.buckets.len().next_power_of_two();
        let at = fingerprint as usize & (end - 1);
        if at < self.buckets.len() {
            at
        } else {
            at - end / 2
        }
    }

    fn split(&mut self) {
        let new = self.buckets.len();
        let parent = parent_of(new);
        self.buckets.push(Vec::new());
        let mut kept = std::mem::take(&mut self.buckets[parent]);
        let mut moved = Vec::with_capacity(kept.len() / 2 + STEP);
        kept.retain(|entry| {
            let is_kept = self.bucket_of(entry.fingerprint) == parent;
            moved.extend((!is_kept).then_some(*entry));
            is_kept
        });
        trim(&mut kept);
        trim(&mut moved);
        (self.buckets[parent], self.buckets[new]) = (kept, moved);
    }
}

/// Returns the bucket that bucket `new` splits.
fn parent_of(new: usize) -> usize {
    new - (new + 1).next_power_of_two() / 2
}

/// Returns the place of the first entry that is not below a fingerprint. Fingerprints are even over their range, so the
/// place is near its share of the bucket, and the search touches one or two lines of the cache.
fn first_of(bucket: &[Entry], fingerprint: u64) -> usize {
    let mut at = ((u128::from(fingerprint) * bucket.len() as u128) >> 64) as usize;
    while at > 0 && bucket[at - 1].fingerprint >= fingerprint {
        at -= 1;
    }
    while at < bucket.len() && bucket[at].fingerprint < fingerprint {
        at += 1;
    }
    at
}

/// Returns the place of an entry, or the place for it.
fn find(bucket: &[Entry], entry: Entry) -> Result<usize, usize> {
    let first = first_of(bucket, entry.fingerprint);
    let mut same = bucket[first..].iter().take_while(|other| other.fingerprint == entry.fingerprint);
    same.position(|other| other.slot == entry.slot).map(|at| first + at).ok_or(first)
}

fn trim(bucket: &mut Vec<Entry>) {
    if bucket.capacity() - bucket.len() > 2 * STEP {
        bucket.shrink_to(bucket.len() + STEP);
    }
}

#[cfg(test)]
#[path = "buckets_tests.rs"]
mod tests;
