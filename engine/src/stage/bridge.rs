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

use super::bridges::{bytes_of, BridgeSlot, Crossing};
use super::event::{Event, Inbox};
use super::mapped::Pair;
use super::operation::{Method, Operation, OperationStep};
use super::service::Stage;
use super::wire::{layout, Message};
use crate::complete::Fence;
use crate::device::{Attachment, Direction, Job};
use crate::limits::BRIDGES_MAX;
use crate::status::{Error, Result, Status};
use crate::types::{Boottime, BridgeId, Op, OperationId, PeerId, Transport};
use std::sync::Arc;

impl Stage {
    /// Gives an operation a slot of its bridge, or asks the peer for a bridge.
    pub fn cross(&mut self, peer: PeerId, op: OperationId) {
        let Some(side) = self.sides.get(&peer) else { return };
        let Some(operation) = self.operations.get_mut(peer, op) else { return };
        let Method::Bridged(pair) = operation.method else { return };
        operation.step = OperationStep::Reach;
        match self.bridges.cross(peer, pair, side.is_connected()) {
            Crossing::Slot(bridge_slot) => {
                operation.bridge_slot = Some(bridge_slot);
                match operation.op() {
                    Op::Write => self.copy(peer, op),
                    Op::Read => self.ask(peer, op),
                }
            }
            Crossing::Wait => {}
            Crossing::Ask(bridge) => {
                let slots = self.bridges.slots();
                self.send(peer, Message::Expose { bridge, at: pair.1, slots });
            }
            Crossing::Refused => self.stage_instead(peer, op),
            Crossing::Full => {
                let text = format!("bridges: {BRIDGES_MAX} pairs of devices are in use, which is the limit");
                self.note_obstacle(peer, pair.0.kind, &text);
                self.stage_instead(peer, op);
            }
        }
    }

    /// Handles EXPOSED: attaches the device here to the peer's memory.
    pub fn exposed(&mut self, peer: PeerId, id: BridgeId, slots: u32, offer: Vec<u8>) {
        let pair = match self.bridges.pair(peer, id) {
            Some((pair, true)) => pair,
            Some((_, false)) => return,
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
        if slots == 0 || slots > self.bridges.slots() {
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
        self.bridges.attach(peer, id, worker);
        Ok(())
    }

    pub fn attached(&mut self, peer: PeerId, id: BridgeId, result: Result<(u64, u64, u32)>) {
        if !self.bridges.is_attaching(peer, id) {
            return;
        }
        match result {
            Err(error) => self.refuse_bridge(peer, id, &error),
            Ok(ends) => {
                self.bridges.open(peer, id, ends);
                self.check_waiting(peer);
            }
        }
    }

    /// Handles the end of a bridge's thread: the device here has detached, unless something failed. After a failure
    /// data may still be written to the peer's memory, so CONCEAL is not sent and the peer keeps it.
    pub fn detached(&mut self, peer: PeerId, id: BridgeId) {
        if self.bridges.is_attaching(peer, id) {
            self.refuse_bridge(peer, id, &Error::new(Status::Unavailable, "attaching the device failed"));
        }
        if self.bridges.detached(id) {
            self.send(peer, Message::Conceal { bridge: id });
        }
    }

    /// Marks the bridge between these devices as unusable.
    pub fn refuse_bridge(&mut self, peer: PeerId, id: BridgeId, error: &Error) {
        let Some(pair) = self.bridges.refuse(peer, id) else { return };
        self.note_obstacle(peer, pair.0.kind, &error.message);
        self.check_waiting(peer);
    }

    /// Takes an operation's bridge out of use: the target may still use the slot there.
    pub fn retire_bridge(&mut self, peer: PeerId, op: OperationId) {
        let bridge_slot = self.operations.get(peer, op).and_then(|operation| operation.bridge_slot.as_ref());
        let Some(id) = bridge_slot.map(|bridge_slot| bridge_slot.id().bridge) else { return };
        self.bridges.retire(peer, id);
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
        let (inbox, worker) = (self.inbox.clone(), bridge_slot.worker());
        let done = Box::new(move |result: Result<_>| {
            let result = result.map(drop);
            inbox.push(Event::Carried { peer, op, bridge_slot, result });
        });
        worker.copy(Job { direction, pieces, not_after_ns: Boottime::NEVER, durable: false, done });
    }

    pub fn carried(&mut self, peer: PeerId, op: OperationId, bridge_slot: BridgeSlot, result: Result<()>) {
        if let Err(error) = &result {
            let id = bridge_slot.id().bridge;
            self.bridges.note_broken(id);
            self.refuse_bridge(peer, id, error);
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
}
