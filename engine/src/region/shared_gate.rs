//! The door of one region for one process of the same host, which copies by itself: three words in
//! memory that both share. Whoever goes in counts itself first and looks second; whoever shuts writes
//! first and reads the counts second, with a fence between. In the one order of all SeqCst fences one of the
//! two comes second, and sees the other.
//!
//! ```text
//! initiator                          target (`grants`)
//!   users += 1; fence                  word = 0; fence     (shut)
//!   word as it should be? copy         users == 0 at every initiator? the memory is the caller's
//!   users -= 1
//! ```
//! `word` is the target's, one for each region: the region's handle without its index while it is open,
//! the same with TRYING while somebody finds out whether it is idle, 0 when it is shut. `users` counts
//! one initiator's copies; `closed` is set when its session ends. `tests/loom_region.rs` compiles this
//! file against loom.

use super::sync::{fence, AtomicU64, Ordering};

/// Added to an open word for as long as it takes to look at the counts.
pub(crate) const TRYING: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Counted: `leave` must follow.
    Inside,
    /// Open or shut in a moment: ask again.
    Trying,
    Shut,
}

/// Goes in if the word is `open`. Pairs with `shut`, `close` and `begin_trial`.
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
        // Shut; or open again after a trial that was over between our two looks.
        found if found == open => Entry::Trying,
        _ => Entry::Shut,
    }
}

/// Goes out. What was copied is ordered before it; pairs with `is_empty`.
pub(crate) fn leave(users: &AtomicU64) {
    users.fetch_sub(1, Ordering::Release);
}

/// Shuts for good; those inside stay. Pairs with `enter`.
pub(crate) fn shut(word: &AtomicU64) {
    // A swap, so that it has a place among the exchanges of a trial.
    word.swap(0, Ordering::AcqRel);
    fence(Ordering::SeqCst);
}

/// Shuts every region for one initiator.
pub(crate) fn close(closed: &AtomicU64) {
    closed.store(1, Ordering::Release);
    fence(Ordering::SeqCst);
}

/// Opens for a region that nobody else knows yet.
pub(crate) fn open(word: &AtomicU64, open: u64) {
    word.store(open, Ordering::Release);
}

/// Lets nobody in for a moment, in which the caller looks at the counts; `end_trial` must follow. False
/// when somebody else does the same, or it is shut.
pub(crate) fn begin_trial(word: &AtomicU64, open: u64) -> bool {
    let begun = word.compare_exchange(open, open | TRYING, Ordering::AcqRel, Ordering::Acquire).is_ok();
    fence(Ordering::SeqCst);
    begun
}

/// Shuts for good, or opens again unless somebody has shut it meanwhile.
pub(crate) fn end_trial(word: &AtomicU64, open: u64, shut: bool) {
    let end = if shut { 0 } else { open };
    let _ = word.compare_exchange(open | TRYING, end, Ordering::AcqRel, Ordering::Acquire);
}

/// Whether nobody of this initiator is inside. Asked after `shut`, `begin_trial` or closing.
pub(crate) fn is_empty(users: &AtomicU64) -> bool {
    users.load(Ordering::Acquire) == 0
}
