//! Memory of the peer's that this engine did not know when a transfer was submitted: its announcement was still on
//! its way. The target knows better, and refuses what is a device's on the ways that move host memory (`tcp`, `local`,
//! parts of what is staged). Those slices go to `stage`, where the target finds the region itself.

use super::{After, Peer};
use crate::complete::transfer::Failure;
use crate::complete::{Transfer, TransferFlags};
use crate::route;
use crate::types::Transport;
use std::sync::Arc;

impl Peer {
    /// As `confirm`, for ways that reach host memory only.
    pub fn answered(
        &self,
        transfer: &Arc<Transfer>,
        run: (u32, u32),
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
            return self.confirm(transfer, run, bytes, failures, notified, after);
        }
        let failure_of = |slice: u32| failures.iter().find(|failure| failure.slice == slice);
        let slices: Vec<(u32, Option<&Failure>)> =
            (run.0..run.1).map(|slice| (slice, failure_of(slice))).collect();
        let is_doubtful = |failure: Option<&Failure>| failure.is_some_and(may_be_device);
        for stretch in slices.chunk_by(|a, b| is_doubtful(a.1) == is_doubtful(b.1)) {
            let (first, end) = (stretch[0].0, stretch[0].0 + stretch.len() as u32);
            if is_doubtful(stretch[0].1) && self.stage(transfer, first, end, after) {
                continue;
            }
            let failures: Vec<Failure> = stretch.iter().filter_map(|(_, failure)| failure.copied()).collect();
            let slices = &transfer.spec.slices[first as usize..end as usize];
            let bytes = slices.iter().map(|slice| u64::from(slice.length)).sum();
            self.confirm(transfer, (first, end), bytes, &failures, false, after);
        }
    }

    /// False: the transfer was struck, or the peer is lost.
    fn stage(&self, transfer: &Arc<Transfer>, first: u32, end: u32, after: &mut After) -> bool {
        {
            let mut outbox = self.outbox.lock();
            // Under the lock, as in `release_run`.
            if !transfer.is_pending() || self.lost().is_some() {
                return false;
            }
            outbox.stage(transfer.clone(), first, end, self.class_of(transfer));
        }
        // Who drives it sleeps for an answer on the way that it was on.
        after.wake(Transport::Tcp);
        self.strike_stranded();
        after.nudge(Transport::Staged);
        true
    }
}
