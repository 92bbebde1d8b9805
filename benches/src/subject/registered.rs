//! The subject's memory: the program's own, registered, or allocated by ferry. Which of the two decides
//! the paths that ferry can take within one machine. Or that of a device, registered.

use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use ferry::types::Location;
use ferry::{Engine, RegionOptions};
use serde::{Deserialize, Serialize};

use super::wire::Area;
use crate::device::DeviceMemory;
use crate::memory::{populated, private, Memory, Store};

/// Where the memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Mapped by this program and registered with ferry
    Own,
    /// Allocated by ferry
    Alloc,
}

/// After the last transfer nothing should be in the way of giving memory back.
const UNREGISTER_TIMEOUT: Duration = Duration::from_secs(5);

/// Populated and registered, until it is dropped.
pub enum Registered {
    Own {
        engine: Engine,
        region: u64,
        /// Taken by drop.
        memory: Option<Memory>,
    },
    Alloc(ferry::Memory),
    Device {
        engine: Engine,
        region: u64,
        /// Taken by drop.
        memory: Option<DeviceMemory>,
    },
}

impl Registered {
    /// Of the device, or else of the host with this origin.
    pub fn new(
        engine: &Engine,
        origin: Origin,
        device: Option<Location>,
        bytes: usize,
    ) -> anyhow::Result<Registered> {
        let options = RegionOptions { location: device, ..RegionOptions::default() };
        if let Some(at) = device {
            let memory = DeviceMemory::new(at, engine.config(), bytes)?;
            // SAFETY: the memory goes only after drop has unregistered it, or never; Rust knows nothing of it.
            let region = unsafe { engine.register(memory.address() as *mut u8, bytes, &options) }?;
            return Ok(Registered::Device { engine: engine.clone(), region, memory: Some(memory) });
        }
        match origin {
            Origin::Alloc => {
                Ok(Registered::Alloc(populated(engine.alloc(bytes, &options).context("allocating")?, bytes)))
            }
            Origin::Own => {
                let memory = private(bytes).context("mapping")?;
                // SAFETY: the mapping goes only after drop has unregistered it, or never; no reference
                // to its bytes is held while transfers run.
                let region = unsafe { engine.register(memory.address(), bytes, &options) }?;
                Ok(Registered::Own { engine: engine.clone(), region, memory: Some(memory) })
            }
        }
    }

    /// As the other end names it.
    pub fn area(&self) -> Area {
        match self {
            Registered::Alloc(memory) => {
                Area { region: memory.region(), address: memory.address(), bytes: memory.length() }
            }
            Registered::Own { region, .. } => {
                let memory = self.own();
                Area { region: *region, address: memory.address() as u64, bytes: memory.length() }
            }
            Registered::Device { region, .. } => {
                let memory = self.of_device();
                Area { region: *region, address: memory.address(), bytes: memory.bytes() }
            }
        }
    }

    pub fn length(&self) -> usize {
        self.area().bytes
    }

    /// An error if any byte could not be copied from or to a device since the last call.
    pub fn intact(&self) -> anyhow::Result<()> {
        match self {
            Registered::Device { .. } => self.of_device().intact(),
            _ => Ok(()),
        }
    }

    fn of_device(&self) -> &DeviceMemory {
        match self {
            Registered::Device { memory: Some(memory), .. } => memory,
            _ => unreachable!("a device's memory is there until it is dropped"),
        }
    }

    fn own(&self) -> &Memory {
        match self {
            Registered::Own { memory: Some(memory), .. } => memory,
            _ => unreachable!("own memory is there until it is dropped"),
        }
    }
}

impl Store for Registered {
    fn copy_in(&mut self, offset: usize, from: &[u8]) {
        match self {
            Registered::Alloc(memory) => memory.copy_in(offset, from),
            Registered::Own { memory: Some(memory), .. } => memory.copy_in(offset, from),
            Registered::Device { memory: Some(memory), .. } => memory.copy_in(offset, from),
            Registered::Own { memory: None, .. } | Registered::Device { memory: None, .. } => {
                unreachable!("taken by drop")
            }
        }
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        match self {
            Registered::Alloc(memory) => memory.copy_out(offset, into),
            Registered::Own { .. } => self.own().copy_out(offset, into),
            Registered::Device { .. } => self.of_device().copy_out(offset, into),
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // What something may still reach stays where it is.
        match self {
            Registered::Alloc(_) => {}
            Registered::Own { engine, region, memory } => {
                if engine.unregister(*region, Some(UNREGISTER_TIMEOUT)).is_err() {
                    std::mem::forget(memory.take());
                }
            }
            Registered::Device { engine, region, memory } => {
                if engine.unregister(*region, Some(UNREGISTER_TIMEOUT)).is_err() {
                    std::mem::forget(memory.take());
                }
            }
        }
    }
}
