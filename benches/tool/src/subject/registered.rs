//! The subject's memory: the program's own, registered; or allocated by ferry; or a device's, registered. The kind
//! decides which paths ferry can take within one machine.

use std::time::Duration;

use anyhow::Context;
use ferry::types::{Location, RegionId};
use ferry::{Engine, RegionOptions};

use super::wire::{Area, Origin};
use crate::device::DeviceMemory;
use crate::memory::{populated, private, Store};

/// After the last transfer nothing should delay unregistering.
const UNREGISTER_TIMEOUT: Duration = Duration::from_secs(5);

/// Populated and registered memory, until it is dropped.
pub struct Registered {
    area: Area,
    /// Taken by drop alone.
    memory: Option<Box<dyn Store>>,
    /// The engine of memory that ferry did not allocate, which must be unregistered.
    engine: Option<Engine>,
}

impl Registered {
    /// Makes memory of the device, or else of the host with this origin.
    pub fn new(
        engine: &Engine,
        origin: Origin,
        device: Option<Location>,
        bytes: usize,
    ) -> anyhow::Result<Registered> {
        let options = RegionOptions { location: device, ..RegionOptions::default() };
        let (address, memory): (u64, Box<dyn Store>) = match (device, origin) {
            (Some(at), _) => {
                let memory = DeviceMemory::new(at, engine.config(), bytes)?;
                (memory.address(), Box::new(memory))
            }
            (None, Origin::Own) => {
                let memory = private(bytes)?;
                (memory.address() as u64, Box::new(memory))
            }
            (None, Origin::Alloc) => {
                let memory = engine.alloc(bytes, &options).context("allocating")?;
                let area = Area { region: memory.region().raw(), address: memory.address(), bytes };
                let memory = Box::new(populated(memory, bytes)?);
                return Ok(Registered { area, memory: Some(memory), engine: None });
            }
        };
        // SAFETY: the memory is freed only after drop has unregistered it, or never. No reference to its bytes exists
        // while transfers run, and Rust knows nothing of a device's memory.
        let region = unsafe { engine.register(address as *mut u8, bytes, &options) }?;
        let area = Area { region: region.raw(), address, bytes };
        Ok(Registered { area, memory: Some(memory), engine: Some(engine.clone()) })
    }

    /// Returns the area as the other end names it.
    pub fn area(&self) -> Area {
        self.area
    }

    pub fn length(&self) -> usize {
        self.area.bytes
    }
}

impl Store for Registered {
    fn copy_in(&mut self, offset: usize, from: &[u8]) -> anyhow::Result<()> {
        self.memory.as_mut().expect("taken by drop alone").copy_in(offset, from)
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) -> anyhow::Result<()> {
        self.memory.as_ref().expect("taken by drop alone").copy_out(offset, into)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let Some(engine) = &self.engine else { return };
        if engine.unregister(RegionId::from_raw(self.area.region), Some(UNREGISTER_TIMEOUT)).is_err() {
            // Memory that may still be reached is never freed.
            std::mem::forget(self.memory.take());
        }
    }
}
