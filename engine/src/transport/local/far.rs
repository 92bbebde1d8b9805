//! The memory at the far end of a path, as `path` sees it: pieces are copied region by region, and their slices settled
//! with the peer. A `Copier` reaches another process; `OwnMemory` is this engine's own.

use crate::complete::transfer::Failure;
use crate::complete::{Fence, Transfer};
use crate::peer::{After, Kept, Peer};
use crate::region::grants::Use;
use crate::region::{range_contains, RemoteMap};
use crate::status::{Result as StatusResult, Status};
use crate::sys::atomic::Ordering;
use crate::sys::clock;
use crate::sys::pages::LOOKS_MAX;
use crate::sys::proven::Proven;
use crate::types::{Monotonic, Op, RegionId, Slice, SliceRange};
use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

/// The path does not reach the peer any more.
#[derive(Debug)]
pub struct Broken;

/// The result of copying slices of one region.
pub enum Outcome {
    Copied,
    /// This slice is at fault, and may have been copied in part. No later slice was copied.
    Failed(usize, Status, i32),
    /// Nothing is known to be copied from this slice on: the session or the process has ended, or the kernel no longer
    /// allows the copy.
    Broken(usize),
}

/// The most searches of the peer's board for the region at one address. The peer may register the region anew before
/// each search.
const BOARD_LOOKS_MAX: usize = 8;

pub trait Far: Send + Sync + 'static {
    /// A copy that faults may succeed over TCP, where the peer's own process touches the memory.
    const MAY_DETOUR: bool;
    /// Copies slices of one region, which is entered meanwhile. `is_ours`: ferry allocated the local memory.
    fn copy(&self, op: Op, region: RegionId, run: &[Slice], is_ours: bool, now_ns: Monotonic) -> Outcome;
    /// Returns the region that is registered at a range now, and its range.
    fn find(&self, address: u64, length: u64) -> Option<(RegionId, Range<u64>)>;
    /// Returns whether the slice's far memory can be copied without waiting for a page, as far as that is known.
    fn has_pages(&self, slice: &Slice, now_ns: Monotonic, looks: &mut u32) -> bool;
    /// Notes that the slice was copied.
    fn note_pages(&self, slice: &Slice, now_ns: Monotonic);
    /// As `Path::carries`.
    fn carries(&self, ranges: &[crate::types::Range], known: &RemoteMap, alone: bool) -> bool;
    /// As `SameHost::keep_registered`.
    fn keep_registered(&self, region: RegionId, use_: Use) -> StatusResult<Kept>;
    /// As `SameHost::process`.
    fn process(&self) -> Option<Arc<Proven>>;

    /// Copies these slices and settles them. Broken: the slices that were not copied were released to the outbox.
    fn run(
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
                    if Self::MAY_DETOUR && is_unreachable(status, os_error) {
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
    fn finds(&self, peer: &Peer, slices: &[Slice], is_known: bool, now_ns: Monotonic) -> bool {
        let (here, mut looks) = (&peer.engine().pages, LOOKS_MAX);
        slices.iter().all(|slice| {
            let length = slice.length.into();
            (is_known || here.has(slice.local, length, now_ns, &mut looks))
                && self.has_pages(slice, now_ns, &mut looks)
        })
    }

    /// Notes that these slices were copied. `is_known` as above.
    fn note(&self, peer: &Peer, slices: &[Slice], is_known: bool, now_ns: Monotonic) {
        for slice in slices {
            if !is_known {
                peer.engine().pages.note(slice.local, slice.length.into(), now_ns);
            }
            self.note_pages(slice, now_ns);
        }
    }

    /// Copies one slice that belongs to no transfer. Returns true only if all of it was copied. `is_ours`: ferry
    /// allocated the local memory.
    fn copy_one(&self, peer: &Peer, op: Op, slice: &Slice, is_ours: bool, now_ns: Monotonic) -> bool {
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
            home = self.find(first.remote, first.length as u64);
            if home.is_none() {
                return (1, Outcome::Failed(0, Status::NotRegistered, 0));
            }
        }
        (1, Outcome::Failed(0, Status::Stale, 0))
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

/// The peer's regions, loaded only if a slice names no region.
pub struct Known<'a> {
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
