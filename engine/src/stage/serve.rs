//! The target's side: copies between slots and devices here, at a peer's request. Each request is checked
//! like any access of a peer (region, generation, rights, bounds). The region is entered while the device copies.
//! No copy begins after the initiator's time is over.

use super::bridge_target::ExposedSlot;
use super::event::Event;
use super::mapped::device;
use super::ring::StagingSlot;
use super::service::{cause, Stage};
use super::wire::{layout, Blocks, Fault, Message};
use crate::command::Command;
use crate::complete::transfer::Failure;
use crate::device::{Direction, Job, Piece, PieceFault};
use crate::limits::STAGE_OPERATIONS_MAX;
use crate::region::Region;
use crate::status::{Error, Result, Status};
use crate::sys::clock;
use crate::sys::map::{HashMap, HashSet};
use crate::sys::moment;
use crate::types::{Boottime, Location, Op, OperationId, PeerId, RegionId};
use std::ops::Range;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServedState {
    /// Waits for a slot; or, with a slot, for the peer's next message.
    Waiting,
    Copying,
    /// Copied, and the peer was told.
    Reported,
}

struct Served {
    op: Op,
    state: ServedState,
    slot: Option<StagingSlot>,
    /// The operation's place among those that wait for a slot.
    place: u64,
    /// The slot, if it belongs to a bridge.
    exposed: Option<ExposedSlot>,
    blocks: Option<Blocks>,
    faults: Vec<Fault>,
    /// The regions that are entered while copies run.
    regions: Vec<Arc<Region>>,
    /// Batches of copies under way.
    copying: u32,
    /// A batch of copies did not begin, because its time was over.
    not_begun: bool,
    /// The initiator does not wait any more.
    released: bool,
}

/// The operations of one peer that this engine serves.
#[derive(Default)]
pub struct ServedOperations {
    all: HashMap<OperationId, Served>,
    /// Slots that the peer used when it was lost. Its data may still arrive in them.
    lost_slots: Vec<StagingSlot>,
}

impl ServedOperations {
    /// Returns whether nothing of the peer is left here.
    pub fn is_over(&self) -> bool {
        self.all.is_empty() && self.lost_slots.is_empty()
    }

    pub fn take_lost_slots(&mut self) -> Vec<StagingSlot> {
        std::mem::take(&mut self.lost_slots)
    }

    pub fn into_slots(self) -> impl Iterator<Item = StagingSlot> {
        self.all.into_values().filter_map(|served| served.slot).chain(self.lost_slots)
    }
}

/// Blocks on one device, and the pieces to copy.
struct Batch {
    at: Location,
    pieces: Vec<Piece>,
    begun: Begun,
}

/// What a device was asked to copy. The peer may send another list meanwhile.
#[derive(Default)]
pub struct Begun {
    /// The blocks' positions in the peer's list.
    blocks: Vec<u32>,
    /// The memory that the device writes: ranges of regions. Blocks that follow one another in a region are one range.
    written: Vec<(RegionId, Range<u64>)>,
    not_after_ns: Boottime,
}

impl Begun {
    fn writes(&mut self, region: RegionId, range: Range<u64>) {
        match self.written.last_mut() {
            Some((last, written)) if *last == region => {
                *written = written.start.min(range.start)..written.end.max(range.end);
            }
            _ => self.written.push((region, range)),
        }
    }
}

impl Served {
    fn new(op: Op, blocks: Option<Blocks>) -> Served {
        Served {
            op,
            state: ServedState::Waiting,
            slot: None,
            place: 0,
            exposed: None,
            blocks,
            faults: Vec::new(),
            regions: Vec::new(),
            copying: 0,
            not_begun: false,
            released: false,
        }
    }

    fn fail(&mut self, blocks: impl Iterator<Item = u32>, cause: Failure) {
        let Failure { status, os_error, vendor_error, .. } = cause;
        self.faults.extend(blocks.map(|block| Fault { block, status, os_error, vendor_error }));
    }

    fn host_slot(&self) -> (RegionId, u64) {
        self.slot.as_ref().map_or((RegionId::NONE, 0), |slot| (slot.region, slot.address()))
    }

    fn slot_address(&self) -> u64 {
        self.exposed.as_ref().map_or(self.host_slot().1, ExposedSlot::address)
    }

    fn has_slot(&self) -> bool {
        self.slot.is_some() || self.exposed.is_some()
    }
}

impl Stage {
    fn find_served(&mut self, peer: PeerId, op: OperationId) -> Option<&mut Served> {
        self.sides.get_mut(&peer)?.served.all.get_mut(&op)
    }

    /// Adds an operation of the peer's. False when the peer has more of them than a correct engine.
    fn enter(&mut self, peer: PeerId, op: OperationId, served: Served) -> bool {
        let Some(side) = self.sides.get_mut(&peer) else { return false };
        if side.served.all.len() >= STAGE_OPERATIONS_MAX {
            self.misbehaved(peer);
            return false;
        }
        side.served.all.insert(op, served);
        true
    }

    fn add(&mut self, peer: PeerId, op: OperationId, served: Served) {
        if !self.enter(peer, op, served) {
            return;
        }
        let place = self.incoming.wait(peer, op);
        if let Some(served) = self.find_served(peer, op) {
            served.place = place;
        }
        self.give_slots();
    }

    pub fn wanted(&mut self, peer: PeerId, op: OperationId) {
        match self.find_served(peer, op) {
            None => self.add(peer, op, Served::new(Op::Write, None)),
            Some(served) if served.slot.is_some() => {
                let (region, address) = served.host_slot();
                self.send(peer, Message::Grant { op, region, address });
            }
            // Refused: the answer was lost with its connection.
            Some(served) if served.state == ServedState::Reported => self.report(peer, op),
            Some(_) => {}
        }
    }

    /// Gives out incoming slots, in the order of the requests.
    pub fn give_slots(&mut self) {
        let waits = |served: &Served| served.slot.is_none() && served.state == ServedState::Waiting;
        while let Some(((peer, op), taken)) = self.incoming.serve(|peer, op| {
            self.sides.get(&peer).and_then(|side| side.served.all.get(&op)).is_some_and(waits)
        }) {
            let Some(served) = self.find_served(peer, op) else { continue };
            match taken {
                Ok((slot, is_new)) => {
                    let (region, address) = (slot.region, slot.address());
                    served.slot = Some(slot);
                    let is_write = served.op == Op::Write;
                    if is_new {
                        self.commands.push(Command::RegionsAdded(vec![region]));
                    }
                    if is_write {
                        self.send(peer, Message::Grant { op, region, address })
                    } else {
                        self.copy_blocks(peer, op)
                    }
                }
                Err(error) => {
                    served.state = ServedState::Reported;
                    served.fail(0..1, cause(&error));
                    let faults = served.faults.clone();
                    self.send(peer, Message::Done { op, faults });
                }
            }
        }
    }

    pub fn committed(&mut self, peer: PeerId, op: OperationId, blocks: Blocks) {
        if self.find_served(peer, op).is_some() || self.take_exposed_slot(peer, op, Op::Write, &blocks) {
            self.asked(peer, op, blocks)
        } else {
            self.send(peer, Message::Unknown { op })
        }
    }

    pub fn fetched(&mut self, peer: PeerId, op: OperationId, blocks: Blocks) {
        if self.find_served(peer, op).is_some() || self.take_exposed_slot(peer, op, Op::Read, &blocks) {
            self.asked(peer, op, blocks)
        } else if blocks.bridge_slot.is_some() {
            self.send(peer, Message::Unknown { op })
        } else {
            self.add(peer, op, Served::new(Op::Read, Some(blocks)))
        }
    }

    /// Gives an operation the bridge slot that its message names.
    fn take_exposed_slot(&mut self, peer: PeerId, op: OperationId, kind: Op, blocks: &Blocks) -> bool {
        let Some(side) = self.sides.get(&peer) else { return false };
        let Some(exposed) = blocks.bridge_slot.and_then(|id| side.exposures.slot(id)) else { return false };
        // The peer may take the slot for free while a copy still uses it.
        if side.served.all.values().filter_map(|it| it.exposed.as_ref()).any(|taken| taken.is_same(&exposed))
        {
            return false;
        }
        self.enter(peer, op, Served { exposed: Some(exposed), ..Served::new(kind, None) })
    }

    fn asked(&mut self, peer: PeerId, op: OperationId, blocks: Blocks) {
        let Some(served) = self.find_served(peer, op) else { return };
        served.blocks = Some(blocks);
        match served.state {
            ServedState::Waiting if served.has_slot() => self.copy_blocks(peer, op),
            ServedState::Waiting | ServedState::Copying => {}
            ServedState::Reported => self.report(peer, op),
        }
    }

    /// Copies between the slot and the blocks, if the initiator's time is not over.
    fn copy_blocks(&mut self, peer: PeerId, op: OperationId) {
        let now_ns = clock::boottime_ns();
        let in_time = |served: &mut Served| served.blocks.as_ref().is_some_and(|it| now_ns < it.not_after_ns);
        if !self.find_served(peer, op).is_some_and(in_time) || !self.shared.begin_copy(peer) {
            return; // the initiator asks again, or has given up
        }
        let batches = self.check(peer, op);
        let Some(served) = self.find_served(peer, op) else { return };
        served.state = ServedState::Copying;
        // Counts one extra, so that no batch is the last while others are being started.
        served.copying = 1;
        for batch in batches {
            self.start(peer, op, batch);
        }
        self.served(peer, op, Begun::default(), Ok(Vec::new()));
    }

    /// Returns the blocks that may be copied, by device, with their regions entered. Refused blocks become faults.
    fn check(&mut self, peer: PeerId, op: OperationId) -> Vec<Batch> {
        let registry = self.registry.clone();
        let mut batches: Vec<Batch> = Vec::new();
        let is_own = self.sides.get(&peer).is_some_and(|side| side.peer.is_own());
        let Some(served) = self.find_served(peer, op) else { return batches };
        let Some(blocks) = served.blocks.clone() else { return batches };
        let (slot_at, exposed) = (served.slot_address(), served.exposed.as_ref().map(ExposedSlot::at));
        let (offsets, _) = layout(blocks.list.iter().map(|block| block.length));
        for (at, (block, offset)) in blocks.list.iter().zip(offsets).enumerate() {
            let wanted = (block.region, block.address, u64::from(block.length));
            let region = if is_own { registry.admit_own(wanted) } else { registry.admit(served.op, wanted) };
            let admitted = region.and_then(|region| match region {
                region if !region.is_device() => Err(Status::Unsupported),
                region if exposed.is_some_and(|exposed| exposed.kind != device(region.location).kind) => {
                    Err(Status::Unsupported)
                }
                region if !region.enter() => Err(Status::Stale),
                region => Ok(region),
            });
            let region = match admitted {
                Ok(region) => region,
                Err(status) => {
                    served.fail(std::iter::once(at as u32), cause(&Error::new(status, "")));
                    continue;
                }
            };
            let (here, slot) = (block.address, slot_at + offset);
            let (to, from) = if served.op == Op::Write { (here, slot) } else { (slot, here) };
            let (location, id) = (region.location, region.id);
            served.regions.push(region);
            let place = batches.iter().position(|batch| batch.at == location).unwrap_or_else(|| {
                let begun = Begun { not_after_ns: blocks.not_after_ns, ..Begun::default() };
                batches.push(Batch { at: location, pieces: Vec::new(), begun });
                batches.len() - 1
            });
            let batch = &mut batches[place];
            batch.pieces.push(Piece { to, from, length: u64::from(block.length) });
            batch.begun.blocks.push(at as u32);
            if served.op == Op::Write {
                batch.begun.writes(id, here..here + u64::from(block.length));
            }
        }
        batches
    }

    fn start(&mut self, peer: PeerId, op: OperationId, Batch { at, pieces, begun }: Batch) {
        let side = self.sides.get_mut(&peer);
        let Some(served) = side.and_then(|side| side.served.all.get_mut(&op)) else { return };
        let locked = match &mut served.slot {
            Some(slot) => self.incoming.lock(slot, at.kind),
            None => Ok(()),
        };
        let ready = locked.and_then(|()| self.drivers.worker(at));
        match ready {
            Err(error) => served.fail(begun.blocks.into_iter(), cause(&error)),
            Ok(worker) => {
                served.copying += 1;
                let direction = match served.op {
                    _ if served.exposed.is_some() => Direction::DeviceToDevice,
                    Op::Write => Direction::HostToDevice,
                    Op::Read => Direction::DeviceToHost,
                };
                let (inbox, not_after_ns) = (self.inbox.clone(), begun.not_after_ns);
                let done = Box::new(move |result| inbox.push(Event::Served { peer, op, begun, result }));
                let durable = served.blocks.as_ref().is_some_and(|blocks| blocks.durable);
                worker.copy(Job { direction, pieces, not_after_ns, durable, done });
            }
        }
    }

    /// Ends a batch. After the last batch it leaves the regions and tells the peer.
    pub fn served(&mut self, peer: PeerId, op: OperationId, begun: Begun, result: Result<Vec<PieceFault>>) {
        let is_begun = !matches!(&result, Err(error) if error.status == Status::Timeout);
        if is_begun && clock::boottime_ns() >= begun.not_after_ns {
            self.wrote_late(peer, &begun.written);
        }
        let Some(served) = self.find_served(peer, op) else { return };
        served.copying -= 1;
        match result {
            Err(_) if !is_begun => served.not_begun = true,
            Err(error) => served.fail(begun.blocks.into_iter(), cause(&error)),
            Ok(faults) => {
                for fault in faults {
                    served.fail(begun.blocks.get(fault.piece).copied().into_iter(), cause(&fault.error));
                }
            }
        }
        if served.copying > 0 {
            return;
        }
        if std::mem::take(&mut served.not_begun) && !served.released {
            // The copy's turn came too late. The initiator has asked again, will ask again, or has given up.
            served.state = ServedState::Waiting;
            served.faults.clear();
            let regions = std::mem::take(&mut served.regions);
            regions.iter().for_each(|region| region.leave());
            self.shared.end_copy(peer);
            return self.copy_blocks(peer, op);
        }
        served.state = ServedState::Reported;
        served.faults.sort_unstable_by_key(|fault| fault.block);
        let (released, is_write) = (served.released, served.op == Op::Write);
        let regions = std::mem::take(&mut served.regions);
        // The data is in place: the slot is free, even if the answer is lost.
        let slot = if is_write { served.slot.take() } else { None };
        regions.iter().for_each(|region| region.leave());
        self.shared.end_copy(peer);
        if let Some(slot) = slot {
            self.incoming.give(slot);
        }
        if released {
            self.released(peer, op)
        } else {
            self.report(peer, op)
        }
        self.give_slots();
    }

    /// Tells the application which memory a device may have written after the lease. The caller has not left the
    /// regions or ended the copy, so the event comes before unregister or a fence returns, and before PEER_LOST.
    fn wrote_late(&self, peer: PeerId, written: &[(RegionId, Range<u64>)]) {
        moment::reached_if("a device has written after the lease", || !written.is_empty());
        let Some(side) = self.sides.get(&peer) else { return };
        for (region, range) in written {
            side.peer.late_apply(*region, range.start, range.end - range.start);
        }
    }

    fn report(&mut self, peer: PeerId, op: OperationId) {
        let Some(served) = self.find_served(peer, op) else { return };
        let (faults, (region, address)) = (served.faults.clone(), served.host_slot());
        let message = match served.op {
            Op::Read if served.has_slot() => Message::Ready { op, region, address, faults },
            _ => Message::Done { op, faults },
        };
        self.send(peer, message);
    }

    /// Handles STOP: the initiator gave the operation up. A waiting operation is released and never begins. If copies
    /// are queued or run, the answer is BUSY.
    pub fn stopped(&mut self, peer: PeerId, op: OperationId) {
        match self.find_served(peer, op).map(|served| served.state) {
            Some(ServedState::Copying) => {
                let timeout_ms = self.drivers.timeout().as_millis() as u64;
                self.send(peer, Message::Busy { op, timeout_ms });
            }
            Some(ServedState::Reported) => self.report(peer, op),
            Some(ServedState::Waiting) => {
                self.released(peer, op);
                self.send(peer, Message::Unknown { op });
            }
            None => self.send(peer, Message::Unknown { op }),
        }
    }

    /// Handles RELEASE: the initiator does not need the operation any more.
    pub fn released(&mut self, peer: PeerId, op: OperationId) {
        let Some(side) = self.sides.get_mut(&peer) else { return };
        match side.served.all.get_mut(&op) {
            Some(served) if served.state == ServedState::Copying => served.released = true,
            Some(_) => {
                let Some(served) = side.served.all.remove(&op) else { return };
                self.due.end(peer);
                // Otherwise an initiator that asks and gives up repeatedly would fill the queue.
                self.incoming.leave(served.place, peer, op);
                let slot = served.slot;
                match slot {
                    // A lost peer's data may still arrive in the slot.
                    Some(slot) if side.is_lost() => side.served.lost_slots.push(slot),
                    Some(slot) => self.incoming.give(slot),
                    None => {}
                }
                self.give_slots();
            }
            None => {}
        }
    }

    /// Releases all operations of the peer except those in `but`.
    pub fn drop_served(&mut self, peer: PeerId, but: &HashSet<OperationId>) {
        let Some(side) = self.sides.get(&peer) else { return };
        let gone: Vec<OperationId> = side.served.all.keys().filter(|op| !but.contains(op)).copied().collect();
        gone.into_iter().for_each(|op| self.released(peer, op));
    }
}
