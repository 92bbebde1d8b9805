//! The sending side of a lane: fills a batch of frames from owed answers and queued work, and sends it (`sending`) with
//! as few system calls as possible, gathering payload directly from registered memory.
//!
//! Order within a batch: acknowledgements, then our own frames and answers to READs in turn. A batch ends with the
//! first large frame, so that small frames never wait for more than one large frame.

use crate::complete::TransferFlags;
use crate::limits::FRAME_BYTES_MAX;
use crate::loss::Failure;
use crate::peer::outbox::Pulled;
use crate::peer::{After, What};
use crate::region::Region;
use crate::sys::atomic::Ordering;
use crate::sys::socket::IoVec;
use crate::sys::{clock, moment};
use crate::transport::tcp::filler::{self, Gathered, Head, Of};
use crate::transport::tcp::lane::Lane;
use crate::transport::tcp::wire::{
    flags, Descriptor, Fault, Header, Kind, Sealer, DESCRIPTOR_BYTES, FAULT_BYTES,
};
use crate::types::{Boottime, Op};
use std::collections::VecDeque;
use std::sync::Arc;

mod sending;

/// No frame is added to a batch beyond these.
const BATCH_BYTES: usize = 256 << 10;
const BATCH_PIECES: usize = 480;
const BATCH_META: usize = 48 << 10;
/// Bytes that one turn may send before other lanes of the worker have their turn.
const TURN_BYTES: usize = 4 * FRAME_BYTES_MAX as usize;

pub enum TxTurn {
    /// Nothing left to send.
    Idle,
    /// The socket takes no more.
    Blocked,
    /// More is left, but other lanes have their turn first.
    Yield,
    Failed(Failure),
}

/// The place of a piece of the batch.
#[derive(Clone, Copy)]
enum Place {
    /// Offset in `meta`.
    Meta(usize),
    /// Address of registered memory.
    Memory(u64),
    /// Instead of memory that faults: the frame's length was promised.
    Filler,
}

pub struct Tx {
    sealer: Sealer,
    meta: Vec<u8>,
    pieces: Vec<(Place, usize)>,
    /// The first piece that is not sent whole, and how many of its bytes were sent.
    next: usize,
    offset: usize,
    bytes: usize,
    /// How many bytes of the batch the kernel has.
    sent: usize,
    /// Our own frames in the batch that the kernel does not have whole: end offset, operation, sequence.
    ends: VecDeque<(usize, Op, u64)>,
    /// Whether the flight knows that these frames are being sent.
    has_begun_send: bool,
    /// Regions of peers' READs in the batch, entered around each system call.
    serving: Vec<Arc<Region>>,
    /// The earliest end of those READs' leases, on our clock of leases.
    serve_until_ns: Boottime,
    vectors: Vec<IoVec>,
    turn: bool,
    /// The thread that sends takes no work of this engine's transfers.
    answers_alone: bool,
    /// The frames in the batch that have memory.
    gathered: Vec<Gathered>,
    /// A call has faulted: the batch's other pieces of memory are sent one by one, which shows the piece that faults.
    one_by_one: bool,
    /// Why the stream broke. `Lane::failed` is set later, when this lock is free: until then another thread must not
    /// send the rest, which would complete the frame that broke it.
    broken: Option<Failure>,
}

impl Tx {
    pub fn new(sealer: Sealer) -> Tx {
        Tx {
            sealer,
            meta: Vec::new(),
            pieces: Vec::new(),
            next: 0,
            offset: 0,
            bytes: 0,
            sent: 0,
            ends: VecDeque::new(),
            has_begun_send: false,
            serving: Vec::new(),
            serve_until_ns: Boottime::NEVER,
            vectors: Vec::new(),
            turn: false,
            answers_alone: false,
            gathered: Vec::new(),
            one_by_one: false,
            broken: None,
        }
    }

    /// Drops the batch. Part of closing the lane.
    pub fn clear(&mut self) {
        self.meta.clear();
        self.pieces.clear();
        self.serving.clear();
        self.serve_until_ns = Boottime::NEVER;
        self.ends.clear();
        self.gathered.clear();
        (self.next, self.offset, self.bytes, self.sent, self.one_by_one) = (0, 0, 0, 0, false);
    }

    /// Returns whether the kernel has all of the batch.
    pub fn is_empty(&self) -> bool {
        self.next == self.pieces.len()
    }

    /// As `run`, but of the answers alone.
    pub fn answer(&mut self, lane: &Arc<Lane>, after: &mut After) -> TxTurn {
        self.answers_alone = true;
        let turn = self.run(lane, after);
        self.answers_alone = false;
        turn
    }

    /// Sends until nothing is left, the socket is full, or the turn is over.
    pub fn run(&mut self, lane: &Arc<Lane>, after: &mut After) -> TxTurn {
        if let Some(failure) = self.broken {
            return TxTurn::Failed(failure);
        }
        let turn = self.run_turn(lane, after);
        if let TxTurn::Failed(failure) = turn {
            self.broken = Some(failure);
        }
        turn
    }

    fn run_turn(&mut self, lane: &Arc<Lane>, after: &mut After) -> TxTurn {
        let mut sent = 0;
        loop {
            if self.next == self.pieces.len() {
                self.clear();
                if sent >= TURN_BYTES {
                    return TxTurn::Yield;
                }
                if let Err(failure) = self.fill(lane, after) {
                    return TxTurn::Failed(failure);
                }
                if self.pieces.is_empty() {
                    return TxTurn::Idle;
                }
            }
            match self.send(lane, after) {
                Ok(None) => return TxTurn::Blocked,
                // The call may have taken long, and the lane may have been closed meanwhile.
                Ok(_) if lane.is_closed() => return TxTurn::Idle,
                Ok(Some(count)) => sent += count,
                Err(failure) => return TxTurn::Failed(failure),
            }
        }
    }

    fn fill(&mut self, lane: &Arc<Lane>, after: &mut After) -> Result<(), Failure> {
        while self.bytes < BATCH_BYTES && self.pieces.len() < BATCH_PIECES && self.meta.len() < BATCH_META {
            let ack = lane.answers.lock().take_ack();
            if let Some((sequence, faults)) = ack {
                self.add_ack(sequence, &faults);
                continue;
            }
            self.turn = !self.turn;
            let answer_first = self.turn;
            let added = (answer_first && self.add_answer(lane)?)
                || (!self.answers_alone && self.add_work(lane, after))
                || (!answer_first && self.add_answer(lane)?);
            if !added {
                break;
            }
        }
        Ok(())
    }

    fn push_meta(&mut self, start: usize) {
        let length = self.meta.len() - start;
        let ends_answer = self.gathered.last().is_some_and(|it| it.is_ended_by(self.pieces.len()));
        match self.pieces.last_mut() {
            // Frames without payload are adjacent in `meta` and form one piece. The end of an answer stays a piece: it
            // may be sealed again.
            Some((Place::Meta(at), size)) if *at + *size == start && !ends_answer => *size += length,
            _ => self.pieces.push((Place::Meta(start), length)),
        }
        self.bytes += length;
    }

    fn push_memory(&mut self, address: u64, length: usize) {
        self.pieces.push((Place::Memory(address), length));
        self.bytes += length;
    }

    fn header(kind: Kind, sequence: u64, clock_ns: Boottime) -> Header {
        Header {
            kind,
            flags: 0,
            descriptors: 0,
            payload_bytes: 0,
            extra_bytes: 0,
            sequence,
            not_after_ns: Boottime::ZERO,
            clock_ns,
            checksum: 0,
        }
    }

    fn add_ack(&mut self, sequence: u64, faults: &[Fault]) {
        let header = Header {
            extra_bytes: (faults.len() * FAULT_BYTES) as u32,
            ..Tx::header(Kind::Ack, sequence, clock::boottime_ns())
        };
        let start = self.meta.len();
        self.sealer.seal(&header, &mut self.meta, |out| faults.iter().for_each(|fault| fault.encode(out)));
        self.push_meta(start);
    }

    /// Answers a READ of the peer: gathers its pieces behind a header, and an end behind them. Fails the lane if a
    /// region was unregistered after the READ was admitted; the peer's other READs are then admitted anew.
    fn add_answer(&mut self, lane: &Lane) -> Result<bool, Failure> {
        let Some(mut job) = lane.answers.lock().take_read() else { return Ok(false) };
        let checksum = if job.checksum { filler::checksum_of_answer(&mut job)? } else { 0 };
        let payload: usize = job.pieces.iter().map(|(_, length)| *length as usize).sum();
        let header = Header {
            flags: if job.checksum { flags::CHECKSUM } else { 0 },
            payload_bytes: payload as u32,
            extra_bytes: (job.faults.len() * FAULT_BYTES) as u32,
            checksum,
            ..Tx::header(Kind::Data, job.sequence, clock::boottime_ns())
        };
        let start = self.meta.len();
        self.sealer
            .seal(&header, &mut self.meta, |out| job.faults.iter().for_each(|fault| fault.encode(out)));
        self.push_meta(start);
        if !job.pieces.is_empty() {
            let of = Of::Answer { refused: job.faults, late: Vec::new() };
            let (first, count) = (self.pieces.len(), job.pieces.len());
            self.gathered.push(Gathered { first, count, sequence: job.sequence, of });
        }
        for (address, length) in &job.pieces {
            self.push_memory(*address, *length as usize);
        }
        let start = self.meta.len();
        let end = Tx::header(Kind::DataEnd, job.sequence, header.clock_ns);
        self.sealer.seal(&end, &mut self.meta, |_| ());
        self.push_meta(start);
        self.serve_until_ns = self.serve_until_ns.min(job.not_after_ns);
        for region in job.regions {
            if !self.serving.iter().any(|known| known.id == region.id) {
                self.serving.push(region);
            }
        }
        lane.context.stats.bytes_served.fetch_add(payload as u64, Ordering::Relaxed);
        Ok(true)
    }

    /// Adds the next frame of our own transfers, if the lane's windows and the lease clock allow it.
    fn add_work(&mut self, lane: &Arc<Lane>, after: &mut After) -> bool {
        let mut limits = lane.windows();
        if !limits.write || !limits.read {
            lane.window_full.store(true, Ordering::SeqCst);
            // Read again: an answer that arrived before the flag was set does not run `tx` again.
            limits = lane.windows();
        }
        let now_ns = clock::boottime_ns();
        let Some(not_after_ns) = lane.peer.clock.not_after(now_ns) else {
            if lane.has_work() {
                lane.peer.ask();
            }
            return false;
        };
        let Some(pulled) = lane.pull(limits) else { return false };
        let base = Header { not_after_ns, ..Tx::header(Kind::Write, 0, now_ns) };
        match pulled {
            Pulled::Slices { transfer, range, bytes, with_notification, .. } => {
                transfer.mark_started();
                let what = What::Slices { transfer, range, bytes, notified: with_notification };
                self.add_slices(lane, base, what, after);
            }
            Pulled::Notify(transfer) => {
                let sequence = transfer.notify_sequence.load(Ordering::Relaxed);
                let bytes = transfer.spec.notify.clone().unwrap_or_default();
                self.add_notification(lane, base, flags::NOTIFY, sequence, &bytes, What::Notify(transfer));
            }
            Pulled::Skip(sequence) => {
                self.add_notification(lane, base, flags::SKIP, sequence, &[], What::Skip(sequence));
            }
        }
        true
    }

    /// Enters a frame into the flight before a byte of it is sent, so that no answer precedes the record.
    fn launch(&mut self, lane: &Lane, now_ns: Boottime, op: Op, what: What) -> u64 {
        let lease_until_ns = clock::monotonic_ns() + lane.peer.clock.lease_ns();
        let mut flight = lane.flight.lock();
        if flight.count(op) == 0 {
            // The progress timeout of a lane starts when a frame is in flight again.
            lane.progress_ns.store(now_ns.ns(), Ordering::Relaxed);
        }
        let is_struck = || matches!(&what, What::Slices { transfer, .. } if !transfer.is_pending());
        moment::reached_if("a strike between pull and launch", is_struck);
        flight.launch(op, lease_until_ns, what)
    }

    /// Notes that the whole frame is in the batch.
    fn launched(&mut self, op: Op, sequence: u64) {
        self.ends.push_back((self.bytes, op, sequence));
        self.has_begun_send = true;
    }

    fn add_notification(
        &mut self,
        lane: &Lane,
        base: Header,
        flag: u8,
        sequence: u64,
        bytes: &[u8],
        what: What,
    ) {
        let frame = self.launch(lane, base.clock_ns, Op::Write, what);
        let header = Header { flags: flag, extra_bytes: 8 + bytes.len() as u32, sequence: frame, ..base };
        let start = self.meta.len();
        self.sealer.seal(&header, &mut self.meta, |out| {
            out.extend_from_slice(&sequence.to_le_bytes());
            out.extend_from_slice(bytes);
        });
        self.push_meta(start);
        self.launched(Op::Write, frame);
    }

    fn add_slices(&mut self, lane: &Lane, base: Header, what: What, after: &mut After) {
        let What::Slices { transfer, range, bytes, notified } = &what else { return };
        let (transfer, range, bytes, notified) = (transfer.clone(), *range, *bytes, *notified);
        let spec = &transfer.spec;
        let slices = range.of(&spec.slices);
        let sequence = self.launch(lane, base.clock_ns, spec.op, what);
        let notification = if notified { spec.notify.as_deref() } else { None };
        let mut header = Header {
            kind: if spec.op == Op::Write { Kind::Write } else { Kind::Read },
            flags: if spec.flags.has(TransferFlags::CHECKSUM) { flags::CHECKSUM } else { 0 },
            descriptors: slices.len() as u16,
            sequence,
            extra_bytes: notification.map_or(0, |bytes| 8 + bytes.len() as u32),
            ..base
        };
        if notification.is_some() {
            header.flags |= flags::NOTIFY;
        }
        let mut faulted = Vec::new();
        if spec.op == Op::Write {
            header.payload_bytes = bytes;
            if spec.flags.has(TransferFlags::CHECKSUM) {
                (header.checksum, faulted) = filler::checksum_of(slices, transfer.is_ours);
            }
        }
        let (begin, start) = (self.bytes, self.meta.len());
        self.meta.reserve(crate::transport::tcp::wire::HEADER_BYTES + slices.len() * DESCRIPTOR_BYTES);
        self.sealer.seal(&header, &mut self.meta, |out| {
            for slice in slices {
                Descriptor { address: slice.remote, region: slice.region, length: slice.length }.encode(out);
            }
            if let Some(bytes) = notification {
                out.extend_from_slice(&transfer.notify_sequence.load(Ordering::Relaxed).to_le_bytes());
                out.extend_from_slice(bytes);
            }
        });
        self.push_meta(start);
        if spec.op == Op::Write {
            let head = Head { begin, meta: start..self.meta.len(), notified, is_void: false };
            let (first, count) = (self.pieces.len(), slices.len());
            self.gathered.push(Gathered { first, count, sequence, of: Of::Write(head) });
            for slice in slices {
                self.push_memory(slice.local, slice.length as usize);
            }
        }
        self.launched(spec.op, sequence);
        for nth in faulted {
            // The head is not sent yet: this does not fail.
            let _ = self.fill_in(lane, self.pieces.len() - slices.len() + nth as usize, after);
        }
    }
}

#[cfg(test)]
mod tests;
