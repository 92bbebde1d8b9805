//! Access to registered memory without this process taking part: by RDMA devices, for peers that hold the keys.
//! `registry` pins memory before its region exists, and waits for the return of every key before the region is gone.

use super::{Region, RegionSpec};
use crate::status::Result;
use crate::sys::once::OnceLock;
use crate::types::{PeerId, RegionId};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// A region's memory as the devices know it, opaque except to its holder. Dropping it deregisters the memory.
pub type Pin = Arc<dyn Any + Send + Sync>;

/// Implemented by the transport that owns the devices.
pub trait Holder: Send + Sync {
    /// Registers all of this memory with every device, or none of it. May take long. Errors name the spec with
    /// `request_index`.
    fn pin(&self, specs: &[RegionSpec]) -> Result<Vec<Pin>>;
    /// Gives the region's keys to no further peer, and asks the peers that hold keys to release them.
    fn revoke(&self, region: RegionId);
    /// Revokes the region's keys for good if no peer holds one and `revoke` returns true. Returns whether it did.
    fn revoke_if_unheld(&self, region: RegionId, revoke: &mut dyn FnMut() -> bool) -> bool;
    /// Waits until no peer can reach the region: each released its keys, or its endpoints are destroyed.
    fn wait_unheld(&self, region: RegionId, deadline: Option<Instant>) -> bool;
    /// Returns the peers that can reach the region. Only advice: they come and go.
    fn holders(&self, _region: RegionId) -> Vec<PeerId> {
        Vec::new()
    }
    /// Deregisters the region's memory, which no peer can reach any more.
    fn unpin(&self, region: &Region);
}

/// Implemented by `stage`, which lends device memory to other processes of this host. Such a process is inside the
/// region (see `grants`) for as long as it has the memory mapped.
pub trait Lender: Send + Sync {
    /// Asks the processes that have the region mapped to unmap it.
    fn recall(&self, region: RegionId);
    /// Frees the driver's state of the loan once no process has the region mapped. May take a moment.
    fn take_back(&self, region: RegionId);
}

/// The place of an optional part of the engine, which is created after the registry.
pub struct ServiceSlot<T: ?Sized>(OnceLock<Arc<T>>);

pub type HolderSlot = ServiceSlot<dyn Holder>;
pub type LenderSlot = ServiceSlot<dyn Lender>;

impl<T: ?Sized> ServiceSlot<T> {
    pub fn set(&self, one: Arc<T>) {
        let _ = self.0.set(one);
    }

    pub fn get(&self) -> Option<&T> {
        self.0.get().map(|one| &**one)
    }
}

impl<T: ?Sized> Default for ServiceSlot<T> {
    fn default() -> ServiceSlot<T> {
        ServiceSlot(OnceLock::new())
    }
}

impl<T: ?Sized> fmt::Debug for ServiceSlot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "one" } else { "none" })
    }
}
