//! The answers that a target owes on a lane: acknowledgements of applied WRITEs, and answers to READs. `rx` adds, `tx`
//! takes. Windows that the initiator must respect bound their number: acknowledgements are cumulative, READs need
//! credits, and faults are at most as many as the descriptors of unacknowledged frames.

use crate::limits::{FRAME_DESCRIPTORS_MAX, LANE_FRAMES_MAX, LANE_READS_MAX};
use crate::loss::{Cause, Failure};
use crate::region::Region;
use crate::sys::clock;
use crate::transport::tcp::wire::{Fault, FAULTS_PER_FRAME_MAX};
use crate::types::Boottime;
use std::collections::VecDeque;
use std::sync::Arc;

/// The lane ends; the peer sends its other READs again on another lane, where they are admitted anew.
pub const REGION_GONE: Failure = Failure::new(Cause::Ours, "a region that a READ names was unregistered");
pub const LEASE_OVER: Failure =
    Failure::new(Cause::Lease, "the lease of a READ was over before it was answered");

/// A READ to be answered: the ranges to send, and the faults of refused descriptors.
pub struct ReadJob {
    pub sequence: u64,
    pub not_after_ns: Boottime,
    pub checksum: bool,
    pub pieces: Vec<(u64, u32)>,
    pub regions: Vec<Arc<Region>>,
    pub faults: Vec<Fault>,
}

// Otherwise one frame's faults might not fit into an acknowledgement, which could then never cover the frame.
const _: () = assert!(FRAME_DESCRIPTORS_MAX < FAULTS_PER_FRAME_MAX);

#[derive(Default)]
pub struct Answers {
    /// The last WRITE that was applied, and the last WRITE that a taken acknowledgement covers.
    applied: u64,
    acknowledged: u64,
    ack_due: bool,
    faults: VecDeque<Fault>,
    reads: VecDeque<ReadJob>,
}

impl Answers {
    /// Records that the WRITE with this sequence is applied, except for these faults. Returns false if the peer exceeds
    /// the window of unacknowledged frames.
    pub fn applied(&mut self, sequence: u64, faults: &[Fault]) -> bool {
        self.applied = sequence;
        self.ack_due = true;
        self.faults.extend(faults);
        sequence - self.acknowledged <= LANE_FRAMES_MAX as u64
    }

    /// Adds a READ. Returns false if the peer exceeds its READ credits.
    pub fn push_read(&mut self, job: ReadJob) -> bool {
        self.reads.push_back(job);
        self.reads.len() <= LANE_READS_MAX
    }

    /// Takes the acknowledgement that is due: the highest sequence that it covers, and the faults. With more faults
    /// than fit, it covers fewer frames, and another acknowledgement stays due.
    pub fn take_ack(&mut self) -> Option<(u64, Vec<Fault>)> {
        if !self.ack_due {
            return None;
        }
        let mut count = self.faults.len();
        let mut upto = self.applied;
        if count > FAULTS_PER_FRAME_MAX {
            // All faults of one frame go into one acknowledgement; a frame has at most half of the faults that fit.
            let next = self.faults[FAULTS_PER_FRAME_MAX].sequence;
            count = self.faults.partition_point(|fault| fault.sequence < next);
            upto = next - 1;
        }
        self.ack_due = count < self.faults.len();
        self.acknowledged = upto;
        Some((upto, self.faults.drain(..count).collect()))
    }

    /// Returns whether an answer waits to be sent.
    pub fn owes(&self) -> bool {
        self.ack_due || !self.reads.is_empty()
    }

    /// Returns the pieces of the READs to answer; None if they have more bytes, or are more than those of one frame.
    pub fn small_reads(&self, bytes_max: u64) -> Option<Vec<(u64, u32)>> {
        let pieces = self.reads.iter().flat_map(|job| &job.pieces).copied();
        let pieces: Vec<(u64, u32)> = pieces.take(FRAME_DESCRIPTORS_MAX + 1).collect();
        let bytes: u64 = pieces.iter().map(|(_, length)| u64::from(*length)).sum();
        Some(pieces).filter(|pieces| pieces.len() <= FRAME_DESCRIPTORS_MAX && bytes <= bytes_max)
    }

    pub fn take_read(&mut self) -> Option<ReadJob> {
        self.reads.pop_front()
    }

    pub fn clear(&mut self) {
        *self = Answers::default();
    }
}

pub fn clock_is_past(until_ns: Boottime) -> bool {
    until_ns != Boottime::NEVER && clock::boottime_ns() > until_ns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Status;

    fn job(sequence: u64) -> ReadJob {
        ReadJob {
            sequence,
            not_after_ns: Boottime::from_ns(1),
            checksum: false,
            pieces: Vec::new(),
            regions: Vec::new(),
            faults: Vec::new(),
        }
    }

    #[test]
    fn faults_beyond_one_frame_follow_with_their_own_sequences() {
        let fault = |sequence, descriptor| Fault { sequence, descriptor, status: Status::Stale };
        let mut answers = Answers::default();
        assert_eq!(answers.take_ack(), None);
        for sequence in 1..=5 {
            let faults: Vec<Fault> = (0..400).map(|descriptor| fault(sequence, descriptor)).collect();
            assert!(answers.applied(sequence, &faults));
        }
        let (first, faults) = answers.take_ack().unwrap();
        assert_eq!((first, faults.len()), (2, 800));
        assert_eq!(answers.take_ack().map(|(upto, faults)| (upto, faults.len())), Some((4, 800)));
        assert_eq!(answers.take_ack().map(|(upto, faults)| (upto, faults.len())), Some((5, 400)));
        assert_eq!(answers.take_ack(), None);
    }

    #[test]
    fn a_peer_that_does_not_wait_for_acknowledgements_is_stopped_at_the_window() {
        let fault = |sequence| Fault { sequence, descriptor: 0, status: Status::Stale };
        let mut answers = Answers::default();
        let window = LANE_FRAMES_MAX as u64;
        assert!((1..=window).all(|sequence| answers.applied(sequence, &[fault(sequence)])));
        assert!(answers.take_ack().is_some());
        assert!((window + 1..=2 * window).all(|sequence| answers.applied(sequence, &[])));
        assert!(!answers.applied(2 * window + 1, &[]));
    }

    #[test]
    fn a_peer_that_does_not_wait_for_answers_is_stopped_at_its_credits() {
        let mut answers = Answers::default();
        let credits = LANE_READS_MAX as u64;
        assert!((1..=credits).all(|sequence| answers.push_read(job(sequence))));
        assert_eq!(answers.take_read().map(|job| job.sequence), Some(1));
        assert!(answers.push_read(job(credits + 1)));
        assert!(!answers.push_read(job(credits + 2)));
    }

    #[test]
    fn small_reads_are_those_of_few_bytes_and_pieces() {
        let mut answers = Answers::default();
        assert_eq!(answers.small_reads(0), Some(Vec::new()));
        assert!(answers.push_read(ReadJob { pieces: vec![(1, 60)], ..job(1) }));
        assert!(answers.push_read(ReadJob { pieces: vec![(2, 30), (3, 10)], ..job(2) }));
        assert_eq!(answers.small_reads(100), Some(vec![(1, 60), (2, 30), (3, 10)]));
        assert_eq!(answers.small_reads(99), None);
        assert!(answers.push_read(ReadJob { pieces: vec![(4, 1); FRAME_DESCRIPTORS_MAX - 3], ..job(3) }));
        assert!(answers.small_reads(u64::MAX).is_some());
        assert!(answers.push_read(ReadJob { pieces: vec![(5, 0)], ..job(4) }));
        assert_eq!(answers.small_reads(u64::MAX), None);
    }
}
