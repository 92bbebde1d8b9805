//! Payload whose memory faults: a page is unmapped, or its file was truncated. The head of a frame promises its length,
//! so filler follows for the rest of the piece, and the piece's request fails with SYSTEM and EFAULT. The lane and the
//! frame's other slices go on.
//!
//! ```text
//! our WRITE         its slice fails here, whatever the target says (`Flight::note_own`)
//! …with a notification  VOID in the head, if the head is not sent yet; otherwise the transfer and the lane end
//! a READ we serve   a fault in the end of the answer, which follows the payload
//! ```
//! With CHECKSUM, memory is read before its head is sealed: what faults then is refused or filled from the start.

use crate::complete::transfer::Strike;
use crate::loss::{Cause, Failure};
use crate::peer::{After, What};
use crate::region::enter_all;
use crate::status::Status;
use crate::sys::racing::{self, Unread};
use crate::transport::tcp::answer::{clock_is_past, ReadJob, LEASE_OVER, REGION_GONE};
use crate::transport::tcp::lane::Lane;
use crate::transport::tcp::wire::Fault;
use crate::types::Slice;
use std::convert::Infallible;
use std::ops::Range;

/// Sent instead of memory that faults, as often as needed.
pub const FILLER: &[u8; 64 << 10] = &[0; 64 << 10];

/// The notification of a WRITE has left, and its data can't follow.
pub const UNREADABLE: Failure =
    Failure { cause: Cause::System, what: "reading what is sent", os_error: libc::EFAULT };

/// A frame in the batch that has memory: one piece for each slice from `first` on.
pub struct Gathered {
    pub first: usize,
    pub count: usize,
    pub sequence: u64,
    pub of: Of,
}

pub enum Of {
    Write(Head),
    /// `refused` has no pieces. `late` was found while the answer was sent.
    Answer {
        refused: Vec<Fault>,
        late: Vec<Fault>,
    },
}

/// The head of a WRITE.
pub struct Head {
    /// The head's offset in the batch, in bytes.
    pub begin: usize,
    /// The head's range in `meta`.
    pub meta: Range<usize>,
    pub notified: bool,
    pub is_void: bool,
}

impl Gathered {
    /// Returns the fault of a piece.
    pub fn fault(&self, piece: usize) -> Fault {
        let nth = piece - self.first;
        let descriptor = match &self.of {
            Of::Write(_) => nth as u16,
            Of::Answer { refused, .. } => served(refused, nth),
        };
        Fault { sequence: self.sequence, descriptor, status: Status::System }
    }

    pub fn pieces(&self) -> Range<usize> {
        self.first..self.first + self.count
    }

    /// Returns whether this frame has a notification and its head is not sent: it may still say VOID. `sent`: the bytes
    /// of the batch that the kernel has.
    pub fn can_become_void(&self, sent: usize) -> bool {
        matches!(&self.of, Of::Write(head) if head.notified && head.begin >= sent)
    }

    /// Adjusts the head's position after `longer` bytes were inserted in the batch at byte `at`.
    pub fn moved(&mut self, at: usize, longer: usize) {
        if let Of::Write(head) = &mut self.of {
            head.begin += if head.begin > at { longer } else { 0 };
        }
    }

    /// Returns whether this frame is an answer whose end is the last piece of a batch with `pieces` pieces.
    pub fn is_ended_by(&self, pieces: usize) -> bool {
        matches!(self.of, Of::Answer { .. }) && self.first + self.count + 1 == pieces
    }
}

/// Returns whether the memory of one of our own slices can be read now.
pub fn is_readable(address: u64, length: usize) -> bool {
    let always = || Ok::<(), Infallible>(());
    // SAFETY: the kernel checks the range. Nothing looks at the bytes.
    unsafe { racing::try_each_part(address as *const u8, length, false, always, |_| ()) }.is_ok()
}

/// Returns the descriptor of the nth slice that is not refused.
fn served(refused: &[Fault], nth: usize) -> u16 {
    let is_refused = |at: &u16| refused.iter().any(|fault| fault.descriptor == *at);
    (0..u16::MAX).filter(|at| !is_refused(at)).nth(nth).unwrap_or(u16::MAX)
}

/// Fails a slice of our own WRITE. Err: the lane must end, because the target would deliver the notification.
pub fn fail_own(
    lane: &Lane,
    fault: Fault,
    head: &Head,
    sent: usize,
    after: &mut After,
) -> Result<(), Failure> {
    let transfer = {
        let mut flight = lane.flight.lock();
        flight.note_own(fault).and_then(|posted| match &posted.what {
            What::Slices { transfer, .. } => Some(transfer.clone()),
            _ => None,
        })
    };
    let can_void = !head.notified || head.is_void || head.begin >= sent;
    match transfer.filter(|_| !can_void) {
        None => Ok(()),
        Some(transfer) => {
            // The frame must not be sent again on another lane, where it would fault again.
            lane.peer.stop(&transfer, Strike { status: Status::System, os_error: libc::EFAULT }, after);
            Err(UNREADABLE)
        }
    }
}

/// Returns the checksum of a READ's bytes, and refuses the slices that fault. Fails if one of its regions is revoked,
/// or once its lease is over: a READ may wait long behind a peer that does not receive, and this thread may be stopped
/// between two parts.
pub fn checksum_of_answer(job: &mut ReadJob) -> Result<u32, Failure> {
    let entered = enter_all(&job.regions).map_err(|_| REGION_GONE)?;
    let is_ours = job.regions.iter().all(|region| region.is_ours());
    let in_time = || if clock_is_past(job.not_after_ns) { Err(LEASE_OVER) } else { Ok(()) };
    let mut hasher = crc32fast::Hasher::new();
    let mut good = Vec::with_capacity(job.pieces.len());
    let mut faulted = Vec::new();
    for (nth, (address, length)) in job.pieces.iter().enumerate() {
        let mut longer = hasher.clone();
        // SAFETY: the piece lies in a region that is entered: unregister waits until the region is left. Racing writers
        // only make the value meaningless.
        let read = unsafe {
            racing::try_each_part(*address as *const u8, *length as usize, is_ours, in_time, |part| {
                longer.update(part)
            })
        };
        match read {
            Ok(()) => {
                hasher = longer;
                good.push((*address, *length));
            }
            Err(Unread::Refused(failure)) => return Err(failure),
            Err(Unread::Faulted) => faulted.push(served(&job.faults, nth)),
        }
    }
    drop(entered);
    job.pieces = good;
    let fault = |descriptor| Fault { sequence: job.sequence, descriptor, status: Status::System };
    job.faults.extend(faulted.into_iter().map(fault));
    Ok(hasher.finalize())
}

/// Returns the checksum of a WRITE's bytes, with filler for the slices that fault, and the indexes of those slices.
pub fn checksum_of(slices: &[Slice], is_ours: bool) -> (u32, Vec<u16>) {
    let mut hasher = crc32fast::Hasher::new();
    let mut faulted = Vec::new();
    for (nth, slice) in slices.iter().enumerate() {
        let mut longer = hasher.clone();
        let always = || Ok::<(), Infallible>(());
        // SAFETY: the transfer entered the local region of each of its slices and leaves it only when
        // final, which it cannot become while this frame is in the flight.
        let read = unsafe {
            let (address, length) = (slice.local as *const u8, slice.length as usize);
            racing::try_each_part(address, length, is_ours, always, |part| longer.update(part))
        };
        if read.is_err() {
            longer = hasher;
            let mut left = slice.length as usize;
            while left > 0 {
                let step = left.min(FILLER.len());
                longer.update(&FILLER[..step]);
                left -= step;
            }
            faulted.push(nth as u16);
        }
        hasher = longer;
    }
    (hasher.finalize(), faulted)
}
