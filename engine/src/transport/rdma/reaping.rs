//! Reaps the completions of an endpoint and settles its batches. A thread that waits for a transfer reaps by itself;
//! otherwise the completion channel wakes the device's `poller`.
//!
//! ```text
//! ASLEEP ─ a chain is posted that no thread drives ─▶ ARMED ─ the channel reports ─▶ WATCHED by the poller
//!    ▲ └────────── a thread begins to drive ──────────────────▶ WATCHED by it            │
//!    └── nothing is under way ◀─ unwatch ───────────────────────────────────────────────┘
//! ```
//! Chains are counted before they are posted, and the count is read after `watch` has changed, so that one of two
//! threads always sees the other.

use super::batch::{Batch, WrId};
use super::endpoint::{Endpoint, Reaper, CHAIN_BYTES};
use crate::peer::After;
use crate::sys::atomic::Ordering;
use crate::sys::clock;
use crate::sys::lock::MutexGuard;
use crate::sys::verbs::{wc, Completion};
use crate::types::{Monotonic, Transport};

/// States of `watch`, which says what sees the next completion: nothing, because none is owed or their owner reaps
/// them; the completion channel; a polling thread.
pub(super) const ASLEEP: u32 = 0;
const ARMED: u32 = 1;
const WATCHED: u32 = 2;

impl Endpoint {
    /// Reaps and settles completions. Returns the number of settled chains; 0 while another thread reaps.
    pub fn reap(&self, after: &mut After) -> usize {
        self.reaper.try_lock().map_or(0, |reaper| self.reap_with(reaper, after))
    }

    pub(super) fn reap_with(&self, mut reaper: MutexGuard<'_, Reaper>, after: &mut After) -> usize {
        let mut settled = 0;
        loop {
            let Reaper { completions, done } = &mut *reaper;
            let Ok(count) = self.cq.poll(completions) else {
                self.fail("its completion queue is broken".into());
                break;
            };
            for completion in &completions[..count] {
                settled += self.completed(completion, done);
            }
            if count < completions.len() {
                break;
            }
        }
        // Under the lock: batches settle in the order of their completions, and the thread that closes the endpoint
        // waits for this lock (contract 3).
        reaper.done.drain(..).for_each(|batch| batch.settle(&self.peer, &self.device.notifications, after));
        drop(reaper);
        self.settled.fetch_add(settled as u64, Ordering::Release);
        settled
    }

    /// Handles one completion. Returns 1 if it settles a chain.
    fn completed(&self, completion: &Completion, done: &mut Vec<Batch>) -> usize {
        let id = WrId(completion.id());
        let Some(flight) = self.flights.get(id.qp()).filter(|_| !id.is_receive()) else { return 0 };
        let mut state = flight.state.lock();
        if state.last == Some(id) {
            state.last = None;
        }
        if !completion.is_success() {
            if completion.status() != wc::WR_FLUSH_ERR && state.error.is_none() {
                state.error = Some((id, completion.status(), completion.vendor_error()));
            }
            drop(state);
            self.fail(wc::name(completion.status()).into());
            return 0;
        }
        let mut bytes = 0;
        let mut posted_ns = Monotonic::NEVER;
        while state.batches.front().is_some_and(|batch| id.covers(batch.sequence)) {
            let Some(batch) = state.batches.pop_front() else { break };
            bytes += batch.run.as_ref().map_or(0, |run| u64::from(run.bytes));
            posted_ns = posted_ns.min(batch.posted_ns);
            done.push(batch);
        }
        drop(state);
        flight.chains.fetch_sub(1, Ordering::AcqRel);
        self.chains.fetch_sub(1, Ordering::SeqCst);
        if bytes > 0 {
            self.moved(bytes, posted_ns);
        }
        1
    }

    fn moved(&self, bytes: u64, posted_ns: Monotonic) {
        let out = self.bytes_out.fetch_sub(bytes, Ordering::Relaxed);
        self.device.bytes.fetch_add(bytes, Ordering::Relaxed);
        // About everything in flight has left in the time that this chain took. Small chains say nothing about the
        // rate.
        if bytes >= u64::from(CHAIN_BYTES) / 4 {
            let took_ns = clock::monotonic_ns().saturating_sub(posted_ns).max(1);
            let seen = (out as u128 * 1_000_000_000 / took_ns as u128).min(u64::MAX as u128) as u64;
            let old = self.rate.load(Ordering::Relaxed);
            let new = if old == 0 { seen } else { old - old / 8 + seen / 8 };
            self.rate.store(new, Ordering::Relaxed);
        }
    }

    /// True if chains are in flight whose completion nothing will notice unasked.
    pub fn is_unwatched(&self) -> bool {
        self.has_work() && self.watch.load(Ordering::SeqCst) == ASLEEP
    }

    /// Returns true if something has moved since the last tick. Otherwise has the next completion announced.
    pub fn tick(&self, after: &mut After) -> bool {
        let settled = self.settled.load(Ordering::Acquire);
        let moves = self.ticked.swap(settled, Ordering::Relaxed) != settled;
        if !moves && self.has_work() {
            self.ensure_watched(after);
        }
        moves
    }

    /// Makes sure that some thread will see the next completion.
    pub fn ensure_watched(&self, after: &mut After) {
        let asleep = self.watch.compare_exchange(ASLEEP, ARMED, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if asleep {
            self.arm(after);
        }
    }

    fn arm(&self, after: &mut After) {
        if self.cq.arm().is_err() {
            return self.fail("its completion queue can't be armed".into());
        }
        // Arming does not announce what completed before, and a thread that reaps now may have missed it.
        let reaper = self.reaper.lock();
        if self.reap_with(reaper, after) > 0 {
            // The settled chains may have made room for queued work.
            after.nudge(Transport::Rdma);
        }
    }

    /// Makes the calling thread the poller until `unwatch`. Returns false if another thread polls or the channel is
    /// armed.
    pub fn watch(&self) -> bool {
        self.watch.compare_exchange(ASLEEP, WATCHED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Makes the calling thread the poller until `unwatch`, after the channel has reported.
    pub fn watch_reported(&self) {
        self.watch.store(WATCHED, Ordering::SeqCst);
    }

    /// Ends the polling. The channel announces completions that are still owed.
    pub fn unwatch(&self, after: &mut After) {
        self.watch.store(ASLEEP, Ordering::SeqCst);
        if self.chains.load(Ordering::SeqCst) > 0 {
            self.ensure_watched(after);
        }
    }
}
