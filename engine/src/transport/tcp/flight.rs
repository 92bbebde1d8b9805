//! The frames that a lane has posted and the peer has not answered, and which answers can be true. A frame is entered
//! before a byte of it is sent, so that no answer precedes its record. Contract 2: a settled frame's memory belongs to
//! the caller again, so an answer counts only after the kernel has the whole frame, whatever the peer sends.
//!
//! ```text
//! launch ──▶ being sent (`sending`) ──▶ written ──▶ acknowledged, in order
//!               └ an acknowledgement that comes now waits in `ahead` for the end of the system call
//! ```
//! Pure; `tx` and `incoming` call it under the lane's lock.

use crate::lists::take_where;
use crate::peer::{Posted, What};
use crate::transport::tcp::wire::{Fault, Malformed};
use crate::types::{Monotonic, Op, TransferId};
use std::collections::VecDeque;

/// The records in the order of their answers: WRITEs are acknowledged in order, READs are answered in order.
#[derive(Default)]
pub struct Flight {
    writes: VecDeque<Posted>,
    reads: VecDeque<Posted>,
    /// The highest sequence launched, and the highest that the kernel has whole; indexed by `at`.
    launched: [u64; 2],
    written: [u64; 2],
    /// A system call may be reading the frames that are not written.
    sending: bool,
    /// The highest sequence that the peer acknowledged.
    acknowledged: u64,
    /// Acknowledgements of frames that were being sent when they arrived: at most one for each frame in flight.
    ahead: Vec<(u64, Vec<Fault>)>,
    /// Slices of unacknowledged WRITEs that could not be read, in the order of their sequences.
    own: Vec<Fault>,
}

/// Returns the index of an operation in `launched` and `written`.
pub fn at(op: Op) -> usize {
    match op {
        Op::Write => 0,
        Op::Read => 1,
    }
}

/// How to treat an acknowledgement.
#[derive(Debug, PartialEq, Eq)]
pub enum Acknowledged {
    /// Settle all WRITEs up to its sequence.
    Now,
    /// The sending thread settles the WRITEs after its system call.
    Later,
}

impl Flight {
    /// Enters a frame and returns its sequence.
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

    /// Notes that a system call sends frames that are launched and not written.
    pub fn begin_send(&mut self) {
        self.sending = true;
    }

    /// Notes that the system call has returned and that the kernel has all frames up to `written` (0: none new).
    /// Returns the records that were acknowledged meanwhile, to be settled in this order.
    pub fn end_send(&mut self, written: [u64; 2]) -> Result<Vec<(Posted, Vec<Fault>)>, Malformed> {
        self.sending = false;
        for (so_far, now) in self.written.iter_mut().zip(written) {
            *so_far = now.max(*so_far);
        }
        // Checked before any record is taken: all records of a lane that ends are returned by `take_all`.
        if self.ahead.iter().any(|(upto, _)| *upto > self.written[at(Op::Write)]) {
            return Err(Malformed::Sequence);
        }
        let mut settled = Vec::new();
        for (upto, mut faults) in std::mem::take(&mut self.ahead) {
            while let Some(posted) = self.take_acknowledged(upto) {
                let rest =
                    faults.split_off(faults.partition_point(|fault| fault.sequence <= posted.sequence));
                let told = std::mem::replace(&mut faults, rest);
                let own = self.take_own(posted.sequence);
                settled.push((posted, if own.is_empty() { told } else { Fault::joined(own, &told) }));
            }
        }
        Ok(settled)
    }

    /// Checks the peer's acknowledgement of all WRITEs up to `upto`, except for `faults`. It must cover more than the
    /// last acknowledgement, have its faults in order, and name only frames that were sent whole or are being sent.
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

    /// Returns whether the fault names a descriptor of an unacknowledged WRITE.
    fn has_slice(&self, fault: &Fault) -> bool {
        let Some(first) = self.writes.front() else { return false };
        // Sequences are consecutive.
        let index = fault.sequence.checked_sub(first.sequence);
        let posted = index.and_then(|index| self.writes.get(index as usize));
        let Some(Posted { what: What::Slices { range, .. }, .. }) = posted else { return false };
        fault.sequence > self.acknowledged && u32::from(fault.descriptor) < range.count()
    }

    /// Takes the next record of the WRITEs up to `upto`.
    pub fn take_acknowledged(&mut self, upto: u64) -> Option<Posted> {
        self.writes.front().filter(|posted| posted.sequence <= upto)?;
        self.writes.pop_front()
    }

    /// Notes that a slice of an unacknowledged WRITE could not be read: filler was sent for it, and it fails whatever
    /// the peer says. Returns the WRITE's record.
    pub fn note_own(&mut self, fault: Fault) -> Option<&Posted> {
        self.own.push(fault);
        self.writes.iter().rfind(|posted| posted.sequence == fault.sequence)
    }

    /// Takes the faults that were noted of a WRITE.
    pub fn take_own(&mut self, sequence: u64) -> Vec<Fault> {
        if self.own.is_empty() {
            return Vec::new();
        }
        take_where(&mut self.own, |fault| fault.sequence == sequence)
    }

    /// Returns the record of the READ that an answer with this sequence is for, which must be the oldest. The answer
    /// may arrive while the request is still being sent, because a request contains no memory of the caller.
    pub fn answered(&self, sequence: u64) -> Result<&Posted, Malformed> {
        let may = self.sending || sequence <= self.written[at(Op::Read)];
        self.reads.front().filter(|posted| may && posted.sequence == sequence).ok_or(Malformed::Sequence)
    }

    /// Takes the oldest READ's record: its answer is complete.
    pub fn take_answered(&mut self) -> Option<Posted> {
        self.reads.pop_front()
    }

    /// Takes the records of a closed lane whose memory no thread can touch. A thread that still sends keeps the WRITEs
    /// that the kernel does not have whole; a thread that still receives may place the answer to the oldest READ.
    pub fn take_untouched(&mut self, is_sent_on: bool, is_received_on: bool) -> Vec<Posted> {
        let written = if is_sent_on { self.written[at(Op::Write)] } else { u64::MAX };
        let writes = self.writes.partition_point(|posted| posted.sequence <= written);
        let kept = usize::from(is_received_on).min(self.reads.len());
        self.writes.drain(..writes).chain(self.reads.drain(kept..)).collect()
    }

    /// Takes all records when the lane is closed. A waiting acknowledgement has no effect any more.
    pub fn take_all(&mut self) -> Vec<Posted> {
        self.ahead.clear();
        self.own.clear();
        self.writes.drain(..).chain(self.reads.drain(..)).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.reads.is_empty()
    }

    /// Returns the number of this operation's unanswered frames.
    pub fn count(&self, op: Op) -> usize {
        match op {
            Op::Write => self.writes.len(),
            Op::Read => self.reads.len(),
        }
    }

    /// Returns the bytes that unanswered READs have requested.
    pub fn read_bytes(&self) -> u64 {
        let bytes = |posted: &Posted| match posted.what {
            What::Slices { bytes, .. } => bytes as u64,
            _ => 0,
        };
        self.reads.iter().map(bytes).sum()
    }

    /// Returns whether a record of this transfer is in flight.
    pub fn carries(&self, transfer: TransferId) -> bool {
        let ours = |posted: &Posted| posted.transfer().is_some_and(|other| other.handle == transfer);
        self.writes.iter().any(ours) || self.reads.iter().any(ours)
    }
}

#[cfg(test)]
#[path = "flight_tests.rs"]
mod tests;
