//! A run of slices of one transfer on its way: where it stands, and what is asked and moved for it. All slices
//! of a run are alike: device memory or not, here and there. `steps` takes it from one step to the next.

use super::bridge::Berth;
use super::mapped::{Held, Pair};
use super::ring::Slot;
use super::wire::{layout, Block, Blocks, Fault};
use crate::complete::transfer::Failure;
use crate::complete::Transfer;
use crate::limits::DEVICE_REST_MS;
use crate::status::Status;
use crate::types::{Boottime, MemoryKind, Monotonic, Op, Request, Slice};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Reach,
    Grant,
    Slot,
    Copy,
    Move,
    Answer,
}

/// How it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Through slots of host memory.
    Hosts,
    /// Devices of this kind copy it by themselves, over memory that is mapped.
    Mapped(MemoryKind),
    /// Through slots of these devices, which reach each other.
    Bridged(Pair),
}

pub struct Operation {
    pub transfer: Arc<Transfer>,
    pub first: u32,
    pub end: u32,
    pub local_device: bool,
    pub remote_device: bool,
    pub method: Method,
    pub held: Vec<Held>,
    pub step: Step,
    pub slot: Option<Slot>,
    /// BRIDGED: its slots, unless the devices are moving it between them.
    pub berth: Option<Berth>,
    /// The target's slot: its region and address.
    pub remote: Option<(u64, u64)>,
    pub part: Option<Arc<Transfer>>,
    /// Batches of copies under way.
    pub copying: u32,
    pub failures: Vec<Failure>,
    /// The part could not be submitted or failed: the peer's memory may be a device's, and not announced yet.
    pub part_failed: bool,
    /// ANSWER: until when the target may begin what it was asked, until when that may go on, and when to ask again.
    lease_until_ns: Monotonic,
    pub exposed_until_ns: Monotonic,
    pub ask_again_ns: Monotonic,
    pub restarts: u32,
}

impl Operation {
    /// Slices [first, end), which are alike.
    pub fn new(
        transfer: Arc<Transfer>,
        run: (u32, u32),
        (local_device, remote_device): (bool, bool),
        method: Method,
    ) -> Operation {
        Operation {
            transfer,
            first: run.0,
            end: run.1,
            local_device,
            remote_device,
            method,
            held: Vec::new(),
            step: Step::Grant,
            slot: None,
            berth: None,
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

    /// As if it had not begun.
    pub fn reset(&mut self) {
        (self.remote, self.berth) = (None, None);
        (self.lease_until_ns, self.exposed_until_ns) = (Monotonic::ZERO, Monotonic::ZERO);
        self.failures.clear();
        self.part_failed = false;
    }

    /// The target may begin what it was asked until then.
    pub fn lend_until(&mut self, until_ns: Monotonic) {
        (self.lease_until_ns, self.exposed_until_ns) = (until_ns, until_ns);
    }

    /// The target's copies go on, until then for all that is known. They began within the lease, and its devices have
    /// `timeout_ms` for each: what they have not ended then nobody can take back, and to wait for it would be to wait
    /// for as long as the target likes.
    pub fn extend(&mut self, until_ns: Monotonic, timeout_ms: u64) {
        let last_ns = self.lease_until_ns + (timeout_ms + DEVICE_REST_MS) * 1_000_000;
        self.exposed_until_ns = self.exposed_until_ns.max(until_ns.min(last_ns));
    }

    pub fn slices(&self) -> &[Slice] {
        &self.transfer.spec.slices[self.first as usize..self.end as usize]
    }

    pub fn op(&self) -> Op {
        self.transfer.spec.op
    }

    /// Each slice that has not failed, with its place in a slot.
    pub fn good(&self) -> impl Iterator<Item = (&Slice, u64)> {
        let (offsets, _) = layout(self.slices().iter().map(|slice| slice.length));
        let failed = |at: usize| self.failures.iter().any(|it| it.slice == self.first + at as u32);
        let places = self.slices().iter().zip(offsets).enumerate();
        places.filter(move |(at, _)| !failed(*at)).map(|(_, place)| place)
    }

    pub fn has_failed(&self) -> bool {
        self.failures.len() == self.slices().len()
    }

    /// Everything that had not failed yet has.
    pub fn fail(&mut self, (status, vendor_error): (Status, i32)) {
        for slice in self.first..self.end {
            if !self.failures.iter().any(|failure| failure.slice == slice) {
                self.failures.push(Failure { slice, status, os_error: 0, vendor_error });
            }
        }
    }

    pub fn is_struck(&self) -> bool {
        !self.transfer.is_pending()
    }

    /// What the part moves, and where the results of its requests belong.
    pub fn requests(&self) -> Vec<Request> {
        let here = self.slot.as_ref().map(Slot::address);
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

    /// Where its slot here begins.
    pub fn slot_address(&self) -> u64 {
        match (&self.berth, &self.slot) {
            (Some(berth), _) => berth.address(),
            (None, Some(slot)) => slot.address(),
            (None, None) => 0,
        }
    }

    pub fn blocks(&self, not_after_ns: Boottime) -> Blocks {
        let block =
            |slice: &Slice| Block { region: slice.region, address: slice.remote, length: slice.length };
        let place = self.berth.as_ref().map(Berth::place);
        Blocks { not_after_ns, place, list: self.slices().iter().map(block).collect() }
    }

    pub fn index_of(&self, slice: &Slice) -> u32 {
        let at = self.slices().iter().position(|other| std::ptr::eq(other, slice));
        self.first + at.unwrap_or(0) as u32
    }

    pub fn take_faults(&mut self, faults: &[Fault]) {
        let count = self.end - self.first;
        let known = faults.iter().filter(|fault| fault.block < count);
        self.failures.extend(known.map(|fault| fault.at(self.first)));
        self.failures.sort_unstable_by_key(|failure| failure.slice);
        self.failures.dedup_by_key(|failure| failure.slice);
    }

    pub fn look_ns(&self) -> Monotonic {
        match self.is_struck() {
            true => self.exposed_until_ns.min(self.ask_again_ns),
            false => self.ask_again_ns,
        }
    }
}
