//! Counts the ends of transfers. `stats` cannot count them, because it lies below `complete` and knows no transfers.

use crate::complete::{State, Transfer};
use crate::stats::Stats;
use crate::sys::atomic::Ordering::Relaxed;
use crate::types::Op;

impl Stats {
    pub fn finished(&self, state: State, transfer: &Transfer) {
        let counter = match state {
            State::Done => &self.transfers_done,
            State::Cancelled => &self.transfers_cancelled,
            State::TimedOut => &self.transfers_timed_out,
            _ => &self.transfers_failed,
        };
        counter.fetch_add(1, Relaxed);
        self.moved(transfer.spec.op, transfer.bytes_confirmed());
    }

    /// Counts a transfer of one request and one slice that was done before it had a handle.
    pub fn moved_at_once(&self, op: Op, bytes: u64) {
        self.submitted(1, 1);
        self.transfers_done.fetch_add(1, Relaxed);
        self.moved(op, bytes);
    }

    fn moved(&self, op: Op, count: u64) {
        let bytes = match op {
            Op::Read => &self.bytes_read,
            Op::Write => &self.bytes_written,
        };
        bytes.fetch_add(count, Relaxed);
    }
}
