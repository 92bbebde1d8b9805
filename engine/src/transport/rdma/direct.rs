//! GPUDirect RDMA: memory of a GPU or NPU that the NICs read and write directly. The device's driver exports a
//! dma-buf, which is registered with every NIC like host memory (`memory`). A refusal is no error: the region is
//! staged, and `why_staged` returns the reason.

use super::locality::{Place, SYSFS};
use super::memory::Pinned;
use super::Usable;
use crate::device::{DmaBuf, Drivers};
use crate::region::{Region, RegionSpec};
use crate::status::reason;
use crate::sys::once::OnceLock;
use crate::types::Access;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The source of dma-bufs.
pub struct Direct {
    drivers: Option<Arc<Drivers>>,
}

/// The memory that a region is registered from.
pub struct Source {
    buffer: Option<DmaBuf>,
    /// The place of the device that owns the memory.
    place: Option<Place>,
    /// The reason why the NICs don't reach the memory, from the first NIC that refused.
    why: OnceLock<String>,
}

impl Direct {
    /// `None` means that the settings want all device memory to be staged.
    pub fn new(drivers: Option<Arc<Drivers>>) -> Direct {
        Direct { drivers }
    }

    /// Returns the source of a region: host memory as it is, device memory as a dma-buf.
    pub fn source(&self, spec: &RegionSpec) -> Source {
        let host = Source { buffer: None, place: None, why: OnceLock::new() };
        if !spec.location.kind.is_device() {
            return host;
        }
        self.of_device(spec).unwrap_or_else(|why| Source { why: OnceLock::from(why), ..host })
    }

    fn of_device(&self, spec: &RegionSpec) -> Usable<Source> {
        let Some(drivers) = &self.drivers else { return Err("rdma_gpudirect is false".into()) };
        let has = |right: Access| spec.access.0 & right.0 != 0;
        // Only a READ of the memory itself proves the WRITEs: a READ of host memory proves nothing about a GPU's.
        if has(Access::REMOTE_WRITE) && !has(Access::REMOTE_READ) {
            return Err("peers may WRITE but not READ it, and only a READ proves a WRITE visible".into());
        }
        let driver = drivers.get(spec.location.kind).map_err(|error| error.message)?;
        let buffer = driver.dmabuf(spec.address, spec.length).map_err(|error| error.message)?;
        let place = driver.pci_address(spec.location.device);
        let place = place.map(|address| Place::of_pci(Path::new(SYSFS), &address));
        Ok(Source { buffer: Some(buffer), place, why: OnceLock::new() })
    }
}

impl Source {
    pub fn buffer(&self) -> Option<&DmaBuf> {
        self.buffer.as_ref()
    }

    /// Returns the place of the device; None for host memory or if the place is unknown.
    pub fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    pub fn why(&self) -> Option<String> {
        self.why.get().cloned()
    }

    /// Notes that a NIC refused the memory. Returns false for host memory, which every NIC must accept.
    pub fn refused(&self, nic: &str, error: &io::Error) -> bool {
        if self.buffer.is_some() {
            let _ = self.why.set(format!("{nic} refuses its dma-buf: {}", reason(error)));
        }
        self.buffer.is_some()
    }
}

/// Returns why a region of device memory is staged; None if the NICs reach it directly.
pub fn why_staged(region: &Region) -> Option<&str> {
    match Pinned::of(region) {
        None => Some("there is no RDMA device"),
        Some(pinned) => pinned.staged.as_deref(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Location, MemoryKind};

    fn spec(kind: MemoryKind, access: Access) -> RegionSpec {
        RegionSpec { access, location: Location { kind, device: 0 }, ..RegionSpec::default() }
    }

    #[test]
    fn what_can_not_be_direct_says_why() {
        let off = Direct::new(None);
        let source = off.source(&spec(MemoryKind::Cuda, Access::BOTH));
        assert!(source.buffer().is_none() && source.why().unwrap().contains("rdma_gpudirect"));
        let host = off.source(&spec(MemoryKind::Host, Access::REMOTE_WRITE));
        assert_eq!((host.buffer().is_none(), host.why()), (true, None));
        let error = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        assert!(
            !host.refused("nic", &error) && host.why().is_none(),
            "without host memory there is no region"
        );

        let limits = crate::device::Limits { batch_bytes: 1, depth: 1, timeout: std::time::Duration::ZERO };
        let none = Direct::new(Some(Arc::new(Drivers::new(Vec::new(), limits))));
        let why = |access| none.source(&spec(MemoryKind::Cuda, access)).why().unwrap();
        assert!(why(Access::REMOTE_WRITE).contains("READ"));
        assert!(
            why(Access::REMOTE_READ).contains("switched off") && why(Access::BOTH).contains("switched off")
        );
    }

    #[test]
    fn the_first_nic_that_refuses_is_named() {
        let fd = std::fs::File::open("/dev/null").unwrap().into();
        let source = Source { buffer: Some(DmaBuf { fd, offset: 0 }), place: None, why: OnceLock::new() };
        for nic in ["first", "second"] {
            assert!(source.refused(nic, &io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
        }
        let why = source.why().unwrap();
        assert!(why.contains("first refuses") && why.contains("not supported"), "{why}");
    }
}
