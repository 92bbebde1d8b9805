//! The chains in flight on one queue pair of an endpoint, and the batches that their completions settle.

use super::batch::{Batch, WrId};
use super::room::CHAINS_MAX;
use crate::sys::atomic::{AtomicU32, Ordering};
use crate::sys::lock::Mutex;
use crate::sys::moment;
use crate::sys::verbs::{wc, Completion};
use crate::types::{Monotonic, TransferId};
use std::collections::VecDeque;

#[derive(Default)]
pub struct Flight {
    state: Mutex<FlightState>,
    chains: AtomicU32,
}

#[derive(Default)]
struct FlightState {
    batches: VecDeque<Batch>,
    /// The last work request posted, until its completion has come, good or bad.
    last: Option<WrId>,
    /// The first completion with an error other than a flush.
    error: Option<WorkError>,
}

/// A work request that failed: its status, and the vendor's code.
pub type WorkError = (WrId, u32, u32);

/// The bytes of a settled chain, and when the first of its batches was posted.
pub struct Settled {
    pub bytes: u64,
    pub posted_ns: Monotonic,
}

impl Flight {
    pub fn has_room(&self) -> bool {
        self.chains.load(Ordering::Acquire) < CHAINS_MAX
    }

    pub fn chains(&self) -> u32 {
        self.chains.load(Ordering::Relaxed)
    }

    /// Enters a chain with these batches. Called before it is posted: the completion may come at once.
    pub fn enter(&self, batches: &mut Vec<Batch>, last: WrId) {
        let mut state = self.state.lock();
        let mut runs = batches.iter().filter_map(|batch| batch.run.as_ref());
        let is_struck = || runs.any(|run| !run.transfer.is_pending());
        moment::reached_if("a strike between pull and launch", is_struck);
        state.last = Some(last);
        state.batches.extend(batches.drain(..));
        drop(state);
        self.chains.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes in a completion, and moves the batches that it settles to `done`. None if it reports an error.
    pub fn complete(&self, id: WrId, completion: &Completion, done: &mut Vec<Batch>) -> Option<Settled> {
        let mut state = self.state.lock();
        if state.last == Some(id) {
            state.last = None;
        }
        if !completion.is_success() {
            if completion.status() != wc::WR_FLUSH_ERR && state.error.is_none() {
                state.error = Some((id, completion.status(), completion.vendor_error()));
            }
            return None;
        }
        let mut settled = Settled { bytes: 0, posted_ns: Monotonic::NEVER };
        while state.batches.front().is_some_and(|batch| id.covers(batch.sequence)) {
            let Some(batch) = state.batches.pop_front() else { break };
            settled.bytes += batch.run.as_ref().map_or(0, |run| u64::from(run.bytes));
            settled.posted_ns = settled.posted_ns.min(batch.posted_ns);
            done.push(batch);
        }
        drop(state);
        self.chains.fetch_sub(1, Ordering::AcqRel);
        Some(settled)
    }

    /// Returns whether the queue pair owes a completion.
    pub fn owes(&self) -> bool {
        self.state.lock().last.is_some()
    }

    /// Returns whether no batch up to this one is in flight.
    pub fn is_past(&self, mark: u64) -> bool {
        self.state.lock().batches.front().is_none_or(|batch| batch.sequence > mark)
    }

    pub fn carries(&self, transfer: TransferId) -> bool {
        let ours = |batch: &Batch| batch.run.as_ref().is_some_and(|run| run.transfer.handle == transfer);
        self.state.lock().batches.iter().any(ours)
    }

    /// Takes all that is unconfirmed when the endpoint ends.
    pub fn take(&self) -> (VecDeque<Batch>, Option<WorkError>) {
        let mut state = self.state.lock();
        (std::mem::take(&mut state.batches), state.error.take())
    }
}
