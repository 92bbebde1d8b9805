//! Registers and unregisters local memory: the handles, their generations, and the wait for the last user. Publishes a
//! `RegionMap` after every change, which shares its unchanged nodes with the one before. `api` calls the registry;
//! every part of the engine reads the map.

use super::admit::{admit, find_live};
use super::grants::{Grants, ProcessUse};
use super::holder::{Holder, HolderSlot, Lender, LenderSlot};
use super::remote::RemoteRegions;
use super::teardown::Claimed;
use super::{reserve, Backing, Region, RegionMap, RegionSpec, RemoteRegion};
use crate::handle::{self, Kind, Parts, Tag, GENERATION_MAX, INDEX_MAX};
use crate::limits::REGION_NAME_BYTES_MAX;
use crate::status::{Error, Result, Status};
use crate::sys::atomic::{AtomicU64, Ordering};
use crate::sys::clock;
use crate::sys::fd::OwnedFd;
use crate::sys::health;
use crate::sys::lock::{Mutex, MutexGuard, RwLock};
use crate::sys::once::OnceLock;
use crate::sys::random_u64;
use crate::types::{end_of, Access, Op, PeerId, RegionId};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest time before a thread that waits for a region notices that the engine is broken.
const RECHECK: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct Registry {
    tag: Tag,
    /// Serialises changes. Never held while waiting for users; the data path does not take it.
    slots: Mutex<Slots>,
    /// Written only under `slots`.
    map: RwLock<Arc<RegionMap>>,
    /// The count of published maps. It rises under the lock of `map`.
    version: AtomicU64,
    /// The gates for processes of this host, if the same-host path is on.
    grants: Option<Arc<Grants>>,
    /// The owner of the RDMA devices, if any.
    holder: HolderSlot,
    /// The part that lends device memory to other processes, if any.
    lender: LenderSlot,
    /// The same regions as `map`, as the engine's own peer announces them. Written only under `slots`.
    own: OnceLock<Arc<RemoteRegions>>,
}

/// The allocation of handle indexes.
#[derive(Debug)]
struct Slots {
    /// The first generation of each index. It is random: the engine's tag has few bits, and by the tag alone one
    /// region in some thousands of a restarted engine would be taken for a region of the engine before.
    first: u32,
    all: Vec<RegionSlot>,
    /// Indexes without a region. The capacity covers `all`, so that freeing never allocates.
    free: Vec<u32>,
    /// The number of regions registered so far.
    registered: u64,
}

/// `generation` belongs to the live region or, without one, to the next region. All handles given before have lower
/// ones.
#[derive(Debug)]
struct RegionSlot {
    generation: u32,
    live: bool,
}

impl Registry {
    /// With `grants`, regions are opened and shut on their board too.
    pub fn new(tag: Tag, grants: Option<Arc<Grants>>) -> Registry {
        let (holder, lender) = Default::default();
        let slots = Mutex::new(Slots::new(random_u64()));
        let (map, version, own) = Default::default();
        Registry { tag, slots, map, version, grants, holder, lender, own }
    }

    /// Keeps `own` in step with the regions from now on. Called once.
    pub fn announce_to(&self, own: &Arc<RemoteRegions>) {
        let _slots = self.lock_slots();
        own.add(self.snapshot().iter().map(|region| announced(region)).collect());
        let _ = self.own.set(own.clone());
    }

    /// Sets the lender, which is told of device memory that is unregistered.
    pub fn set_lender(&self, lender: Arc<dyn Lender>) {
        self.lender.set(lender);
    }

    /// Sets the holder, which pins regions. Call before the first region is registered.
    pub fn set_holder(&self, holder: Arc<dyn Holder>) {
        self.holder.set(holder);
    }

    /// Returns whether processes of this host may copy directly.
    pub fn has_grants(&self) -> bool {
        self.grants.is_some()
    }

    /// Registers all of `specs` or none, and returns the regions in the same order. Errors name the spec with
    /// `request_index`. INVALID: null address, no bytes, unknown access bits, or the name too long. OVERLAP: with a
    /// region, even a revoked one that is not yet unregistered, or within the batch. LIMIT: out of handles. Any
    /// thread; transfers may run.
    pub fn register(&self, specs: &[RegionSpec]) -> Result<Vec<Arc<Region>>> {
        self.register_backed(specs, Backing::Callers)
    }

    /// Registers memory that other processes of this host can map.
    pub fn register_shared(&self, spec: RegionSpec, memfd: Arc<OwnedFd>) -> Result<Arc<Region>> {
        Ok(self.register_backed(&[spec], Backing::Staging(memfd))?.remove(0))
    }

    /// Registers memory that ferry allocated for the application, which gives it back by its `Memory`. `memfd`: other
    /// processes of this host can map it.
    pub fn register_allocated(&self, spec: RegionSpec, memfd: Option<Arc<OwnedFd>>) -> Result<Arc<Region>> {
        Ok(self.register_backed(&[spec], Backing::Allocated(memfd))?.remove(0))
    }

    fn register_backed(&self, specs: &[RegionSpec], backing: Backing) -> Result<Vec<Arc<Region>>> {
        for (index, spec) in specs.iter().enumerate() {
            check(spec).map_err(|error| error.at_request(index as u64))?;
        }
        // Pinning takes long, so no lock is held. A later failure drops the pins.
        let pins = self.holder.get().map_or(Ok(Vec::new()), |holder| holder.pin(specs))?;
        let mut slots = self.lock_slots();
        slots.reserve(specs.len())?;

        let mut map = RegionMap::clone(&self.snapshot());
        let mut fresh = Vec::new();
        reserve(&mut fresh, specs.len())?;
        for (nth, spec) in specs.iter().enumerate() {
            let id = RegionId::from_raw(handle::make(Kind::Region, self.tag, slots.upcoming(nth)));
            let order = slots.registered + 1 + nth as u64;
            let region = Arc::new(Region::new((id, order), spec, backing.clone(), pins.get(nth).cloned()));
            map.add(region.clone()).map_err(|other| overlaps(&region, &other).at_request(nth as u64))?;
            fresh.push(region);
        }
        slots.take(specs.len()); // nothing fails from here on
        if let Some(grants) = &self.grants {
            for region in &fresh {
                // System calls cannot copy device memory. A process that has it mapped stays inside.
                let access = if region.is_device() { Access(0) } else { region.access };
                grants.open(region.id, region.address, region.length, access);
            }
        }
        self.publish(map);
        self.own.get().inspect(|own| own.add(fresh.iter().map(|region| announced(region)).collect()));
        Ok(fresh)
    }

    /// Revokes the region and waits until it has no user. After OK nothing of this engine touches its memory. Blocks
    /// up to `timeout` (None: without bound). Any thread. Of several calls for one region exactly one gets OK, the
    /// others STALE, and none returns before the region is gone.
    ///
    /// BUSY with a timeout of 0: the region is in use and unchanged, or another call is unregistering it. BUSY with a
    /// longer timeout: still in use but revoked for good, so no new use begins; call again. STALE: unregistered
    /// before, or another engine's. NOT_REGISTERED: no such region was ever registered.
    pub fn unregister(&self, handle: RegionId, timeout: Option<Duration>) -> Result<()> {
        let region = self.get(handle)?;
        let busy = |what| Error::new(Status::Busy, format!("region {handle:#x} {what}"));
        // A deadline beyond the clock's range is no deadline.
        let deadline = timeout.and_then(|timeout| clock::now().checked_add(timeout));
        let idle = match timeout {
            // None: another call is unregistering the region, and the claim below decides.
            Some(Duration::ZERO) => self.revoke_if_idle(&region).unwrap_or(true),
            _ => {
                self.revoke(&region);
                self.wait_idle(&region, deadline)
            }
        };
        if !idle {
            return Err(busy("is in use"));
        }
        let claim = match region.teardown.claim(deadline) {
            Claimed::Mine(claim) => claim,
            Claimed::Gone => return Err(gone(handle)),
            Claimed::Late => return Err(busy("is being unregistered by another call")),
        };
        if let Some(holder) = self.holder.get() {
            holder.unpin(&region);
        }
        if let Some(lender) = self.lender_of(&region) {
            lender.take_back(handle);
        }
        self.remove(&region);
        claim.finish();
        Ok(())
    }

    fn lender_of(&self, region: &Region) -> Option<&dyn Lender> {
        self.lender.get().filter(|_| region.is_device())
    }

    /// Refuses new users, and asks peers and processes to release the region. Does nothing if another call unregisters
    /// it.
    pub(super) fn revoke(&self, region: &Region) {
        region.teardown.if_standing(|| {
            region.gate.revoke();
            self.grants.iter().for_each(|grants| grants.shut(region.id));
            self.holder.get().inspect(|holder| holder.revoke(region.id));
            self.lender_of(region).inspect(|lender| lender.recall(region.id));
        });
    }

    /// Waits until a revoked region has no user, or another call has unregistered it.
    fn wait_idle(&self, region: &Region, deadline: Option<Instant>) -> bool {
        let gone = || region.teardown.is_gone();
        self.wait_here(region, deadline)
            && self.grants.as_ref().is_none_or(|grants| grants.wait_idle(region.id, deadline, gone))
            && self.holder.get().is_none_or(|holder| holder.wait_unheld(region.id, deadline))
    }

    /// Takes the region out of a broken engine that has ended. Threads of this engine that were inside do not count
    /// any more; only other processes are waited for. BUSY at the deadline; STALE if the region is gone.
    pub fn discard(&self, handle: RegionId, deadline: Option<Instant>) -> Result<()> {
        let region = self.get(handle)?;
        let busy = || Error::new(Status::Busy, format!("region {handle:#x} is in use"));
        let gone_already = || region.teardown.is_gone();
        region.gate.revoke();
        if let Some(grants) = &self.grants {
            grants.shut(handle);
            if !grants.wait_idle(handle, deadline, gone_already) {
                return Err(busy());
            }
        }
        let claim = match region.teardown.claim(deadline) {
            Claimed::Mine(claim) => claim,
            Claimed::Gone => return Err(gone(handle)),
            Claimed::Late => return Err(busy()),
        };
        if let Some(holder) = self.holder.get() {
            holder.unpin(&region);
        }
        self.remove(&region);
        claim.finish();
        Ok(())
    }

    /// Waits until no thread of this engine is inside; unwinds when the engine breaks.
    fn wait_here(&self, region: &Region, deadline: Option<Instant>) -> bool {
        loop {
            let soon = clock::now() + RECHECK;
            let until = deadline.map_or(soon, |deadline| deadline.min(soon));
            if region.gate.wait_idle(Some(until)) {
                return true;
            }
            health::check();
            if deadline.is_some_and(|deadline| clock::now() >= deadline) {
                return false;
            }
        }
    }

    /// Revokes the region unless it is in use: by this engine, by a process of this host, or by a peer that holds its
    /// keys. None: another call is unregistering the region, or has.
    fn revoke_if_idle(&self, region: &Region) -> Option<bool> {
        let here = || match self.holder.get() {
            Some(holder) => holder.revoke_if_unheld(region.id, &mut || region.gate.revoke_if_idle()),
            None => region.gate.revoke_if_idle(),
        };
        region.teardown.if_standing(|| match &self.grants {
            Some(grants) => grants.shut_if_idle(region.id, here),
            None => here(),
        })
    }

    /// Returns who is inside a region. Only advice: users come and go.
    pub fn users(&self, region: &Region) -> Users {
        Users {
            here: region.gate.users(),
            processes: self.grants.as_ref().map_or_else(Vec::new, |grants| grants.users(region.id)),
            holders: self.holder.get().map_or_else(Vec::new, |holder| holder.holders(region.id)),
        }
    }

    /// Returns the region with this handle, even if it is revoked (`Region::enter` checks). Errors as in `unregister`.
    pub fn get(&self, handle: RegionId) -> Result<Arc<Region>> {
        if let Some(region) = self.snapshot().get(handle) {
            return Ok(Arc::clone(region));
        }
        let parts = handle::parse(Kind::Region, self.tag, handle.raw())?;
        self.lock_slots().check_live(handle, parts)?;
        // The region was registered between the two looks.
        self.snapshot().get(handle).cloned().ok_or_else(|| gone(handle))
    }

    /// Returns the region in which a peer may run `op` on this range: see `admit`.
    pub fn admit(&self, op: Op, wanted: (RegionId, u64, u64)) -> Result<Arc<Region>, Status> {
        admit(&self.snapshot(), self.tag, op, wanted).cloned()
    }

    /// Returns the region with this range for the engine itself, which needs no right.
    pub fn admit_own(&self, wanted: (RegionId, u64, u64)) -> Result<Arc<Region>, Status> {
        find_live(&self.snapshot(), self.tag, wanted).cloned()
    }

    /// Returns the current map. Cheap: clones one `Arc`.
    pub fn snapshot(&self) -> Arc<RegionMap> {
        Arc::clone(&self.map.read())
    }

    /// Returns the map's version. A reader that loads the version first gets a map that is at least that new.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Removes a region from the map. The caller has the claim to it.
    fn remove(&self, region: &Region) {
        let mut slots = self.lock_slots();
        let mut map = RegionMap::clone(&self.snapshot());
        map.remove(region);
        slots.give_back(region.index());
        self.publish(map);
        self.own.get().inspect(|own| own.remove(&[region.id]));
    }

    fn publish(&self, map: RegionMap) {
        let mut old = Arc::new(map);
        let mut place = self.map.write();
        std::mem::swap(&mut *place, &mut old);
        self.version.fetch_add(1, Ordering::Release);
        drop(place);
        // `old` is dropped after the lock: this frees the nodes that only the old map had.
    }

    fn lock_slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock()
    }
}

impl Slots {
    /// Draws the first generation from `bits`, in the lower half, so that each index has the upper half left.
    fn new(bits: u64) -> Slots {
        let first = bits as u32 % (GENERATION_MAX / 2) + 1;
        Slots { first, all: Vec::new(), free: Vec::new(), registered: 0 }
    }

    /// Reserves room for `count` more regions, whether they are taken afterwards or not.
    fn reserve(&mut self, count: usize) -> Result<()> {
        let added = count.saturating_sub(self.free.len());
        if self.all.len() + added > INDEX_MAX as usize + 1 {
            return Err(Error::new(Status::Limit, format!("more than {} regions", INDEX_MAX as usize + 1)));
        }
        // Grows by doubling, because regions also come one by one.
        reserve(&mut self.all, added)?;
        let room = self.all.len() + added - self.free.len();
        reserve(&mut self.free, room)
    }

    /// Returns the handle parts of the `nth` region from now. Changes nothing.
    fn upcoming(&self, nth: usize) -> Parts {
        match self.free.len().checked_sub(nth + 1) {
            Some(position) => {
                let index = self.free[position];
                Parts { index, generation: self.all[index as usize].generation }
            }
            None => Parts { index: (self.all.len() + nth - self.free.len()) as u32, generation: self.first },
        }
    }

    /// Takes the slots that `upcoming` announced.
    fn take(&mut self, count: usize) {
        self.registered += count as u64;
        for _ in 0..count {
            match self.free.pop() {
                Some(index) => self.all[index as usize].live = true,
                None => self.all.push(RegionSlot { generation: self.first, live: true }),
            }
        }
    }

    fn give_back(&mut self, index: u32) {
        let slot = &mut self.all[index as usize];
        slot.live = false;
        slot.generation += 1;
        // Contract 7: an index that has used up its generations is retired, because a handle must never come twice.
        if slot.generation <= GENERATION_MAX {
            self.free.push(index);
        }
    }

    fn check_live(&self, handle: RegionId, parts: Parts) -> Result<()> {
        match self.all.get(parts.index as usize) {
            Some(slot) if slot.live && slot.generation == parts.generation => Ok(()),
            Some(slot) if (self.first..slot.generation).contains(&parts.generation) => Err(gone(handle)),
            _ => Err(Error::new(Status::NotRegistered, format!("no region {handle:#x} was ever registered"))),
        }
    }
}

/// The users that an unregister waits for.
pub struct Users {
    /// Uses in this process: transfers, accesses of peers, copies of devices.
    pub here: u64,
    pub processes: Vec<ProcessUse>,
    /// Peers with RDMA keys.
    pub holders: Vec<PeerId>,
}

/// Returns a region as the engine's own peer announces it: the engine has all rights to its own memory.
fn announced(region: &Region) -> RemoteRegion {
    RemoteRegion {
        id: region.id,
        order: region.order,
        address: region.address,
        length: region.length,
        access: Access::BOTH,
        name: region.name.clone(),
        location: region.location,
        staging: region.staging,
    }
}

fn gone(handle: RegionId) -> Error {
    Error::new(Status::Stale, format!("region {handle:#x} has been unregistered"))
}

fn check(spec: &RegionSpec) -> Result<()> {
    let RegionSpec { address, length, access, name, .. } = spec;
    let wrong = if *address == 0 {
        "address is null".to_owned()
    } else if *length == 0 {
        "length is 0".to_owned()
    } else if end_of(*address, *length).is_none() {
        format!("address {address:#x} + length {length:#x} overflows")
    } else if access.0 & !Access::BOTH.0 != 0 {
        format!("access {:#x} has an unknown bit", access.0)
    } else if name.len() > REGION_NAME_BYTES_MAX {
        format!("name has {} bytes, more than {REGION_NAME_BYTES_MAX}", name.len())
    } else {
        return Ok(());
    };
    Err(Error::invalid(wrong))
}

fn overlaps(region: &Region, other: &Region) -> Error {
    let message = format!(
        "{:#x} + {:#x} overlaps the region at {:#x} + {:#x}",
        region.address, region.length, other.address, other.length
    );
    Error::new(Status::Overlap, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_regions_as_indexes() {
        let mut slots = Slots::new(0);
        slots.reserve(INDEX_MAX as usize + 1).unwrap();
        slots.take(INDEX_MAX as usize);
        slots.reserve(1).unwrap();
        assert_eq!(slots.upcoming(0), Parts { index: INDEX_MAX, generation: 1 });
        assert_eq!(slots.reserve(2).unwrap_err().status, Status::Limit);
        slots.give_back(7);
        slots.reserve(2).unwrap();
        assert_eq!(slots.upcoming(0), Parts { index: 7, generation: 2 });
    }

    #[test]
    fn an_index_is_retired_after_its_last_generation() {
        let mut slots = Slots::new(0);
        slots.reserve(1).unwrap();
        slots.take(1);
        slots.all[0].generation = GENERATION_MAX;
        let last = Parts { index: 0, generation: GENERATION_MAX };
        assert!(slots.check_live(RegionId::from_raw(1), last).is_ok());
        slots.give_back(0);
        assert_eq!(slots.check_live(RegionId::from_raw(1), last).unwrap_err().status, Status::Stale);
        slots.reserve(1).unwrap();
        assert_eq!(slots.upcoming(0), Parts { index: 1, generation: 1 });
    }

    #[test]
    fn the_first_generation_is_drawn_and_those_before_it_never_were() {
        for (bits, first) in [(0, 1), (41, 42), (u64::MAX, u32::MAX % (GENERATION_MAX / 2) + 1)] {
            let mut slots = Slots::new(bits);
            slots.reserve(2).unwrap();
            assert_eq!([0, 1].map(|nth| slots.upcoming(nth).generation), [first, first], "of {bits:#x}");
            assert!(first <= GENERATION_MAX / 2, "{first} leaves few to come");
            slots.take(1);
            slots.give_back(0);
            let status = |generation| {
                slots.check_live(RegionId::from_raw(1), Parts { index: 0, generation }).unwrap_err().status
            };
            assert_eq!(
                [first - 1, first, first + 1].map(status),
                [Status::NotRegistered, Status::Stale, Status::NotRegistered]
            );
        }
    }
}
