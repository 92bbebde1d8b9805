//! Makes operations of queued slices: runs of slices that are alike and fit the limit of their method.

use super::event::{waker, Event};
use super::mapped::{device, Pair};
use super::operation::{Method, Operation};
use super::service::Stage;
use super::wire::Message;
use crate::complete::{Transfer, TransferFlags};
use crate::limits::{DEVICE_PIECE_BYTES, FRAME_DESCRIPTORS_MAX, STAGE_BYTES};
use crate::peer::outbox::{PullLimits, Pulled};
use crate::route::{self, Asked, Between};
use crate::types::{Location, OperationId, PeerId, Slice, SliceRange, Transport};
use std::sync::Arc;

impl Stage {
    /// Begins queued slices, as far as there is room.
    pub fn pump(&mut self) {
        while self.operations.has_room() {
            let Some(peer) = self.due.next_queued() else { return };
            let Some(side) = self.sides.get(&peer) else { continue };
            let limits = PullLimits {
                frame_bytes_max: match side.peer.path(Transport::Local) {
                    Some(_) => DEVICE_PIECE_BYTES,
                    None => STAGE_BYTES,
                },
                descriptors_max: FRAME_DESCRIPTORS_MAX,
                notification_bytes_max: None,
                read: true,
                write: true,
            };
            let pull = |express| side.peer.pull(Transport::Staged, express, limits);
            let Some(Pulled::Slices { transfer, range, is_device, .. }) = pull(true).or_else(|| pull(false))
            else {
                continue; // a thread that queues slices sends an event
            };
            self.due.queue(peer);
            transfer.mark_started();
            self.split(peer, &transfer, range, is_device, true);
            self.watch(peer, &transfer);
        }
    }

    /// Makes operations of these slices: one for each run of alike slices that fits a slot, if the run needs one.
    /// `is_device`: the peer's memory is a device's, even if its announcement is missing. `over`: devices may copy
    /// directly.
    pub fn split(
        &mut self,
        peer: PeerId,
        transfer: &Arc<Transfer>,
        range: SliceRange,
        is_device: bool,
        over: bool,
    ) {
        let Some(side) = self.sides.get(&peer) else { return };
        let (local, remote) = (self.registry.snapshot(), side.peer.remote.snapshot());
        let same_host = side.peer.path(Transport::Local).is_some();
        let device = |at: Location| at.kind.is_device().then(|| device(at));
        let slices = range.of(&transfer.spec.slices);
        let kinds = slices.iter().map(|slice: &Slice| {
            let length = u64::from(slice.length);
            let here = local.find(slice.local, length).and_then(|region| device(region.location));
            let there = remote.location_at(slice.region, slice.remote, length).and_then(device);
            let method = match here.zip(there).filter(|_| over) {
                Some(pair) => self.method(transfer, pair, same_host),
                None => Method::Hosts,
            };
            (here.is_some(), there.is_some() || is_device, method)
        });
        let kinds: Vec<_> = kinds.collect();
        let mut at = range.first;
        for alike in kinds.chunk_by(|a, b| a == b) {
            let (local_device, remote_device, method) = alike[0];
            let alike_end = at + alike.len() as u32;
            while at < alike_end {
                let left = SliceRange { first: at, end: alike_end };
                let run = match method {
                    Method::Mapped(_) => left,
                    _ => SliceRange { end: at + fitting(left.of(&transfer.spec.slices)), ..left },
                };
                let devices = (local_device, remote_device);
                at = run.end;
                let op = self.operations.add(peer, Operation::new(transfer.clone(), run, devices, method));
                self.begin(peer, op);
            }
        }
    }

    /// Splits an operation anew if some of the peer's memory was announced as device memory since the operation began.
    /// False: nothing changed.
    pub fn split_again(&mut self, peer: PeerId, op: OperationId) -> bool {
        let Some(side) = self.sides.get(&peer) else { return false };
        let remote = side.peer.remote.snapshot();
        let is_device = |slice: &Slice| {
            let at = remote.location_at(slice.region, slice.remote, u64::from(slice.length));
            at.is_some_and(|at| at.kind.is_device())
        };
        let changed = |it: &Operation| !it.remote_device && it.slices().iter().any(is_device);
        if !self.operations.get(peer, op).is_some_and(changed) {
            return false;
        }
        let Some(operation) = self.operations.take(peer, op) else { return false };
        self.split(peer, &operation.transfer, operation.range, false, false);
        self.give_back(operation.slot);
        true
    }

    /// Settles the slices that could not be read here, and begins the others anew: the target writes all slices of the
    /// operation.
    pub fn part_with_failed(&mut self, peer: PeerId, op: OperationId) {
        let Some(object) = self.sides.get(&peer).map(|side| side.peer.clone()) else { return };
        let Some(mut operation) = self.operations.take(peer, op) else { return };
        self.send(peer, Message::Release { op });
        let slot = operation.slot.take();
        self.give_back(slot);
        let Operation { transfer, range, failures, .. } = operation;
        for failure in &failures {
            let one = SliceRange { first: failure.slice, end: failure.slice + 1 };
            let bytes = one.of(&transfer.spec.slices).iter().map(|slice| u64::from(slice.length)).sum();
            object.confirm(&transfer, one, bytes, std::slice::from_ref(failure), false, &mut object.after());
        }
        let good: Vec<u32> =
            range.indexes().filter(|slice| !failures.iter().any(|it| it.slice == *slice)).collect();
        for run in good.chunk_by(|slice, next| slice + 1 == *next) {
            let range = SliceRange { first: run[0], end: run[0] + run.len() as u32 };
            self.split(peer, &transfer, range, true, false);
        }
    }

    /// Returns the method between two devices: direct if that is allowed and possible.
    fn method(&self, transfer: &Transfer, pair: Pair, same_host: bool) -> Method {
        let (spec, (here, there)) = (&transfer.spec, pair);
        let asked = Asked { checksum: spec.flags.has(TransferFlags::CHECKSUM), ..Asked::plain(spec.allowed) };
        let crosses = self.drivers.crosses(here.kind);
        match route::between_devices(&asked, (here.kind, there.kind), same_host, crosses).0 {
            Between::Mapped => Method::Mapped(here.kind),
            Between::Bridged => Method::Bridged(pair),
            Between::Hosts => Method::Hosts,
        }
    }

    /// Registers the stage to be told when the transfer is struck.
    fn watch(&mut self, peer: PeerId, transfer: &Arc<Transfer>) {
        let Some(side) = self.sides.get_mut(&peer) else { return };
        let (inbox, handle) = (&self.inbox, transfer.handle);
        let fresh = || waker(inbox, move || Event::Struck(peer, handle));
        transfer.waiter.register_own(side.watched.entry(handle).or_insert_with(fresh));
        if !transfer.is_pending() {
            self.struck(peer, handle);
        }
        // The transfer may have ended before it was watched; then no other event removes the waker.
        if let Some(side) = self.sides.get_mut(&peer).filter(|_| transfer.is_final()) {
            side.watched.remove(&handle);
        }
    }
}

/// Returns how many of the first slices fit a slot together. Each slice alone fits.
fn fitting(slices: &[Slice]) -> u32 {
    let mut bytes = 0;
    let fit = slices.iter().take_while(|slice| {
        bytes += u64::from(slice.length);
        bytes <= u64::from(STAGE_BYTES)
    });
    (fit.count() as u32).max(1)
}
