//! Copies one piece of a transfer, region by region. Each region is entered by the peer's grant while the copy takes
//! place. `path` passes the pieces; the copier settles their slices with the peer.

use super::mappings::{Mapped, Mappings};
use super::process::Process;
use crate::complete::transfer::Failure;
use crate::complete::{Fence, Transfer};
use crate::peer::{After, Peer};
use crate::region::grants::Grant;
use crate::region::{range_contains, RemoteMap};
use crate::status::Status;
use crate::sys::atomic::Ordering;
use crate::sys::clock;
use crate::sys::copy::{self, Piece};
use crate::sys::health;
use crate::sys::proven::Proven;
use crate::sys::socket::IoVec;
use crate::sys::vm;
use crate::types::{Monotonic, Op, RegionId, Slice, SliceRange};
use std::cell::OnceCell;
use std::io;
use std::sync::Arc;

/// Vectors of one system call on each side. Measurements showed no gain from more.
const VECTORS: usize = 64;

/// The parts of a peer's path that copies need.
pub struct Copier {
    pub grant: Arc<Grant>,
    pub process: Arc<Process>,
    /// The process, if it is proven to be the peer's.
    pub proven: Option<Arc<Proven>>,
    pub mappings: Mappings,
    /// Ok if system calls reach the process's memory; otherwise the reason.
    pub by_call: Result<(), String>,
}

/// The path does not reach the peer any more.
#[derive(Debug)]
pub struct Broken;

/// The result of copying slices of one region.
enum Outcome {
    Copied,
    /// Nothing was copied from this slice on; this slice is at fault.
    Failed(usize, Status, i32),
    /// Nothing is known to be copied from this slice on: the session or the process has ended, or the kernel no longer
    /// allows the copy.
    Broken(usize),
}

impl Copier {
    /// Copies these slices and settles them. Broken: the slices that were not copied were released to the outbox.
    pub fn run(
        &self,
        peer: &Peer,
        transfer: &Arc<Transfer>,
        range: SliceRange,
        now_ns: Monotonic,
        after: &mut After,
    ) -> Result<(), Broken> {
        let slices = range.of(&transfer.spec.slices);
        let mut failures = Vec::new();
        let mut at = 0;
        let known = Known { peer, map: OnceCell::new() };
        let broken = loop {
            if at == slices.len() {
                break false;
            }
            let Some(region) = known.region_of(&slices[at]) else {
                failures.push(failure(range.first, at, Status::NotRegistered, 0));
                at += 1;
                continue;
            };
            let rest = &slices[at..];
            let same = |slice: &&Slice| {
                slice.region == rest[0].region
                    && (slice.region != RegionId::NONE || known.region_of(slice) == Some(region))
            };
            let run = &rest[..rest.iter().take_while(same).count()];
            // Earlier regions may have taken longer than the process is believed to live.
            let now_ns = if at == 0 { now_ns } else { clock::monotonic_ns() };
            match self.copy(transfer.spec.op, region, run, now_ns) {
                Outcome::Copied => at += run.len(),
                Outcome::Failed(slice, status, os_error) => {
                    failures.push(failure(range.first, at + slice, status, os_error));
                    at += slice + 1;
                }
                Outcome::Broken(slice) => {
                    at += slice;
                    break true;
                }
            }
        };
        let (done, left) = range.split_at(range.first + at as u32);
        if !done.is_empty() {
            let length = |slice: &Slice| u64::from(slice.length);
            let bytes: u64 = slices[..at].iter().map(length).sum();
            let refused: u64 =
                failures.iter().map(|it| length(&slices[(it.slice - range.first) as usize])).sum();
            peer.engine().stats.bytes_local.fetch_add(bytes - refused, Ordering::Relaxed);
            peer.answered(transfer, done, bytes, &failures, false, after);
        }
        if !left.is_empty() {
            peer.release_run(transfer, left, false, Fence::Confirmed, after);
        }
        if broken {
            return Err(Broken);
        }
        Ok(())
    }

    /// Copies one slice that belongs to no transfer. Returns true only if all of it was copied.
    pub fn copy_one(&self, peer: &Peer, op: Op, slice: &Slice, now_ns: Monotonic) -> bool {
        let known = Known { peer, map: OnceCell::new() };
        let Some(region) = known.region_of(slice) else { return false };
        let copied = matches!(self.copy(op, region, std::slice::from_ref(slice), now_ns), Outcome::Copied);
        if copied {
            peer.engine().stats.bytes_local.fetch_add(slice.length as u64, Ordering::Relaxed);
        }
        copied
    }

    fn copy(&self, op: Op, region: RegionId, run: &[Slice], now_ns: Monotonic) -> Outcome {
        let inside = match self.grant.enter(region) {
            Ok(inside) => inside,
            Err(error) if error.status == Status::Stale && !self.grant.is_closed() => {
                return Outcome::Failed(0, Status::Stale, 0);
            }
            Err(_) => return Outcome::Broken(0),
        };
        health::check_seen();
        // The region cannot be unregistered while it is entered. Its process may still have ended.
        if self.process.has_ended(now_ns) {
            return Outcome::Broken(0);
        }
        // The board is authoritative. Announcements over the session may be old or missing.
        let (address, length, access) = inside.region();
        if !access.allows(op) {
            return Outcome::Failed(0, Status::Access, 0);
        }
        let within = |slice: &&Slice| range_contains(address, length, slice.remote, slice.length as u64);
        let all = run.len();
        let valid = run.iter().take_while(within).count();
        let run = if valid == 0 { return Outcome::Failed(0, Status::Invalid, 0) } else { &run[..valid] };
        let outcome = match (self.mappings.get(region), &self.by_call) {
            (Some(mapping), _) => copy_mapped(op, &mapping, run),
            (None, Ok(())) => self.unless_ended(self.copy_by_call(op, run)),
            // The mapping was removed after the submit: the region is unregistered, or about to be.
            (None, Err(_)) => Outcome::Failed(0, Status::Stale, 0),
        };
        drop(inside);
        match outcome {
            Outcome::Copied if valid < all => Outcome::Failed(valid, Status::Invalid, 0),
            outcome => outcome,
        }
    }

    /// The memory of a process that is being killed may go in the middle of a copy: no fault of a region then.
    fn unless_ended(&self, outcome: Outcome) -> Outcome {
        match outcome {
            // A time before the last check, so that the process is checked again.
            Outcome::Failed(done, Status::System, libc::EFAULT)
                if self.process.has_ended(Monotonic::ZERO) =>
            {
                Outcome::Broken(done)
            }
            outcome => outcome,
        }
    }

    fn copy_by_call(&self, op: Op, run: &[Slice]) -> Outcome {
        let mut done = 0;
        for batch in run.chunks(VECTORS) {
            // This process may have been stopped in the call before.
            if done > 0 && self.process.has_ended(clock::monotonic_ns()) {
                return Outcome::Broken(done);
            }
            match self.call(op, batch) {
                Ok(copied) => {
                    let mut left = copied as u64;
                    let whole = batch.iter().take_while(|slice| {
                        let fits = slice.length as u64 <= left;
                        left -= if fits { slice.length as u64 } else { 0 };
                        fits
                    });
                    let whole = whole.count();
                    done += whole;
                    if whole < batch.len() {
                        // The kernel stops at the first missing page on either side.
                        return Outcome::Failed(done, Status::System, libc::EFAULT);
                    }
                }
                Err(error) => return fault(done, &error),
            }
        }
        Outcome::Copied
    }

    fn call(&self, op: Op, batch: &[Slice]) -> io::Result<usize> {
        if let [one] = batch {
            // The fast path for one slice: no arrays to fill.
            let length = one.length as usize;
            return self.call_with(op, &[IoVec::new(one.local, length)], &[IoVec::new(one.remote, length)]);
        }
        let mut local = [const { IoVec::nothing() }; VECTORS];
        let mut remote = [const { IoVec::nothing() }; VECTORS];
        for (at, slice) in batch.iter().enumerate() {
            local[at] = IoVec::new(slice.local, slice.length as usize);
            remote[at] = IoVec::new(slice.remote, slice.length as usize);
        }
        self.call_with(op, &local[..batch.len()], &remote[..batch.len()])
    }

    fn call_with(&self, op: Op, local: &[IoVec], remote: &[IoVec]) -> io::Result<usize> {
        // SAFETY: the transfer entered the regions of the local ranges at submit and leaves them when it is final,
        // which it cannot be before this piece is settled. The process is the peer's: its pidfd was checked within a
        // millisecond, and the kernel checks its memory.
        unsafe {
            match op {
                Op::Write => vm::write(self.process.pid, local, remote),
                Op::Read => vm::read(self.process.pid, local, remote),
            }
        }
    }
}

fn fault(slice: usize, error: &io::Error) -> Outcome {
    match error.raw_os_error() {
        Some(libc::ESRCH | libc::EPERM | libc::ENOSYS) => Outcome::Broken(slice),
        number => Outcome::Failed(slice, Status::System, number.unwrap_or(0)),
    }
}

fn copy_mapped(op: Op, mapped: &Mapped, run: &[Slice]) -> Outcome {
    for (nth, batch) in run.chunks(VECTORS).enumerate() {
        let mut pieces = [Piece { from: std::ptr::null(), to: std::ptr::null_mut(), length: 0 }; VECTORS];
        for (at, (piece, slice)) in pieces.iter_mut().zip(batch).enumerate() {
            let Some(there) = mapped.find(slice.remote, slice.length) else {
                return Outcome::Failed(nth * VECTORS + at, Status::Invalid, 0);
            };
            let (here, length) = (slice.local as *mut u8, slice.length as usize);
            *piece = match op {
                Op::Write => Piece { from: here, to: there, length },
                Op::Read => Piece { from: there, to: here, length },
            };
        }
        // SAFETY: `find` has checked the mapped side; the local side lies in a region that the transfer
        // entered at submit and holds until it is final. Neither is referenced by Rust code.
        unsafe { copy::copy_all(&pieces[..batch.len()]) };
    }
    Outcome::Copied
}

/// The peer's regions, loaded only if a slice names no region.
struct Known<'a> {
    peer: &'a Peer,
    map: OnceCell<Arc<RemoteMap>>,
}

impl Known<'_> {
    /// Returns the region that a slice names. If the slice names none, returns the region at its address now.
    fn region_of(&self, slice: &Slice) -> Option<RegionId> {
        if slice.region != RegionId::NONE {
            return Some(slice.region);
        }
        let map = self.map.get_or_init(|| self.peer.remote.snapshot());
        map.find(slice.remote, slice.length as u64).map(|region| region.id)
    }
}

fn failure(first: u32, at: usize, status: Status, os_error: i32) -> Failure {
    Failure { slice: first + at as u32, status, os_error, vendor_error: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::Tag;
    use crate::region::grants::{Grants, Tally};
    use crate::region::{RegionSpec, Registry};
    use crate::sys::mapping::Mapping;

    impl Copier {
        /// Returns a copier to this process, which counts as ended when the process `watched` has ended, and its tally.
        pub fn own(grants: &Grants, watched: u32) -> (Arc<Tally>, Copier) {
            let (tally, fd) = grants.admit(7).unwrap();
            let copier = Copier {
                grant: Arc::new(Grant::new(grants.board(), &fd).unwrap()),
                process: Arc::new(Process::numbered(std::process::id() as i32, watched as i32)),
                proven: None,
                mappings: Mappings::default(),
                by_call: Ok(()),
            };
            (tally, copier)
        }
    }

    /// The number of a process that has ended may be another's. Here it is this process's own.
    #[test]
    fn a_process_that_ends_between_two_calls_is_copied_to_no_more() {
        let [here, there] = [1, 0].map(|byte| {
            let memory = Mapping::private(4096).unwrap();
            memory.write(0, &[byte; VECTORS + 1]);
            memory
        });
        let grants = Arc::new(Grants::new().unwrap());
        let registry = Registry::new(Tag::from_random(9), Some(grants.clone()));
        let spec = RegionSpec { address: there.address() as u64, length: 4096, ..RegionSpec::default() };
        let region = registry.register(&[spec]).unwrap()[0].id;
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let (_tally, copier) = Copier::own(&grants, child.id());
        let slice = |at: usize| Slice {
            local: here.address() as u64 + at as u64,
            remote: there.address() as u64 + at as u64,
            region,
            first_offset: at as u64,
            length: 1,
            first: 0,
        };
        let slices: Vec<Slice> = (0..=VECTORS).map(slice).collect();
        let now_ns = clock::monotonic_ns();
        assert!(!copier.process.has_ended(now_ns), "believed for a millisecond from here on");
        child.kill().unwrap();
        child.wait().unwrap();
        while clock::monotonic_ns() < now_ns + 2 * 1_000_000 {
            std::hint::spin_loop();
        }
        assert!(matches!(copier.copy(Op::Write, region, &slices, now_ns), Outcome::Broken(VECTORS)));
        let mut found = [0; VECTORS + 1];
        there.read(0, &mut found);
        assert_eq!((found[VECTORS - 1], found[VECTORS]), (1, 0));
    }
}
