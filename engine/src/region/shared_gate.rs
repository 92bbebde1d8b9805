//! The gate of one region for one process of the same host, in three atomic words of shared memory. An initiator first
//! counts itself and then checks the state. The target first changes the state and then reads the counts. A SeqCst
//! fence stands between the two steps of each side. One of the two fences comes second in their total order, and its
//! side sees the other.
//!
//! ```text
//! initiator                          target (`grants`)
//!   users += 1; fence                  word = 0; fence     (shut)
//!   word as it should be? copy         users == 0 at every initiator? the memory is the caller's
//!   users -= 1
//! ```
//! `word` is the target's, one for each region: while open, the region's handle without the index; with TRYING added
//! while the target checks whether the region is idle; 0 when shut. `users` counts one initiator's copies; `closed` is
//! set when its session ends. `tests/loom_models` compiles this file against loom.

use super::sync::{fence, AtomicU64, Ordering};

/// Added to an open state while the target looks at the counts.
pub(crate) const TRYING: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// The caller is counted: `leave` must follow.
    Inside,
    /// A trial is under way and ends in a moment: enter again.
    Trying,
    Shut,
}

/// Enters if the state is `open`. Pairs with `shut`, `close` and `begin_trial`.
pub(crate) fn enter(word: &AtomicU64, users: &AtomicU64, closed: &AtomicU64, open: u64) -> Entry {
    users.fetch_add(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    let found = word.load(Ordering::Acquire);
    let closed = closed.load(Ordering::Acquire) != 0;
    if found == open && !closed {
        return Entry::Inside;
    }
    leave(users);
    match found {
        _ if closed => Entry::Shut,
        found if found == open | TRYING => Entry::Trying,
        // The state changed between the two loads: a trial has ended, and the region is open again.
        found if found == open => Entry::Trying,
        _ => Entry::Shut,
    }
}

/// Leaves. The copy is ordered before this; pairs with `is_empty`.
pub(crate) fn leave(users: &AtomicU64) {
    users.fetch_sub(1, Ordering::Release);
}

/// Shuts for good; present users stay. Pairs with `enter`.
pub(crate) fn shut(word: &AtomicU64) {
    // A swap takes a place in the order of a trial's exchanges.
    word.swap(0, Ordering::AcqRel);
    fence(Ordering::SeqCst);
}

/// Shuts every region for one initiator.
pub(crate) fn close(closed: &AtomicU64) {
    closed.store(1, Ordering::Release);
    fence(Ordering::SeqCst);
}

/// Opens a region that no other thread or process knows yet.
pub(crate) fn open(word: &AtomicU64, open: u64) {
    word.store(open, Ordering::Release);
}

/// Refuses entries for a moment, in which the caller looks at the counts; `end_trial` must follow. False when another
/// trial is under way or the region is shut.
pub(crate) fn begin_trial(word: &AtomicU64, open: u64) -> bool {
    let begun = word.compare_exchange(open, open | TRYING, Ordering::AcqRel, Ordering::Acquire).is_ok();
    fence(Ordering::SeqCst);
    begun
}

/// Shuts for good, or opens again unless the region was shut meanwhile.
pub(crate) fn end_trial(word: &AtomicU64, open: u64, shut: bool) {
    let end = if shut { 0 } else { open };
    let _ = word.compare_exchange(open | TRYING, end, Ordering::AcqRel, Ordering::Acquire);
}

/// Returns whether this initiator is outside. Valid after `shut`, `begin_trial` or `close`.
pub(crate) fn is_empty(users: &AtomicU64) -> bool {
    users.load(Ordering::Acquire) == 0
}
