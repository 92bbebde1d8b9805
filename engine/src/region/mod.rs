//! Registered memory: what this engine's application registered (`registry`, immutable snapshots in
//! `map`), and what a peer told us that it registered (`remote`); both are made of `tree`. `plan` checks transfers
//! against both snapshots; the target side of each transport enters the local region around every access. Processes of
//! the same host enter by themselves, through doors (`shared_gate`, `grants`) in memory that both share; devices by
//! keys that peers hold (`holder`).

mod admit;
mod gate;
pub mod grants;
pub mod holder;
mod map;
#[cfg(test)]
mod properties;
mod registry;
pub mod remote;
mod shared_gate;
mod table;
mod teardown;
#[cfg(test)]
mod tests;
pub mod tree;
#[cfg(test)]
mod unregister_tests;

pub use admit::admit;
pub use map::RegionMap;
pub use registry::Registry;
pub use remote::{RemoteMap, RemoteRegion, RemoteRegions};

use crate::handle::INDEX_MAX;
use crate::status::{Error, Result, Status};
use crate::types::{Access, Location};
use gate::Gate;
use holder::Pin;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use teardown::Teardown;

/// Where `gate` finds its atomics and locks; the loom test gives it loom's in place of these.
mod sync {
    pub(super) use crate::sys::clock::now;
    pub(super) use std::sync::atomic::{fence, AtomicU64, Ordering};
    pub(super) use std::sync::{Condvar, Mutex};
}

/// What the application asks to register: `length` bytes at `address`, and what peers may do there.
#[derive(Clone, Debug)]
pub struct RegionSpec {
    pub address: u64,
    pub length: u64,
    pub access: Access,
    pub name: String,
    pub location: Location,
    /// ferry's own, for what is on its way from or to a device. Nobody is shown it.
    pub staging: bool,
}

impl Default for RegionSpec {
    /// No bytes of host memory, which peers may READ and WRITE.
    fn default() -> RegionSpec {
        RegionSpec {
            address: 0,
            length: 0,
            access: Access::BOTH,
            name: String::new(),
            location: Location::HOST,
            staging: false,
        }
    }
}

/// One registered region. Its memory may be touched, by this engine or for a peer, only between a
/// successful `enter` and the matching `leave`; unregister waits for the last leave.
#[derive(Debug)]
pub struct Region {
    /// The handle: index, generation and engine tag.
    pub id: u64,
    /// Which of all regions this was that its registry ever had, from 1.
    pub order: u64,
    pub address: u64,
    pub length: u64,
    pub access: Access,
    pub name: String,
    pub location: Location,
    /// See `RegionSpec::staging`.
    pub staging: bool,
    /// What another process of this host can map, if ferry allocated the memory so.
    pub memfd: Option<Arc<OwnedFd>>,
    /// The same memory as devices know it, if there are any.
    pub pin: Option<Pin>,
    gate: Gate,
    teardown: Teardown,
}

impl Region {
    fn new(
        (id, order): (u64, u64),
        spec: &RegionSpec,
        memfd: Option<Arc<OwnedFd>>,
        pin: Option<Pin>,
    ) -> Region {
        Region {
            id,
            order,
            address: spec.address,
            length: spec.length,
            access: spec.access,
            name: spec.name.clone(),
            location: spec.location,
            staging: spec.staging,
            memfd,
            pin,
            gate: Gate::new(),
            teardown: Teardown::default(),
        }
    }

    /// The index of its handle: a small number, of one region at a time.
    pub(crate) fn index(&self) -> u32 {
        Region::index_of(self.id)
    }

    fn index_of(handle: u64) -> u32 {
        handle as u32 & INDEX_MAX
    }

    /// Starts a use; false when the region has been revoked, and then there is nothing to leave.
    /// Never blocks. Any thread. Pairs with the revoke in `Registry::unregister`.
    pub fn enter(&self) -> bool {
        self.gate.enter()
    }

    /// Ends a use, on any thread. The last leave of a revoked region wakes who unregisters it; no
    /// other leave takes a lock. Panics when nobody is inside.
    pub fn leave(&self) {
        self.gate.leave();
    }

    /// Whether nobody uses it at this moment.
    pub fn is_idle(&self) -> bool {
        self.gate.is_idle()
    }

    /// Whether new uses are refused. A `false` may be out of date on return; `enter` decides.
    pub fn is_revoked(&self) -> bool {
        self.gate.is_revoked()
    }

    /// Whether it takes a device's library to copy from and to it.
    pub fn is_device(&self) -> bool {
        self.location.kind.is_device()
    }

    /// Whether all of `[address, address + length)` lies inside; false when that overflows.
    pub fn contains(&self, address: u64, length: u64) -> bool {
        range_contains(self.address, self.length, address, length)
    }
}

/// Whether `[inner, inner + inner_length)` lies in `[outer, outer + outer_length)`. Nothing is added,
/// so nothing can overflow.
pub fn range_contains(outer: u64, outer_length: u64, inner: u64, inner_length: u64) -> bool {
    inner >= outer && inner_length <= outer_length && inner - outer <= outer_length - inner_length
}

/// Room for `additional` more, or NO_MEMORY: these lists grow with what applications and peers send, by doubling.
fn reserve<T>(list: &mut Vec<T>, additional: usize) -> Result<()> {
    list.try_reserve(additional).map_err(|_| {
        Error::new(Status::NoMemory, format!("no memory for a table of {additional} more regions"))
    })
}
