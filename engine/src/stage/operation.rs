//! A run of slices of one transfer under way: its step, and its requests to the target. All slices of a run are alike:
//! device memory or host memory here, and there. `steps` takes it from one step to the next.

use super::bridges::BridgeSlot;
use super::mapped::{Held, Pair};
use super::ring::StagingSlot;
use super::wire::{layout, Block, Blocks, Fault};
use crate::complete::transfer::Failure;
use crate::complete::{Transfer, TransferFlags};
use crate::limits::DEVICE_IDLE_MS;
use crate::types::{Boottime, MemoryKind, Monotonic, Op, RegionId, Request, Slice, SliceRange};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationStep {
    Reach,
    Grant,
    Slot,
    Copy,
    Move,
    Answer,
}

/// The method by which a run moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Through slots of host memory.
    Hosts,
    /// Devices of this kind copy directly, over mapped memory.
    Mapped(MemoryKind),
    /// Through slots on these devices, which reach each other.
    Bridged(Pair),
}

pub struct Operation {
    pub transfer: Arc<Transfer>,
    pub range: SliceRange,
    pub local_device: bool,
    pub remote_device: bool,
    pub method: Method,
    pub held: Vec<Held>,
    pub step: OperationStep,
    pub slot: Option<StagingSlot>,
    /// BRIDGED: the slots, unless the devices are copying between them.
    pub bridge_slot: Option<BridgeSlot>,
    /// The target's slot: its region and address.
    pub remote: Option<(RegionId, u64)>,
    pub part: Option<Arc<Transfer>>,
    /// Batches of copies under way.
    pub copying: u32,
    pub failures: Vec<Failure>,
    /// The part could not be submitted or failed. The peer's memory may be device memory that is not announced yet.
    pub part_failed: bool,
    /// At ANSWER: until when the target may begin, until when copies that began are awaited, and when to ask again. At
    /// GRANT only the last is used.
    lease_until_ns: Monotonic,
    pub exposed_until_ns: Monotonic,
    pub ask_again_ns: Monotonic,
    pub restarts: u32,
}

impl Operation {
    /// Makes an operation of these slices, which are alike.
    pub fn new(
        transfer: Arc<Transfer>,
        range: SliceRange,
        (local_device, remote_device): (bool, bool),
        method: Method,
    ) -> Operation {
        Operation {
            transfer,
            range,
            local_device,
            remote_device,
            method,
            held: Vec::new(),
            step: OperationStep::Grant,
            slot: None,
            bridge_slot: None,
            remote: None,
            part: None,
            copying: 0,
            failures: Vec::new(),
            part_failed: false,
            lease_until_ns: Monotonic::ZERO,
            exposed_until_ns: Monotonic::ZERO,
            ask_again_ns: Monotonic::ZERO,
            restarts: 0,
        }
    }

    /// Resets the operation to its beginning.
    pub fn reset(&mut self) {
        (self.remote, self.bridge_slot) = (None, None);
        (self.lease_until_ns, self.exposed_until_ns) = (Monotonic::ZERO, Monotonic::ZERO);
        self.failures.clear();
        self.part_failed = false;
    }

    /// Records that the target may begin until `until_ns`.
    pub fn lend_until(&mut self, until_ns: Monotonic) {
        (self.lease_until_ns, self.exposed_until_ns) = (until_ns, until_ns);
    }

    /// Extends the wait for copies that are queued or run at the target. None begins after the lease, and the target's
    /// devices have `timeout_ms` for each, even if the target falls silent. Copies that last longer cannot be stopped;
    /// waiting on would let the target hold the transfer for ever.
    pub fn await_copies(&mut self, timeout_ms: u64) {
        let last_ns = self.lease_until_ns.saturating_add((timeout_ms + DEVICE_IDLE_MS) * 1_000_000);
        self.exposed_until_ns = self.exposed_until_ns.max(last_ns);
    }

    /// Bounds the wait: the peer is lost, so its answer never comes.
    pub fn wait_no_longer_than(&mut self, until_ns: Monotonic) {
        self.exposed_until_ns = self.exposed_until_ns.min(until_ns);
    }

    pub fn slices(&self) -> &[Slice] {
        self.range.of(&self.transfer.spec.slices)
    }

    pub fn op(&self) -> Op {
        self.transfer.spec.op
    }

    /// Returns each slice that has not failed, with its offset in a slot.
    pub fn good(&self) -> impl Iterator<Item = (&Slice, u64)> {
        let (offsets, _) = layout(self.slices().iter().map(|slice| slice.length));
        let failed = |at: usize| self.failures.iter().any(|it| it.slice == self.range.first + at as u32);
        let places = self.slices().iter().zip(offsets).enumerate();
        places.filter(move |(at, _)| !failed(*at)).map(|(_, place)| place)
    }

    /// Returns the index of each slice that has not failed.
    pub fn good_indexes(&self) -> Vec<u32> {
        let failed = |slice: &u32| self.failures.iter().any(|it| it.slice == *slice);
        self.range.indexes().filter(|slice| !failed(slice)).collect()
    }

    /// Returns whether files that the transfer writes are synced before its end.
    pub fn is_durable(&self) -> bool {
        self.transfer.spec.flags.has(TransferFlags::DURABLE)
    }

    pub fn has_failed(&self) -> bool {
        self.failures.len() >= self.slices().len()
    }

    /// Fails every slice that has not failed yet.
    pub fn fail(&mut self, cause: Failure) {
        let good = self.good_indexes();
        self.failures.extend(good.into_iter().map(|slice| Failure { slice, ..cause }));
    }

    pub fn is_struck(&self) -> bool {
        !self.transfer.is_pending()
    }

    /// Returns the part's requests: one for each good slice, or one for the whole slot.
    pub fn requests(&self) -> Vec<Request> {
        let here = self.slot.as_ref().map(StagingSlot::address);
        if let (Some(local), Some((remote_region, remote))) = (here, self.remote) {
            let (_, length) = layout(self.slices().iter().map(|slice| slice.length));
            return vec![Request { local, remote, length, remote_region }];
        }
        let request = |(slice, offset): (&Slice, u64)| {
            let local = here.map_or(slice.local, |slot| slot + offset);
            let (remote_region, remote) =
                self.remote.map_or((slice.region, slice.remote), |(region, slot)| (region, slot + offset));
            Request { local, remote, length: u64::from(slice.length), remote_region }
        };
        self.good().map(request).collect()
    }

    /// Returns the address of its slot here.
    pub fn slot_address(&self) -> u64 {
        match (&self.bridge_slot, &self.slot) {
            (Some(bridge_slot), _) => bridge_slot.address(),
            (None, Some(slot)) => slot.address(),
            (None, None) => 0,
        }
    }

    pub fn blocks(&self, not_after_ns: Boottime) -> Blocks {
        let block =
            |slice: &Slice| Block { region: slice.region, address: slice.remote, length: slice.length };
        let bridge_slot = self.bridge_slot.as_ref().map(BridgeSlot::id);
        let durable = self.is_durable() && self.op() == Op::Write;
        Blocks { not_after_ns, bridge_slot, durable, list: self.slices().iter().map(block).collect() }
    }

    pub fn take_faults(&mut self, faults: &[Fault]) {
        let count = self.range.count();
        let known = faults.iter().filter(|fault| fault.block < count);
        let first = self.range.first;
        self.add_failures(known.map(|fault| fault.at(first)));
    }

    /// Adds failures. A slice keeps its first.
    pub fn add_failures(&mut self, failed: impl IntoIterator<Item = Failure>) {
        self.failures.extend(failed);
        self.failures.sort_by_key(|failure| failure.slice);
        self.failures.dedup_by_key(|failure| failure.slice);
    }

    pub fn check_ns(&self) -> Monotonic {
        if self.is_struck() {
            self.exposed_until_ns.min(self.ask_again_ns)
        } else {
            self.ask_again_ns
        }
    }
}
