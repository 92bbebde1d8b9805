//! A lane's treatment of a frame, modelled without buffers, threads and locks.

use super::{not_after, Draft, Extra, Sealed, Sequence, REGIONS};
use crate::memory::Arena;
use ferry::internals::handle::{make, Kind as HandleKind, Parts, Tag};
use ferry::internals::transport::tcp::wire::{flags, Descriptor, Fault, Header, Kind};
use ferry::limits::{CHANNELS_MAX, NOTIFY_CREDITS};
use ferry::types::{Op, RegionId};
use ferry::{State as TransferState, Status, TransferCore};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A notification's number has its channel above these bits, and below them its place there.
const PLACE_BITS: u32 = 48;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    Alive,
    /// The lane must have reported its end.
    Ended,
    /// Bytes of a head were changed: the lane may wait for more bytes, or end. Nothing lands any more.
    Poisoned,
}

/// A transfer of our own, and its only frame.
struct Own {
    slices: Vec<(u64, u32)>,
    sequence: u64,
    op: Op,
    /// None while it is not answered; then whether every slice is done.
    is_done: Option<bool>,
}

/// An answer that the lane owes: faults by descriptor, then the payload.
struct Answer {
    sequence: u64,
    faults: Vec<(u16, Status)>,
    payload: Vec<u8>,
    has_checksum: bool,
}

pub struct Model {
    pub state: State,
    ids: Vec<RegionId>,
    live: [bool; REGIONS.len()],
    write: u64,
    read: u64,
    /// A frame was left out: the next frame has the wrong count.
    is_behind: bool,
    faults: BTreeMap<u64, Vec<(u16, Status)>>,
    acknowledged: u64,
    answers: VecDeque<Answer>,
    /// The READ whose answer the lane has sent, but for its end.
    to_end: Option<u64>,
    /// Our oldest READ has its answer, but for the end; and whether every slice is done.
    filled: Option<bool>,
    numbers: BTreeSet<u64>,
    own: Vec<Own>,
    /// The lane has reported its end.
    told: bool,
}

impl Model {
    pub fn new(ids: Vec<RegionId>) -> Model {
        Model {
            state: State::Alive,
            ids,
            live: [true; REGIONS.len()],
            write: 0,
            read: 0,
            is_behind: false,
            faults: BTreeMap::new(),
            acknowledged: 0,
            answers: VecDeque::new(),
            to_end: None,
            filled: None,
            numbers: BTreeSet::new(),
            own: Vec::new(),
            told: false,
        }
    }

    pub fn posted(&mut self, op: Op, nth: usize, slices: Vec<(u64, u32)>) {
        assert_eq!(nth, self.own.len());
        let sequence = self.own.iter().filter(|own| own.op == op).count() as u64 + 1;
        self.own.push(Own { slices, sequence, op, is_done: None });
    }

    pub fn unregister(&mut self, nth: usize) -> Option<RegionId> {
        std::mem::take(&mut self.live[nth]).then_some(self.ids[nth])
    }

    pub fn end(&mut self) {
        self.state = State::Ended;
    }

    pub fn poison(&mut self) {
        if self.state == State::Alive {
            self.state = State::Poisoned;
        }
    }

    pub fn lose_count(&mut self) {
        self.is_behind = true;
    }

    fn oldest(&self, op: Op) -> Option<usize> {
        self.own.iter().position(|own| own.op == op && own.is_done.is_none())
    }

    /// Makes the frame that the draft means, for the sealer.
    pub fn seal<'a>(&self, draft: &'a Draft, arena: &Arena) -> Sealed<'a> {
        let kinds = [Kind::Write, Kind::Read, Kind::Data, Kind::Ack, Kind::DataEnd];
        let kind = kinds[usize::from(draft.kind) % kinds.len()];
        let next = match kind {
            Kind::Write => self.write + 1,
            Kind::Read => self.read + 1,
            Kind::Data | Kind::DataEnd => self.oldest(Op::Read).map_or(1, |at| self.own[at].sequence),
            Kind::Ack => self.oldest(Op::Write).map_or(1, |at| self.own[at].sequence),
        };
        let sequence = match draft.sequence {
            Sequence::Next => next,
            Sequence::Off(off) => next.wrapping_add_signed(off.into()),
            Sequence::Any(sequence) => sequence,
        };
        let is_asked = matches!(kind, Kind::Write | Kind::Read);
        let places = if is_asked || draft.fill == 1 { &draft.places[..] } else { &[] };
        let descriptors: Vec<Descriptor> =
            places.iter().take(12).map(|it| self.descriptor(it, arena)).collect();
        let extra = match &draft.extra {
            Extra::None => Vec::new(),
            Extra::Number(number, body) => {
                let channel = [0, 1, CHANNELS_MAX - 1, CHANNELS_MAX][usize::from(*number / 64)];
                let number = u64::from(channel) << PLACE_BITS | u64::from(number % 64);
                [&number.to_le_bytes()[..], &body[..body.len().min(64)]].concat()
            }
            Extra::AnyNumber(number) => number.to_le_bytes().to_vec(),
            Extra::Faults(faults) => {
                let mut out = Vec::new();
                for (off, descriptor) in faults.iter().take(40) {
                    let sequence = sequence.wrapping_add_signed(i64::from(*off) / 32);
                    let descriptor = u16::from(*descriptor) % 24;
                    Fault { sequence, descriptor, status: Status::Stale }.encode(&mut out);
                }
                out
            }
            Extra::Raw(bytes) => bytes[..bytes.len().min(100)].to_vec(),
        };
        let said: u64 = match kind {
            Kind::Write => descriptors.iter().map(|one| u64::from(one.length)).sum(),
            Kind::Data => self.asked_for(sequence, &extra),
            Kind::Read | Kind::Ack | Kind::DataEnd => 0,
        };
        let length = said.saturating_add_signed(i64::from(draft.payload / 64)).min(16 << 10) as usize;
        let payload: Vec<u8> = (0..length).map(|at| draft.fill.wrapping_add(at as u8)).collect();
        let right = crc32fast::hash(&payload);
        let header = Header {
            kind,
            flags: draft.flags & flags::ALL,
            descriptors: descriptors.len() as u16,
            payload_bytes: length as u32,
            extra_bytes: extra.len() as u32,
            sequence,
            not_after_ns: not_after(draft),
            clock_ns: ferry::internals::sys::clock::boottime_ns(),
            checksum: right ^ u32::from(draft.is_checksum_wrong),
        };
        Sealed { header, descriptors, extra, payload, draft }
    }

    fn descriptor(&self, place: &super::Place, arena: &Arena) -> Descriptor {
        let nth = usize::from(place.region) % (REGIONS.len() + 1);
        let (start, length) = REGIONS.get(nth).map_or((0, 4096), |region| (region.0, region.1));
        let offset = usize::from(place.offset) % (length + 64);
        let tag = Tag::from_random(5);
        let strange = |tag, generation| {
            RegionId::from_raw(make(HandleKind::Region, tag, Parts { index: 0, generation }))
        };
        let region = match place.naming % 16 {
            0..=7 => self.ids.get(nth).copied().unwrap_or(RegionId::NONE),
            8..=11 => RegionId::NONE,
            12 => self.ids[(nth + 1) % self.ids.len()],
            13 => strange(Tag::from_random(6), 1),
            14 => strange(tag, 7 ^ (self.ids[0].raw() >> 20) as u32 & 0xfffff),
            _ => RegionId::from_raw(place.offset.into()),
        };
        let address = match place.length {
            u16::MAX => u64::MAX - u64::from(place.offset),
            _ => arena.address(start) + offset as u64,
        };
        Descriptor { address, region, length: u32::from(place.length) % 600 }
    }

    /// The bytes of the answer that our oldest READ waits for.
    fn asked_for(&self, sequence: u64, extra: &[u8]) -> u64 {
        let Some(own) = self.oldest(Op::Read).map(|at| &self.own[at]) else { return 0 };
        let faults = Fault::decode_all(extra).unwrap_or_default();
        let is_refused = |nth: usize| faults.iter().any(|it| usize::from(it.descriptor) == nth);
        let left = own.slices.iter().enumerate().filter(|(nth, _)| !is_refused(*nth));
        if own.sequence == sequence {
            left.map(|(_, slice)| u64::from(slice.1)).sum()
        } else {
            0
        }
    }

    /// The verdict on a descriptor.
    fn admit(&self, op: Op, wanted: &Descriptor, arena: &Arena) -> Result<(), Status> {
        let (start, length) = (wanted.address, u64::from(wanted.length));
        let Some(end) = start.checked_add(length).filter(|_| length > 0) else { return Err(Status::Invalid) };
        let holds = |nth: &usize| {
            let (at, bytes, _) = REGIONS[*nth];
            self.live[*nth] && arena.address(at) <= start && end <= arena.address(at + bytes)
        };
        let nth = if wanted.region == RegionId::NONE {
            (0..REGIONS.len()).find(holds).ok_or(Status::NotRegistered)?
        } else {
            ferry::internals::handle::parse(HandleKind::Region, Tag::from_random(5), wanted.region.raw())
                .map_err(|error| error.status)?;
            let named = self.ids.iter().position(|id| *id == wanted.region);
            let named = named.filter(|nth| self.live[*nth]).ok_or(Status::Stale)?;
            Some(named).filter(holds).ok_or(Status::Invalid)?
        };
        let bit = if op == Op::Read { 1 } else { 2 };
        if REGIONS[nth].2 & bit != 0 {
            Ok(())
        } else {
            Err(Status::Access)
        }
    }

    /// Handles a frame; `payload` is what arrives behind its head.
    pub fn frame(&mut self, frame: &Sealed, payload: &[u8], arena: &mut Arena) {
        if self.state != State::Alive {
            return;
        }
        if self.is_behind {
            return self.end();
        }
        if self.filled.is_some() != (frame.header.kind == Kind::DataEnd) {
            return self.end();
        }
        let is_good = match frame.header.kind {
            Kind::Write => self.take_write(frame, payload, arena),
            Kind::Read => self.take_read(frame, arena),
            Kind::Data => self.take_data(frame, payload, arena),
            Kind::DataEnd => self.take_end(frame),
            Kind::Ack => self.take_ack(frame),
        };
        if is_good.is_none() {
            self.end();
        }
    }

    fn take_write(&mut self, frame: &Sealed, payload: &[u8], arena: &mut Arena) -> Option<()> {
        let header = &frame.header;
        (header.sequence == self.write + 1).then_some(())?;
        self.write += 1;
        let is_void = header.flags & flags::VOID != 0;
        (!is_void || header.flags & (flags::NOTIFY | flags::SKIP) == flags::NOTIFY).then_some(())?;
        let number = match header.flags & (flags::NOTIFY | flags::SKIP) {
            0 => frame.extra.is_empty().then_some(None)?,
            kind => {
                let (number, body) = frame.extra.split_first_chunk::<8>()?;
                (kind != flags::NOTIFY | flags::SKIP).then_some(())?;
                (kind == flags::NOTIFY || body.is_empty()).then_some(())?;
                let number = u64::from_le_bytes(*number);
                // Nothing lands for a channel that does not exist.
                (number >> PLACE_BITS < u64::from(CHANNELS_MAX)).then_some(())?;
                Some(number)
            }
        };
        let is_duplicate =
            !frame.descriptors.is_empty() && number.is_some_and(|it| self.numbers.contains(&it));
        let said: usize = frame.descriptors.iter().map(|one| one.length as usize).sum();
        (said == frame.payload.len()).then_some(())?;
        let is_over = frame.draft.lease % 16 < 2 && said > 0;
        (!is_over).then_some(())?;
        let (mut at, mut faults) = (0, Vec::new());
        for (nth, wanted) in frame.descriptors.iter().enumerate() {
            let bytes = &payload[at..at + wanted.length as usize];
            at += bytes.len();
            match self.admit(Op::Write, wanted, arena) {
                _ if is_duplicate => {}
                Ok(()) => arena.expect(wanted.address, bytes),
                Err(status) => faults.push((nth as u16, status)),
            }
        }
        if header.flags & flags::CHECKSUM != 0 && faults.is_empty() && !is_duplicate {
            // Overlapping places keep what came last, and the checksum is that of the memory.
            let mut hasher = crc32fast::Hasher::new();
            frame
                .descriptors
                .iter()
                .for_each(|it| hasher.update(arena.expected(it.address, it.length as usize)));
            if hasher.finalize() != header.checksum {
                faults = (0..header.descriptors).map(|nth| (nth, Status::Corrupt)).collect();
            }
        }
        if let Some(number) = number.filter(|it| faults.is_empty() && !is_void && !self.numbers.contains(it))
        {
            (number % (1 << PLACE_BITS) < NOTIFY_CREDITS as u64).then_some(())?;
            self.numbers.insert(number);
        }
        self.faults.insert(header.sequence, faults);
        Some(())
    }

    fn take_read(&mut self, frame: &Sealed, arena: &Arena) -> Option<()> {
        let header = &frame.header;
        (header.sequence == self.read + 1).then_some(())?;
        self.read += 1;
        let has_only_places = header.payload_bytes == 0 && header.extra_bytes == 0 && header.descriptors > 0;
        has_only_places.then_some(())?;
        let mut answer = Answer {
            sequence: header.sequence,
            faults: Vec::new(),
            payload: Vec::new(),
            has_checksum: header.flags & flags::CHECKSUM != 0,
        };
        for (nth, wanted) in frame.descriptors.iter().enumerate() {
            match self.admit(Op::Read, wanted, arena) {
                Ok(()) => answer.payload.extend(arena.expected(wanted.address, wanted.length as usize)),
                Err(status) => answer.faults.push((nth as u16, status)),
            }
        }
        // Nothing is answered after the lease.
        (frame.draft.lease % 16 >= 2).then_some(())?;
        self.answers.push_back(answer);
        Some(())
    }

    fn take_data(&mut self, frame: &Sealed, payload: &[u8], arena: &mut Arena) -> Option<()> {
        let (header, mut faults) = (&frame.header, Fault::decode_all(&frame.extra)?);
        let at = self.oldest(Op::Read)?;
        let own = &self.own[at];
        (header.sequence == own.sequence && header.descriptors == 0).then_some(())?;
        faults.sort_by_key(|fault| fault.descriptor);
        faults.iter().all(|fault| fault.sequence == own.sequence).then_some(())?;
        faults.windows(2).all(|pair| pair[0].descriptor < pair[1].descriptor).then_some(())?;
        faults.iter().all(|fault| usize::from(fault.descriptor) < own.slices.len()).then_some(())?;
        let is_refused = |nth: usize| faults.iter().any(|it| usize::from(it.descriptor) == nth);
        let due =
            || own.slices.iter().enumerate().filter(|(nth, _)| !is_refused(*nth)).map(|(_, slice)| *slice);
        (due().map(|(_, length)| length as usize).sum::<usize>() == frame.payload.len()).then_some(())?;
        let mut rest = payload;
        for (address, length) in due() {
            let (bytes, later) = rest.split_at(length as usize);
            arena.expect(address, bytes);
            rest = later;
        }
        let is_corrupt = header.flags & flags::CHECKSUM != 0 && crc32fast::hash(payload) != header.checksum;
        self.filled = Some(faults.is_empty() && !is_corrupt);
        Some(())
    }

    fn take_end(&mut self, frame: &Sealed) -> Option<()> {
        let (header, faults) = (&frame.header, Fault::decode_all(&frame.extra)?);
        (header.payload_bytes == 0 && header.descriptors == 0).then_some(())?;
        let at = self.oldest(Op::Read)?;
        let own = &mut self.own[at];
        (header.sequence == own.sequence).then_some(())?;
        let is_slice =
            |it: &Fault| it.sequence == own.sequence && usize::from(it.descriptor) < own.slices.len();
        faults.iter().all(is_slice).then_some(())?;
        own.is_done = self.filled.take().map(|is_whole| is_whole && faults.is_empty());
        Some(())
    }

    fn take_ack(&mut self, frame: &Sealed) -> Option<()> {
        let (header, faults) = (&frame.header, Fault::decode_all(&frame.extra)?);
        (header.payload_bytes == 0 && header.descriptors == 0).then_some(())?;
        let at = self.oldest(Op::Write)?;
        let last = self.own.iter().filter(|own| own.op == Op::Write).count() as u64;
        (self.own[at].sequence..=last).contains(&header.sequence).then_some(())?;
        let place = |fault: &Fault| (fault.sequence, fault.descriptor);
        faults.windows(2).all(|pair| place(&pair[0]) < place(&pair[1])).then_some(())?;
        let first = self.own[at].sequence;
        for fault in &faults {
            let own = self.own.iter().find(|own| own.op == Op::Write && own.sequence == fault.sequence)?;
            (fault.sequence >= first && fault.sequence <= header.sequence).then_some(())?;
            (usize::from(fault.descriptor) < own.slices.len()).then_some(())?;
        }
        let mine = self.own.iter_mut().filter(|own| own.op == Op::Write && own.sequence <= header.sequence);
        for own in mine.filter(|own| own.is_done.is_none()) {
            own.is_done = Some(faults.iter().all(|fault| fault.sequence != own.sequence));
        }
        Some(())
    }

    /// Checks a frame that the lane sent.
    pub fn sent(&mut self, header: &Header, faults: &[Fault], payload: &[u8]) {
        assert_eq!(header.descriptors, 0);
        let told = |faults: &[Fault]| -> Vec<(u16, Status)> {
            faults.iter().map(|fault| (fault.descriptor, fault.status)).collect()
        };
        assert_eq!(self.to_end.is_some(), header.kind == Kind::DataEnd, "an answer and its end are together");
        match header.kind {
            Kind::Ack => {
                assert!(
                    payload.is_empty() && header.sequence > self.acknowledged,
                    "an acknowledgement again"
                );
                for sequence in self.acknowledged + 1..=header.sequence {
                    let expected = self.faults.remove(&sequence);
                    let expected = expected.unwrap_or_else(|| panic!("{sequence} was not applied"));
                    let mine: Vec<Fault> =
                        faults.iter().copied().filter(|it| it.sequence == sequence).collect();
                    assert_eq!(told(&mine), expected, "the faults of {sequence}");
                }
                let range = self.acknowledged + 1..=header.sequence;
                assert!(faults.iter().all(|fault| range.contains(&fault.sequence)));
                self.acknowledged = header.sequence;
            }
            Kind::Data => {
                let answer = self.answers.pop_front().expect("an answer to nothing");
                assert_eq!((header.sequence, told(faults)), (answer.sequence, answer.faults));
                assert!(payload == answer.payload, "not the memory that was asked for");
                if answer.has_checksum {
                    assert_eq!(header.checksum, crc32fast::hash(payload));
                }
                self.to_end = Some(answer.sequence);
            }
            Kind::DataEnd => {
                assert!(faults.is_empty() && payload.is_empty());
                assert_eq!(self.to_end.take(), Some(header.sequence));
            }
            kind => panic!("{kind:?}: nothing was queued"),
        }
    }

    pub fn check_end(&mut self, has_ended: bool) {
        match self.state {
            State::Alive => {
                assert!(!has_ended, "a correct frame ended the lane");
                assert!(self.faults.is_empty() && self.answers.is_empty(), "a frame is not answered");
                assert!(self.to_end.is_none(), "an answer has no end");
            }
            State::Ended => assert!(has_ended || self.told, "a wrong frame did not end the lane"),
            State::Poisoned => {}
        }
        if has_ended {
            (self.state, self.is_behind) = (State::Ended, true);
            self.told = true;
        }
    }

    /// Closing returns each record that was not answered.
    pub fn check_records(&self, records: impl Iterator<Item = u64>) {
        let left = |op: Op| self.own.iter().filter(move |own| own.op == op && own.is_done.is_none());
        let expected = left(Op::Write).chain(left(Op::Read)).map(|own| own.sequence);
        assert!(records.eq(expected), "records are lost or were answered twice");
    }

    pub fn check_transfer(&self, nth: usize, transfer: &TransferCore) {
        let state = match self.own[nth].is_done {
            None => TransferState::Pending,
            Some(true) => TransferState::Done,
            Some(false) => TransferState::Failed,
        };
        assert_eq!(transfer.state(), state, "transfer {nth}");
    }
}
