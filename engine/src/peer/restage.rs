//! Device memory of the peer that this engine did not know at submit, because its announcement was still in flight. On
//! paths that move host memory (`tcp`, `local`, parts of staged transfers) the target refuses device memory. The
//! refused slices are staged instead; the target's `stage` finds the region. Slices of host memory that only the peer's
//! own process reaches take a detour by TCP.

use super::{After, Peer};
use crate::complete::transfer::Failure;
use crate::complete::{Transfer, TransferFlags};
use crate::route;
use crate::types::{SliceRange, Transport};
use std::sync::Arc;

impl Peer {
    /// Settles as `confirm` does, for paths that reach only host memory.
    pub fn answered(
        &self,
        transfer: &Arc<Transfer>,
        range: SliceRange,
        bytes: u64,
        failures: &[Failure],
        notified: bool,
        after: &mut After,
    ) {
        let flags = transfer.spec.flags;
        // A part keeps a slot while it moves and must not wait for another; its whole is staged again.
        let has_unknown = flags.has(TransferFlags::UNKNOWN) && !flags.has(TransferFlags::PART);
        let may_be_device = |failure: &Failure| route::stages_refused(has_unknown, failure.status);
        if !failures.iter().any(may_be_device) {
            return self.confirm(transfer, range, bytes, failures, notified, after);
        }
        let failure_of = |slice: u32| failures.iter().find(|failure| failure.slice == slice);
        let slices: Vec<(u32, Option<&Failure>)> =
            range.indexes().map(|slice| (slice, failure_of(slice))).collect();
        let is_doubtful = |failure: Option<&Failure>| failure.is_some_and(may_be_device);
        for group in slices.chunk_by(|a, b| is_doubtful(a.1) == is_doubtful(b.1)) {
            let range = SliceRange { first: group[0].0, end: group[0].0 + group.len() as u32 };
            if is_doubtful(group[0].1) && self.stage(transfer, range, after) {
                continue;
            }
            let failures: Vec<Failure> = group.iter().filter_map(|(_, failure)| failure.copied()).collect();
            let slices = range.of(&transfer.spec.slices);
            let bytes = slices.iter().map(|slice| u64::from(slice.length)).sum();
            self.confirm(transfer, range, bytes, &failures, false, after);
        }
    }

    /// Queues slices that the transfer's path does not reach for TCP. Returns false if the transfer may not use TCP or
    /// was struck, or if the peer is lost.
    pub fn detour(&self, transfer: &Arc<Transfer>, range: SliceRange, after: &mut After) -> bool {
        {
            let mut outbox = self.outbox.lock();
            // Checked under the lock, as in `release_run`.
            let may = transfer.spec.allowed & Transport::Tcp.bit() != 0;
            if !may || !transfer.is_pending() || self.lost().is_some() {
                return false;
            }
            outbox.detour(transfer.clone(), range, self.class_of(transfer));
        }
        after.nudge(Transport::Tcp);
        true
    }

    /// Queues refused slices to be staged. Returns false if the transfer was struck or the peer is lost.
    fn stage(&self, transfer: &Arc<Transfer>, range: SliceRange, after: &mut After) -> bool {
        {
            let mut outbox = self.outbox.lock();
            // Checked under the lock, as in `release_run`.
            if !transfer.is_pending() || self.lost().is_some() {
                return false;
            }
            outbox.stage(transfer.clone(), range, self.class_of(transfer));
        }
        // A thread that drives the transfer may sleep for an answer on its old path.
        after.wake(Transport::Tcp);
        self.strike_stranded();
        after.nudge(Transport::Staged);
        true
    }
}
