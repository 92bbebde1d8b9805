//! A table of objects that callers name by handle: transfers, peers. A handle is checked before it is followed. A freed
//! index rests before it is used again, so that an old handle stays recognisable for long. `api` inserts and looks up;
//! callers hold an object by its `Arc`.
//!
//! ```text
//! handle index   19 ........ 4 | 3 .. 0
//!                row in shard  | shard
//! ```
//! A thread inserts into its own shard as long as that shard has room, so threads that submit do not share a lock or a
//! cache line.

use crate::handle::{self, Kind, Parts, Tag};
use crate::status::{Error, Result, Status};
use crate::sys::atomic::{AtomicUsize, Ordering};
use crate::sys::local::{local, process_local};
use crate::sys::lock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::types::{PeerId, TransferId};
use std::cell::Cell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;

const SHARD_BITS: u32 = 4;
const SHARDS: usize = 1 << SHARD_BITS;

/// The number of free rows at which a shard reuses a row although the shard may still grow. With 2^28 generations, a
/// thread with a million transfers a second repeats a handle after 76 hours.
const FREE_ROWS_MIN: usize = 1024;
/// Values that `each` holds at a time.
const FEW: usize = 64;

/// A handle of this engine, which names objects of one kind.
pub trait Handle: Copy {
    const KIND: Kind;
    /// The end of LIMIT's message: the objects that fill the table and, in brackets, the setting that bounds it.
    const FULL: &str;
    fn from_raw(raw: u64) -> Self;
    fn raw(self) -> u64;
}

macro_rules! handles {
    ($($Id:ident: $kind:ident, $full:literal;)*) => {
        $(impl Handle for $Id {
            const KIND: Kind = Kind::$kind;
            const FULL: &str = $full;

            #[inline]
            fn from_raw(raw: u64) -> $Id {
                $Id::from_raw(raw)
            }

            #[inline]
            fn raw(self) -> u64 {
                self.raw()
            }
        })*
    };
}

handles! {
    PeerId: Peer, "peers are known (peers_max)";
    TransferId: Transfer, "transfers are not yet released (transfers_max)";
}

/// `Id` is the handle of a `T`.
pub struct Table<Id, T> {
    tag: Tag,
    shards: [Shard<T>; SHARDS],
    handles: PhantomData<fn(Id)>,
}

/// Two cache lines, because processors fetch lines in pairs.
#[repr(align(128))]
struct Shard<T> {
    rows: RwLock<Rows<T>>,
    /// The most values of this shard: its share of the table's capacity; then the same plus its share of the reserve.
    values_max: usize,
    reserve_max: usize,
}

struct Rows<T> {
    rows: Vec<Row<T>>,
    /// Free rows, longest unused first.
    free: VecDeque<u32>,
}

struct Row<T> {
    /// The generation of the present or the last value.
    generation: u32,
    value: Option<Arc<T>>,
}

impl<Id: Handle, T> Table<Id, T> {
    /// Returns an empty table for at most `capacity` values, bounded by the number of indexes in a handle.
    pub fn new(tag: Tag, capacity: u32) -> Table<Id, T> {
        Table::with_reserve(tag, capacity, 0)
    }

    /// Returns an empty table that has room for `reserve` values more, which `insert_in_reserve` alone uses. They count
    /// against the capacity too. No reserve is left beyond the indexes in a handle.
    pub fn with_reserve(tag: Tag, capacity: u32, reserve: u32) -> Table<Id, T> {
        let indexes = handle::INDEX_MAX as usize + 1;
        // Indexes below `count` that end in `shard`.
        let share = |count: usize, shard: usize| (count.min(indexes) + SHARDS - 1 - shard) >> SHARD_BITS;
        let shards = std::array::from_fn(|shard| Shard {
            rows: RwLock::new(Rows { rows: Vec::new(), free: VecDeque::new() }),
            values_max: share(capacity as usize, shard),
            reserve_max: share(capacity as usize + reserve as usize, shard),
        });
        Table { tag, shards, handles: PhantomData }
    }

    /// Inserts the value that `make` returns for its handle. LIMIT if the table is full; `make` has then not run.
    /// `make` runs under a shard's lock: it must not use the table or block.
    pub fn insert(&self, make: impl FnOnce(Id) -> Arc<T>) -> Result<Arc<T>> {
        self.insert_within(|shard| shard.values_max, make)
    }

    /// Inserts as `insert` does, and beyond the capacity if the table is full.
    pub fn insert_in_reserve(&self, make: impl FnOnce(Id) -> Arc<T>) -> Result<Arc<T>> {
        self.insert_within(|shard| shard.reserve_max, make)
    }

    fn insert_within(&self, most: fn(&Shard<T>) -> usize, make: impl FnOnce(Id) -> Arc<T>) -> Result<Arc<T>> {
        let home = home_shard();
        for step in 0..SHARDS {
            let shard = (home + step) % SHARDS;
            let mut rows = self.shards[shard].write();
            if let Some(row) = rows.next_row(most(&self.shards[shard])) {
                return Ok(self.fill(&mut rows, shard, row, make));
            }
        }
        self.insert_with_all_locked(most, make)
    }

    /// Repeats the search with all shards locked. `insert` looks at a single shard at a time, so a row of another shard
    /// may come free meanwhile; only with every lock held is "full" certain.
    #[cold]
    fn insert_with_all_locked(
        &self,
        most: fn(&Shard<T>) -> usize,
        make: impl FnOnce(Id) -> Arc<T>,
    ) -> Result<Arc<T>> {
        // Always locked in this order, and no other function locks two shards, so no deadlock is possible.
        let mut all: Vec<_> = self.shards.iter().map(Shard::write).collect();
        for (shard, rows) in all.iter_mut().enumerate() {
            if let Some(row) = rows.next_row(most(&self.shards[shard])) {
                return Ok(self.fill(rows, shard, row, make));
            }
        }
        let capacity: usize = self.shards.iter().map(|shard| shard.values_max).sum();
        Err(Error::new(Status::Limit, full::<Id>(capacity)))
    }

    /// Fills a row. Changes nothing before `make` has returned, so that a panic in `make` leaves the table intact.
    fn fill(&self, rows: &mut Rows<T>, shard: usize, row: u32, make: impl FnOnce(Id) -> Arc<T>) -> Arc<T> {
        let generation = rows.rows.get(row as usize).map_or(1, |row| handle::next_generation(row.generation));
        let index = row << SHARD_BITS | shard as u32;
        let value = make(Id::from_raw(handle::make(Id::KIND, self.tag, Parts { index, generation })));
        let filled = Row { generation, value: Some(value.clone()) };
        match rows.rows.get_mut(row as usize) {
            Some(vacant) => {
                *vacant = filled;
                rows.free.pop_front();
            }
            None => rows.rows.push(filled),
        }
        value
    }

    /// Returns the value that `handle` names. INVALID for 0 or a handle of another kind; STALE for a handle of another
    /// engine, or if the value was removed.
    pub fn get(&self, handle: Id) -> Result<Arc<T>> {
        let parts = handle::parse(Id::KIND, self.tag, handle.raw())?;
        let (shard, row) = locate(parts.index);
        let rows = self.shards[shard].read();
        match rows.rows.get(row).filter(|row| row.generation == parts.generation) {
            Some(Row { value: Some(value), .. }) => Ok(value.clone()),
            _ => Err(self.stale(handle)),
        }
    }

    /// Removes and returns the value that `handle` names. Of several threads that remove it, one succeeds. Errors as in
    /// `get`.
    pub fn remove(&self, handle: Id) -> Result<Arc<T>> {
        let parts = handle::parse(Id::KIND, self.tag, handle.raw())?;
        let (shard, row) = locate(parts.index);
        let mut rows = self.shards[shard].write();
        let named = rows.rows.get_mut(row).filter(|row| row.generation == parts.generation);
        let value = named.and_then(|row| row.value.take()).ok_or_else(|| self.stale(handle))?;
        rows.free.push_back(row as u32);
        Ok(value)
    }

    /// Returns all values. A value that is inserted or removed meanwhile may be included or not.
    pub fn list(&self) -> Vec<Arc<T>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.read().rows.iter().filter_map(|row| row.value.clone()));
        }
        all
    }

    /// Calls `visit` with each value, under no lock, as `list` would return them. Allocates little, however many there
    /// are.
    pub fn each(&self, mut visit: impl FnMut(Arc<T>)) {
        for shard in &self.shards {
            let mut first = 0;
            loop {
                let rows = shard.read();
                if first >= rows.rows.len() {
                    break;
                }
                let some = rows.rows.iter().skip(first).take(FEW);
                let few: Vec<_> = some.filter_map(|row| row.value.clone()).collect();
                drop(rows);
                few.into_iter().for_each(&mut visit);
                first += FEW;
            }
        }
    }

    /// Returns how many objects the table has.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().live()).sum()
    }

    #[cold]
    fn stale(&self, handle: Id) -> Error {
        let handle = handle.raw();
        Error::new(Status::Stale, format!("{} handle {handle:#x} refers to a removed object", self.noun()))
    }

    fn noun(&self) -> String {
        format!("{:?}", Id::KIND).to_lowercase()
    }
}

impl<T> Rows<T> {
    /// Returns the row for the next value; None if the shard has `values_max` values. Takes a new row as long as few
    /// rows are free, and otherwise the longest unused free row.
    fn next_row(&self, values_max: usize) -> Option<u32> {
        if self.live() >= values_max {
            return None;
        }
        let may_grow = self.rows.len() < values_max;
        match self.free.front() {
            Some(&row) if !may_grow || self.free.len() >= FREE_ROWS_MIN => Some(row),
            _ => may_grow.then_some(self.rows.len() as u32),
        }
    }

    fn live(&self) -> usize {
        self.rows.len() - self.free.len()
    }
}

impl<T> Shard<T> {
    // A panic under the lock can only come from `make`, which runs before any change, so the rows are always
    // consistent.
    fn read(&self) -> RwLockReadGuard<'_, Rows<T>> {
        self.rows.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Rows<T>> {
        self.rows.write()
    }
}

/// Returns LIMIT's message for a table of this capacity.
pub fn full<Id: Handle>(capacity: usize) -> String {
    format!("{capacity} {}", Id::FULL)
}

/// Returns the shard and the row of a handle's index.
fn locate(index: u32) -> (usize, usize) {
    (index as usize % SHARDS, (index >> SHARD_BITS) as usize)
}

/// Returns the shard in which the calling thread looks first. Shards are assigned to threads in turn.
fn home_shard() -> usize {
    process_local!(static NEXT: AtomicUsize = AtomicUsize::new(0));
    local!(static HOME: Cell<Option<usize>> = const { Cell::new(None) });
    HOME.get().unwrap_or_else(|| {
        // Relaxed: the number only spreads threads over shards, and orders nothing.
        let home = NEXT.with(|next| next.fetch_add(1, Ordering::Relaxed)) % SHARDS;
        HOME.set(Some(home));
        home
    })
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
