//! Locked host memory in slots: what device memory passes through. A slot is taken for one operation and
//! given back when nothing can touch it any more. Each is a region of its own, so that what was meant for one
//! that is gone is refused like anything else that comes too late.

use crate::device::Drivers;
use crate::limits::STAGE_SLOT_BYTES;
use crate::region::{RegionSpec, Registry};
use crate::status::{Error, Result};
use crate::sys::mapping::Mapping;
use crate::types::{Access, MemoryKind};
use std::sync::Arc;
use std::time::Duration;

/// How long peers may take to let go of the keys of a slot that is given up.
const PATIENCE: Duration = Duration::from_secs(1);

pub struct Slot {
    memory: Mapping,
    pub region: u64,
    /// The libraries that have locked it.
    locked_by: Vec<MemoryKind>,
}

impl Slot {
    pub fn address(&self) -> u64 {
        self.memory.address() as u64
    }
}

pub struct Ring {
    registry: Arc<Registry>,
    drivers: Arc<Drivers>,
    access: Access,
    /// Slots that may still be made.
    unmade: u32,
    free: Vec<Slot>,
}

impl Ring {
    /// Up to so many slots, made when they are needed, with these rights for peers.
    pub fn new(registry: Arc<Registry>, drivers: Arc<Drivers>, slots: u32, access: Access) -> Ring {
        Ring { registry, drivers, access, unmade: slots, free: Vec::new() }
    }

    /// A slot, and whether peers have to be told of it. None: all are taken.
    pub fn take(&mut self) -> Result<Option<(Slot, bool)>> {
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

    pub fn give(&mut self, slot: Slot) {
        self.free.push(slot);
    }

    fn make(&self) -> Result<Slot> {
        let length = STAGE_SLOT_BYTES.next_multiple_of(4096) as usize;
        let shares = self.registry.has_grants() && self.access.0 != 0;
        let memory = if shares { Mapping::shared(length) } else { Mapping::private(length) }
            .map_err(|error| Error::system("allocating memory for staging", &error))?;
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
        Ok(Slot { memory, region, locked_by: Vec::new() })
    }

    /// Has the slot locked by the library of this kind of device.
    pub fn lock(&self, slot: &mut Slot, kind: MemoryKind) -> Result<()> {
        let kind = kind.driver();
        if !slot.locked_by.contains(&kind) {
            self.drivers.get(kind)?.pin(slot.address(), slot.memory.length())?;
            slot.locked_by.push(kind);
        }
        Ok(())
    }

    /// Gives a slot up for good, and makes room for another: what is still said of its region is refused from
    /// here on. Nothing of this process uses it. The region is returned, for peers to be told.
    pub fn retire(&mut self, slot: Slot) -> u64 {
        let region = slot.region;
        let over = self.registry.unregister(region, Some(PATIENCE)).is_ok();
        for kind in slot.locked_by.iter().filter(|_| over) {
            if let Ok(driver) = self.drivers.get(*kind) {
                driver.unpin(slot.address());
            }
        }
        match over {
            true => self.unmade += 1,
            // Somebody is still inside: kept rather than pulled away.
            false => std::mem::forget(slot),
        }
        region
    }

    /// Gives up all that are not taken.
    pub fn end(&mut self) {
        for slot in std::mem::take(&mut self.free) {
            self.retire(slot);
        }
    }
}
