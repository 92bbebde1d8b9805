//! A *bridge* joins devices of two hosts that reach each other's memory. It has memory on a device here and on a
//! device of the peer, in equally many slots, and the devices copy between them. A run over a bridge is staged like
//! any other, but its slots are on the devices and no host memory is involved.
//!
//! ```text
//! initiator: EXPOSE ─▶ target: memory of its device ── EXPOSED ─▶ initiator: as much here, attached
//! WRITE      device ─▶ slot (copy) ═put═▶ slot ── COMMIT ─▶ target: checks blocks, slot ─▶ device (copy) ── DONE ─▶
//! READ       FETCH ─▶ target: device ─▶ slot (copy) ── READY ─▶ slot ═get═▶ slot, RELEASE ─▶ device (copy)
//! ```
//! The initiator assigns the slots, in pairs with the same number. Remote devices write only to memory that ferry owns,
//! so a late put is harmless. A run whose end the target did not report takes its bridge out of use, because a copy
//! there may still read or write the slot.

use super::event::{Event, Inbox};
use super::mapped::Pair;
use super::operation::{Method, Operation, OperationStep};
use super::service::Stage;
use super::wire::{layout, BridgeSlotId, Message};
use crate::complete::Fence;
use crate::device::{Attachment, Direction, Job, Piece, Worker};
use crate::limits::{BRIDGES_MAX, STAGE_SLOT_BYTES};
use crate::status::{Error, Result, Status};
use crate::sys::lock::{Mutex, MutexGuard};
use crate::types::{Boottime, BridgeId, Op, OperationId, PeerId, Transport};
use std::sync::Arc;

/// The largest page size of devices; memory of bridges is whole pages of it.
const PAGE_BYTES: u64 = 2 << 20;

/// Returns the bytes of `slots` slots, at either end.
pub fn bytes_of(slots: u32) -> u64 {
    (u64::from(slots) * STAGE_SLOT_BYTES).next_multiple_of(PAGE_BYTES)
}

/// The state of a bridge.
pub enum Bridge {
    /// The peer was asked for memory of its device.
    Asked(BridgeId),
    /// Memory of the device here is being attached to the peer's.
    Attaching(BridgeId, Attached),
    Open(Arc<Span>),
    /// The bridge could not be built: runs go through the hosts until the next connection.
    Refused,
    /// The bridge failed in use: runs go through the hosts until the peer is lost, so that at most one bridge's memory
    /// is kept for late writes.
    Broken,
}

impl Bridge {
    /// Returns whether the bridge outlasts the connection. The peer may not have received an EXPOSE, so ASKED does
    /// not.
    pub fn stands(&self) -> bool {
        matches!(self, Bridge::Attaching(..) | Bridge::Open(_) | Bridge::Broken)
    }

    fn id(&self) -> Option<BridgeId> {
        match self {
            Bridge::Asked(id) | Bridge::Attaching(id, _) => Some(*id),
            Bridge::Open(span) => Some(span.id),
            Bridge::Refused | Bridge::Broken => None,
        }
    }
}

/// The thread that moves data over a bridge. When dropped, it ends after the last move and releases the memory.
pub struct Attached(Arc<Worker>);

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// An open bridge.
pub struct Span {
    id: BridgeId,
    attached: Attached,
    /// The first slot's address, here and at the peer.
    local: u64,
    remote: u64,
    free: Mutex<Vec<u32>>,
}

impl Span {
    fn free(&self) -> MutexGuard<'_, Vec<u32>> {
        self.free.lock()
    }
}

/// A slot at each end, for one operation.
pub struct BridgeSlot {
    span: Arc<Span>,
    slot: u32,
}

impl BridgeSlot {
    fn take(span: &Arc<Span>) -> Option<BridgeSlot> {
        let slot = span.free().pop()?;
        Some(BridgeSlot { span: span.clone(), slot })
    }

    /// Returns the address of the slot here.
    pub fn address(&self) -> u64 {
        self.span.local + u64::from(self.slot) * STAGE_SLOT_BYTES
    }

    pub fn id(&self) -> BridgeSlotId {
        BridgeSlotId { bridge: self.span.id, slot: self.slot }
    }

    fn piece(&self, op: Op, length: u64) -> Piece {
        let there = self.span.remote + u64::from(self.slot) * STAGE_SLOT_BYTES;
        let (to, from) = if op == Op::Write { (there, self.address()) } else { (self.address(), there) };
        Piece { to, from, length }
    }
}

impl Drop for BridgeSlot {
    fn drop(&mut self) {
        self.span.free().push(self.slot);
    }
}

impl Stage {
    /// Gives an operation a slot of its bridge, or asks the peer for a bridge.
    pub fn cross(&mut self, peer: PeerId, op: OperationId) {
        let Some(side) = self.sides.get_mut(&peer) else { return };
        let connected = side.is_connected();
        let Some(operation) = self.operations.get_mut(peer, op) else { return };
        let Method::Bridged(pair) = operation.method else { return };
        operation.step = OperationStep::Reach;
        match side.bridges.get(&pair) {
            Some(Bridge::Asked(_) | Bridge::Attaching(..)) => {}
            Some(Bridge::Refused | Bridge::Broken) => self.stage_instead(peer, op),
            Some(Bridge::Open(span)) => {
                operation.bridge_slot = BridgeSlot::take(span);
                match (operation.bridge_slot.is_some(), operation.op()) {
                    (false, _) => {}
                    (true, Op::Write) => self.copy(peer, op),
                    (true, Op::Read) => self.ask(peer, op),
                }
            }
            None if side.bridges.len() >= BRIDGES_MAX => {
                let text = format!("bridges: {BRIDGES_MAX} pairs of devices are in use, which is the limit");
                self.note_obstacle(peer, pair.0.kind, &text);
                self.stage_instead(peer, op);
            }
            None if connected => {
                let bridge = BridgeId::from_raw(self.next_bridge);
                self.next_bridge += 1;
                side.bridges.insert(pair, Bridge::Asked(bridge));
                let slots = self.bridge_slots;
                self.send(peer, Message::Expose { bridge, at: pair.1, slots });
            }
            None => {}
        }
    }

    fn bridge(&mut self, peer: PeerId, id: BridgeId) -> Option<(Pair, &mut Bridge)> {
        let side = self.sides.get_mut(&peer)?;
        let found = side.bridges.iter_mut().find(|(_, bridge)| bridge.id() == Some(id));
        found.map(|(pair, bridge)| (*pair, bridge))
    }

    /// Handles EXPOSED: attaches the device here to the peer's memory.
    pub fn exposed(&mut self, peer: PeerId, id: BridgeId, slots: u32, offer: Vec<u8>) {
        let pair = match self.bridge(peer, id) {
            Some((pair, Bridge::Asked(_))) => pair,
            Some(_) => return,
            None => return self.send(peer, Message::Conceal { bridge: id }), // not wanted any more
        };
        if let Err(error) = self.attach(peer, (id, pair), slots, offer) {
            self.send(peer, Message::Conceal { bridge: id });
            self.refuse_bridge(peer, id, &error);
        }
    }

    fn attach(
        &mut self,
        peer: PeerId,
        (id, pair): (BridgeId, Pair),
        slots: u32,
        offer: Vec<u8>,
    ) -> Result<()> {
        let Some(side) = self.sides.get(&peer) else { return Ok(()) };
        if slots == 0 || slots > self.bridge_slots {
            return Err(Error::invalid("EXPOSED: the number of slots is 0 or larger than requested"));
        }
        let (at, host) = (pair.0, side.peer.identity.hosts.1);
        let driver = self.drivers.get(at.kind)?;
        let (inbox, gone): (Arc<Inbox>, _) = (self.inbox.clone(), self.inbox.clone());
        let open = move || {
            let (queue, result) = match driver.attach(at.device, bytes_of(slots), &offer, host) {
                Ok(Attachment { queue, local, remote }) => (Some(queue), Ok((local, remote, slots))),
                Err(error) => (None, Err(error)),
            };
            inbox.push(Event::Attached { peer, bridge: id, result });
            queue
        };
        let ended = move || gone.push(Event::Detached { peer, bridge: id });
        let worker = self.drivers.start_attached(at, open, ended)?;
        self.attached.insert(id, (peer, worker.clone()));
        if let Some((_, bridge)) = self.bridge(peer, id) {
            *bridge = Bridge::Attaching(id, Attached(worker));
        }
        Ok(())
    }

    pub fn attached(&mut self, peer: PeerId, id: BridgeId, result: Result<(u64, u64, u32)>) {
        let Some((_, bridge @ Bridge::Attaching(..))) = self.bridge(peer, id) else { return };
        match result {
            Err(error) => return self.refuse_bridge(peer, id, &error),
            Ok((local, remote, slots)) => {
                let Bridge::Attaching(_, attached) = std::mem::replace(bridge, Bridge::Refused) else {
                    return;
                };
                let free = Mutex::new((0..slots).rev().collect());
                *bridge = Bridge::Open(Arc::new(Span { id, attached, local, remote, free }));
            }
        }
        self.check_waiting(peer);
    }

    /// Handles the end of a bridge's thread: the device here has detached, unless something failed. After a failure
    /// data may still be written to the peer's memory, so CONCEAL is not sent and the peer keeps it.
    pub fn detached(&mut self, peer: PeerId, id: BridgeId) {
        if let Some((_, Bridge::Attaching(..))) = self.bridge(peer, id) {
            self.refuse_bridge(peer, id, &Error::new(Status::Unavailable, "attaching the device failed"));
        }
        if self.broken.contains(&id) {
            return;
        }
        if let Some((_, worker)) = self.attached.remove(&id) {
            worker.stop();
        }
        self.send(peer, Message::Conceal { bridge: id });
    }

    /// Forgets all bridges of a lost peer.
    pub fn forget_bridges(&mut self, peer: PeerId) {
        if let Some(side) = self.sides.get_mut(&peer) {
            side.bridges.clear();
            side.exposures.clear();
        }
        let broken = &mut self.broken;
        self.attached.retain(|id, (of, _)| *of != peer || !broken.remove(id));
    }

    /// Marks the bridge between these devices as unusable.
    pub fn refuse_bridge(&mut self, peer: PeerId, id: BridgeId, error: &Error) {
        let is_broken = self.broken.contains(&id);
        let Some((pair, bridge)) = self.bridge(peer, id) else { return };
        *bridge = if is_broken { Bridge::Broken } else { Bridge::Refused };
        self.note_obstacle(peer, pair.0.kind, &error.message);
        self.check_waiting(peer);
    }

    /// Takes an operation's bridge out of use: the target may still use the slot there.
    pub fn retire_bridge(&mut self, peer: PeerId, op: OperationId) {
        let Some(side) = self.sides.get_mut(&peer) else { return };
        let bridge_slot = self.operations.get(peer, op).and_then(|operation| operation.bridge_slot.as_ref());
        let Some(id) = bridge_slot.map(|bridge_slot| bridge_slot.span.id) else { return };
        side.bridges.retain(|_, bridge| bridge.id() != Some(id));
    }

    /// Copies between the two slots of a bridge, by the devices.
    pub fn carry(&mut self, peer: PeerId, op: OperationId) {
        let Some(operation) = self.operations.get_mut(peer, op) else { return };
        let Some(bridge_slot) = operation.bridge_slot.take() else { return };
        operation.step = OperationStep::Move;
        let (_, length) = layout(operation.slices().iter().map(|slice| slice.length));
        let pieces = vec![bridge_slot.piece(operation.op(), length)];
        let direction = match operation.op() {
            Op::Write => Direction::DeviceToHost,
            Op::Read => Direction::HostToDevice,
        };
        let (inbox, span) = (self.inbox.clone(), bridge_slot.span.clone());
        let done = Box::new(move |result| inbox.push(Event::Carried { peer, op, bridge_slot, result }));
        span.attached.0.copy(Job { direction, pieces, not_after_ns: Boottime::NEVER, done });
    }

    pub fn carried(&mut self, peer: PeerId, op: OperationId, bridge_slot: BridgeSlot, result: Result<()>) {
        if let Err(error) = &result {
            self.broken.insert(bridge_slot.span.id);
            self.refuse_bridge(peer, bridge_slot.span.id, error);
        }
        let here = |operation: &&mut Operation| operation.step == OperationStep::Move;
        let Some(operation) = self.operations.get_mut(peer, op).filter(here) else {
            // The operation was struck and has ended.
            drop(bridge_slot);
            return self.check_waiting(peer);
        };
        match (result, operation.op()) {
            // The target was not told about the data, so staging can start over.
            (Err(_), _) => self.stage_instead(peer, op),
            (Ok(()), kind) => {
                if let Method::Bridged((at, _)) = operation.method {
                    operation.transfer.report_transport(Transport::of_devices(at.kind));
                }
                operation.bridge_slot = Some(bridge_slot);
                match kind {
                    _ if operation.is_struck() => self.finish(peer, op, Some(Fence::Confirmed)),
                    Op::Write => self.ask(peer, op),
                    Op::Read => {
                        self.send(peer, Message::Release { op });
                        self.copy(peer, op);
                    }
                }
            }
        }
    }

    /// Returns the bridges that the peer must keep.
    pub fn bridges(&self, peer: PeerId) -> Vec<BridgeId> {
        self.attached.iter().filter(|(_, (of, _))| *of == peer).map(|(id, _)| *id).collect()
    }
}
