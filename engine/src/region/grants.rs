//! Grants let processes of the same host copy from and to regions directly, and take that access back.
//!
//! ```text
//! Board (one per engine; others read it)      landmark; state, address, length, access [index of the region]
//! Tally (one per such peer; both write it)    closed, users[index of the region], maps[the same]
//! ```
//! `registry` opens and shuts regions; `transport::local` passes the pages to peers and copies under a `Grant`.
//! `shared_gate` defines the states.

use super::range_contains;
use super::shared_gate::{self, Entry};
use crate::handle::INDEX_MAX;
use crate::status::{Error, Result, Status};
use crate::sys::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sys::clock;
use crate::sys::fd::OwnedFd;
use crate::sys::health;
use crate::sys::landmark::{Landmark, Place};
use crate::sys::lock::{Mutex, MutexGuard};
use crate::sys::mapping::SharedWords;
use crate::sys::pause;
use crate::types::{Access, RegionId};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SLOTS: usize = INDEX_MAX as usize + 1;
/// The fields of a board, before its entries: the landmark, and a count: no region ever had this slot or a higher one.
const LANDMARK_AT: usize = 0;
const LANDMARK_SECRET: usize = 1;
const SLOTS_USED: usize = 2;
const BOARD_FIELDS: usize = 4;
/// The fields of a region's entry on a board: the gate's state, and the region's properties, written before it opens.
const WORD: usize = 0;
const ADDRESS: usize = 1;
const LENGTH: usize = 2;
const ACCESS: usize = 3;
const ENTRY_WORDS: usize = 4;
const BOARD_WORDS: usize = BOARD_FIELDS + SLOTS * ENTRY_WORDS;
/// The fields of a tally, before its counts of each region.
const CLOSED: usize = 0;
const TALLY_WORDS: usize = SLOTS * 2 + 1;
/// A thread that waits for another process to leave polls: it pauses, and doubles the pause up to a millisecond. A
/// copy between two looks at the gate takes less.
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// The time that an initiator waits for a trial to end. Then the transfer takes another path, where the target answers.
const TRIAL_PATIENCE: Duration = Duration::from_secs(1);

fn slot(region: RegionId) -> usize {
    (region.raw() & INDEX_MAX as u64) as usize
}

/// Returns a field of a region's entry on a board.
fn entry(board: &SharedWords, region: RegionId, word: usize) -> &AtomicU64 {
    entry_at(board, slot(region), word)
}

fn entry_at(board: &SharedWords, slot: usize, word: usize) -> &AtomicU64 {
    board.word(BOARD_FIELDS + slot * ENTRY_WORDS + word)
}

/// Returns a bound of the slots that regions of a board ever had.
fn slots_used(board: &SharedWords) -> usize {
    (board.word(SLOTS_USED).load(Ordering::SeqCst) as usize).min(SLOTS)
}

/// Returns the gate's state on a board while this region is open.
fn open_word(region: RegionId) -> u64 {
    region.raw() & !(INDEX_MAX as u64)
}

/// The reason why an initiator is inside a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Reads or writes the region.
    Copy,
    /// Has the device memory of the region mapped; each copy needs a `Copy` too. A mapping keeps the region
    /// registered, but does not let a lost peer's data land there.
    Map,
}

/// What a closed process still does here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    Copies,
    /// It copies no more, but has device memory mapped.
    Mappings,
    Nothing,
}

/// How a process is inside a region, by the counts that the process keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUse {
    /// 0 if the process has no pid here.
    pub pid: i32,
    pub copies: u64,
    pub mappings: u64,
}

/// Returns the position of a count in a tally.
fn count_of(slot: usize, use_: Use) -> usize {
    match use_ {
        Use::Copy => 1 + slot,
        Use::Map => 1 + SLOTS + slot,
    }
}

/// The target's side: the open regions, and the counts of their users.
#[derive(Debug)]
pub struct Grants {
    board: SharedWords,
    board_fd: Arc<OwnedFd>,
    /// None if the process has no room for it: then other processes reach mapped memory alone.
    _landmark: Option<Landmark>,
    tallies: Mutex<Vec<Arc<Tally>>>,
}

/// One initiator's uses of this engine's memory.
#[derive(Debug)]
pub struct Tally {
    /// The initiator's pid here; 0 if it has none.
    pid: i32,
    words: SharedWords,
    /// The process is known to be gone: its counts are void.
    dead: AtomicBool,
    /// The program that copied is known to be gone, or to copy no more by this tally: its counts of copies are void.
    has_ended_copies: AtomicBool,
}

impl Grants {
    pub fn new() -> io::Result<Grants> {
        let (board, fd) = SharedWords::new(BOARD_WORDS, true)?;
        let landmark = Landmark::new().ok();
        if let Some(Place { address, secret }) = landmark.as_ref().map(Landmark::place) {
            // Before any process has the page.
            board.word(LANDMARK_AT).store(address, Ordering::Relaxed);
            board.word(LANDMARK_SECRET).store(secret, Ordering::Relaxed);
        }
        Ok(Grants { board, board_fd: Arc::new(fd), _landmark: landmark, tallies: Mutex::default() })
    }

    /// Returns the page that initiators read.
    pub fn board(&self) -> &Arc<OwnedFd> {
        &self.board_fd
    }

    /// Admits one more process, and returns its tally and the descriptor to pass to it. `pid`: 0 if the process has
    /// none here.
    pub fn admit(&self, pid: i32) -> io::Result<(Arc<Tally>, OwnedFd)> {
        let (words, fd) = SharedWords::new(TALLY_WORDS, false)?;
        let (dead, has_ended_copies) = Default::default();
        let tally = Arc::new(Tally { pid, words, dead, has_ended_copies });
        self.lock().push(tally.clone());
        Ok((tally, fd))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Tally>>> {
        self.tallies.lock()
    }

    /// Shuts every region for this process; present users stay until `is_quiet`.
    pub fn close(&self, tally: &Tally) {
        shared_gate::close(tally.words.word(CLOSED));
    }

    /// Shuts every region for every process.
    pub fn close_all(&self) {
        self.lock().iter().for_each(|tally| self.close(tally));
    }

    /// Returns whether no other process copies. For use after `close_all`.
    pub fn all_quiet(&self) -> bool {
        self.lock().iter().all(|tally| self.is_quiet(tally))
    }

    /// Drops the counts of a process that is gone, and so copies nothing any more.
    pub fn bury(&self, tally: &Arc<Tally>) {
        tally.dead.store(true, Ordering::SeqCst);
        self.lock().retain(|other| !Arc::ptr_eq(other, tally));
    }

    /// Drops the counts of copies of a program that copies no more by this tally.
    pub fn end_copies(&self, tally: &Tally) {
        tally.has_ended_copies.store(true, Ordering::SeqCst);
    }

    /// Returns whether a closed process has ended all its copies.
    pub fn is_quiet(&self, tally: &Tally) -> bool {
        self.has_none(tally, Use::Copy)
    }

    /// Forgets a closed process if nothing is left of it, and returns what is. The copies are looked at once: a count
    /// may fall, or rise while an entry is refused, between two looks.
    pub fn forget(&self, tally: &Arc<Tally>) -> Left {
        if !self.is_quiet(tally) {
            return Left::Copies;
        }
        if !self.has_none(tally, Use::Map) {
            return Left::Mappings;
        }
        self.lock().retain(|other| !Arc::ptr_eq(other, tally));
        Left::Nothing
    }

    fn has_none(&self, tally: &Tally, use_: Use) -> bool {
        (0..slots_used(&self.board)).all(|slot| tally.has_none(slot, use_))
    }

    /// Opens a region that is about to be registered.
    pub(super) fn open(&self, id: RegionId, address: u64, length: u64, access: Access) {
        self.board.word(SLOTS_USED).fetch_max(slot(id) as u64 + 1, Ordering::SeqCst);
        for (word, value) in [(ADDRESS, address), (LENGTH, length), (ACCESS, u64::from(access.0))] {
            entry(&self.board, id, word).store(value, Ordering::Relaxed);
        }
        shared_gate::open(entry(&self.board, id, WORD), open_word(id));
    }

    /// Shuts the region for good if it is idle and `agreed` (called only then) returns true; otherwise changes
    /// nothing. Also true for an idle region that was shut before.
    pub(super) fn shut_if_idle(&self, region: RegionId, agreed: impl FnOnce() -> bool) -> bool {
        let word = entry(&self.board, region, WORD);
        if word.load(Ordering::SeqCst) == 0 {
            return self.is_idle(region) && agreed();
        }
        if !self.is_idle(region) || !shared_gate::begin_trial(word, open_word(region)) {
            return false;
        }
        let idle = self.is_idle(region) && agreed();
        shared_gate::end_trial(word, open_word(region), idle);
        idle
    }

    pub(super) fn shut(&self, region: RegionId) {
        shared_gate::shut(entry(&self.board, region, WORD));
    }

    /// Waits until no other process is inside a region that is shut; false when the deadline came first. Also ends
    /// when `gone` returns true: the region is unregistered, and the counts in its slot belong to another region.
    pub(super) fn wait_idle(
        &self,
        region: RegionId,
        deadline: Option<Instant>,
        gone: impl Fn() -> bool,
    ) -> bool {
        let mut pause = PAUSE_MIN;
        while !self.is_idle(region) && !gone() {
            if deadline.is_some_and(|deadline| clock::now() >= deadline) {
                return false;
            }
            health::check();
            pause::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
        true
    }

    /// Returns the processes inside a region. Only advice: processes come and go.
    pub(super) fn users(&self, region: RegionId) -> Vec<ProcessUse> {
        let uses = |tally: &Arc<Tally>| {
            let count = |use_| {
                if tally.has_none(slot(region), use_) {
                    0
                } else {
                    tally.words.word(count_of(slot(region), use_)).load(Ordering::SeqCst)
                }
            };
            ProcessUse { pid: tally.pid, copies: count(Use::Copy), mappings: count(Use::Map) }
        };
        let living =
            self.lock().iter().filter(|tally| !tally.dead.load(Ordering::SeqCst)).map(uses).collect();
        let mut inside: Vec<ProcessUse> = living;
        inside.retain(|it| it.copies > 0 || it.mappings > 0);
        inside
    }

    fn is_idle(&self, region: RegionId) -> bool {
        self.lock().iter().all(|tally| tally.is_idle(slot(region)))
    }
}

impl Tally {
    /// Returns the process whose tally this is; 0 if it has no pid here.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    fn is_idle(&self, slot: usize) -> bool {
        self.has_none(slot, Use::Copy) && self.has_none(slot, Use::Map)
    }

    fn has_none(&self, slot: usize, use_: Use) -> bool {
        let is_void = use_ == Use::Copy && self.has_ended_copies.load(Ordering::SeqCst);
        is_void
            || self.dead.load(Ordering::SeqCst)
            || shared_gate::is_empty(self.words.word(count_of(slot, use_)))
    }
}

/// The initiator's side: permission to copy from and to a peer's regions while they are open.
#[derive(Debug)]
pub struct Grant {
    board: SharedWords,
    tally: SharedWords,
}

impl Grant {
    /// Maps the two descriptors that the target passed.
    pub fn new(board: &OwnedFd, tally: &OwnedFd) -> io::Result<Grant> {
        Ok(Grant {
            board: SharedWords::of(board, BOARD_WORDS, false)?,
            tally: SharedWords::of(tally, TALLY_WORDS, true)?,
        })
    }

    /// Enters a region, which stays registered until the guard is dropped. STALE when it is shut; TIMEOUT when the
    /// target has not decided for a second whether it is.
    pub fn enter(&self, region: RegionId) -> Result<Inside<'_>> {
        self.enter_for(region, Use::Copy)
    }

    fn enter_for(&self, region: RegionId, use_: Use) -> Result<Inside<'_>> {
        let users = self.tally.word(count_of(slot(region), use_));
        let (word, closed) = (entry(&self.board, region, WORD), self.tally.word(CLOSED));
        let mut until = None;
        loop {
            match shared_gate::enter(word, users, closed, open_word(region)) {
                Entry::Inside => return Ok(Inside { users, board: &self.board, region }),
                Entry::Trying => {
                    let until = *until.get_or_insert_with(|| clock::now() + TRIAL_PATIENCE);
                    if clock::now() >= until {
                        let text = format!("an unregister of region {region:#x} stands still");
                        return Err(Error::new(Status::Timeout, text));
                    }
                    pause::yield_now();
                }
                Entry::Shut => {
                    let text = format!("region {region:#x} has been unregistered");
                    return Err(Error::new(Status::Stale, text));
                }
            }
        }
    }

    /// Enters a region for an unbounded time, until the `Stay` is dropped.
    pub fn stay(self: &Arc<Grant>, region: RegionId, use_: Use) -> Result<Stay> {
        std::mem::forget(self.enter_for(region, use_)?);
        Ok(Stay { grant: self.clone(), count: count_of(slot(region), use_) })
    }

    /// Returns the target's landmark; None if it has none.
    pub fn landmark(&self) -> Option<Place> {
        let of = |word: usize| self.board.word(word).load(Ordering::Relaxed);
        Some(Place { address: of(LANDMARK_AT), secret: of(LANDMARK_SECRET) }).filter(|it| it.address != 0)
    }

    /// Returns the region that is open at a range now, by the board, and its range. `enter` checks it. The cost rises
    /// with the regions that the target ever had at once.
    pub fn find(&self, address: u64, length: u64) -> Option<(RegionId, Range<u64>)> {
        (0..slots_used(&self.board)).find_map(|slot| {
            let of = |word| entry_at(&self.board, slot, word);
            let state = of(WORD).load(Ordering::Acquire) & !u64::from(INDEX_MAX);
            let (start, all) = (of(ADDRESS).load(Ordering::Relaxed), of(LENGTH).load(Ordering::Relaxed));
            let is_there = state != 0 && range_contains(start, all, address, length);
            is_there.then(|| (RegionId::from_raw(state | slot as u64), start..start.saturating_add(all)))
        })
    }

    /// Ends this side's use of the grant: nothing is entered any more. See `is_quiet`.
    pub fn close(&self) {
        shared_gate::close(self.tally.word(CLOSED));
    }

    /// Returns whether this process copies no more by this grant, which is closed. Each copy checks `is_closed` after
    /// it entered.
    pub fn is_quiet(&self) -> bool {
        let mut slots = 0..slots_used(&self.board);
        slots.all(|slot| shared_gate::is_empty(self.tally.word(count_of(slot, Use::Copy))))
    }

    /// Returns whether either side has closed this grant.
    pub fn is_closed(&self) -> bool {
        self.tally.word(CLOSED).load(Ordering::SeqCst) != 0
    }
}

/// One use of a region.
pub struct Inside<'a> {
    users: &'a AtomicU64,
    board: &'a SharedWords,
    region: RegionId,
}

impl Inside<'_> {
    /// Returns the region's address, length and access, as the peer's board has them.
    pub fn region(&self) -> (u64, u64, Access) {
        // Ordered by the gate's state, which the target stored after these fields and `enter` loaded before them.
        let of = |word| entry(self.board, self.region, word).load(Ordering::Relaxed);
        (of(ADDRESS), of(LENGTH), Access(of(ACCESS) as u32))
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        shared_gate::leave(self.users);
    }
}

/// A region of another process, which stays registered until this is dropped.
#[derive(Debug)]
pub struct Stay {
    grant: Arc<Grant>,
    /// The position of its count in the tally.
    count: usize,
}

impl Drop for Stay {
    fn drop(&mut self) {
        shared_gate::leave(self.grant.tally.word(self.count));
    }
}

#[cfg(test)]
#[path = "grants_tests.rs"]
mod tests;
