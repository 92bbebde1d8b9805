//! Copies one piece of a transfer, region by region. Each region is entered by the peer's grant while the copy takes
//! place. `path` passes the pieces; the copier settles their slices with the peer.

use super::mappings::{Mapped, Mappings};
use super::process::{CallFault, Process};
use super::session::Why;
use crate::complete::transfer::Failure;
use crate::complete::{Fence, Transfer};
use crate::limits::FRAME_DESCRIPTORS_MAX;
use crate::peer::{After, Peer};
use crate::region::grants::Grant;
use crate::region::{range_contains, RemoteMap};
use crate::status::Status;
use crate::sys::atomic::Ordering;
use crate::sys::copy::{self, Piece};
use crate::sys::landmark::Place;
use crate::sys::pages::{Pages, LOOKS_MAX};
use crate::sys::proven::Proven;
use crate::sys::socket::IoVec;
use crate::sys::{clock, guarded, health};
use crate::types::{Monotonic, Op, RegionId, Slice, SliceRange};
use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

/// Slices of one system call. Measurements showed no gain from more.
const VECTORS: usize = 64;

/// Pieces of one copy between mappings: those of a frame, so that the bytes of small ones are enough to stream.
const MAPPED_PIECES: usize = FRAME_DESCRIPTORS_MAX;

/// The most searches of the peer's board for the region at one address. The peer may register the region anew before
/// each search.
const BOARD_LOOKS_MAX: usize = 8;

/// The parts of a peer's path that copies need.
pub struct Copier {
    pub grant: Arc<Grant>,
    pub process: Arc<Process>,
    /// The process, if it is proven to be the peer's.
    pub proven: Option<Arc<Proven>>,
    pub mappings: Mappings,
    /// Ok if system calls reach the process's memory; otherwise the reason.
    pub by_call: Result<(), Why>,
    /// The pages of the process.
    pub pages: Pages,
}

/// The path does not reach the peer any more.
#[derive(Debug)]
pub struct Broken;

/// The result of copying slices of one region.
enum Outcome {
    Copied,
    /// This slice is at fault, and may have been copied in part. No later slice was copied.
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
        let known = Known { peer, map: OnceCell::new() };
        let (mut at, mut settled, mut failures) = (0, 0, Vec::new());
        let broken = loop {
            if at == slices.len() {
                break false;
            }
            // Earlier regions may have taken longer than the process is believed to live.
            let now_ns = if at == 0 { now_ns } else { clock::monotonic_ns() };
            match self.copy_next(&known, transfer.spec.op, &slices[at..], transfer.is_ours, now_ns) {
                (count, Outcome::Copied) => at += count,
                (_, Outcome::Failed(slice, status, os_error)) => {
                    at += slice;
                    if is_unreachable(status, os_error) {
                        settle(
                            peer,
                            transfer,
                            part(range, settled, at),
                            std::mem::take(&mut failures),
                            after,
                        );
                        settled = at;
                        if peer.detour(transfer, part(range, at, at + 1), after) {
                            settled += 1;
                        }
                    }
                    if settled <= at {
                        failures.push(failure(range.first, at, status, os_error));
                    }
                    at += 1;
                }
                (_, Outcome::Broken(slice)) => {
                    at += slice;
                    break true;
                }
            }
        };
        settle(peer, transfer, part(range, settled, at), failures, after);
        let left = part(range, at, slices.len());
        if !left.is_empty() {
            peer.release_run(transfer, left, false, Fence::Confirmed, after);
        }
        if broken {
            return Err(Broken);
        }
        Ok(())
    }

    /// Returns whether these slices can be copied without waiting for a page, as far as that is known. `is_known`:
    /// the local memory is not asked for.
    pub fn finds(&self, peer: &Peer, slices: &[Slice], is_known: bool, now_ns: Monotonic) -> bool {
        let (here, mut looks) = (&peer.engine().pages, LOOKS_MAX);
        slices.iter().all(|slice| {
            let length = slice.length.into();
            (is_known || here.has(slice.local, length, now_ns, &mut looks))
                && (self.is_mapped(slice) || self.pages.has(slice.remote, length, now_ns, &mut looks))
        })
    }

    /// Notes that these slices were copied. `is_known` as above.
    pub fn note(&self, peer: &Peer, slices: &[Slice], is_known: bool, now_ns: Monotonic) {
        for slice in slices {
            if !is_known {
                peer.engine().pages.note(slice.local, slice.length.into(), now_ns);
            }
            if !self.is_mapped(slice) {
                self.pages.note(slice.remote, slice.length.into(), now_ns);
            }
        }
    }

    /// All pages of a mapping are allocated.
    fn is_mapped(&self, slice: &Slice) -> bool {
        slice.region != RegionId::NONE && self.mappings.has(slice.region)
    }

    /// Copies one slice that belongs to no transfer. Returns true only if all of it was copied. `is_ours`: ferry
    /// allocated the local memory.
    pub fn copy_one(&self, peer: &Peer, op: Op, slice: &Slice, is_ours: bool, now_ns: Monotonic) -> bool {
        let (known, slices) = (Known { peer, map: OnceCell::new() }, std::slice::from_ref(slice));
        let copied = matches!(self.copy_next(&known, op, slices, is_ours, now_ns), (_, Outcome::Copied));
        if copied {
            peer.engine().stats.bytes_local.fetch_add(slice.length as u64, Ordering::Relaxed);
        }
        copied
    }

    /// Copies the slices that begin the list and are of one region, and returns how many these are.
    fn copy_next(
        &self,
        known: &Known,
        op: Op,
        rest: &[Slice],
        is_ours: bool,
        now_ns: Monotonic,
    ) -> (usize, Outcome) {
        let first = &rest[0];
        if first.region != RegionId::NONE {
            let count = rest.iter().take_while(|slice| slice.region == first.region).count();
            return (count, self.copy(op, first.region, &rest[..count], is_ours, now_ns));
        }
        let mut home = known.home_of(first);
        // The peer's announcements lag behind its board. The board has each region that was registered before the call.
        for _ in 0..BOARD_LOOKS_MAX {
            if let Some((region, at)) = home {
                let is_in = |slice: &&Slice| {
                    let inside =
                        range_contains(at.start, at.end - at.start, slice.remote, slice.length as u64);
                    inside && slice.region == RegionId::NONE
                };
                let count = rest.iter().take_while(is_in).count();
                match self.copy(op, region, &rest[..count], is_ours, now_ns) {
                    Outcome::Failed(0, Status::Stale, _) => {}
                    outcome => return (count, outcome),
                }
            }
            home = self.grant.find(first.remote, first.length as u64);
            if home.is_none() {
                return (1, Outcome::Failed(0, Status::NotRegistered, 0));
            }
        }
        (1, Outcome::Failed(0, Status::Stale, 0))
    }

    fn copy(&self, op: Op, region: RegionId, run: &[Slice], is_ours: bool, now_ns: Monotonic) -> Outcome {
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
            (Some(mapping), _) if is_ours => copy_mapped(op, &mapping, run),
            (Some(mapping), Err(_)) => copy_guarded(op, &mapping, run),
            // The program may have unmapped this memory, so the kernel copies.
            (_, Ok(())) => self.unless_ended(self.copy_by_call(op, run)),
            // The mapping was removed after the submit: the region is unregistered, or about to be.
            (None, Err(_)) => Outcome::Failed(0, Status::Stale, 0),
        };
        drop(inside);
        match outcome {
            Outcome::Copied if valid < all => Outcome::Failed(valid, Status::Invalid, 0),
            outcome => outcome,
        }
    }

    /// Turns a fault into Broken if the process has ended: a process that is killed may lose its memory during a copy.
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
        // `by_call` says that there is one.
        let Some(place) = self.grant.landmark() else { return Outcome::Broken(0) };
        let mut done = 0;
        for batch in run.chunks(VECTORS) {
            match self.call(op, place, batch) {
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

    fn call(&self, op: Op, place: Place, batch: &[Slice]) -> std::result::Result<usize, CallFault> {
        let ends = |slice: &Slice| {
            let length = slice.length as usize;
            (IoVec::new(slice.local, length), IoVec::new(slice.remote, length))
        };
        if let [one] = batch {
            // The fast path for one slice: no arrays to fill.
            let (local, remote) = ends(one);
            return self.call_with(
                op,
                place,
                &mut [IoVec::nothing(), local],
                &mut [IoVec::nothing(), remote],
            );
        }
        let mut local = [const { IoVec::nothing() }; VECTORS + 1];
        let mut remote = [const { IoVec::nothing() }; VECTORS + 1];
        for (at, slice) in batch.iter().enumerate() {
            (local[at + 1], remote[at + 1]) = ends(slice);
        }
        self.call_with(op, place, &mut local[..=batch.len()], &mut remote[..=batch.len()])
    }

    fn call_with(
        &self,
        op: Op,
        place: Place,
        local: &mut [IoVec],
        remote: &mut [IoVec],
    ) -> std::result::Result<usize, CallFault> {
        // SAFETY: the transfer entered the regions of the local ranges at submit and leaves them when it is final,
        // which it cannot be before this piece is settled. The kernel checks the process's memory.
        unsafe { self.process.copy(op, place, local, remote) }
    }
}

/// A page is missing, or the kernel does not lend the memory to other processes. The peer's process may reach it.
fn is_unreachable(status: Status, os_error: i32) -> bool {
    status == Status::System && os_error == libc::EFAULT
}

fn part(range: SliceRange, from: usize, end: usize) -> SliceRange {
    range.split_at(range.first + end as u32).0.split_at(range.first + from as u32).1
}

/// Settles slices, of which these have failed and the others were copied.
fn settle(
    peer: &Peer,
    transfer: &Arc<Transfer>,
    range: SliceRange,
    failures: Vec<Failure>,
    after: &mut After,
) {
    if range.is_empty() {
        return;
    }
    let slices = range.of(&transfer.spec.slices);
    let length = |slice: &Slice| u64::from(slice.length);
    let bytes: u64 = slices.iter().map(length).sum();
    let refused: u64 = failures.iter().map(|it| length(&slices[(it.slice - range.first) as usize])).sum();
    peer.engine().stats.bytes_local.fetch_add(bytes - refused, Ordering::Relaxed);
    peer.answered(transfer, range, bytes, &failures, false, after);
}

fn fault(slice: usize, fault: &CallFault) -> Outcome {
    match fault {
        CallFault::Strange => Outcome::Broken(slice),
        CallFault::System(error) => match error.raw_os_error() {
            Some(libc::ESRCH | libc::EPERM | libc::ENOSYS) => Outcome::Broken(slice),
            number => Outcome::Failed(slice, Status::System, number.unwrap_or(0)),
        },
    }
}

/// Copies between a mapping and memory that ferry did not allocate here, by the kernel: the memory may fault.
fn copy_guarded(op: Op, mapped: &Mapped, run: &[Slice]) -> Outcome {
    for (at, slice) in run.iter().enumerate() {
        let Some(there) = mapped.find(slice.remote, slice.length) else {
            return Outcome::Failed(at, Status::Invalid, 0);
        };
        let (here, length) = (slice.local as *mut u8, slice.length as usize);
        // SAFETY: as in `copy_mapped`, and the kernel checks the local side.
        let copied = unsafe {
            match op {
                Op::Write => guarded::get_shared(here, there, length),
                Op::Read => guarded::put_shared(here, there, length),
            }
        };
        if copied.is_err() {
            return Outcome::Failed(at, Status::System, libc::EFAULT);
        }
    }
    Outcome::Copied
}

fn copy_mapped(op: Op, mapped: &Mapped, run: &[Slice]) -> Outcome {
    for (nth, batch) in run.chunks(MAPPED_PIECES).enumerate() {
        let none = Piece { from: std::ptr::null(), to: std::ptr::null_mut(), length: 0 };
        let (mut pieces, mut count) = ([none; MAPPED_PIECES], 0);
        for slice in batch {
            let Some(there) = mapped.find(slice.remote, slice.length) else { break };
            let (here, length) = (slice.local as *mut u8, slice.length as usize);
            pieces[count] = match op {
                Op::Write => Piece { from: here, to: there, length },
                Op::Read => Piece { from: there, to: here, length },
            };
            count += 1;
        }
        // SAFETY: `find` has checked the mapped side; the local side lies in a region that the transfer entered at
        // submit and holds until it is final. Neither is referenced by Rust code.
        unsafe { copy::copy_all(&pieces[..count]) };
        if count < batch.len() {
            return Outcome::Failed(nth * MAPPED_PIECES + count, Status::Invalid, 0);
        }
    }
    Outcome::Copied
}

/// The peer's regions, loaded only if a slice names no region.
struct Known<'a> {
    peer: &'a Peer,
    map: OnceCell<Arc<RemoteMap>>,
}

impl Known<'_> {
    /// Returns the announced region at a slice that names none, and its range.
    fn home_of(&self, slice: &Slice) -> Option<(RegionId, Range<u64>)> {
        let map = self.map.get_or_init(|| self.peer.remote.snapshot());
        let region = map.find(slice.remote, slice.length as u64)?;
        Some((region.id, region.address..region.address + region.length))
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
    use crate::types::Access;

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
                pages: Pages::of(None),
            };
            (tally, copier)
        }
    }

    /// A program that has taken the process's place, by exec or by its number, has memory at the same addresses, but
    /// not the landmark. Here it is this process itself.
    #[test]
    fn memory_without_the_landmark_is_neither_written_nor_believed() {
        let [here, there] = [1, 0].map(|byte| {
            let memory = Mapping::private(4096).unwrap();
            memory.write(0, &[byte; VECTORS + 1]);
            memory
        });
        let grants = Arc::new(Grants::new().unwrap());
        let registry = Registry::new(Tag::from_random(9), Some(grants.clone()));
        let (address, access) = (there.address() as u64, Access::BOTH);
        let spec = RegionSpec { address, length: 4096, access, ..RegionSpec::default() };
        let region = registry.register(&[spec]).unwrap()[0].id;
        let (_tally, copier) = Copier::own(&grants, std::process::id());
        let slice = |at: usize| Slice {
            local: here.address() as u64 + at as u64,
            remote: address + at as u64,
            region,
            first_offset: at as u64,
            length: 1,
            first: 0,
        };
        let slices: Vec<Slice> = (0..=VECTORS).map(slice).collect();
        let (place, now_ns) = (copier.grant.landmark().unwrap(), clock::monotonic_ns());
        let contents = |memory: &Mapping| {
            let mut found = [9; VECTORS + 1];
            memory.read(0, &mut found);
            found
        };
        for run in [&slices[..], &slices[..1]] {
            for place in
                [Place { address: 1 << 16, ..place }, Place { address: place.address + 4096, ..place }]
            {
                for op in [Op::Write, Op::Read] {
                    assert!(matches!(
                        copier.call(op, place, &run[..run.len().min(VECTORS)]),
                        Err(CallFault::Strange)
                    ));
                    assert_eq!((contents(&here), contents(&there)), ([1; VECTORS + 1], [0; VECTORS + 1]));
                }
            }
            let other = Place { secret: !place.secret, ..place };
            assert!(matches!(copier.call(Op::Read, other, &run[..1]), Err(CallFault::Strange)));
            here.write(0, &[1]);
        }
        assert!(matches!(copier.copy(Op::Write, region, &slices, true, now_ns), Outcome::Copied));
        assert_eq!(contents(&there), [1; VECTORS + 1]);
    }

    /// The slices before one that is outside the peer's mapping count as copied, so they are.
    #[test]
    fn what_comes_before_a_slice_outside_the_mapping_is_copied() {
        let (here, there) = (Mapping::private(4096).unwrap(), Mapping::private(4096).unwrap());
        there.write(0, &[1; 4]);
        let (local, region) = (here.address() as u64, RegionId::NONE);
        let slice = |remote| Slice { local, remote, region, first_offset: 0, length: 4, first: 0 };
        let mapped = Mapped::new(1 << 40, there);
        let outcome = copy_mapped(Op::Read, &mapped, &[slice(1 << 40), slice((1 << 40) + 4093)]);
        assert!(matches!(outcome, Outcome::Failed(1, Status::Invalid, 0)));
        let mut found = [0; 4];
        here.read(0, &mut found);
        assert_eq!(found, [1; 4]);
    }
}
