//! Acknowledgements, from the target's answers over the wire to the initiator's flight, with true and with forged ones in
//! between. A frame is settled once, in its order, after the kernel has it whole, with exactly the faults that the
//! target reported.

use crate::peer::Wish;
use arbitrary::{Arbitrary, Unstructured};
use ferry::internals::peer::What;
use ferry::internals::transport::tcp::answer::Answers;
use ferry::internals::transport::tcp::flight::{Acknowledged, Flight};
use ferry::internals::transport::tcp::wire::{Fault, FAULTS_PER_FRAME_MAX};
use ferry::limits::LANE_FRAMES_MAX;
use ferry::types::{Monotonic, Op, SliceRange};
use ferry::{Status, TransferCore};
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

#[derive(Arbitrary, Debug)]
enum Step {
    /// Frames of so many slices enter the flight; the system call begins.
    Launch(Vec<u8>),
    LaunchRead(u8),
    BeginSend,
    /// The kernel has so many more frames whole, of each operation.
    EndSend(u8, u8),
    /// The target applies the next frame that it has, and refuses these slices.
    Apply(Vec<u8>),
    /// The target refuses all slices of the next frames.
    RefuseAll(u8),
    /// The target's next acknowledgement reaches the flight.
    Acknowledge,
    /// An acknowledgement that the target did not send: sequence relative to the last one, faults (sequence, slice).
    Forge(i8, Vec<(i8, u8)>),
    ForgeAny(u64),
    Answer(bool),
    AnswerAny(u64),
    Close,
}

#[derive(Default)]
struct World {
    flight: Flight,
    answers: Answers,
    /// The slices of each WRITE so far; its index is the sequence - 1.
    writes: Vec<u32>,
    reads: u64,
    written: [u64; 2],
    sending: bool,
    /// The frames that the target applied, and its faults in this order.
    applied: u64,
    faults: Vec<(u64, u16)>,
    told: VecDeque<(u64, Vec<Fault>)>,
    told_upto: u64,
    /// The last acknowledgement that the flight took, and the frames that were settled.
    acknowledged: u64,
    settled: u64,
    answered: u64,
    /// All faults that reached a settled frame.
    reported: Vec<(u64, u16)>,
    forged: bool,
}

/// True when the lane ends.
type Ends = bool;

pub fn run(data: &[u8]) {
    let Ok(steps) = Vec::<Step>::arbitrary(&mut Unstructured::new(data)) else { return };
    let mut world = World::default();
    let wide = Wish::new(Op::Write, vec![(0, 1); 512]).transfer(1);
    for step in steps.into_iter().take(400) {
        if world.step(step, &wide) {
            break;
        }
    }
    world.close();
}

fn fault(sequence: u64, descriptor: u16) -> Fault {
    Fault { sequence, descriptor, status: Status::Stale }
}

impl World {
    fn step(&mut self, step: Step, wide: &Arc<TransferCore>) -> Ends {
        match step {
            Step::Launch(sizes) => {
                for size in sizes.into_iter().take(20) {
                    // The window of the real lane.
                    if self.flight.count(Op::Write) < LANE_FRAMES_MAX {
                        let count = u32::from(size) * 2 + 1;
                        self.launch(Op::Write, wide, count);
                    }
                }
                false
            }
            Step::LaunchRead(size) => {
                self.launch(Op::Read, wide, u32::from(size) + 1);
                false
            }
            Step::BeginSend => {
                self.flight.begin_send();
                self.sending = true;
                false
            }
            Step::EndSend(writes, reads) => self.end_send(writes, reads),
            Step::Apply(slices) => {
                self.apply(|count| {
                    slices.iter().map(|slice| u16::from(*slice)).filter(|at| *at < count).collect()
                });
                false
            }
            Step::RefuseAll(frames) => {
                (0..frames % 8).for_each(|_| self.apply(|count| (0..count).collect()));
                false
            }
            Step::Acknowledge => {
                self.tell();
                let Some((upto, faults)) = self.told.pop_front() else { return false };
                self.acknowledge(upto, &faults)
            }
            Step::Forge(off, faults) => {
                let upto = self.acknowledged.saturating_add_signed(off.into());
                let place = |(at, slice): &(i8, u8)| {
                    (upto.saturating_add_signed(i64::from(*at) / 16), u16::from(*slice))
                };
                let faults: Vec<Fault> =
                    faults.iter().map(place).map(|(at, slice)| fault(at, slice)).collect();
                self.forged = true;
                self.acknowledge(upto, &faults)
            }
            Step::ForgeAny(upto) => {
                self.forged = true;
                self.acknowledge(upto, &[])
            }
            Step::Answer(is_next) => self.answer(self.answered + 1 + u64::from(!is_next)),
            Step::AnswerAny(sequence) => self.answer(sequence),
            Step::Close => true,
        }
    }

    fn launch(&mut self, op: Op, wide: &Arc<TransferCore>, count: u32) {
        let range = SliceRange { first: 0, end: count.min(512) };
        let what = What::Slices { transfer: wide.clone(), range, bytes: range.count(), notified: false };
        let sequence = self.flight.launch(op, Monotonic::NEVER, what);
        self.sending = true;
        let expected = match op {
            Op::Write => {
                self.writes.push(range.count());
                self.writes.len() as u64
            }
            Op::Read => {
                self.reads += 1;
                self.reads
            }
        };
        assert_eq!(sequence, expected);
    }

    fn end_send(&mut self, writes: u8, reads: u8) -> Ends {
        let launched = [self.writes.len() as u64, self.reads];
        let more = [u64::from(writes), u64::from(reads)];
        let now: [u64; 2] = std::array::from_fn(|at| (self.written[at] + more[at]).min(launched[at]));
        let ahead = self.acknowledged;
        (self.written, self.sending) = (now, false);
        match self.flight.end_send(now) {
            Ok(settled) => {
                assert!(ahead <= now[0], "an acknowledgement of a frame that is not sent whole counts");
                for (posted, faults) in settled {
                    self.settle(posted.sequence, &faults);
                }
                assert_eq!(self.settled, ahead);
                false
            }
            Err(_) => {
                assert!(ahead > now[0], "a true acknowledgement ends the lane");
                true
            }
        }
    }

    /// The target applies a frame once the kernel has it whole.
    fn apply(&mut self, refuse: impl Fn(u16) -> Vec<u16>) {
        if self.applied >= self.written[0] {
            return;
        }
        let sequence = self.applied + 1;
        let mut refused = refuse(self.writes[self.applied as usize] as u16);
        refused.sort_unstable();
        refused.dedup();
        let faults: Vec<Fault> = refused.iter().map(|at| fault(sequence, *at)).collect();
        assert!(self.answers.applied(sequence, &faults), "the window is the initiator's");
        self.applied = sequence;
        self.faults.extend(refused.into_iter().map(|at| (sequence, at)));
    }

    /// Puts what the target owes on the wire.
    fn tell(&mut self) {
        while let Some((upto, faults)) = self.answers.take_ack() {
            assert!(faults.len() <= FAULTS_PER_FRAME_MAX && upto > self.told_upto && upto <= self.applied);
            let due = self.faults_of(self.told_upto + 1..=upto);
            assert!(
                due.iter().copied().eq(faults.iter().map(|one| (one.sequence, one.descriptor))),
                "faults are lost"
            );
            let mut bytes = Vec::new();
            faults.iter().for_each(|one| one.encode(&mut bytes));
            assert_eq!(Fault::decode_all(&bytes).as_ref(), Some(&faults));
            self.told.push_back((upto, faults));
            self.told_upto = upto;
        }
    }

    fn acknowledge(&mut self, upto: u64, faults: &[Fault]) -> Ends {
        let places: Vec<(u64, u16)> = faults.iter().map(|one| (one.sequence, one.descriptor)).collect();
        let is_place = |(at, slice): &(u64, u16)| {
            let slices = (*at as usize).checked_sub(1).and_then(|at| self.writes.get(at));
            *at > self.acknowledged && *at <= upto && slices.is_some_and(|count| u32::from(*slice) < *count)
        };
        let may = upto > self.acknowledged
            && upto <= self.writes.len() as u64
            && (upto <= self.written[0] || self.sending)
            && places.windows(2).all(|pair| pair[0] < pair[1])
            && places.iter().all(is_place);
        let result = self.flight.acknowledge(upto, faults);
        assert_eq!(result.is_ok(), may, "{upto} {places:?}");
        let Ok(when) = result else {
            assert!(self.forged, "a true acknowledgement ends the lane");
            return true;
        };
        self.acknowledged = upto;
        assert_eq!(when == Acknowledged::Now, upto <= self.written[0]);
        if when == Acknowledged::Now {
            let mut rest = faults;
            while let Some(posted) = self.flight.take_acknowledged(upto) {
                let (ours, later) =
                    rest.split_at(rest.partition_point(|one| one.sequence <= posted.sequence));
                self.settle(posted.sequence, ours);
                rest = later;
            }
            assert!(rest.is_empty());
            assert_eq!(self.settled, upto);
        }
        false
    }

    fn faults_of(&self, sequences: RangeInclusive<u64>) -> &[(u64, u16)] {
        let from = self.faults.partition_point(|(at, _)| at < sequences.start());
        let end = self.faults.partition_point(|(at, _)| at <= sequences.end());
        &self.faults[from..end]
    }

    fn settle(&mut self, sequence: u64, faults: &[Fault]) {
        assert_eq!(sequence, self.settled + 1, "not once, or not in order");
        assert!(sequence <= self.written[0], "settled before the kernel has it");
        assert!(faults.iter().all(|one| one.sequence == sequence), "another frame's faults");
        self.settled = sequence;
        if !self.forged {
            let due = self.faults_of(sequence..=sequence).iter().map(|(_, at)| *at);
            assert!(faults.iter().map(|one| one.descriptor).eq(due), "not the target's faults");
        }
        self.reported.extend(faults.iter().map(|one| (one.sequence, one.descriptor)));
    }

    fn answer(&mut self, sequence: u64) -> Ends {
        let may = sequence == self.answered + 1
            && sequence <= self.reads
            && (self.sending || sequence <= self.written[1]);
        assert_eq!(self.flight.answered(sequence).is_ok(), may, "{sequence}");
        if may {
            assert_eq!(self.flight.take_answered().map(|posted| posted.sequence), Some(sequence));
            self.answered = sequence;
        }
        !may
    }

    /// What is left comes back, each record once.
    fn close(&mut self) {
        let left = self.flight.take_all();
        let writes = self.settled + 1..=self.writes.len() as u64;
        let reads = self.answered + 1..=self.reads;
        assert!(left.iter().map(|posted| posted.sequence).eq(writes.chain(reads)), "records are lost");
        assert!(self.flight.is_empty() && self.reported.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
