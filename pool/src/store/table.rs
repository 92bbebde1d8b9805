//! The table in the file of a node's second tier: a node that begins anew finds its objects by it.
//!
//! ```text
//! superblock, one page │ entries of 256 bytes, one for each unit │ data, in units
//! ```
//! An entry stands at its object's place in the store. It is written when the object's bytes are durable, and is cleared
//! before their units are given to another object: an entry that is found tells of its own bytes.

use super::{Extent, Extents, Object, Slot, State, Store};
use crate::key::Digest;
use crate::limits::{EXTENTS_MAX, TIER_UNITS_MAX, TIER_UNIT_BYTES};
use crate::sum::Sum;

pub const PAGE: usize = 4096;
const MAGIC: [u8; 8] = *b"ferry\0kv";
const FORMAT: u64 = 2;
const ENTRY: usize = 256;
pub const ENTRIES_OF_PAGE: u32 = (PAGE / ENTRY) as u32;
/// Where the entry's own checksum stands, behind all extents.
const CHECK: usize = ENTRY - 8;
const _: () = assert!(56 + EXTENTS_MAX * 8 <= CHECK);

/// How a file is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub unit_bytes: u64,
    pub units: u32,
}

/// The beginning of a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing was written there yet.
    Nothing,
    Tier(Layout),
    /// Not a file of the pool.
    Other,
    /// Another version of this format.
    Format(u64),
    /// The keys of its objects were hashed in another way.
    Scheme,
}

impl Layout {
    /// Divides a file of so many bytes. A large file has larger units, so that its table stays short.
    pub fn of(bytes: u64) -> Layout {
        let unit_bytes = (bytes / TIER_UNITS_MAX).next_power_of_two().max(TIER_UNIT_BYTES);
        let units = bytes.saturating_sub(2 * PAGE as u64) / (unit_bytes + ENTRY as u64);
        Layout { unit_bytes, units: units as u32 }
    }

    pub fn table(self) -> u64 {
        PAGE as u64
    }

    /// Pages of the table.
    pub fn pages(self) -> u32 {
        self.units.div_ceil(ENTRIES_OF_PAGE)
    }

    /// Where the data begins.
    pub fn data(self) -> u64 {
        self.table() + u64::from(self.pages()) * PAGE as u64
    }

    pub fn superblock(self, scheme: u64) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        page[..8].copy_from_slice(&MAGIC);
        let words = [FORMAT, scheme, self.unit_bytes, self.units.into()];
        words.iter().enumerate().for_each(|(at, word)| put(&mut page, 8 + 8 * at, *word));
        let sum = Sum::of(&page[..PAGE - 8]);
        put(&mut page, PAGE - 8, sum);
        page
    }

    pub fn find(page: &[u8], scheme: u64) -> Found {
        if page.iter().all(|byte| *byte == 0) {
            return Found::Nothing;
        }
        let layout = Layout { unit_bytes: word(page, 24), units: word(page, 32) as u32 };
        match () {
            _ if page[..8] != MAGIC => Found::Other,
            _ if word(page, 8) != FORMAT => Found::Format(word(page, 8)),
            _ if Sum::of(&page[..PAGE - 8]) != word(page, PAGE - 8) => Found::Other,
            _ if word(page, 16) != scheme => Found::Scheme,
            () => Found::Tier(layout),
        }
    }
}

impl Store {
    /// One page of the table, as the file is to have it.
    pub fn table_page(&self, page: u32) -> Vec<u8> {
        let mut bytes = vec![0; PAGE];
        for (entry, slot) in bytes.chunks_exact_mut(ENTRY).zip(page * ENTRIES_OF_PAGE..) {
            let object = self.objects.get(slot as usize).filter(|object| object.state == State::Readable);
            let Some(object) = object else { continue };
            entry[..32].copy_from_slice(&object.digest.0);
            let extents = object.extents.as_slice();
            let words = [object.length, object.checksum, extents.len() as u64];
            words.iter().enumerate().for_each(|(at, word)| put(entry, 32 + 8 * at, *word));
            for (at, extent) in extents.iter().enumerate() {
                put(entry, 56 + 8 * at, u64::from(extent.first) << 32 | u64::from(extent.units));
            }
            let sum = sum_of(entry, slot);
            put(entry, CHECK, sum);
        }
        bytes
    }

    /// Takes the entries of a page of the table into a store that has none yet; pages come in order. An entry that cannot
    /// be is passed over; then the page is returned as it is to be.
    pub fn restore_page(&mut self, page: u32, bytes: &[u8]) -> Option<Vec<u8>> {
        for (entry, slot) in bytes.chunks_exact(ENTRY).zip(page * ENTRIES_OF_PAGE..) {
            if word(entry, CHECK) != sum_of(entry, slot) {
                continue;
            }
            let Some((digest, length, checksum, extents)) = self.restored(entry) else { continue };
            while self.objects.len() < slot as usize {
                self.objects.push(Object::new(digest, 0, Extents::Many(Box::default()), State::Free));
                let free = std::mem::replace(&mut self.free, self.objects.len() as u32 - 1);
                self.object_mut(self.free).newer = free;
            }
            self.objects.push(Object::new(digest, length, extents, State::Writing));
            self.index(slot);
            self.commit(Slot(slot), checksum);
        }
        Some(self.table_page(page)).filter(|is| is != bytes)
    }

    fn restored(&mut self, entry: &[u8]) -> Option<(Digest, u64, u64, Extents)> {
        let digest = Digest(entry[..32].try_into().ok()?);
        let [length, checksum, count] = [32, 40, 48].map(|at| word(entry, at));
        let runs = (0..usize::try_from(count).ok().filter(|count| *count <= EXTENTS_MAX)?)
            .map(|at| word(entry, 56 + 8 * at))
            .map(|run| Extent { first: (run >> 32) as u32, units: run as u32 });
        let runs: Vec<Extent> = runs.collect();
        let units: u64 = runs.iter().map(|run| u64::from(run.units)).sum();
        if length == 0
            || self.units_of(length).map(u64::from) != Some(units)
            || self.look_up(&digest).is_some()
        {
            return None;
        }
        let taken = runs.iter().take_while(|run| run.units > 0 && self.space.take_run(**run)).count();
        if taken < runs.len() {
            runs[..taken].iter().for_each(|run| self.space.give(*run));
            return None;
        }
        let extents = match runs[..] {
            [one] => Extents::One(one),
            _ => Extents::Many(runs.into()),
        };
        Some((digest, length, checksum, extents))
    }
}

/// The sum of an entry at this place: at another one it counts for nothing.
fn sum_of(entry: &[u8], slot: u32) -> u64 {
    let mut sum = Sum::default();
    sum.add(&slot.to_le_bytes());
    sum.add(&entry[..CHECK]);
    sum.value()
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|nth| bytes[at + nth]))
}

fn put(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
