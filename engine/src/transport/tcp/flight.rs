//! What one lane has posted and the peer has not answered, and which answers can be true. A frame is entered
//! before a byte of it leaves, so that no answer can precede its record. Its memory is the caller's again when it is
//! settled: so an answer counts only once the kernel has been given the whole frame, whatever the peer says.
//!
//! ```text
//! launch ──▶ being sent (`sending`) ──▶ written ──▶ acknowledged, in order
//!               └ an acknowledgement that comes now waits in `ahead` for the end of the system call
//! ```
//! Pure; `tx` and `incoming` call it under the lane's lock.

use crate::peer::{Posted, What};
use crate::transport::tcp::wire::{Fault, Malformed};
use crate::types::{Monotonic, Op};
use std::collections::VecDeque;

/// Posted frames in the order of their answers: WRITEs are acknowledged in order, and so are READs.
#[derive(Default)]
pub struct Flight {
    writes: VecDeque<Posted>,
    reads: VecDeque<Posted>,
    /// The highest sequence launched, and that of which the kernel has every byte; `at` an operation.
    launched: [u64; 2],
    written: [u64; 2],
    /// What is not written may be in the kernel's hands at this moment.
    sending: bool,
    /// The highest sequence that the peer acknowledged.
    acknowledged: u64,
    /// Acknowledgements of what was being sent when they came: at most one for each frame in flight.
    ahead: Vec<(u64, Vec<Fault>)>,
}

/// Where arrays have what is an operation's.
pub fn at(op: Op) -> usize {
    match op {
        Op::Write => 0,
        Op::Read => 1,
    }
}

/// What to do with an acknowledgement.
#[derive(Debug, PartialEq, Eq)]
pub enum Acknowledged {
    /// Settle all up to its sequence.
    Now,
    /// The thread that sends settles it.
    Later,
}

impl Flight {
    /// Enters a frame; its sequence.
    pub fn launch(&mut self, op: Op, lease_until_ns: Monotonic, what: What) -> u64 {
        let launched = &mut self.launched[at(op)];
        *launched += 1;
        let sequence = *launched;
        self.sending = true;
        self.queue(op).push_back(Posted { sequence, lease_until_ns, what });
        sequence
    }

    fn queue(&mut self, op: Op) -> &mut VecDeque<Posted> {
        match op {
            Op::Write => &mut self.writes,
            Op::Read => &mut self.reads,
        }
    }

    /// What is launched and not written is given to the kernel again.
    pub fn begin_send(&mut self) {
        self.sending = true;
    }

    /// The kernel has given control back, and has all frames up to these (0: none that it had not before).
    /// What was acknowledged meanwhile is to be settled, in this order.
    pub fn end_send(&mut self, written: [u64; 2]) -> Result<Vec<(Posted, Vec<Fault>)>, Malformed> {
        self.sending = false;
        for (so_far, now) in self.written.iter_mut().zip(written) {
            *so_far = now.max(*so_far);
        }
        let mut settled = Vec::new();
        for (upto, mut faults) in std::mem::take(&mut self.ahead) {
            if upto > self.written[at(Op::Write)] {
                return Err(Malformed::Sequence);
            }
            while let Some(posted) = self.take_acknowledged(upto) {
                let rest =
                    faults.split_off(faults.partition_point(|fault| fault.sequence <= posted.sequence));
                settled.push((posted, std::mem::replace(&mut faults, rest)));
            }
        }
        Ok(settled)
    }

    /// The peer says that all WRITEs up to `upto` are applied but for `faults`: more than it said before, in
    /// order, of frames that there are, and none of which a byte is still here.
    pub fn acknowledge(&mut self, upto: u64, faults: &[Fault]) -> Result<Acknowledged, Malformed> {
        if upto <= self.acknowledged || upto > self.launched[at(Op::Write)] {
            return Err(Malformed::Sequence);
        }
        let place = |fault: &Fault| (fault.sequence, fault.descriptor);
        let in_order = faults.is_sorted_by(|a, b| place(a) < place(b));
        if !in_order || !faults.iter().all(|fault| fault.sequence <= upto && self.has_slice(fault)) {
            return Err(Malformed::Sequence);
        }
        let is_written = upto <= self.written[at(Op::Write)];
        if !is_written && !self.sending {
            return Err(Malformed::Sequence);
        }
        self.acknowledged = upto;
        if is_written {
            return Ok(Acknowledged::Now);
        }
        self.ahead.push((upto, faults.to_vec()));
        Ok(Acknowledged::Later)
    }

    /// Whether the fault is one of a descriptor in a WRITE that is not acknowledged yet.
    fn has_slice(&self, fault: &Fault) -> bool {
        let Some(first) = self.writes.front() else { return false };
        // Sequences are consecutive.
        let index = fault.sequence.checked_sub(first.sequence);
        let posted = index.and_then(|index| self.writes.get(index as usize));
        let Some(Posted { what: What::Slices { first, end, .. }, .. }) = posted else { return false };
        fault.sequence > self.acknowledged && u32::from(fault.descriptor) < end - first
    }

    /// The next WRITE to settle of those up to `upto`.
    pub fn take_acknowledged(&mut self, upto: u64) -> Option<Posted> {
        self.writes.front().filter(|posted| posted.sequence <= upto)?;
        self.writes.pop_front()
    }

    /// The READ that an answer with this sequence is for: the oldest. While it is being sent the answer is taken:
    /// a request has no memory of the caller's in it.
    pub fn answered(&self, sequence: u64) -> Result<&Posted, Malformed> {
        let may = self.sending || sequence <= self.written[at(Op::Read)];
        self.reads.front().filter(|posted| may && posted.sequence == sequence).ok_or(Malformed::Sequence)
    }

    /// Takes that READ out: its answer is in.
    pub fn take_answered(&mut self) -> Option<Posted> {
        self.reads.pop_front()
    }

    /// All that is here, for a lane that is closed. An acknowledgement that waits confirms nothing any more.
    pub fn take_all(&mut self) -> Vec<Posted> {
        self.ahead.clear();
        self.writes.drain(..).chain(self.reads.drain(..)).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.reads.is_empty()
    }

    /// Frames of this operation that are not answered.
    pub fn count(&self, op: Op) -> usize {
        match op {
            Op::Write => self.writes.len(),
            Op::Read => self.reads.len(),
        }
    }

    /// Bytes that READs have asked for.
    pub fn read_bytes(&self) -> u64 {
        let bytes = |posted: &Posted| match posted.what {
            What::Slices { bytes, .. } => bytes as u64,
            _ => 0,
        };
        self.reads.iter().map(bytes).sum()
    }

    /// Whether something of this transfer is among it.
    pub fn carries(&self, transfer: u64) -> bool {
        let ours = |posted: &Posted| posted.transfer().is_some_and(|other| other.handle == transfer);
        self.writes.iter().any(ours) || self.reads.iter().any(ours)
    }
}

#[cfg(test)]
#[path = "flight_tests.rs"]
mod tests;
