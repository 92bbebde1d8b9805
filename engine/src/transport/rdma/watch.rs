//! Which thread sees the next completion of an endpoint, and whether completions come. A thread that waits for a
//! transfer reaps by itself; otherwise the completion channel wakes the device's `poller`.
//!
//! ```text
//! ASLEEP ─ a chain is posted that no thread drives ─▶ ARMED ─ the channel reports ─▶ WATCHED by the poller
//!    ▲ └────────── a thread begins to drive ──────────────────▶ WATCHED by it            │
//!    └── nothing is under way ◀─ end ────────────────────────────────────────────────────┘
//! ```
//! Chains are counted before they are posted, and the count is read after the state has changed, so that one of two
//! threads always sees the other.

use crate::sys::atomic::{AtomicU32, AtomicU64, Ordering};

/// The observer of the next completion: nobody, because none is owed or their owner reaps them; the completion channel;
/// a polling thread.
const ASLEEP: u32 = 0;
const ARMED: u32 = 1;
const WATCHED: u32 = 2;

/// Starts ASLEEP.
#[derive(Default)]
pub struct Watch {
    state: AtomicU32,
    /// Chains in flight. Ordered with `state`, so that some thread always sees the completions that are owed.
    chains: AtomicU32,
    /// Chains settled so far.
    settled: AtomicU64,
    /// The value of `settled` at the last tick.
    ticked: AtomicU64,
}

impl Watch {
    /// Counts a chain that is about to be posted.
    pub fn posts(&self) {
        self.chains.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends the count of a chain that has completed.
    pub fn completed(&self) {
        self.chains.fetch_sub(1, Ordering::SeqCst);
    }

    /// Notes that the batches of these chains are settled.
    pub fn note_settled(&self, chains: usize) {
        self.settled.fetch_add(chains as u64, Ordering::Release);
    }

    /// Returns the number of chains settled so far.
    pub fn settled(&self) -> u64 {
        self.settled.load(Ordering::Acquire)
    }

    pub fn has_work(&self) -> bool {
        self.chains.load(Ordering::SeqCst) > 0
    }

    /// True if chains are in flight whose completion nothing will notice unasked.
    pub fn is_unwatched(&self) -> bool {
        self.has_work() && self.state.load(Ordering::SeqCst) == ASLEEP
    }

    /// Returns true if something has been settled since the last tick.
    pub fn tick(&self) -> bool {
        let settled = self.settled();
        self.ticked.swap(settled, Ordering::Relaxed) != settled
    }

    /// Returns true if the caller must have the next completion announced.
    pub fn arm(&self) -> bool {
        self.leave_sleep(ARMED)
    }

    /// Makes the calling thread the poller until `end`. Returns false if another thread polls or the channel is armed.
    pub fn begin(&self) -> bool {
        self.leave_sleep(WATCHED)
    }

    fn leave_sleep(&self, to: u32) -> bool {
        self.state.compare_exchange(ASLEEP, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Makes the calling thread the poller until `end`, after the channel has reported.
    pub fn begin_reported(&self) {
        self.state.store(WATCHED, Ordering::SeqCst);
    }

    /// Ends the polling. Returns true if completions are still owed.
    pub fn end(&self) -> bool {
        self.state.store(ASLEEP, Ordering::SeqCst);
        self.has_work()
    }
}
