//! Slots of pinned host memory, through which device memory is staged. An operation takes a slot and gives it back
//! when nothing can touch the slot any more. Each slot is a region of its own. Late data for a retired
//! slot is refused, because its region is gone.

use crate::device::Drivers;
use crate::limits::STAGE_SLOT_BYTES;
use crate::region::{RegionSpec, Registry};
use crate::status::{Error, Result};
use crate::sys::mapping::Mapping;
use crate::types::{Access, MemoryKind, Monotonic, OperationId, PeerId, RegionId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The time in which peers must release the keys of a slot when the ring ends.
const PATIENCE: Duration = Duration::from_secs(1);
/// The stage's thread waits for no peer. With a timeout of zero, a region that is in use would stay registered.
const AT_ONCE: Duration = Duration::from_nanos(1);
/// The pause between two looks at slots that were given up.
const TIDY_PAUSE: Duration = Duration::from_millis(50);

pub struct StagingSlot {
    memory: Mapping,
    pub region: RegionId,
    /// The device libraries that have pinned the slot.
    locked_by: Vec<MemoryKind>,
}

impl StagingSlot {
    pub fn address(&self) -> u64 {
        self.memory.address() as u64
    }
}

/// An operation that waits for a slot: its peer and its number.
type Waiter = (PeerId, OperationId);

/// A slot. The flag tells whether it must be announced to peers.
type Taken = (StagingSlot, bool);

pub struct Ring {
    registry: Arc<Registry>,
    drivers: Arc<Drivers>,
    access: Access,
    /// Slots that may still be made.
    unmade: u32,
    free: Vec<StagingSlot>,
    /// Slots that were given up, and that someone may still reach.
    leaving: Vec<StagingSlot>,
    /// When slots that were given up are looked at again.
    tidy_at: Option<Monotonic>,
    /// Operations that wait for a slot, in order.
    waiting: BTreeMap<u64, Waiter>,
}

impl Ring {
    /// Makes a ring of up to `slots` slots, which are allocated on demand, with these rights for peers.
    pub fn new(registry: Arc<Registry>, drivers: Arc<Drivers>, slots: u32, access: Access) -> Ring {
        Ring {
            registry,
            drivers,
            access,
            unmade: slots,
            free: Vec::new(),
            leaving: Vec::new(),
            tidy_at: None,
            waiting: BTreeMap::new(),
        }
    }

    /// Lets an operation wait for a slot, behind the others. Returns its place among them.
    pub fn wait(&mut self, peer: PeerId, op: OperationId) -> u64 {
        let place = self.waiting.last_key_value().map_or(0, |(place, _)| place + 1);
        self.waiting.insert(place, (peer, op));
        place
    }

    /// Takes an operation out of those that wait, if it still has this place.
    pub fn leave(&mut self, place: u64, peer: PeerId, op: OperationId) {
        if self.waiting.get(&place) == Some(&(peer, op)) {
            self.waiting.remove(&place);
        }
    }

    /// Gives a slot, or the error of making one, to the first operation that still waits. None if no operation waits or
    /// all slots are taken.
    pub fn serve(
        &mut self,
        still_waits: impl Fn(PeerId, OperationId) -> bool,
    ) -> Option<(Waiter, Result<Taken>)> {
        while let Some((place, (peer, op))) = self.waiting.first_key_value().map(|(at, it)| (*at, *it)) {
            let taken = if still_waits(peer, op) { Some(self.take().transpose()?) } else { None };
            self.waiting.remove(&place);
            if let Some(taken) = taken {
                return Some(((peer, op), taken));
            }
        }
        None
    }

    /// Takes a slot. None: all slots are taken.
    fn take(&mut self) -> Result<Option<Taken>> {
        if let Some(slot) = self.free.pop() {
            return Ok(Some((slot, false)));
        }
        if self.unmade == 0 {
            return Ok(None);
        }
        let slot = self.make()?;
        self.unmade -= 1;
        Ok(Some((slot, self.access.0 != 0)))
    }

    pub fn give(&mut self, slot: StagingSlot) {
        self.free.push(slot);
    }

    fn make(&self) -> Result<StagingSlot> {
        let length = STAGE_SLOT_BYTES.next_multiple_of(4096) as usize;
        let shares = self.registry.has_grants() && self.access.0 != 0;
        // Without a descriptor for the slot the peers of this host copy instead of mapping it.
        let shared = if shares { Mapping::shared(length).ok() } else { None };
        let memory = shared
            .map_or_else(|| Mapping::private(length), Ok)
            .map_err(|error| Error::system("allocating memory for staging", &error))?;
        memory.keep_from_children();
        let spec = RegionSpec {
            address: memory.address() as u64,
            length: length as u64,
            access: self.access,
            staging: true,
            ..RegionSpec::default()
        };
        let region = match memory.memfd() {
            Some(memfd) => self.registry.register_shared(spec, memfd.clone())?.id,
            None => self.registry.register(&[spec])?.remove(0).id,
        };
        Ok(StagingSlot { memory, region, locked_by: Vec::new() })
    }

    /// Pins the slot with the library of this kind of device, once.
    pub fn lock(&self, slot: &mut StagingSlot, kind: MemoryKind) -> Result<()> {
        let kind = kind.driver();
        if !slot.locked_by.contains(&kind) {
            self.drivers.get(kind)?.pin(slot.address(), slot.memory.length())?;
            slot.locked_by.push(kind);
        }
        Ok(())
    }

    /// Gives a slot up for good: data for its region is refused from here on. Nothing of this process uses the slot,
    /// but a peer may still have its keys; until the peer has released them, another slot is not made in its place
    /// (`tidy`). Returns the region, which must be announced as removed.
    pub fn retire(&mut self, slot: StagingSlot) -> RegionId {
        let region = slot.region;
        if self.free_memory(&slot, AT_ONCE) {
            self.unmade += 1
        } else {
            self.leaving.push(slot)
        }
        region
    }

    /// Frees the slots that were given up and that nobody reaches any more, and plans the next look if some are left.
    pub fn tidy(&mut self, now: Monotonic) {
        for slot in std::mem::take(&mut self.leaving) {
            if self.free_memory(&slot, Duration::ZERO) {
                self.unmade += 1
            } else {
                self.leaving.push(slot)
            }
        }
        self.tidy_at = (!self.leaving.is_empty()).then(|| now + TIDY_PAUSE);
    }

    /// Returns when to call `tidy`.
    pub fn next_tidy(&self) -> Option<Monotonic> {
        self.tidy_at
    }

    /// Returns false if the slot's region still has a user.
    fn free_memory(&self, slot: &StagingSlot, patience: Duration) -> bool {
        if self.registry.unregister(slot.region, Some(patience)).is_err() {
            return false;
        }
        for kind in &slot.locked_by {
            if let Ok(driver) = self.drivers.get(*kind) {
                driver.unpin(slot.address());
            }
        }
        true
    }

    /// Frees all slots that are not taken.
    pub fn end(&mut self) {
        let all = std::mem::take(&mut self.free).into_iter().chain(std::mem::take(&mut self.leaving));
        for slot in all {
            if !self.free_memory(&slot, PATIENCE) {
                // The region still has a user: its memory is leaked rather than freed under that user.
                std::mem::forget(slot);
            }
        }
    }
}
