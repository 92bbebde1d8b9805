//! Copies slices of one region of another process, which is entered by the peer's grant while the copy takes place.
//! `far` passes the slices.

use super::far::{Far, Outcome};
use super::mappings::{Mapped, Mappings};
use super::process::{CallFault, Process};
use super::session::Why;
use crate::limits::FRAME_DESCRIPTORS_MAX;
use crate::peer::Kept;
use crate::region::grants::{Grant, Use};
use crate::region::{range_contains, RemoteMap};
use crate::status::{Result as StatusResult, Status};
use crate::sys::copy::{self, Piece};
use crate::sys::landmark::Place;
use crate::sys::pages::Pages;
use crate::sys::proven::Proven;
use crate::sys::socket::IoVec;
use crate::sys::{guarded, health};
use crate::types::{self, Monotonic, Op, RegionId, Slice};
use std::ops::Range;
use std::sync::Arc;

/// Slices of one system call. Measurements showed no gain from more.
const VECTORS: usize = 64;

/// Pieces of one copy between mappings: those of a frame, so that the bytes of small ones are enough to stream.
const MAPPED_PIECES: usize = FRAME_DESCRIPTORS_MAX;

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

impl Far for Copier {
    const MAY_DETOUR: bool = true;

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
            (Some(mapping), _) if is_ours => copy_mapped(op, |it| mapping.find(it.remote, it.length), run),
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

    fn find(&self, address: u64, length: u64) -> Option<(RegionId, Range<u64>)> {
        self.grant.find(address, length)
    }

    fn has_pages(&self, slice: &Slice, now_ns: Monotonic, looks: &mut u32) -> bool {
        self.is_mapped(slice) || self.pages.has(slice.remote, slice.length.into(), now_ns, looks)
    }

    fn note_pages(&self, slice: &Slice, now_ns: Monotonic) {
        if !self.is_mapped(slice) {
            self.pages.note(slice.remote, slice.length.into(), now_ns);
        }
    }

    fn carries(&self, ranges: &[types::Range], known: &RemoteMap, alone: bool) -> bool {
        let mut last = None;
        ranges.iter().all(|range| {
            if last.is_some_and(|(id, named)| named && id == range.region) {
                return true;
            }
            // The peer's board knows whether a named region exists, where it is, and what it grants. Only an unnamed
            // range must be found in the announced regions. Memory that system calls don't reach must be mapped here.
            let id = match range.region {
                RegionId::NONE => known.find(range.remote, range.length).map(|region| region.id),
                id => Some(id),
            };
            let Some(id) = id else { return alone };
            last = Some((id, range.region != RegionId::NONE));
            self.by_call.is_ok() || self.mappings.get(id).is_some()
        })
    }

    fn keep_registered(&self, region: RegionId, use_: Use) -> StatusResult<Kept> {
        self.grant.stay(region, use_).map(|stay| Box::new(stay) as Kept)
    }

    fn process(&self) -> Option<Arc<Proven>> {
        self.proven.clone()
    }
}

impl Copier {
    /// All pages of a mapping are allocated.
    fn is_mapped(&self, slice: &Slice) -> bool {
        slice.region != RegionId::NONE && self.mappings.has(slice.region)
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

/// Copies between mapped memory of both ends. `find` returns where the far end of a slice is mapped; None outside.
pub(super) fn copy_mapped(op: Op, find: impl Fn(&Slice) -> Option<*mut u8>, run: &[Slice]) -> Outcome {
    for (nth, batch) in run.chunks(MAPPED_PIECES).enumerate() {
        let none = Piece { from: std::ptr::null(), to: std::ptr::null_mut(), length: 0 };
        let (mut pieces, mut count) = ([none; MAPPED_PIECES], 0);
        for slice in batch {
            let Some(there) = find(slice) else { break };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::Tag;
    use crate::region::grants::{Grants, Tally};
    use crate::region::{RegionSpec, Registry};
    use crate::sys::clock;
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
        let outcome = copy_mapped(
            Op::Read,
            |it| mapped.find(it.remote, it.length),
            &[slice(1 << 40), slice((1 << 40) + 4093)],
        );
        assert!(matches!(outcome, Outcome::Failed(1, Status::Invalid, 0)));
        let mut found = [0; 4];
        here.read(0, &mut found);
        assert_eq!(found, [1; 4]);
    }
}
