//! Registering memory, and memory that ferry allocates.

use super::Engine;
use crate::command::Command;
use crate::limits::SHARED_MEMORIES_MAX;
use crate::region::{RegionSpec, Registry};
use crate::status::{Error, Result};
use crate::sys::mapping::Mapping;
use crate::types::Access;
use std::time::Duration;

/// How long dropped memory waits for peers to let go of its keys.
const DROP_PATIENCE: Duration = Duration::from_secs(1);

/// How a region may be used.
#[derive(Clone, Debug)]
pub struct RegionOptions {
    pub access: Access,
    /// Told to peers, to find the region by; at most 63 bytes.
    pub name: String,
}

impl Default for RegionOptions {
    fn default() -> RegionOptions {
        RegionOptions { access: Access::BOTH, name: String::new() }
    }
}

impl Engine {
    /// Registers memory and tells every peer. Returns the region's handle, which is also what peers name
    /// as `remote_region`.
    ///
    /// # Safety
    /// `[address, address + length)` stays mapped, readable and (for READs into it and remote WRITEs)
    /// writable until `unregister` has returned OK, and Rust holds no reference to it that concurrent
    /// writes by peers would invalidate.
    pub unsafe fn register(&self, address: *mut u8, length: usize, options: &RegionOptions) -> Result<u64> {
        let spec = RegionSpec {
            address: address as u64,
            length: length as u64,
            access: options.access,
            name: options.name.clone(),
        };
        // SAFETY: the caller's promise is the one that `register_batch` asks for.
        Ok(unsafe { self.register_batch(&[spec]) }?[0])
    }

    /// Registers all of the regions, or none.
    ///
    /// # Safety
    /// As for `register`, for each of them.
    pub unsafe fn register_batch(&self, specs: &[RegionSpec]) -> Result<Vec<u64>> {
        let context = self.context()?;
        let regions = context.registry.register(specs)?;
        let ids: Vec<u64> = regions.iter().map(|region| region.id).collect();
        context.commands.push(Command::RegionsAdded(ids.clone()));
        Ok(ids)
    }

    /// Takes a region back: after OK nothing reaches the memory. Zero timeout and in use: BUSY, nothing
    /// changed. On a timeout the region stays revoked for new work: call again.
    pub fn unregister(&self, region: u64, timeout: Option<Duration>) -> Result<()> {
        // Also of a closed engine: its owner wants the memory back.
        self.inner.check_not_forked()?;
        let context = &self.inner.context;
        let result = context.registry.unregister(region, timeout);
        let revoked = context.registry.get(region).map_or(result.is_ok(), |region| region.is_revoked());
        if revoked {
            context.commands.push(Command::RegionsRemoved(vec![region]));
        }
        result
    }

    /// Whether this is a region, in use or revoked: STALE or NOT_REGISTERED otherwise.
    pub fn check_region(&self, region: u64) -> Result<()> {
        self.context()?.registry.get(region).map(|_| ())
    }

    /// Zeroed, page-aligned memory, registered.
    pub fn alloc(&self, length: usize, options: &RegionOptions) -> Result<Memory> {
        if length == 0 {
            return Err(Error::invalid("length is 0"));
        }
        let context = self.context()?;
        let no_memory = |error| Error::system("allocating memory", &error);
        // Memory that processes of this host can map, unless there are too many pieces of it already.
        let shared = shares_more(&context.registry).then(|| Mapping::shared(length));
        let mapping = match shared {
            Some(Ok(mapping)) => mapping,
            Some(Err(error)) if error.raw_os_error() == Some(libc::ENOMEM) => return Err(no_memory(error)),
            _ => Mapping::private(length).map_err(no_memory)?,
        };
        let spec = RegionSpec {
            address: mapping.address() as u64,
            length: length as u64,
            access: options.access,
            name: options.name.clone(),
        };
        // The mapping lives in the `Memory`, which unmaps it only after unregister has returned OK, and
        // gives out no references to its bytes: what `register` asks for.
        let region = match mapping.memfd() {
            Some(memfd) => context.registry.register_shared(spec, memfd.clone())?.id,
            None => context.registry.register(&[spec])?[0].id,
        };
        context.commands.push(Command::RegionsAdded(vec![region]));
        Ok(Memory { engine: self.clone(), region, mapping: Some(mapping) })
    }
}

/// Whether one more piece of memory may take a descriptor so that others can map it.
fn shares_more(registry: &Registry) -> bool {
    let shared = || registry.snapshot().iter().filter(|region| region.memfd.is_some()).count();
    registry.has_grants() && shared() < SHARED_MEMORIES_MAX
}

/// Registered memory that ferry allocated. Dropped while a transfer uses it, it stays mapped for ever
/// rather than be pulled away; `free` waits instead. Dropping may take a moment where peers hold RDMA keys of
/// it, and at most a second.
pub struct Memory {
    engine: Engine,
    region: u64,
    mapping: Option<Mapping>,
}

impl Memory {
    fn mapping(&self) -> &Mapping {
        // Present until `free` or Drop takes it, both of which consume `self`.
        self.mapping.as_ref().unwrap_or_else(|| unreachable!())
    }

    pub fn region(&self) -> u64 {
        self.region
    }

    pub fn address(&self) -> u64 {
        self.mapping().address() as u64
    }

    pub fn length(&self) -> usize {
        self.mapping().length()
    }

    /// Copies bytes out. Panics beyond the end, as a slice would.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.mapping().read(offset, into);
    }

    /// Copies bytes in. Panics beyond the end, as a slice would.
    pub fn write(&self, offset: usize, from: &[u8]) {
        self.mapping().write(offset, from);
    }

    /// Unregisters and unmaps. On failure the memory comes back with the error.
    pub fn free(mut self, timeout: Option<Duration>) -> std::result::Result<(), (Memory, Error)> {
        match self.engine.unregister(self.region, timeout) {
            Ok(()) => {
                drop(self.mapping.take());
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Some(mapping) = self.mapping.take() else { return };
        if self.engine.unregister(self.region, Some(Duration::ZERO)).is_ok() {
            return;
        }
        // Peers that hold RDMA keys of it are asked; who uses it is not waited for.
        let registry = &self.engine.inner.context.registry;
        let idle = !self.engine.is_forked() && registry.get(self.region).is_ok_and(|region| region.is_idle());
        if !idle || self.engine.unregister(self.region, Some(DROP_PATIENCE)).is_err() {
            std::mem::forget(mapping);
        }
    }
}
