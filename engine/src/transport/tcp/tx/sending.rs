//! Sends a batch, one system call after the other, and fills in for memory that faults.

use super::{Place, Tx};
use crate::loss::Failure;
use crate::peer::After;
use crate::region::enter_all;
use crate::sys::atomic::Ordering;
use crate::sys::socket::{self, IoVec};
use crate::transport::tcp::answer::{clock_is_past, LEASE_OVER, REGION_GONE};
use crate::transport::tcp::filler::{self, Gathered, Of, FILLER, UNREADABLE};
use crate::transport::tcp::flight;
use crate::transport::tcp::incoming::settle;
use crate::transport::tcp::lane::Lane;
use crate::transport::tcp::wire::{Malformed, HEADER_BYTES};

impl Tx {
    /// Does one system call. None: the socket is full.
    pub(super) fn send(&mut self, lane: &Lane, after: &mut After) -> Result<Option<usize>, Failure> {
        self.vectors.clear();
        let (mut skip, mut room, mut last) = (self.offset, lane.call_bytes_max(), (0, 0));
        for (place, length) in self.pieces[self.next..].iter().take(socket::IOV_MAX) {
            let left = length - skip;
            let (start, step) = match place {
                Place::Meta(at) => (self.meta[*at..].as_ptr() as u64 + skip as u64, room.min(left)),
                Place::Memory(address) => (address + skip as u64, room.min(left)),
                Place::Filler => (FILLER.as_ptr() as u64, room.min(left).min(FILLER.len())),
            };
            // Slices that lie together here are one vector, and pieces of their own, because each can fault.
            let joins = last.1 > 0 && last.0 + last.1 as u64 == start;
            self.vectors.truncate(self.vectors.len() - usize::from(joins));
            last = if joins { (last.0, last.1 + step) } else { (start, step) };
            self.vectors.push(IoVec::new(last.0, last.1));
            (skip, room) = (0, room - step);
            let is_one = self.one_by_one && step > 0 && matches!(place, Place::Memory(_));
            if room == 0 || step < left || is_one {
                break;
            }
        }
        // A peer's READ is answered only while its regions are registered and its lease runs.
        let entered = enter_all(&self.serving).map_err(|_| REGION_GONE)?;
        if clock_is_past(self.serve_until_ns) {
            return Err(LEASE_OVER);
        }
        let has_own = !self.ends.is_empty();
        if has_own && !self.has_begun_send {
            lane.flight.lock().begin_send();
        }
        // SAFETY: each vector is `meta`, which is not touched during the call, or memory of a region
        // that is entered: by the transfer until it is final (our own WRITEs, which stay in the flight
        // until acknowledged or fenced), or by `entered` (READs we serve).
        let result = lane.sending(|| unsafe { socket::send_vectors(lane.fd(), &self.vectors) });
        drop(entered);
        lane.context.stats.send_calls.fetch_add(1, Ordering::Relaxed);
        let count = match result {
            Ok(count) => Some(count),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
            Err(error) if socket::is_fault(&error) => {
                self.faulted(lane, after)?;
                Some(0)
            }
            Err(error) => return Err(Failure::system("sending", &error)),
        };
        self.advance(count.unwrap_or(0));
        if has_own {
            self.confirm_written(lane, after)?;
        }
        Ok(count)
    }

    /// Handles a call that ended with EFAULT and sent nothing. The next call has one piece of memory; if it faults too,
    /// that piece's rest is filled in.
    fn faulted(&mut self, lane: &Lane, after: &mut After) -> Result<(), Failure> {
        if !std::mem::replace(&mut self.one_by_one, true) {
            let unsent = self.gathered.iter().filter(|it| it.can_become_void(self.sent));
            let faults = |at: &usize| match self.pieces[*at] {
                (Place::Memory(address), length) => !filler::is_readable(address, length),
                _ => false,
            };
            let faulted: Vec<usize> = unsent.flat_map(Gathered::pieces).filter(faults).collect();
            return faulted.into_iter().try_for_each(|at| self.fill_in(lane, at, after));
        }
        let is_memory = |at: &usize| matches!(self.pieces[*at], (Place::Memory(_), 1..));
        let at = (self.next..self.pieces.len()).find(is_memory).ok_or(UNREADABLE)?;
        self.fill_in(lane, at, after)
    }

    /// Replaces the rest of a piece by filler, and makes the piece's request fail.
    pub(super) fn fill_in(&mut self, lane: &Lane, at: usize, after: &mut After) -> Result<(), Failure> {
        self.pieces[at].0 = Place::Filler;
        let gathered = self.gathered.iter_mut().rfind(|gathered| gathered.first <= at).ok_or(UNREADABLE)?;
        let fault = gathered.fault(at);
        let end = gathered.first + gathered.count;
        match &mut gathered.of {
            Of::Write(head) => {
                filler::fail_own(lane, fault, head, self.sent, after)?;
                if head.notified && !std::mem::replace(&mut head.is_void, true) {
                    self.sealer.void(&mut self.meta[head.meta.clone()]);
                }
            }
            Of::Answer { late, .. } => {
                late.push(fault);
                let (Place::Meta(at), length) = self.pieces[end] else { return Err(UNREADABLE) };
                let mut sealed = [0; HEADER_BYTES];
                sealed.copy_from_slice(&self.meta[at..at + HEADER_BYTES]);
                let start = self.meta.len();
                self.sealer.end_again(&sealed, late, &mut self.meta);
                let longer = self.meta.len() - start - length;
                let begin: usize = self.pieces[..end].iter().map(|(_, length)| length).sum();
                (self.pieces[end], self.bytes) = ((Place::Meta(start), length + longer), self.bytes + longer);
                self.ends.iter_mut().filter(|(at, ..)| *at > begin).for_each(|(at, ..)| *at += longer);
                self.gathered.iter_mut().for_each(|later| later.moved(begin, longer));
            }
        }
        Ok(())
    }

    /// Notes which of our frames the kernel has whole, and settles those that the peer acknowledged during the call.
    fn confirm_written(&mut self, lane: &Lane, after: &mut After) -> Result<(), Failure> {
        self.has_begun_send = false;
        let mut written = [0; 2];
        while let Some((_, op, sequence)) = self.ends.front().filter(|(end, ..)| *end <= self.sent) {
            written[flight::at(*op)] = *sequence;
            self.ends.pop_front();
        }
        // The peer may have acknowledged a frame that was not sent whole.
        let mut flight = lane.flight.lock();
        for (posted, faults) in flight.end_send(written).map_err(Malformed::failure)? {
            settle(lane, posted, &faults, after);
        }
        Ok(())
    }

    fn advance(&mut self, mut count: usize) {
        self.sent += count;
        while count > 0 {
            let step = count.min(self.pieces[self.next].1 - self.offset);
            (count, self.offset) = (count - step, self.offset + step);
            if self.offset == self.pieces[self.next].1 {
                (self.next, self.offset) = (self.next + 1, 0);
            }
        }
    }
}
