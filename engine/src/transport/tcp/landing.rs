//! The destination of the payload that is being received: pieces of registered memory, of a READ's own memory, or the
//! sink, and how far they are filled. Regions are entered around every access, so that unregister waits for at most one
//! system call. Pieces of a revoked region are diverted to the sink, and so is the rest of a piece whose memory faults.

use crate::region::Region;
use crate::status::Status;
use crate::sys::guarded::{self, Faulted};
use crate::sys::pages::{Pages, LOOKS_MAX};
use crate::sys::racing::{self, Unread};
use crate::sys::socket::{IoVec, IOV_MAX};
use crate::sys::{clock, moment};
use crate::transport::tcp::lane::Lane;
use crate::transport::tcp::wire::Fault;
use crate::types::{Boottime, RegionId};
use std::cell::UnsafeCell;
use std::sync::Arc;

/// `Piece::region` of bytes that are discarded.
pub const SINK: u16 = u16::MAX;
/// `Piece::region` of memory of our own READ, whose transfer has entered the region.
pub const OWN: u16 = u16::MAX - 1;
const SINK_SIZE: usize = 64 << 10;

/// The destination of refused payload. Several threads may let the kernel write to it at once; no code reads it.
struct Sink(UnsafeCell<[u8; SINK_SIZE]>);
// SAFETY: only the kernel writes the bytes, by address, and nothing ever reads them.
unsafe impl Sync for Sink {}
static SINK_BYTES: Sink = Sink(UnsafeCell::new([0; SINK_SIZE]));

#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub address: u64,
    pub length: u32,
    /// Index in the landing's regions, or SINK, or OWN.
    pub region: u16,
    /// The descriptor of the piece (in an answer: the slice of the READ).
    pub descriptor: u16,
}

/// The lease of the frame is over.
pub struct LeaseOver;

#[derive(Default)]
pub struct Landing {
    pieces: Vec<Piece>,
    regions: Vec<Arc<Region>>,
    /// Which regions the current access has entered.
    entered: Vec<bool>,
    next: usize,
    offset: u32,
    left: usize,
    /// On our clock of leases; 0 if no lease applies.
    not_after_ns: Boottime,
    sequence: u64,
    /// A receive has faulted: the frame's other pieces are received one by one, which shows the piece that faults.
    one_by_one: bool,
    /// ferry allocated all memory of our own READ.
    own_is_ours: bool,
    pub faults: Vec<Fault>,
}

impl Landing {
    /// Prepares for a frame with this sequence, to be applied no later than `not_after_ns` (0: any time).
    pub fn reset(&mut self, sequence: u64, not_after_ns: Boottime) {
        self.pieces.clear();
        self.regions.clear();
        self.entered.clear();
        self.faults.clear();
        (self.next, self.offset, self.left) = (0, 0, 0);
        (self.sequence, self.not_after_ns) = (sequence, not_after_ns);
        (self.one_by_one, self.own_is_ours) = (false, false);
    }

    /// Notes that ferry allocated all memory of the READ (`Transfer::is_ours`).
    pub fn set_own(&mut self, is_ours: bool) {
        self.own_is_ours = is_ours;
    }

    pub fn push(&mut self, piece: Piece) {
        self.left += piece.length as usize;
        self.pieces.push(piece);
    }

    /// Returns the index of a region in this frame's list, and adds the region if it is new.
    pub fn region_index(&mut self, region: &Arc<Region>) -> u16 {
        // The pieces of a frame mostly lie in one region, so search from the last.
        if let Some(at) = self.regions.iter().rposition(|known| known.id == region.id) {
            return at as u16;
        }
        self.regions.push(region.clone());
        (self.regions.len() - 1) as u16
    }

    pub fn fault(&mut self, descriptor: u16, status: Status) {
        self.faults.push(Fault { sequence: self.sequence, descriptor, status });
    }

    pub fn is_complete(&self) -> bool {
        self.left == 0
    }

    pub fn left(&self) -> usize {
        self.left
    }

    /// Enters the frame's regions, and diverts the pieces of revoked ones. The caller calls `leave` after the access.
    pub fn enter(&mut self) {
        self.entered.clear();
        for index in 0..self.regions.len() {
            let entered = self.regions[index].enter();
            self.entered.push(entered);
            if !entered {
                self.divert(index as u16);
            }
        }
    }

    fn divert(&mut self, region: u16) {
        for at in self.next..self.pieces.len() {
            if self.pieces[at].region == region {
                self.pieces[at].region = SINK;
                self.fault(self.pieces[at].descriptor, Status::Stale);
            }
        }
    }

    /// Diverts the rest of a piece whose memory faults.
    fn divert_faulted(&mut self, at: usize) {
        self.pieces[at].region = SINK;
        self.fault(self.pieces[at].descriptor, Status::System);
    }

    /// Handles a receive into the pieces that ended with EFAULT and received nothing. The next receive has one piece;
    /// if it faults too, that piece's rest is discarded. Returns false if none of the frame's memory can have faulted.
    pub fn faulted(&mut self) -> bool {
        if !std::mem::replace(&mut self.one_by_one, true) {
            return true;
        }
        let first = (self.next..self.pieces.len()).find(|at| self.pieces[*at].length > 0);
        let Some(at) = first.filter(|at| self.pieces[*at].region != SINK) else { return false };
        self.divert_faulted(at);
        true
    }

    fn is_ours(&self, piece: &Piece) -> bool {
        match piece.region {
            OWN => self.own_is_ours,
            SINK => true,
            region => self.regions[region as usize].is_ours(),
        }
    }

    /// Returns whether receiving the rest would wait for a page, as far as that is known. False: no page is missing.
    pub fn lacks_page(&self, pages: &Pages) -> bool {
        if self.left == 0 {
            return false;
        }
        let (now_ns, mut looks) = (clock::monotonic_ns(), LOOKS_MAX);
        let mut rest = self.pieces[self.next..].iter().filter(|piece| !self.is_ours(piece));
        rest.any(|piece| !pages.has(piece.address, piece.length.into(), now_ns, &mut looks))
    }

    pub fn leave(&mut self) {
        for (region, entered) in self.regions.iter().zip(&self.entered) {
            if *entered {
                region.leave();
            }
        }
        self.entered.clear();
    }

    /// Contract 4: refuses an access after the lease. Called before each access, between `enter` and `leave`.
    pub fn check_lease(&self) -> Result<(), LeaseOver> {
        if self.left > 0 && self.is_late() {
            return Err(LeaseOver);
        }
        Ok(())
    }

    fn is_late(&self) -> bool {
        self.not_after_ns != Boottime::ZERO && clock::boottime_ns() > self.not_after_ns
    }

    /// Reports an access that wrote `bytes` if the lease ended meanwhile: the bytes may have landed late. Called after
    /// each access.
    pub fn check_late(&self, lane: &Lane, bytes: usize) {
        if bytes == 0 || !self.is_late() {
            return;
        }
        moment::reached_if("a receive has written after its lease", || true);
        for (region, begin, end) in self.spans(bytes) {
            lane.peer.late_apply(region, begin, end - begin);
        }
    }

    /// Returns where the next `bytes` go: for each region, the begin of the first piece and the end of the last one.
    fn spans(&self, bytes: usize) -> impl Iterator<Item = (RegionId, u64, u64)> + '_ {
        let mut left = bytes + self.offset as usize;
        let written = self.pieces[self.next..].iter().take_while(|piece| {
            let reached = left > 0;
            left = left.saturating_sub(piece.length as usize);
            reached
        });
        let written: Vec<&Piece> = written.collect();
        self.regions.iter().enumerate().filter_map(move |(index, region)| {
            let here = || written.iter().filter(|piece| piece.region as usize == index);
            let begin = here().map(|piece| piece.address).min()?;
            let end = here().map(|piece| piece.address + u64::from(piece.length)).max()?;
            Some((region.id, begin, end))
        })
    }

    /// Appends vectors for the rest of the payload, at most `bytes_max`, and returns their bytes. The addresses are
    /// valid while the regions stay entered.
    pub fn vectors(&self, out: &mut Vec<IoVec>, bytes_max: usize) -> usize {
        let mut bytes = 0;
        let mut skip = self.offset;
        for piece in &self.pieces[self.next..] {
            let mut length = (piece.length - skip) as usize;
            // A refused piece's address is the peer's word: the sum may overflow.
            let mut address = if piece.region == SINK { 0 } else { piece.address + u64::from(skip) };
            skip = 0;
            while length > 0 {
                if out.len() + 1 >= IOV_MAX || bytes == bytes_max {
                    return bytes;
                }
                let mut step = length.min(bytes_max - bytes);
                if piece.region == SINK {
                    step = step.min(SINK_SIZE);
                    address = SINK_BYTES.0.get() as u64;
                }
                out.push(IoVec::new(address, step));
                length -= step;
                bytes += step;
            }
            if self.one_by_one && bytes > 0 {
                return bytes;
            }
        }
        bytes
    }

    /// Advances past `count` bytes of the vectors, which were received.
    pub fn advance(&mut self, count: usize) {
        self.left -= count;
        let mut count = count as u32;
        while count > 0 {
            let left = self.pieces[self.next].length - self.offset;
            if count < left {
                self.offset += count;
                return;
            }
            count -= left;
            self.offset = 0;
            self.next += 1;
        }
    }

    /// Copies payload that was received with the head. Returns how many of `bytes` were payload.
    pub fn copy_from(&mut self, bytes: &[u8], lane: &Lane) -> Result<usize, LeaseOver> {
        let total = bytes.len().min(self.left);
        if total == 0 {
            return Ok(0);
        }
        self.enter();
        if let Err(over) = self.check_lease() {
            self.leave();
            return Err(over);
        }
        let mut rest = &bytes[..total];
        let mut at = self.next;
        let mut skip = self.offset;
        while !rest.is_empty() {
            let piece = self.pieces[at];
            let count = rest.len().min((piece.length - skip) as usize);
            if piece.region != SINK {
                let target = (piece.address + skip as u64) as *mut u8;
                // SAFETY: the piece was admitted inside a region that is entered now, or is memory of our own READ,
                // entered by its transfer: if ferry allocated it, it stays mapped until `leave`. Other writers may race
                // with the copy: the contents are then undefined, as with any remote memory access.
                let placed = unsafe {
                    if self.is_ours(&piece) {
                        racing::copy_in(target, &rest[..count]);
                        Ok(())
                    } else {
                        guarded::put(target, &rest[..count])
                    }
                };
                if placed == Err(Faulted) {
                    self.divert_faulted(at);
                }
            }
            rest = &rest[count..];
            at += 1;
            skip = 0;
        }
        self.leave();
        self.check_late(lane, total);
        self.advance(total);
        Ok(total)
    }

    /// True if all pieces are discarded without a fault: another frame has brought them.
    pub fn is_repeated(&self) -> bool {
        self.faults.is_empty() && self.pieces.iter().all(|piece| piece.region == SINK)
    }

    /// Returns the bytes that went to the sink.
    pub fn refused_bytes(&self) -> u64 {
        let refused = self.pieces.iter().filter(|piece| piece.region == SINK);
        refused.map(|piece| u64::from(piece.length)).sum()
    }

    /// Adds a fault of each piece.
    pub fn fault_all(&mut self, status: Status) {
        (0..self.pieces.len()).for_each(|at| self.fault(self.pieces[at].descriptor, status));
    }

    /// Returns the CRC-32 of the pieces in memory; None if a part of them may not be read (any more). Contract 2: stops
    /// when the lease ends.
    pub fn checksum(&mut self) -> Result<Option<u32>, LeaseOver> {
        self.enter();
        // A diverted piece names memory that may not be read. Pieces of a repeated frame are diverted without a fault.
        let whole = self.faults.is_empty()
            && self.entered.iter().all(|entered| *entered)
            && self.pieces.iter().all(|piece| piece.region != SINK);
        let sum = if whole { self.sum() } else { Ok(None) };
        self.leave();
        sum
    }

    /// Returns the CRC-32 of the pieces, whose regions are entered. None: a piece faults.
    fn sum(&mut self) -> Result<Option<u32>, LeaseOver> {
        let mut hasher = crc32fast::Hasher::new();
        let in_time = || if self.is_late() { Err(LeaseOver) } else { Ok(()) };
        for (at, piece) in self.pieces.iter().enumerate() {
            let (address, length, is_ours) =
                (piece.address as *const u8, piece.length as usize, self.is_ours(piece));
            // SAFETY: as in `copy_from`: entered.
            let read = unsafe {
                racing::try_each_part(address, length, is_ours, in_time, |part| hasher.update(part))
            };
            match read {
                Ok(()) => {}
                Err(Unread::Refused(over)) => return Err(over),
                Err(Unread::Faulted) => {
                    self.divert_faulted(at);
                    return Ok(None);
                }
            }
        }
        Ok(Some(hasher.finalize()))
    }
}

#[cfg(test)]
#[path = "landing_tests.rs"]
mod tests;
