//! Registers memory of the caller, and allocates registered memory.

use super::Engine;
use crate::command::Command;
use crate::device::Driver;
use crate::limits::SHARED_MEMORIES_MAX;
use crate::region::{range_contains, RegionSpec, Registry};
use crate::status::{Error, Result, Status};
use crate::sys::mapping::Mapping;
use crate::sys::pages::Pages;
use crate::sys::{clock, memory, vm};
use crate::types::{Access, Location, MemoryKind, RegionId};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How long dropping a `Memory` waits for peers: for accesses in progress, and for RDMA keys that they hold.
const DROP_PATIENCE: Duration = Duration::from_secs(1);

/// Smaller allocations are not compared with the memory that is left: that would take longer than the allocation.
const CHECKED_BYTES: usize = 1 << 20;

/// The options of a registration.
#[derive(Clone, Debug)]
pub struct RegionOptions {
    pub access: Access,
    /// Announced to peers, which can find the region by its name; at most 63 bytes.
    pub name: String,
    /// Where the memory is; None lets ferry find out.
    pub location: Option<Location>,
}

impl Default for RegionOptions {
    fn default() -> RegionOptions {
        RegionOptions { access: Access::BOTH, name: String::new(), location: None }
    }
}

impl Engine {
    /// Registers memory and announces the region to every peer. Returns the region's handle, which peers use as
    /// `remote_region`.
    ///
    /// # Safety
    /// `[address, address + length)` stays mapped, readable and (for READs into it and remote WRITEs)
    /// writable until `unregister` has returned OK, and Rust holds no reference to it that concurrent
    /// writes by peers would invalidate.
    pub unsafe fn register(
        &self,
        address: *mut u8,
        length: usize,
        options: &RegionOptions,
    ) -> Result<RegionId> {
        let spec = RegionSpec {
            address: address as u64,
            length: length as u64,
            access: options.access,
            name: options.name.clone(),
            ..RegionSpec::default()
        };
        // SAFETY: the caller's promise is the one that `register_batch` asks for.
        Ok(unsafe { self.register_batch(vec![spec], options.location) }?[0])
    }

    /// Registers all regions, or none. `stated` is the location of all of them; None lets ferry find each location. The
    /// locations in `specs` are ignored.
    ///
    /// # Safety
    /// As for `register`, for each of them.
    pub unsafe fn register_batch(
        &self,
        specs: Vec<RegionSpec>,
        stated: Option<Location>,
    ) -> Result<Vec<RegionId>> {
        self.call("registering memory", || {
            // SAFETY: the caller's promise is the same.
            unsafe { self.register_here(specs, stated) }
        })
    }

    /// # Safety
    /// As for `register`, for each of them.
    unsafe fn register_here(
        &self,
        mut specs: Vec<RegionSpec>,
        stated: Option<Location>,
    ) -> Result<Vec<RegionId>> {
        let context = self.context()?;
        if stated.is_some_and(|stated| stated.kind == MemoryKind::File) {
            return Err(Error::invalid("options.kind: a file is registered by its descriptor"));
        }
        if let Some(stated) = stated.filter(|stated| stated.kind.is_device()) {
            self.inner.drivers.get(stated.kind)?;
        }
        let loaded = self.inner.drivers.loaded();
        for (index, spec) in specs.iter_mut().enumerate() {
            let located = self.locate(&loaded, spec.address, spec.length, stated);
            spec.location = located.map_err(|error| error.at_request(index as u64))?;
        }
        let regions = context.registry.register(&specs)?;
        let ids: Vec<RegionId> = regions.iter().map(|region| region.id).collect();
        context.commands.push(Command::RegionsAdded(ids.clone()));
        Ok(ids)
    }

    /// Finds where the memory is and makes the device ready to copy. INVALID if `stated` is wrong, the memory spans
    /// several allocations, or host memory is not mapped.
    fn locate(
        &self,
        loaded: &[Arc<dyn Driver>],
        address: u64,
        length: u64,
        stated: Option<Location>,
    ) -> Result<Location> {
        let mut found = None;
        for driver in loaded {
            found = found.or(driver.locate(address)?);
        }
        let location = found.map_or(Location::HOST, |found| found.location);
        let is = |text: &str| format!("{text} memory of {} device {}", location.kind.name(), location.device);
        match stated {
            Some(stated) if stated.kind.driver() != location.kind.driver() && location.kind.is_device() => {
                return Err(Error::invalid(is("options.kind: address is")));
            }
            Some(stated) if stated.kind.is_device() && !location.kind.is_device() => {
                let text = format!("options.kind: address is no memory of a {} device", stated.kind.name());
                return Err(Error::invalid(text));
            }
            Some(stated) if location.kind.is_device() && stated.device != location.device => {
                return Err(Error::invalid(is("options.device: address is")));
            }
            _ if !location.kind.is_device() => {
                // Host memory that a device's library knows is not checked by a system call.
                if found.is_none() {
                    check_mapped(&self.context()?.pages, address, length)?;
                }
                return Ok(location);
            }
            _ => {}
        }
        if let Some(found) =
            found.filter(|it| it.length > 0 && !range_contains(it.base, it.length, address, length))
        {
            let (base, all) = (found.base, found.length);
            let text =
                format!("length: {address:#x} + {length:#x} leaves the allocation at {base:#x} + {all:#x}");
            return Err(Error::invalid(text));
        }
        self.inner.drivers.worker(location)?;
        Ok(location)
    }

    /// Takes a region back that was registered: after OK nothing reaches the memory. With a zero timeout, a region in
    /// use is BUSY and unchanged. After another timeout the region stays revoked for new work; call again. INVALID for
    /// memory that `alloc` returned: see [`Memory::unregister`].
    pub fn unregister(&self, region: RegionId, timeout: Option<Duration>) -> Result<()> {
        self.inner.check_not_forked()?;
        if self.inner.context.registry.get(region).is_ok_and(|region| region.allocated) {
            let text = "region: ferry allocated this memory; its Memory unregisters or frees it";
            return Err(Error::invalid(text));
        }
        self.unregister_any(region, timeout)
    }

    fn unregister_any(&self, region: RegionId, timeout: Option<Duration>) -> Result<()> {
        // A closed engine still unregisters, because the owner wants the memory back.
        self.inner.check_not_forked()?;
        let file = self.inner.context.registry.get(region).ok();
        let file =
            file.filter(|region| region.location.kind == MemoryKind::File).map(|region| region.address);
        let result = self.take_back(region, timeout);
        if let Some(base) = file.filter(|_| result.is_ok()) {
            self.inner.files.close(base);
        }
        result
    }

    fn take_back(&self, region: RegionId, timeout: Option<Duration>) -> Result<()> {
        let context = &self.inner.context;
        let health = context.health();
        let deadline = timeout.and_then(|timeout| clock::now().checked_add(timeout));
        let result = health.call("unregistering memory", || self.unregister_here(region, timeout));
        if result.as_ref().is_err_and(|error| error.status == Status::Panic) {
            health.wait_over(deadline).map_err(|error| Error::new(Status::Busy, error.message))?;
            return context.registry.discard(region, deadline);
        }
        result
    }

    fn unregister_here(&self, region: RegionId, timeout: Option<Duration>) -> Result<()> {
        let context = &self.inner.context;
        let result =
            context.registry.unregister(region, timeout).map_err(|error| self.with_users(region, error));
        let revoked = context.registry.get(region).map_or(result.is_ok(), |region| region.is_revoked());
        if revoked {
            context.commands.push(Command::RegionsRemoved(vec![region]));
        }
        result
    }

    /// Checks that the handle names a region, in use or revoked. STALE or NOT_REGISTERED otherwise.
    pub fn check_region(&self, region: RegionId) -> Result<()> {
        self.context()?.registry.get(region).map(|_| ())
    }

    /// Allocates and registers zeroed, page-aligned memory.
    pub fn alloc(&self, length: usize, options: &RegionOptions) -> Result<Memory> {
        self.call("allocating memory", || self.alloc_here(length, options))
    }

    fn alloc_here(&self, length: usize, options: &RegionOptions) -> Result<Memory> {
        if length == 0 {
            return Err(Error::invalid("length is 0"));
        }
        if options.location.is_some_and(|stated| stated.kind != MemoryKind::Host) {
            let text = "options.kind: ferry allocates host memory; register memory of a device";
            return Err(Error::new(Status::Unsupported, text));
        }
        let context = self.context()?;
        check_left(length)?;
        let no_memory = |error| Error::system("allocating memory", &error);
        // Processes of this host can map shared memory. Each piece takes a descriptor, so their number is bounded.
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
            ..RegionSpec::default()
        };
        // The `Memory` owns the mapping, unmaps it only after unregister has returned OK, and gives out no references
        // to its bytes. So the memory fulfils the conditions of `register`.
        let region = context.registry.register_allocated(spec, mapping.memfd().cloned())?.id;
        context.commands.push(Command::RegionsAdded(vec![region]));
        Ok(Memory { engine: self.clone(), region, mapping: Some(mapping) })
    }
}

/// Refuses addresses that are not mapped, before a thread faults on them; checks only the first and the last byte. The
/// registry refuses ranges that overflow or are empty.
fn check_mapped(pages: &Pages, address: u64, length: u64) -> Result<()> {
    let possible = address != 0 && length > 0 && address.checked_add(length).is_some();
    if possible && !vm::has_ends(pages, address, length) {
        let text = format!(
            "{length} bytes at {address:#x} are not mapped in this process, or are memory of a device that ferry \
             doesn't know"
        );
        return Err(Error::invalid(text));
    }
    Ok(())
}

/// Refuses more than the machine or a control group has left. The kernel would grant the memory, and kill a process
/// when the memory is used.
fn check_left(length: usize) -> Result<()> {
    if length < CHECKED_BYTES {
        return Ok(());
    }
    match memory::left().filter(|left| left.bytes < length as u64) {
        None => Ok(()),
        Some(memory::Left { bytes, of }) => {
            let text = format!("length: {length} bytes are asked for, and {bytes} are left ({of})");
            Err(Error { os_error: libc::ENOMEM, ..Error::new(Status::NoMemory, text) })
        }
    }
}

/// True if another allocation may take a descriptor so that other processes can map it.
fn shares_more(registry: &Registry) -> bool {
    registry.has_grants() && registry.snapshot().shared().len() < SHARED_MEMORIES_MAX
}

/// Registered memory that ferry allocated. If a transfer of this engine uses the memory at the drop, the memory stays
/// mapped for ever; `free` waits instead. The drop waits for at most one second while peers access the memory or hold
/// RDMA keys of it.
pub struct Memory {
    engine: Engine,
    region: RegionId,
    mapping: Option<Mapping>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Memory { region, mapping, .. } = self;
        let place = mapping.as_ref().map(|mapping| (mapping.address(), mapping.length()));
        f.debug_struct("Memory").field("region", region).field("place", &place).finish_non_exhaustive()
    }
}

impl Memory {
    fn mapping(&self) -> &Mapping {
        // Present until `free` or Drop takes the mapping; both consume `self`.
        self.mapping.as_ref().unwrap_or_else(|| unreachable!())
    }

    pub fn region(&self) -> RegionId {
        self.region
    }

    /// Returns the address for requests. A caller that makes a reference from the address must exclude concurrent
    /// access by peers and transfers: writes for `&[u8]`, reads and writes for `&mut [u8]`.
    pub fn address(&self) -> u64 {
        self.mapping().address() as u64
    }

    pub fn length(&self) -> usize {
        self.mapping().length()
    }

    /// Copies bytes out. Peers and other threads may write the memory meanwhile: each byte is then either old or new.
    /// Larger units are whole only between `read` and `write` of this process (aligned groups of eight bytes); the
    /// kernel and devices, which write for peers, write in units of their own. Panics beyond the end, as a slice would.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.mapping().read(offset, into);
    }

    /// Copies bytes in. Peers and other threads may use the memory meanwhile, as for `read`. Panics beyond the end, as
    /// a slice would.
    pub fn write(&self, offset: usize, from: &[u8]) {
        self.mapping().write(offset, from);
    }

    /// Unregisters the memory and leaves it mapped: after OK no peer and no transfer reaches it, and this program may
    /// still read and write it. Waits and fails as [`Engine::unregister`] does; STALE if it was unregistered before.
    pub fn unregister(&self, timeout: Option<Duration>) -> Result<()> {
        self.engine.unregister_any(self.region, timeout)
    }

    /// Unregisters the memory, unless that was done before, and unmaps it. On failure returns the memory with the
    /// error.
    pub fn free(mut self, timeout: Option<Duration>) -> std::result::Result<(), (Memory, Error)> {
        match self.unregister(timeout) {
            Err(error) if error.status != Status::Stale => Err((self, error)),
            _ => {
                drop(self.mapping.take());
                Ok(())
            }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Some(mapping) = self.mapping.take() else { return };
        match self.unregister(Some(Duration::ZERO)) {
            Ok(()) => return,
            // Unregistered before.
            Err(error) if error.status == Status::Stale => return,
            Err(_) => {}
        }
        // Wait only for peers, not for this engine's transfers, which may last.
        let registry = &self.engine.inner.context.registry;
        let patient = !self.engine.is_forked() && self.engine.check_health().is_ok();
        let lasts = |region| self.engine.transfers_of(&region).next().is_some();
        let brief = patient && registry.get(self.region).is_ok_and(|region| !lasts(region));
        if !brief || self.unregister(Some(DROP_PATIENCE)).is_err() {
            std::mem::forget(mapping);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    /// Without the refusal the kernel would end this process. Shared memory is allocated at once, other memory later.
    #[test]
    fn more_memory_than_is_left_is_refused() {
        for transports in ["local", "tcp"] {
            let mut config = Config::default();
            config.set("transports", transports).unwrap();
            let engine = Engine::open(config).unwrap();
            let left = memory::left().unwrap().bytes;
            for length in [2 * left, 200 << 40] {
                let refused = engine.alloc(length as usize, &RegionOptions::default()).err().unwrap();
                assert_eq!((refused.status, refused.os_error), (Status::NoMemory, libc::ENOMEM));
                assert!(refused.message.contains("are left (the "), "{refused}");
            }
            engine.alloc(2 * CHECKED_BYTES, &RegionOptions::default()).unwrap();
        }
    }

    /// Whether these bytes are mapped there. Other tests may map other memory at an address that was unmapped.
    fn holds(address: u64, expected: &[u8; 4]) -> bool {
        use std::os::unix::fs::FileExt;
        let mut found = [0; 4];
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        memory.read_exact_at(&mut found, address).is_ok() && found == *expected
    }

    /// As in C: a region whose memory ferry owns is given back by its owner alone, whatever the transport maps.
    #[test]
    fn memory_of_alloc_is_unregistered_by_its_memory_alone() {
        for transports in ["local", "tcp"] {
            let mut config = Config::default();
            config.set("transports", transports).unwrap();
            let engine = Engine::open(config).unwrap();
            let memory = engine.alloc(64, &RegionOptions::default()).unwrap();
            let (address, region) = (memory.address(), memory.region());
            let refused = engine.unregister(region, None).unwrap_err();
            assert_eq!(refused.status, Status::Invalid, "{refused}");
            assert_eq!(engine.stats().unwrap().regions, 1, "nothing has changed");
            memory.unregister(None).unwrap();
            assert_eq!(engine.stats().unwrap().regions, 0);
            assert_eq!(memory.unregister(None).unwrap_err().status, Status::Stale);
            assert_eq!(engine.unregister(region, None).unwrap_err().status, Status::Stale);
            // Still mapped, until it is freed.
            memory.write(0, b"mine");
            memory.free(None).map_err(|(_, error)| error).unwrap();
            assert!(!holds(address, b"mine"), "it is unmapped");
            let dropped = engine.alloc(64, &RegionOptions::default()).unwrap();
            let address = dropped.address();
            dropped.write(0, b"ours");
            dropped.unregister(None).unwrap();
            assert!(holds(address, b"ours"));
            drop(dropped);
            assert!(!holds(address, b"ours"), "it is unmapped");
        }
    }

    /// Each shared piece takes a descriptor, so their number is bounded.
    #[test]
    fn memory_beyond_what_may_be_shared_is_ordinary() {
        let mut config = Config::default();
        config.set("transports", "local").unwrap();
        let engine = Engine::open(config).unwrap();
        let shared = || engine.whole().registry.snapshot().shared().len();
        let alloc = || engine.alloc(64, &RegionOptions::default()).unwrap();
        let mut all: Vec<Memory> = (0..SHARED_MEMORIES_MAX + 2).map(|_| alloc()).collect();
        assert_eq!(shared(), SHARED_MEMORIES_MAX);
        // A freed piece makes room for another.
        all.swap_remove(0).free(None).map_err(|(_, error)| error).unwrap();
        assert_eq!(shared(), SHARED_MEMORIES_MAX - 1);
        all.push(alloc());
        assert_eq!(shared(), SHARED_MEMORIES_MAX);
    }
}
