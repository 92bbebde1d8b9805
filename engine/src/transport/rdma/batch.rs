//! Turns slices into work requests. A `Builder` adds runs of slices to a chain for one queue pair, and ends the chain
//! with a READ that proves its WRITEs visible. A `Batch` is the part of a chain that belongs to one run.
//!
//! ```text
//! chain:  WRITE WRITE WRITE │ WRITE │ READ of the last region written, signalled
//! batch:  └──── run 7 ────┘ └run 8┘     its completion settles both
//! ```
//! A READ proves only WRITEs to the same memory: the host's, or one GPU's. If a chain writes to several memories, a
//! READ follows the WRITEs to each of them.
//!
//! The identity of a work request holds all that its completion needs:
//! `[receive 1][queue pair 6][batch 41][slice within the run 16]`.

use super::device::Device;
use super::keys::{KeyMap, RegionKeys};
use super::memory::Pinned;
use super::notifications::{Notifications, SendBody};
use super::wire::DeviceOffer;
use crate::complete::transfer::Failure;
use crate::complete::{Transfer, TransferFlags};
use crate::peer::{After, Peer};
use crate::region::{RegionMap, RemoteMap};
use crate::status::Status;
use crate::sys::clock;
use crate::sys::verbs::Chain;
use crate::types::{Location, Monotonic, Op, RegionId, Slice, SliceRange};
use std::sync::Arc;

const SLICE_BITS: u32 = 16;
const BATCH_BITS: u32 = 41;
/// The slice field of a flush.
const FLUSH: u64 = (1 << SLICE_BITS) - 1;
/// The slice field of a flush within a chain. The identity that settles the chain must be unique.
const FLUSH_BETWEEN: u64 = FLUSH - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrId(pub u64);

impl WrId {
    fn new(qp: usize, batch: u64, slice: u64) -> WrId {
        let batch = batch & ((1 << BATCH_BITS) - 1);
        WrId((qp as u64) << (SLICE_BITS + BATCH_BITS) | batch << SLICE_BITS | slice)
    }

    /// The identity of a READ that only proves: a probe, or the READ behind WRITEs.
    pub fn flush(qp: usize, batch: u64) -> WrId {
        WrId::new(qp, batch, FLUSH)
    }

    pub fn is_receive(self) -> bool {
        self.0 >> 63 == 1
    }

    pub fn qp(self) -> usize {
        (self.0 >> (SLICE_BITS + BATCH_BITS)) as usize & 63
    }

    /// True if batch `sequence` was posted before this work request or with it. Numbers wrap; far fewer than half of
    /// them are ever in flight.
    pub fn covers(self, sequence: u64) -> bool {
        self.batch().wrapping_sub(sequence) & ((1 << BATCH_BITS) - 1) < 1 << (BATCH_BITS - 1)
    }

    pub fn is_of(self, sequence: u64) -> bool {
        self.batch() == sequence & ((1 << BATCH_BITS) - 1)
    }

    fn batch(self) -> u64 {
        self.0 >> SLICE_BITS & ((1 << BATCH_BITS) - 1)
    }

    /// Returns the slice's index in its run; None for a flush.
    pub fn slice(self) -> Option<u32> {
        let slice = self.0 & FLUSH;
        (slice < FLUSH_BETWEEN).then_some(slice as u32)
    }
}

/// Slices of a transfer.
pub struct Run {
    pub transfer: Arc<Transfer>,
    pub range: SliceRange,
    pub bytes: u32,
}

/// A run or a notification that is posted or about to be posted.
pub struct Batch {
    /// The batch's number on its endpoint.
    pub sequence: u64,
    pub run: Option<Run>,
    /// Slices that could not be posted.
    pub failures: Vec<Failure>,
    /// The slot that holds a notification until it has left.
    pub slot: Option<u32>,
    /// When the batch was posted; NEVER without a run.
    pub posted_ns: Monotonic,
}

impl Batch {
    /// Settles a completed batch: frees its slot and confirms its run to the peer.
    pub fn settle(self, peer: &Peer, notifications: &Notifications, after: &mut After) {
        self.slot.into_iter().for_each(|slot| notifications.give_back(slot));
        if let Some(Run { transfer, range, bytes }) = &self.run {
            peer.confirm(transfer, *range, u64::from(*bytes), &self.failures, false, after);
        }
    }
}

/// Adds runs to one chain. Borrows the maps and keys for the time of one post.
pub struct Builder<'a> {
    pub device: &'a Device,
    /// The peer's device.
    pub remote: &'a DeviceOffer,
    pub chain: &'a mut Chain,
    pub qp: usize,
    pub inline_bytes: u32,
    unproven: Option<Unproven>,
    last_id: WrId,
}

/// The regions of both sides. The snapshots are taken after the slices are pulled, because the program may have
/// registered the slices' regions just before, even anew at the same address.
pub struct Maps {
    pub local: Arc<RegionMap>,
    pub remote: Arc<RemoteMap>,
    pub keys: Arc<KeyMap>,
}

impl Maps {
    /// Finds the region that a slice names or, if it names none, the region that is at its address now.
    fn target_of(&self, slice: &Slice) -> Option<Target<'_>> {
        let region = match slice.region {
            RegionId::NONE => Some(self.remote.find(slice.remote, slice.length as u64)?),
            id => self.remote.get(id),
        };
        let id = region.map_or(slice.region, |region| region.id);
        let place = region.map_or(Location::HOST, |region| place_of(region.location));
        Some(Target { region: slice.region, keys: self.keys.get(id)?, place })
    }
}

/// The last byte of the last WRITE that is not proven yet.
struct Unproven {
    keys: Arc<RegionKeys>,
    place: Location,
    at: u64,
}

/// A region of the peer, with its keys.
#[derive(Clone, Copy)]
struct Target<'a> {
    region: RegionId,
    keys: &'a Arc<RegionKeys>,
    place: Location,
}

impl<'a> Builder<'a> {
    pub fn new(
        device: &'a Device,
        remote: &'a DeviceOffer,
        chain: &'a mut Chain,
        (qp, inline_bytes): (usize, u32),
    ) -> Builder<'a> {
        Builder { device, remote, chain, qp, inline_bytes, unproven: None, last_id: WrId(0) }
    }

    /// Adds these slices of a transfer as batch `sequence`. Returns the slices that can't be posted.
    pub fn add(
        &mut self,
        maps: &Maps,
        transfer: &Transfer,
        range: SliceRange,
        sequence: u64,
    ) -> Vec<Failure> {
        let mut failures = Vec::new();
        let (mut local, mut remote): (Option<&Pinned>, Option<Target>) = (None, None);
        let proves = transfer.spec.op == Op::Write && !transfer.spec.flags.has(TransferFlags::ACKED_ONLY);
        for index in range.indexes() {
            let slice = &transfer.spec.slices[index as usize];
            if local.is_none_or(|it| slice.local < it.address || slice.local - it.address >= it.length) {
                let region = maps.local.find(slice.local, slice.length as u64);
                local = region.and_then(|region| Pinned::of(region));
            }
            if remote.is_none_or(|target| slice.region == RegionId::NONE || target.region != slice.region) {
                remote = maps.target_of(slice);
            }
            let id = WrId::new(self.qp, sequence, (index - range.first) as u64);
            let posted = match (local, remote) {
                (Some(_), Some(target)) if !self.covers(target.keys, slice) => Err(Status::Access),
                (Some(local), Some(target)) => {
                    if proves {
                        self.leave_for(target.place, sequence);
                    }
                    self.add_slice(transfer.spec.op, slice, local, target.keys, id)
                }
                (Some(_), None) if slice.region != RegionId::NONE => Err(Status::Stale),
                _ => Err(Status::NotRegistered),
            };
            if let Err(status) = posted {
                failures.push(Failure { slice: index, status, os_error: 0, vendor_error: 0 });
            } else if let (true, Some(target)) = (proves, remote) {
                self.wrote(target, slice.remote + (slice.length - 1) as u64);
            }
        }
        failures
    }

    fn covers(&self, keys: &RegionKeys, slice: &Slice) -> bool {
        keys.covers(self.remote.index as usize, slice.remote, slice.length as u64)
    }

    fn wrote(&mut self, target: Target, at: u64) {
        match &mut self.unproven {
            Some(last) if Arc::ptr_eq(&last.keys, target.keys) => last.at = at,
            last => *last = Some(Unproven { keys: target.keys.clone(), place: target.place, at }),
        }
    }

    /// Proves earlier WRITEs if the next slice is for memory at another `place`. Adds at most one work request.
    fn leave_for(&mut self, place: Location, sequence: u64) {
        if self.unproven.as_ref().is_some_and(|last| last.place != place) {
            self.prove(WrId::new(self.qp, sequence, FLUSH_BETWEEN));
        }
    }

    /// Adds a READ behind the WRITEs: of the region last written or, if peers may not READ that region, of the
    /// target's own page. The latter occurs for host memory only. Does nothing if there is nothing to prove.
    fn prove(&mut self, id: WrId) {
        let Some(Unproven { keys, at, .. }) = self.unproven.take() else { return };
        let device = self.remote.index as usize;
        let source = keys.find(device, at).filter(|_| keys.readable).map(|(rkey, _)| (at, rkey));
        let (remote, rkey) = source.unwrap_or((self.remote.flush_address, self.remote.flush_rkey));
        let (scratch, lkey) = self.device.scratch();
        self.chain.read(id.0, scratch, lkey, remote, rkey, 1);
        self.last_id = id;
    }

    /// Adds a notification.
    pub fn add_send(&mut self, slot: u32, body: &SendBody, sequence: u64) {
        let (address, length, lkey) = self.device.notifications.write(slot, body);
        self.last_id = WrId::new(self.qp, sequence, 0);
        self.chain.send(self.last_id.0, address, lkey, length, length <= self.inline_bytes);
    }

    /// Adds one work request, or more if pieces of a registration end within the slice.
    fn add_slice(
        &mut self,
        op: Op,
        slice: &Slice,
        pinned: &Pinned,
        keys: &RegionKeys,
        id: WrId,
    ) -> Result<(), Status> {
        let device = self.remote.index as usize;
        let (mut local, mut remote, mut left) = (slice.local, slice.remote, slice.length as u64);
        while left > 0 {
            let (rkey, there) = keys.find(device, remote).ok_or(Status::Access)?;
            let (lkey, here) = pinned.find(self.device.index, local).ok_or(Status::NotRegistered)?;
            let length = left.min(there).min(here) as u32;
            match op {
                Op::Write => {
                    // The CPU copies inline data, so inline is for memory that the CPU can read.
                    let inline = length <= self.inline_bytes && !pinned.is_device;
                    self.chain.write(id.0, local, lkey, remote, rkey, length, inline)
                }
                Op::Read => self.chain.read(id.0, local, lkey, remote, rkey, length),
            }
            self.last_id = id;
            (local, remote, left) = (local + length as u64, remote + length as u64, left - length as u64);
        }
        Ok(())
    }

    /// Ends a chain, which is not empty, with a READ if there are WRITEs to prove. Returns the identity of the last
    /// work request, whose completion settles the whole chain.
    pub fn finish(&mut self, sequence: u64) -> WrId {
        // Contract 1: WRITEs to be proven complete only with this READ, which proves them visible at the target.
        self.prove(WrId::flush(self.qp, sequence));
        self.chain.signal_last();
        self.last_id
    }
}

/// Returns the place of memory in the order of WRITEs: each device is one, and all of the host is one, pinned or not.
fn place_of(location: Location) -> Location {
    if location.kind.is_device() {
        location
    } else {
        Location::HOST
    }
}

/// Returns when a run is posted: now. The caller of an awaited transfer submitted it a moment ago, which saves reading
/// the clock.
pub fn posted_ns(transfer: &Transfer, qp: usize) -> Monotonic {
    let is_awaited = transfer.spec.flags.has(TransferFlags::AWAITED) && !transfer.is_attended();
    if is_awaited && qp == 0 {
        transfer.spec.submitted_ns
    } else {
        clock::monotonic_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::MemoryKind;

    /// A chain has room for a READ between slices only if the peer has memory of devices.
    #[test]
    fn all_memory_of_the_host_is_one_place() {
        let at = |kind, device| Location { kind, device };
        assert_eq!(place_of(at(MemoryKind::Pinned, 3)), place_of(at(MemoryKind::Host, 7)));
        assert_ne!(place_of(at(MemoryKind::Cuda, 0)), place_of(at(MemoryKind::Cuda, 1)));
    }

    #[test]
    fn an_identity_says_queue_pair_batch_and_slice() {
        let id = WrId::new(16, (1 << BATCH_BITS) - 1, 511);
        assert_eq!((id.qp(), id.batch(), id.slice()), (16, (1 << BATCH_BITS) - 1, Some(511)));
        let flush = WrId::new(0, 5, FLUSH);
        assert_eq!((flush.qp(), flush.batch(), flush.slice()), (0, 5, None));
        let between = WrId::new(0, 5, FLUSH_BETWEEN);
        assert!(between.slice().is_none() && between.is_of(5) && between != flush);
        let wrapped = WrId::new(1, 1 << BATCH_BITS, 0);
        assert!(wrapped.covers((1 << BATCH_BITS) - 1) && wrapped.covers(1 << BATCH_BITS));
        assert!(!wrapped.covers((1 << BATCH_BITS) + 1));
        assert!(id.0 >> 63 == 0, "the highest bit is for receives");
    }
}
