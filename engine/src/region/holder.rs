//! Who reaches registered memory without this process taking part: devices, for peers that hold their keys.
//! `registry` has memory pinned before a region exists, and every key handed back before it is gone.

use super::{Region, RegionSpec};
use crate::status::Result;
use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// A region's memory as the devices know it; only its holder looks inside. Dropped, it is taken off them.
pub type Pin = Arc<dyn Any + Send + Sync>;

/// Implemented by the transport that has the devices.
pub trait Holder: Send + Sync {
    /// Makes all of this memory known to every device, or none of it. May take long. Errors name the spec
    /// with `request_index`.
    fn pin(&self, specs: &[RegionSpec]) -> Result<Vec<Pin>>;
    /// No peer is given the region's keys from here on, and those that have them are asked to let go.
    fn revoke(&self, region: u64);
    /// If no peer holds keys of the region and `revoke` agrees, none ever will.
    fn revoke_if_unheld(&self, region: u64, revoke: &mut dyn FnMut() -> bool) -> bool;
    /// Waits until no peer can reach the region any more: it let go, or its endpoints are destroyed.
    fn wait_unheld(&self, region: u64, deadline: Option<Instant>) -> bool;
    /// Nobody can reach the region: takes it off the devices.
    fn unpin(&self, region: &Region);
}

/// Implemented by `stage`: lends device memory to other processes of this host, which map it. They are inside the
/// region (see `grants`) for as long as they do.
pub trait Lender: Send + Sync {
    /// Those who have the region mapped are asked to let go.
    fn recall(&self, region: u64);
    /// Nobody has it mapped any more: what the driver keeps for it goes. May take a moment.
    fn take_back(&self, region: u64);
}

/// The place of the one that there may be, found after the registry.
pub struct Slot<T: ?Sized>(OnceLock<Arc<T>>);

pub type HolderSlot = Slot<dyn Holder>;
pub type LenderSlot = Slot<dyn Lender>;

impl<T: ?Sized> Slot<T> {
    pub fn set(&self, one: Arc<T>) {
        let _ = self.0.set(one);
    }

    pub fn get(&self) -> Option<&T> {
        self.0.get().map(|one| &**one)
    }
}

impl<T: ?Sized> Default for Slot<T> {
    fn default() -> Slot<T> {
        Slot(OnceLock::new())
    }
}

impl<T: ?Sized> fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "one" } else { "none" })
    }
}
