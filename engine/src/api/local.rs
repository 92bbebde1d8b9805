//! The program's own registered memory, for libraries above the engine: which region has an address, and its bytes.

use super::Engine;
use crate::region::{enter_all, Region};
use crate::status::{Error, Result, Status};
use crate::sys::racing::{self, Unread};
use crate::types::{Access, MemoryKind, RegionId};
use std::sync::Arc;

/// A region of this engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalRegion {
    pub region: RegionId,
    /// What peers may do with it.
    pub access: Access,
    pub kind: MemoryKind,
}

impl Engine {
    /// Returns the region that has all of this memory. NOT_REGISTERED if no region has all of it. STALE if the region
    /// is being unregistered.
    pub fn region_at(&self, address: u64, length: u64) -> Result<LocalRegion> {
        let region = self.find_region(address, length)?;
        Ok(LocalRegion { region: region.id, access: region.access, kind: region.location.kind })
    }

    /// Passes the bytes of registered host memory to `look`, in parts of at most 64 KiB, each as it was when it was
    /// copied. The region is in use meanwhile. Peers and the program may write the memory at the same time.
    ///
    /// NOT_REGISTERED, STALE as from `region_at`; UNSUPPORTED for memory of a device; SYSTEM with EFAULT if a page
    /// cannot be read.
    pub fn look_at(&self, address: u64, length: u64, look: impl FnMut(&[u8])) -> Result<()> {
        let region = self.find_region(address, length)?;
        if region.is_device() {
            let text = format!("the memory at {address:#x} is of a device: the CPU cannot read it");
            return Err(Error::new(Status::Unsupported, text));
        }
        let regions = [region];
        let _entered = enter_all(&regions).map_err(|id| revoked(id, address))?;
        let always = || Ok::<(), std::convert::Infallible>(());
        let (from, bytes, is_ours) = (address as *const u8, length as usize, regions[0].is_ours());
        // SAFETY: the region has all of the range, and stays registered while it is entered: memory that ferry
        // allocated stays mapped, and the kernel checks any other. `look` gets copies.
        let read = unsafe { racing::try_each_part(from, bytes, is_ours, always, look) };
        read.map_err(|unread| match unread {
            Unread::Refused(never) => match never {},
            Unread::Faulted => {
                let text = format!("a page of the {length} bytes at {address:#x} cannot be read");
                Error { os_error: libc::EFAULT, ..Error::new(Status::System, text) }
            }
        })
    }

    fn find_region(&self, address: u64, length: u64) -> Result<Arc<Region>> {
        let map = self.context()?.registry.snapshot();
        let region = map.find(address, length).ok_or_else(|| {
            let text = format!("{length} bytes at {address:#x} are not within one registered region");
            Error::new(Status::NotRegistered, text)
        })?;
        if region.is_revoked() {
            return Err(revoked(region.id, address));
        }
        Ok(region.clone())
    }
}

fn revoked(region: RegionId, address: u64) -> Error {
    let text = format!("the region {region:?} at {address:#x} is being unregistered");
    Error::new(Status::Stale, text)
}
