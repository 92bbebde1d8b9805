//! The target's side of bridges: device memory here, owned by ferry, that a peer's device fills and empties directly
//! (see `bridge`). `serve` checks every copy between this memory and regions.

use super::bridge::bytes_of;
use super::event::Event;
use super::mapped::device;
use super::service::Stage;
use super::wire::{Message, Place};
use crate::device::Worker;
use crate::limits::{BRIDGES_MAX, STAGE_SLOT_BYTES};
use crate::status::{Error, Result, Status};
use crate::types::{Location, PeerId};
use std::sync::Arc;

/// Memory that a peer's device reaches. Dropping it takes the memory back.
pub struct Shown {
    at: Location,
    address: u64,
    slots: u32,
    worker: Arc<Worker>,
}

impl Drop for Shown {
    fn drop(&mut self) {
        let address = self.address;
        self.worker.with(move |queue| {
            if let Ok(queue) = queue {
                queue.conceal(address);
            }
        });
    }
}

/// A slot of shown memory.
pub struct Seat {
    shown: Arc<Shown>,
    slot: u32,
}

impl Seat {
    pub fn is_same(&self, other: &Seat) -> bool {
        Arc::ptr_eq(&self.shown, &other.shown) && self.slot == other.slot
    }

    pub fn at(&self) -> Location {
        self.shown.at
    }

    pub fn address(&self) -> u64 {
        self.shown.address + u64::from(self.slot) * STAGE_SLOT_BYTES
    }
}

impl Stage {
    /// Handles EXPOSE: a peer wants memory of a device for a bridge.
    pub fn expose(&mut self, peer: PeerId, bridge: u64, at: Location, slots: u32) {
        if let Err(error) = self.try_expose(peer, bridge, device(at), slots) {
            self.say(peer, Message::hidden(bridge, &error));
        }
    }

    fn try_expose(&mut self, peer: PeerId, bridge: u64, at: Location, slots: u32) -> Result<()> {
        let Some(side) = self.sides.get_mut(&peer) else { return Ok(()) };
        // A bridge's number is never used again. Requests that devices still work on count too.
        let is_known = side.shown.contains_key(&bridge);
        if slots == 0 || is_known || side.shown.len() >= BRIDGES_MAX || side.showing >= BRIDGES_MAX {
            let text = format!("EXPOSE: {slots} slots on top of {} bridges", side.shown.len());
            return Err(Error::invalid(text));
        }
        let slots = slots.min(self.bridge_slots);
        if !self.registry.snapshot().iter().any(|region| device(region.location) == at) {
            return Err(Error::new(Status::Unsupported, "EXPOSE: no region is memory of this device"));
        }
        let worker = self.drivers.worker(at)?;
        side.shown.insert(bridge, None);
        side.showing += 1;
        let (host, inbox, own) = (side.peer.identity.hosts.0, self.inbox.clone(), worker.clone());
        worker.with(move |queue| {
            let result = queue.and_then(|queue| queue.expose(bytes_of(slots), host)).map(|exposed| {
                let shown = Shown { at, address: exposed.address, slots, worker: own };
                (Arc::new(shown), exposed.offer)
            });
            inbox.push(Event::Shown { peer, bridge, result });
        });
        Ok(())
    }

    pub fn shown(&mut self, peer: PeerId, bridge: u64, result: Result<(Arc<Shown>, Vec<u8>)>) {
        let Some(side) = self.sides.get_mut(&peer) else { return };
        side.showing = side.showing.saturating_sub(1);
        let Some(place @ None) = side.shown.get_mut(&bridge) else { return };
        let message = match result {
            Ok((shown, offer)) => {
                let slots = shown.slots;
                *place = Some(shown);
                Message::Exposed { bridge, slots, offer }
            }
            Err(error) => {
                side.shown.remove(&bridge);
                Message::hidden(bridge, &error)
            }
        };
        self.say(peer, message);
    }

    /// Handles CONCEAL: the peer's device has released the memory.
    pub fn conceal(&mut self, peer: PeerId, bridge: u64) {
        if let Some(side) = self.sides.get_mut(&peer) {
            side.shown.remove(&bridge);
        }
    }

    /// Returns the slot that a peer names; None if it does not exist.
    pub fn seat(&self, peer: PeerId, place: Place) -> Option<Seat> {
        let shown = self.sides.get(&peer)?.shown.get(&place.bridge)?.as_ref()?;
        (place.slot < shown.slots).then(|| Seat { shown: shown.clone(), slot: place.slot })
    }
}
