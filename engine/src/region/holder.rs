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

/// The place of the one holder that there may be, found after the registry.
#[derive(Default)]
pub struct HolderSlot(OnceLock<Arc<dyn Holder>>);

impl HolderSlot {
    pub fn set(&self, holder: Arc<dyn Holder>) {
        let _ = self.0.set(holder);
    }

    pub fn get(&self) -> Option<&dyn Holder> {
        self.0.get().map(|holder| &**holder)
    }
}

impl fmt::Debug for HolderSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "a holder" } else { "no holder" })
    }
}
