//! Reaps the completions of an endpoint and settles its batches. `watch` says which thread does that.

use super::batch::{Batch, WrId};
use super::endpoint::Endpoint;
use super::flight::Settled;
use crate::peer::After;
use crate::sys::atomic::Ordering;
use crate::sys::lock::MutexGuard;
use crate::sys::verbs::{wc, Completion};
use crate::types::Transport;

/// The buffers of reaping, so that nothing is allocated for it.
pub struct Reaper {
    completions: Vec<Completion>,
    done: Vec<Batch>,
}

impl Reaper {
    pub fn new() -> Reaper {
        Reaper { completions: vec![Completion::default(); 64], done: Vec::new() }
    }
}

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
        self.watch.note_settled(settled);
        settled
    }

    /// Handles one completion. Returns 1 if it settles a chain.
    fn completed(&self, completion: &Completion, done: &mut Vec<Batch>) -> usize {
        let id = WrId(completion.id());
        let Some(flight) = self.flights.get(id.qp()).filter(|_| !id.is_receive()) else { return 0 };
        let Some(Settled { bytes, posted_ns }) = flight.complete(id, completion, done) else {
            self.fail(wc::name(completion.status()).into());
            return 0;
        };
        self.watch.completed();
        if bytes > 0 {
            self.device.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.pace.moved(bytes, posted_ns);
        }
        1
    }

    /// Returns true if something has moved since the last tick. Otherwise has the next completion announced.
    pub fn tick(&self, after: &mut After) -> bool {
        let moves = self.watch.tick();
        if !moves && self.watch.has_work() {
            self.ensure_watched(after);
        }
        moves
    }

    /// Makes sure that some thread will see the next completion.
    pub fn ensure_watched(&self, after: &mut After) {
        if self.watch.arm() {
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

    /// Ends the polling. The channel announces completions that are still owed.
    pub fn unwatch(&self, after: &mut After) {
        if self.watch.end() {
            self.ensure_watched(after);
        }
    }
}
