//! The subject's memory: the program's own, registered; or allocated by ferry; or a device's, registered. The kind
//! decides which paths ferry can take within one machine.

use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use ferry::types::Location;
use ferry::{Engine, RegionOptions};
use serde::{Deserialize, Serialize};

use super::wire::Area;
use crate::device::DeviceMemory;
use crate::memory::{populated, private, Memory, Store};

/// The origin of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Mapped by this program and registered with ferry
    Own,
    /// Allocated by ferry
    Alloc,
}

/// After the last transfer nothing should delay unregistering.
const UNREGISTER_TIMEOUT: Duration = Duration::from_secs(5);

/// Populated and registered memory, until it is dropped.
pub enum Registered {
    Alloc(ferry::Memory),
    Brought {
        engine: Engine,
        area: Area,
        /// Taken by drop.
        memory: Option<Brought>,
    },
}

/// Memory that ferry did not allocate.
pub enum Brought {
    Own(Memory),
    Device(DeviceMemory),
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
        let memory = match (device, origin) {
            (Some(at), _) => Brought::Device(DeviceMemory::new(at, engine.config(), bytes)?),
            (None, Origin::Own) => Brought::Own(private(bytes).context("mapping")?),
            (None, Origin::Alloc) => {
                let memory = engine.alloc(bytes, &options).context("allocating")?;
                return Ok(Registered::Alloc(populated(memory, bytes)));
            }
        };
        let address = match &memory {
            Brought::Own(memory) => memory.address() as u64,
            Brought::Device(memory) => memory.address(),
        };
        // SAFETY: the memory is freed only after drop has unregistered it, or never. No reference to its bytes exists
        // while transfers run, and Rust knows nothing of a device's memory.
        let region = unsafe { engine.register(address as *mut u8, bytes, &options) }?;
        let area = Area { region, address, bytes };
        Ok(Registered::Brought { engine: engine.clone(), area, memory: Some(memory) })
    }

    /// Returns the area as the other end names it.
    pub fn area(&self) -> Area {
        match self {
            Registered::Alloc(memory) => {
                Area { region: memory.region(), address: memory.address(), bytes: memory.length() }
            }
            Registered::Brought { area, .. } => *area,
        }
    }

    pub fn length(&self) -> usize {
        self.area().bytes
    }

    /// Fails if any byte could not be copied from or to a device since the last call.
    pub fn intact(&self) -> anyhow::Result<()> {
        match self {
            Registered::Brought { memory: Some(Brought::Device(memory)), .. } => memory.intact(),
            _ => Ok(()),
        }
    }
}

impl Store for Registered {
    fn copy_in(&mut self, offset: usize, from: &[u8]) {
        match self {
            Registered::Alloc(memory) => memory.copy_in(offset, from),
            Registered::Brought { memory: Some(Brought::Own(memory)), .. } => memory.copy_in(offset, from),
            Registered::Brought { memory: Some(Brought::Device(memory)), .. } => memory.copy_in(offset, from),
            Registered::Brought { memory: None, .. } => unreachable!("taken by drop"),
        }
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        match self {
            Registered::Alloc(memory) => memory.copy_out(offset, into),
            Registered::Brought { memory: Some(Brought::Own(memory)), .. } => memory.copy_out(offset, into),
            Registered::Brought { memory: Some(Brought::Device(memory)), .. } => {
                memory.copy_out(offset, into)
            }
            Registered::Brought { memory: None, .. } => unreachable!("taken by drop"),
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let Registered::Brought { engine, area, memory } = self else { return };
        if engine.unregister(area.region, Some(UNREGISTER_TIMEOUT)).is_err() {
            // Memory that may still be reached is never freed.
            std::mem::forget(memory.take());
        }
    }
}
