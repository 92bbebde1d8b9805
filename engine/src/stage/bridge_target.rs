//! The target's side of bridges: device memory here, owned by ferry, that a peer's device fills and empties directly
//! (see `bridge`). `serve` checks every copy between this memory and regions.

use super::bridges::bytes_of;
use super::event::Event;
use super::mapped::device;
use super::service::Stage;
use super::wire::{BridgeSlotId, Message};
use crate::device::Worker;
use crate::limits::{BRIDGES_MAX, STAGE_SLOT_BYTES};
use crate::status::{Error, Result, Status};
use crate::sys::map::{HashMap, HashSet};
use crate::types::{BridgeId, Location, PeerId};
use std::sync::Arc;

/// Memory that a peer's device reaches. Dropping it takes the memory back.
pub struct Exposure {
    at: Location,
    address: u64,
    slots: u32,
    worker: Arc<Worker>,
}

impl Drop for Exposure {
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
pub struct ExposedSlot {
    exposure: Arc<Exposure>,
    slot: u32,
}

impl ExposedSlot {
    pub fn is_same(&self, other: &ExposedSlot) -> bool {
        Arc::ptr_eq(&self.exposure, &other.exposure) && self.slot == other.slot
    }

    pub fn at(&self) -> Location {
        self.exposure.at
    }

    pub fn address(&self) -> u64 {
        self.exposure.address + u64::from(self.slot) * STAGE_SLOT_BYTES
    }
}

/// The memory here for one peer's bridges.
#[derive(Default)]
pub struct Exposures {
    /// None while a device makes it.
    all: HashMap<BridgeId, Option<Arc<Exposure>>>,
    /// The number of requests to devices, including those for bridges no longer wanted.
    being_made: usize,
}

impl Exposures {
    /// Takes the memory of all bridges but these back.
    pub fn keep(&mut self, bridges: &[BridgeId]) {
        // A message may name many more bridges than there are.
        let kept: HashSet<&BridgeId> = bridges.iter().collect();
        self.all.retain(|bridge, _| kept.contains(bridge));
    }

    /// Returns the slot that the peer names; None if it does not exist.
    pub fn slot(&self, id: BridgeSlotId) -> Option<ExposedSlot> {
        let exposure = self.all.get(&id.bridge)?.as_ref()?;
        (id.slot < exposure.slots).then(|| ExposedSlot { exposure: exposure.clone(), slot: id.slot })
    }
}

impl Stage {
    /// Handles EXPOSE: a peer wants memory of a device for a bridge.
    pub fn expose(&mut self, peer: PeerId, bridge: BridgeId, at: Location, slots: u32) {
        if let Err(error) = self.try_expose(peer, bridge, device(at), slots) {
            self.send(peer, Message::hidden(bridge, &error));
        }
    }

    fn try_expose(&mut self, peer: PeerId, bridge: BridgeId, at: Location, slots: u32) -> Result<()> {
        let Some(side) = self.sides.get_mut(&peer) else { return Ok(()) };
        // A bridge's number is never used again. Requests that devices still work on count too.
        let is_known = side.exposures.all.contains_key(&bridge);
        if slots == 0
            || is_known
            || side.exposures.all.len() >= BRIDGES_MAX
            || side.exposures.being_made >= BRIDGES_MAX
        {
            let text = format!("EXPOSE: {slots} slots on top of {} bridges", side.exposures.all.len());
            return Err(Error::invalid(text));
        }
        let slots = slots.min(self.bridges.slots());
        if !self.registry.snapshot().iter().any(|region| device(region.location) == at) {
            return Err(Error::new(Status::Unsupported, "EXPOSE: no region is memory of this device"));
        }
        let worker = self.drivers.worker(at)?;
        side.exposures.all.insert(bridge, None);
        side.exposures.being_made += 1;
        let (host, inbox, own) = (side.peer.identity.hosts.0, self.inbox.clone(), worker.clone());
        worker.with(move |queue| {
            let result = queue.and_then(|queue| queue.expose(bytes_of(slots), host)).map(|exposed| {
                let exposure = Exposure { at, address: exposed.address, slots, worker: own };
                (Arc::new(exposure), exposed.offer)
            });
            inbox.push(Event::Exposed { peer, bridge, result });
        });
        Ok(())
    }

    pub fn exposure_made(
        &mut self,
        peer: PeerId,
        bridge: BridgeId,
        result: Result<(Arc<Exposure>, Vec<u8>)>,
    ) {
        let Some(side) = self.sides.get_mut(&peer) else { return };
        side.exposures.being_made = side.exposures.being_made.saturating_sub(1);
        let Some(entry @ None) = side.exposures.all.get_mut(&bridge) else { return };
        let message = match result {
            Ok((exposure, offer)) => {
                let slots = exposure.slots;
                *entry = Some(exposure);
                Message::Exposed { bridge, slots, offer }
            }
            Err(error) => {
                side.exposures.all.remove(&bridge);
                Message::hidden(bridge, &error)
            }
        };
        self.send(peer, message);
    }

    /// Handles CONCEAL: the peer's device has released the memory.
    pub fn conceal(&mut self, peer: PeerId, bridge: BridgeId) {
        if let Some(side) = self.sides.get_mut(&peer) {
            side.exposures.all.remove(&bridge);
        }
    }
}
