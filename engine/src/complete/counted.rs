//! How a transfer's end shows in the engine's counters: here, because `stats` lies below and knows no
//! transfers.

use crate::complete::{State, Transfer};
use crate::stats::Stats;
use crate::types::Op;
use std::sync::atomic::Ordering::Relaxed;

impl Stats {
    pub fn finished(&self, state: State, transfer: &Transfer) {
        let counter = match state {
            State::Done => &self.transfers_done,
            State::Cancelled => &self.transfers_cancelled,
            State::TimedOut => &self.transfers_timed_out,
            _ => &self.transfers_failed,
        };
        counter.fetch_add(1, Relaxed);
        let bytes = match transfer.spec.op {
            Op::Read => &self.bytes_read,
            Op::Write => &self.bytes_written,
        };
        bytes.fetch_add(transfer.bytes_confirmed(), Relaxed);
    }
}
