//! Registered memory: what this engine's application registered (`registry`; `map` has the immutable snapshots), and
//! what a peer announced that it registered (`remote`). `tree` is the sorted table below both. `plan` checks transfers
//! against both snapshots. The target side of each transport enters the local region around every access. Processes of
//! the same host enter a region through a gate in shared memory (`shared_gate`, `grants`). RDMA devices reach it by
//! keys that peers hold (`holder`).

mod admit;
mod entered;
pub(crate) mod gate;
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
pub use entered::enter_all;
pub use map::RegionMap;
pub use registry::Registry;
pub use remote::{RemoteMap, RemoteRegion};

use crate::handle::INDEX_MAX;
use crate::status::{Error, Result, Status};
use crate::sys::fd::OwnedFd;
use crate::types::{Access, Location, RegionId};
use gate::Gate;
use holder::Pin;
use std::sync::Arc;
use teardown::Teardown;

/// The atomics and locks of `gate`. The loom test replaces this module by loom's types.
mod sync {
    pub(super) use crate::sys::atomic::{fence, AtomicU64, Ordering};
    pub(super) use crate::sys::bare::{Condvar, Mutex};
    pub(super) use crate::sys::clock::now;
}

/// A request to register `length` bytes at `address`, with the access that peers get.
#[derive(Clone, Debug)]
pub struct RegionSpec {
    pub address: u64,
    pub length: u64,
    pub access: Access,
    pub name: String,
    pub location: Location,
    /// The region is one of ferry's own buffers, which stage device memory. The application never sees it.
    pub staging: bool,
}

impl Default for RegionSpec {
    /// No bytes of host memory, with READ and WRITE access for peers.
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

/// Whose memory a region is, and the memfd by which processes of this host map it.
#[derive(Clone)]
enum Backing {
    /// The application's own.
    Callers,
    /// A buffer of ferry's, for staging.
    Staging(Arc<OwnedFd>),
    /// Allocated by ferry for the application.
    Allocated(Option<Arc<OwnedFd>>),
}

/// A registered region. Its memory may be touched, by this engine or for a peer, only between a successful `enter` and
/// the matching `leave`. Unregister waits for the last leave.
#[derive(Debug)]
pub struct Region {
    /// The handle: index, generation and engine tag.
    pub id: RegionId,
    /// The number of this region among all that its registry ever registered, from 1.
    pub order: u64,
    pub address: u64,
    pub length: u64,
    pub access: Access,
    pub name: String,
    pub location: Location,
    /// See `RegionSpec::staging`.
    pub staging: bool,
    /// The memfd that other processes of this host can map, if ferry allocated the memory.
    pub memfd: Option<Arc<OwnedFd>>,
    /// ferry allocated the memory for the application: only its `Memory` unregisters the region.
    pub allocated: bool,
    /// The memory as RDMA devices know it, if the host has such devices.
    pub pin: Option<Pin>,
    gate: Gate,
    teardown: Teardown,
}

impl Region {
    fn new((id, order): (RegionId, u64), spec: &RegionSpec, backing: Backing, pin: Option<Pin>) -> Region {
        let allocated = matches!(backing, Backing::Allocated(_));
        let memfd = match backing {
            Backing::Callers => None,
            Backing::Staging(memfd) => Some(memfd),
            Backing::Allocated(memfd) => memfd,
        };
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
            allocated,
            pin,
            gate: Gate::new(),
            teardown: Teardown::default(),
        }
    }

    /// Returns the index part of the handle: a small number that no other live region has.
    pub(crate) fn index(&self) -> u32 {
        Region::index_of(self.id)
    }

    fn index_of(handle: RegionId) -> u32 {
        handle.raw() as u32 & INDEX_MAX
    }

    /// Starts a use. Returns false, and needs no `leave`, when the region is revoked. Never blocks. Any thread. Pairs
    /// with the revoke in `Registry::unregister`.
    pub fn enter(&self) -> bool {
        self.gate.enter()
    }

    /// Ends a use, on any thread. The last leave of a revoked region wakes the thread that unregisters it; no other
    /// leave takes a lock. Panics when the region has no user.
    pub fn leave(&self) {
        self.gate.leave();
    }

    /// Returns whether the region has no user at this moment.
    #[cfg(any(test, feature = "internals"))]
    pub fn is_idle(&self) -> bool {
        self.gate.users() == 0
    }

    /// Returns whether new uses are refused. A `false` may be out of date on return; `enter` decides.
    pub fn is_revoked(&self) -> bool {
        self.gate.is_revoked()
    }

    /// Returns whether ferry itself allocated the memory, which is mapped until the region is gone. The memory of a
    /// program may fault: see `sys::guarded`.
    pub fn is_ours(&self) -> bool {
        self.allocated || self.staging
    }

    /// Returns whether copies from and to the region need a device's library.
    pub fn is_device(&self) -> bool {
        self.location.kind.is_device()
    }

    /// Returns whether all of `[address, address + length)` lies inside; false when the sum overflows.
    pub fn contains(&self, address: u64, length: u64) -> bool {
        range_contains(self.address, self.length, address, length)
    }
}

/// Returns whether `[inner, inner + inner_length)` lies in `[outer, outer + outer_length)`. Only subtracts, so that
/// nothing can overflow.
pub fn range_contains(outer: u64, outer_length: u64, inner: u64, inner_length: u64) -> bool {
    inner >= outer && inner_length <= outer_length && inner - outer <= outer_length - inner_length
}

/// Reserves room for `additional` more regions, by doubling: applications and peers decide how long these lists get.
fn reserve<T>(list: &mut Vec<T>, additional: usize) -> Result<()> {
    list.try_reserve(additional).map_err(|_| {
        Error::new(Status::NoMemory, format!("no memory for a table of {additional} more regions"))
    })
}
