//! Handles received frames. `rx` reads the stream and checks the MAC. This module admits a frame and lays out its
//! payload in a `Landing`; when the payload is complete, it answers or confirms the frame.

use crate::complete::Failure;
use crate::limits::{FRAME_DESCRIPTORS_MAX, NOTIFY_BYTES_MAX};
use crate::peer::{After, Arrival, Arriving, Posted, What};
use crate::status::Status;
use crate::sys::atomic::Ordering;
use crate::transport::tcp::admit::admit;
use crate::transport::tcp::answer::ReadJob;
use crate::transport::tcp::flight::Acknowledged;
use crate::transport::tcp::landing::{Landing, Piece, OWN, SINK};
use crate::transport::tcp::lane::Lane;
use crate::transport::tcp::rx::{Broken, RxTurn};
use crate::transport::tcp::wire::{
    flags, Descriptor, Fault, Header, Kind, Malformed, DESCRIPTOR_BYTES, EXTRA_BYTES_MAX,
};
use crate::types::{Boottime, Op, SliceRange};
use std::sync::Arc;

/// A frame whose payload is being received.
pub enum Frame {
    Write {
        header: Header,
        notification: Option<Notice>,
    },
    Data {
        header: Header,
        faults: Vec<Fault>,
    },
    /// A frame without payload, already handled.
    Done,
}

/// A notification in a frame: its number, and its bytes (None: a skip).
pub struct Notice {
    sequence: u64,
    body: Option<Box<[u8]>>,
    /// Set while the notification's data is being received and will be applied.
    arriving: Option<Arriving>,
}

/// The sequences of the peer's last WRITE and READ. The next frame must have the next sequence, so that no answer is
/// ambiguous.
#[derive(Default)]
pub struct Order {
    write: u64,
    read: u64,
    /// The answer to our oldest READ, whose end must come next: its sequence and faults.
    answer: Option<(u64, Vec<Fault>)>,
}

impl Order {
    fn check(&mut self, header: &Header) -> Result<(), Malformed> {
        if self.answer.is_some() != (header.kind == Kind::DataEnd) {
            return Err(Malformed::Sequence);
        }
        let last = match header.kind {
            Kind::Write => &mut self.write,
            Kind::Read => &mut self.read,
            // The flight checks the order of answers.
            Kind::Data | Kind::DataEnd | Kind::Ack => return Ok(()),
        };
        if last.checked_add(1) != Some(header.sequence) {
            return Err(Malformed::Sequence);
        }
        *last = header.sequence;
        Ok(())
    }
}

impl Frame {
    /// Handles a frame's head, or lays out the payload that follows.
    pub fn begin(
        lane: &Arc<Lane>,
        header: &Header,
        meta: &[u8],
        order: &mut Order,
        landing: &mut Landing,
        turn: &mut RxTurn,
        after: &mut After,
    ) -> Result<Frame, Broken> {
        order.check(header)?;
        if lane.is_express() && header.descriptors > 0 {
            lane.context.conversation.extend();
        }
        let count = header.descriptors as usize;
        let extra = &meta[count * DESCRIPTOR_BYTES..][..header.extra_bytes as usize];
        match header.kind {
            Kind::Write => begin_write(lane, header, meta, extra, landing),
            Kind::Read => {
                begin_read(lane, header, meta)?;
                turn.owes_answer = true;
                Ok(Frame::Done)
            }
            Kind::Data => begin_data(lane, header, extra, landing),
            Kind::DataEnd => {
                let faults = Fault::decode_all(extra).ok_or(Malformed::PayloadMismatch)?;
                end_answer(lane, header, faults, order, after)?;
                turn.settled = true;
                Ok(Frame::Done)
            }
            Kind::Ack => {
                let faults = Fault::decode_all(extra).ok_or(Malformed::PayloadMismatch)?;
                acknowledge(lane, header, &faults, after)?;
                turn.settled = true;
                Ok(Frame::Done)
            }
        }
    }

    /// Handles a frame whose payload is complete.
    pub fn finish(
        self,
        lane: &Arc<Lane>,
        order: &mut Order,
        landing: &mut Landing,
        turn: &mut RxTurn,
    ) -> Result<(), Broken> {
        match self {
            Frame::Write { header, notification } => {
                turn.owes_answer = true;
                finish_write(lane, &header, notification, landing)
            }
            Frame::Data { header, faults } => finish_data(&header, faults, order, landing),
            Frame::Done => Ok(()),
        }
    }
}

// With these values, the check of `extra_bytes` in a header also bounds the bytes of a notification.
const _: () = assert!(EXTRA_BYTES_MAX == size_of::<u64>() + NOTIFY_BYTES_MAX);

fn read_notice(header: &Header, extra: &[u8]) -> Result<Option<Notice>, Malformed> {
    let kind = header.flags & (flags::NOTIFY | flags::SKIP);
    if kind == 0 && header.flags & flags::VOID == 0 {
        return if extra.is_empty() { Ok(None) } else { Err(Malformed::PayloadMismatch) };
    }
    let skip = kind == flags::SKIP;
    if kind != flags::NOTIFY && header.flags & flags::VOID != 0 {
        return Err(Malformed::Flags);
    }
    let (head, body) = extra.split_first_chunk::<8>().ok_or(Malformed::PayloadMismatch)?;
    if (skip && !body.is_empty()) || kind == flags::NOTIFY | flags::SKIP {
        return Err(Malformed::PayloadMismatch);
    }
    let sequence = u64::from_le_bytes(*head);
    Ok(Some(Notice { sequence, body: (!skip).then(|| body.into()), arriving: None }))
}

fn begin_write(
    lane: &Lane,
    header: &Header,
    meta: &[u8],
    extra: &[u8],
    landing: &mut Landing,
) -> Result<Frame, Broken> {
    let mut notification = read_notice(header, extra)?;
    let mut duplicate = false;
    if let Some(notice) = notification.as_mut().filter(|_| header.descriptors > 0) {
        let (arrival, arriving) = lane.peer.arrives(notice.sequence).ok_or(Malformed::PayloadMismatch)?;
        if arrival == Arrival::Busy {
            return Err(Broken::Busy);
        }
        duplicate = arrival == Arrival::Duplicate;
        notice.arriving = arriving;
    }
    landing.reset(header.sequence, header.not_after_ns.max(Boottime::from_ns(1)));
    let map = lane.context.registry.snapshot();
    let mut total = 0u64;
    for (index, wanted) in Descriptor::decode_all(meta, header.descriptors as usize).enumerate() {
        total += wanted.length as u64;
        let mut piece =
            Piece { address: wanted.address, length: wanted.length, region: SINK, descriptor: index as u16 };
        match admit(&map, lane.context.tag, Op::Write, &wanted) {
            _ if duplicate => {}
            Ok(region) => piece.region = landing.region_index(region),
            Err(status) => landing.fault(index as u16, status),
        }
        landing.push(piece);
    }
    if total != header.payload_bytes as u64 {
        return Err(Malformed::PayloadMismatch.into());
    }
    Ok(Frame::Write { header: *header, notification })
}

fn finish_write(
    lane: &Lane,
    header: &Header,
    notification: Option<Notice>,
    landing: &mut Landing,
) -> Result<(), Broken> {
    if header.flags & flags::CHECKSUM != 0 {
        let doubt = match landing.checksum()? {
            Some(sum) => (sum != header.checksum).then_some(Status::Corrupt),
            None if landing.is_repeated() => None,
            // Refused bytes are not in memory, so the checksum of the other bytes cannot be verified.
            None => Some(landing.faults.first().map_or(Status::Stale, |fault| fault.status)),
        };
        if let Some(status) = doubt {
            landing.fault_all(status);
        }
    }
    // If a descriptor has two faults, keep the first.
    landing.faults.sort_by_key(|fault| fault.descriptor);
    landing.faults.dedup_by_key(|fault| fault.descriptor);
    let stats = &lane.context.stats;
    let applied = u64::from(header.payload_bytes) - landing.refused_bytes();
    stats.bytes_applied.fetch_add(applied, Ordering::Relaxed);
    stats.requests_refused.fetch_add(landing.faults.len() as u64, Ordering::Relaxed);
    // Data that was refused in part is not announced, and its number stays undecided. The initiator receives the faults
    // and skips the number; if it does not receive them, it sends the whole frame again.
    let is_whole = landing.faults.is_empty() && header.flags & flags::VOID == 0;
    if let Some(notice) = notification.filter(|_| is_whole) {
        if !lane.peer.deliver(notice.sequence, notice.body) {
            return Err(Malformed::Sequence.into());
        }
    }
    let applied = lane.answers.lock().applied(header.sequence, &landing.faults);
    applied.then_some(()).ok_or(Malformed::Sequence.into())
}

fn begin_read(lane: &Lane, header: &Header, meta: &[u8]) -> Result<(), Broken> {
    if header.payload_bytes != 0 || header.extra_bytes != 0 || header.descriptors == 0 {
        return Err(Malformed::PayloadMismatch.into());
    }
    let count = header.descriptors as usize;
    let mut job = ReadJob {
        sequence: header.sequence,
        not_after_ns: header.not_after_ns,
        checksum: header.flags & flags::CHECKSUM != 0,
        pieces: Vec::with_capacity(count.min(FRAME_DESCRIPTORS_MAX)),
        regions: Vec::new(),
        faults: Vec::new(),
    };
    let map = lane.context.registry.snapshot();
    let mut total = 0u64;
    for (index, wanted) in Descriptor::decode_all(meta, count).enumerate() {
        total += wanted.length as u64;
        match admit(&map, lane.context.tag, Op::Read, &wanted) {
            Ok(region) => {
                job.pieces.push((wanted.address, wanted.length));
                if !job.regions.iter().rev().any(|known| known.id == region.id) {
                    job.regions.push(region.clone());
                }
            }
            Err(status) => {
                job.faults.push(Fault { sequence: header.sequence, descriptor: index as u16, status })
            }
        }
    }
    if total > lane.frame_bytes_max as u64 {
        return Err(Malformed::TooMuchPayload.into());
    }
    lane.context.stats.requests_refused.fetch_add(job.faults.len() as u64, Ordering::Relaxed);
    if lane.answers.lock().push_read(job) {
        Ok(())
    } else {
        Err(Malformed::Sequence.into())
    }
}

/// Lays out the answer to our oldest READ over the memory of its slices.
fn begin_data(lane: &Lane, header: &Header, extra: &[u8], landing: &mut Landing) -> Result<Frame, Broken> {
    let mut faults = Fault::decode_all(extra).ok_or(Malformed::PayloadMismatch)?;
    faults.sort_unstable_by_key(|fault| fault.descriptor);
    landing.reset(header.sequence, Boottime::ZERO);
    let flight = lane.flight.lock();
    let What::Slices { transfer, range, .. } = &flight.answered(header.sequence)?.what else {
        return Err(Malformed::Sequence.into());
    };
    if header.descriptors != 0 || faults.iter().any(|fault| fault.sequence != header.sequence) {
        return Err(Malformed::PayloadMismatch.into());
    }
    let mut refused = faults.iter().map(|fault| fault.descriptor).peekable();
    for (index, slice) in range.of(&transfer.spec.slices).iter().enumerate() {
        landing.set_own(transfer.is_ours);
        if refused.next_if_eq(&(index as u16)).is_none() {
            let descriptor = index as u16;
            landing.push(Piece { address: slice.local, length: slice.length, region: OWN, descriptor });
        }
    }
    if landing.left() != header.payload_bytes as usize || refused.next().is_some() {
        return Err(Malformed::PayloadMismatch.into());
    }
    Ok(Frame::Data { header: *header, faults })
}

fn finish_data(
    header: &Header,
    mut faults: Vec<Fault>,
    order: &mut Order,
    landing: &mut Landing,
) -> Result<(), Broken> {
    if header.flags & flags::CHECKSUM != 0 {
        let doubt = match landing.checksum()? {
            Some(sum) => (sum != header.checksum).then_some(Status::Corrupt),
            // Bytes that faulted are not in memory, so the checksum of the other bytes cannot be verified.
            None => landing.faults.first().map(|fault| fault.status),
        };
        if let Some(status) = doubt {
            landing.fault_all(status);
        }
    }
    faults.append(&mut landing.faults);
    // If a descriptor has two faults, keep the first.
    faults.sort_by_key(|fault| fault.descriptor);
    faults.dedup_by_key(|fault| fault.descriptor);
    order.answer = Some((header.sequence, faults));
    Ok(())
}

/// Settles our oldest READ. Contracts 1 and 2: the peer has sent all of the answer. Bytes that somebody repeated on the
/// way fill the memory earlier, but are not followed by this frame. `late`: slices that the peer could not read while
/// it sent the answer; their bytes are filler.
fn end_answer(
    lane: &Lane,
    header: &Header,
    late: Vec<Fault>,
    order: &mut Order,
    after: &mut After,
) -> Result<(), Malformed> {
    if header.payload_bytes != 0 || header.descriptors != 0 {
        return Err(Malformed::PayloadMismatch);
    }
    let answer = order.answer.take().filter(|(sequence, _)| *sequence == header.sequence);
    let (_, faults) = answer.ok_or(Malformed::Sequence)?;
    let mut flight = lane.flight.lock();
    let What::Slices { range, .. } = &flight.answered(header.sequence)?.what else {
        return Err(Malformed::Sequence);
    };
    let is_slice =
        |fault: &Fault| fault.sequence == header.sequence && u32::from(fault.descriptor) < range.count();
    if !late.iter().all(is_slice) {
        return Err(Malformed::PayloadMismatch);
    }
    let posted = flight.take_answered().ok_or(Malformed::Sequence)?;
    settle(lane, posted, &Fault::joined(late, &faults), after);
    Ok(())
}

/// Confirms all WRITEs up to the header's sequence, with the reported faults.
pub(super) fn acknowledge(
    lane: &Lane,
    header: &Header,
    faults: &[Fault],
    after: &mut After,
) -> Result<(), Malformed> {
    if header.payload_bytes != 0 || header.descriptors != 0 {
        return Err(Malformed::PayloadMismatch);
    }
    let mut flight = lane.flight.lock();
    if flight.acknowledge(header.sequence, faults)? == Acknowledged::Later {
        return Ok(());
    }
    let mut rest = faults;
    while let Some(posted) = flight.take_acknowledged(header.sequence) {
        let (told, later) = rest.split_at(rest.partition_point(|fault| fault.sequence <= posted.sequence));
        match flight.take_own(posted.sequence) {
            own if own.is_empty() => settle(lane, posted, told, after),
            own => settle(lane, posted, &Fault::joined(own, told), after),
        }
        rest = later;
    }
    Ok(())
}

/// Applies the answer to one of our frames; each fault names one of its descriptors. The caller holds the lock of the
/// flight from which the record was taken. Contract 3: that lock keeps answers in the lane's order, and makes the
/// close of the lane wait for the last answer.
pub(super) fn settle(lane: &Lane, posted: Posted, faults: &[Fault], after: &mut After) {
    match &posted.what {
        What::Slices { transfer, range, bytes, notified } => {
            let failures = failures(*range, faults);
            lane.peer.answered(transfer, *range, *bytes as u64, &failures, *notified, after);
        }
        What::Notify(transfer) => lane.peer.confirm_notification(transfer, after),
        What::Skip(_) => {}
    }
}

/// Returns the failures of a frame's slices for the faults of its descriptors.
fn failures(range: SliceRange, faults: &[Fault]) -> Vec<Failure> {
    let failure = |fault: &Fault| Failure {
        slice: range.first + u32::from(fault.descriptor),
        status: fault.status,
        // A descriptor can make a system call fail in one way only: its memory faults.
        os_error: if fault.status == Status::System { libc::EFAULT } else { 0 },
        vendor_error: 0,
    };
    faults.iter().map(failure).collect()
}
