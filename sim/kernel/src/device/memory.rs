//! Memory of devices, which belongs to the process that allocated it, and memory of hosts that a device may copy from
//! and to.

use crate::arena;
use crate::process::ProcessId;
use crate::world::{point, with, World};

/// Memory of a device.
#[derive(Clone, Copy)]
pub(super) struct Allocated {
    pub process: ProcessId,
    pub ordinal: i32,
    pub length: u64,
}

/// The answer of a device's library about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub ordinal: i32,
    pub base: u64,
    pub length: u64,
}

/// Memory of a host.
pub(super) struct Pinned {
    pub process: ProcessId,
    address: u64,
    length: u64,
}

/// True if the address is one of a device.
#[inline]
pub fn has(address: u64) -> bool {
    arena::DEVICES.has(address)
}

/// Gives the running task's process zeroed memory of a device of its host. None if there is no such device, or no
/// address left.
pub fn allocate(ordinal: i32, length: usize) -> Option<u64> {
    point();
    with(|world| {
        let (process, length) = (world.here(), length as u64);
        if !world.has_device(ordinal) {
            return None;
        }
        let address = world.devices.memory.allocate(process, length)?;
        world.devices.allocations.insert(address, Allocated { process, ordinal, length });
        Some(address)
    })
}

/// Returns the memory of a device behind an address of the running task's process.
pub fn locate(address: u64) -> Option<Allocation> {
    point();
    with(|world| {
        let here = world.here();
        let (base, found) = world.allocation_at(address)?;
        let Allocated { process, ordinal, length } = found;
        (process == here).then_some(Allocation { ordinal, base, length })
    })
}

/// Lets devices copy from and to memory of the host.
pub fn pin(address: u64, length: u64) {
    point();
    with(|world| {
        let process = world.here();
        world.devices.pinned.push(Pinned { process, address, length });
    });
}

pub fn unpin(address: u64) {
    point();
    with(|world| {
        let process = world.here();
        world.devices.pinned.retain(|it| (it.process, it.address) != (process, address));
    });
}

impl World {
    fn allocation_at(&self, address: u64) -> Option<(u64, Allocated)> {
        let (base, found) = self.devices.allocations.range(..=address).next_back()?;
        (address - base < found.length).then_some((*base, *found))
    }

    /// Returns whether a device may copy from or to this memory for a process: the process's memory on that device, or
    /// memory of the host that it has pinned.
    pub(super) fn device_reaches(
        &self,
        (process, ordinal): (ProcessId, i32),
        address: u64,
        length: u64,
    ) -> bool {
        let is_inside = |base: u64, all: u64| {
            address.checked_sub(base).is_some_and(|offset| length <= all && offset <= all - length)
        };
        if has(address) {
            return self.allocation_at(address).is_some_and(|(base, it)| {
                (it.process, it.ordinal) == (process, ordinal) && is_inside(base, it.length)
            });
        }
        let mut own = self.devices.pinned.iter().filter(|it| it.process == process);
        own.any(|it| is_inside(it.address, it.length))
    }
}
