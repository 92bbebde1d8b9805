//! Whether the CPUs have room for threads that poll.

use crate::sys::{clock, pause};
use crate::types::Monotonic;
use std::sync::atomic::{AtomicU64, Ordering};

/// A thread that was away for longer has left its CPU to busy ones.
const AWAY_NS: u64 = 500_000;
/// How long threads sleep then instead of polling. A turn of a busy program takes some milliseconds.
const CROWDED_NS: u64 = 250_000_000;

/// After a bulk lane has worked, a thread that polls keeps its CPU for so long.
const BULK_NS: u64 = 2_000_000;

/// Between two looks a polling thread lets others have its CPU, because whoever it waits for may need it. Beside busy
/// programs that costs a turn of theirs; a thread that sleeps is back sooner. The threads of bulk lanes take long turns
/// (`sched`): beside them a polling thread lets nobody have its CPU.
#[derive(Default)]
pub struct Crowd {
    until_ns: AtomicU64,
    bulk_ns: AtomicU64,
}

impl Crowd {
    /// Returns whether to sleep rather than to poll.
    pub fn is_there(&self, now: Monotonic) -> bool {
        now.ns() < self.until_ns.load(Ordering::Relaxed)
    }

    /// A bulk lane has worked.
    pub fn note_bulk(&self) {
        self.bulk_ns.store(clock::monotonic_ns().ns(), Ordering::Relaxed);
    }

    /// One iteration of a polling loop, begun at this time. Returns false if the loop had better sleep.
    pub fn make_way(&self, now: Monotonic) -> bool {
        if now.ns() < self.bulk_ns.load(Ordering::Relaxed).saturating_add(BULK_NS) {
            pause::spin();
            return true;
        }
        pause::yield_now();
        let back = clock::monotonic_ns();
        let is_short = back.saturating_sub(now) < AWAY_NS;
        if !is_short {
            self.until_ns.store((back + CROWDED_NS).ns(), Ordering::Relaxed);
        }
        is_short
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_was_away_for_long_sleeps_for_a_while() {
        let crowd = Crowd::default();
        let now = clock::monotonic_ns();
        let before = Monotonic::from_ns(now.ns() - 2 * AWAY_NS);
        assert!(!crowd.is_there(now));
        crowd.note_bulk();
        assert!(crowd.make_way(before) && !crowd.is_there(now), "beside bulk it was not away");
        let crowd = Crowd::default();
        assert!(!crowd.make_way(before));
        let back = clock::monotonic_ns();
        assert!(crowd.is_there(back));
        assert!(!crowd.is_there(back + CROWDED_NS));
    }
}
