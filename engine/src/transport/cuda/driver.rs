//! The CUDA driver as a `device::Driver`: the calls that do not belong to a queue.

use super::contexts::Contexts;
use super::hold::{self, Flags};
use super::pins::Pins;
use super::queue::CudaQueue;
use super::{locate, point};
use crate::device::{Allocation, DmaBuf, Driver, Hold, Point, Queue, Start};
use crate::status::{Error, Result, Status};
use crate::sys::cuda::{
    self, Api, Context, ATTRIBUTE_DMA_BUF_SUPPORTED, ATTRIBUTE_PCI_BUS, ATTRIBUTE_PCI_DEVICE,
    ATTRIBUTE_PCI_DOMAIN, ATTRIBUTE_RDMA_WRITES_ORDERING, RANGE_HANDLE_DMA_BUF_FD,
    RDMA_WRITES_ORDERED_FOR_OWNER,
};
use crate::sys::fd::OwnedFd;
use crate::sys::memory::page_bytes;
use crate::types::{end_of, MemoryKind};
use std::os::fd::FromRawFd;
use std::sync::Arc;

struct Cuda {
    api: &'static Api,
    contexts: Arc<Contexts>,
    pins: Pins,
    flags: Flags,
}

/// Checks that a NIC may read and write memory of this device directly. If the device does not see the written data
/// without a flush, its own process has to call `cuFlushGPUDirectRDMAWrites`; but the writer is another process, which
/// reports the end before this process knows of it.
fn check_direct(context: &Context) -> Result<()> {
    let refuse = |text: String| Err(Error::new(Status::Unavailable, text));
    if context.attribute(ATTRIBUTE_DMA_BUF_SUPPORTED)? == 0 {
        return refuse(format!("device {} or its driver has no dma-buf", context.ordinal));
    }
    if context.attribute(ATTRIBUTE_RDMA_WRITES_ORDERING)? < RDMA_WRITES_ORDERED_FOR_OWNER {
        return refuse(format!("device {} sees the writes of a NIC only after a flush", context.ordinal));
    }
    Ok(())
}

pub fn open(path: &str) -> Result<Arc<dyn Driver>> {
    let api = cuda::load(path)?;
    let contexts = Arc::new(Contexts::new(api));
    Ok(Arc::new(Cuda { api, contexts, pins: Pins::default(), flags: Flags::new(api) }))
}

impl Driver for Cuda {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Cuda
    }

    fn locate(&self, address: u64) -> Result<Option<Allocation>> {
        locate::locate(&self.contexts, address)
    }

    fn pin(&self, address: u64, length: usize) -> Result<()> {
        self.pins.pin(&self.contexts, address, length)
    }

    fn unpin(&self, address: u64) {
        self.pins.unpin(address);
    }

    fn open(&self, device: i32, batch_bytes: usize, depth: usize) -> Result<Box<dyn Queue>> {
        Ok(Box::new(CudaQueue::open(&self.contexts, device, batch_bytes, depth)?))
    }

    fn point(&self, at: Start) -> Result<Box<dyn Point>> {
        point::point(&self.contexts, at)
    }

    fn capture(&self, event: u64) -> Result<Box<dyn Point>> {
        point::capture(&self.contexts, event)
    }

    fn hold(&self, stream: u64) -> Result<Box<dyn Hold>> {
        hold::hold(&self.contexts, &self.flags, stream)
    }

    /// A GPU is always function 0 of its PCI device.
    fn pci_address(&self, device: i32) -> Option<String> {
        let context = self.contexts.get(device).ok()?;
        let [domain, bus, device] = [ATTRIBUTE_PCI_DOMAIN, ATTRIBUTE_PCI_BUS, ATTRIBUTE_PCI_DEVICE]
            .map(|attribute| context.attribute(attribute).ok());
        Some(format!("{:04x}:{:02x}:{:02x}.0", domain?, bus?, device?))
    }

    /// The driver takes addresses and lengths in multiples of the host's page, so whole pages are requested. All of
    /// them must be of the same allocation.
    fn dmabuf(&self, address: u64, length: u64) -> Result<DmaBuf> {
        let allocation = self.locate(address)?.filter(|found| found.location.kind == MemoryKind::Cuda);
        let Some(allocation) = allocation else {
            return Err(Error::invalid(format!("address: {address:#x} is not memory of a CUDA device")));
        };
        let context = self.contexts.get(allocation.location.device)?;
        check_direct(&context)?;
        let page = page_bytes() as u64;
        let start = address / page * page;
        let end = end_of(address, length).and_then(|end| end.checked_next_multiple_of(page));
        let Some(end) =
            end.filter(|end| *end <= allocation.base + allocation.length && start >= allocation.base)
        else {
            let text =
                format!("the pages of the {length} bytes at {address:#x} are not all of one allocation");
            return Err(Error::invalid(text));
        };
        let mut fd: i32 = -1;
        let _entered = context.enter()?;
        // SAFETY: the result lives on this stack and is an int for this kind of handle.
        unsafe {
            self.api.mem_get_handle_for_address_range(
                (&raw mut fd).cast(),
                start,
                (end - start) as usize,
                RANGE_HANDLE_DMA_BUF_FD,
                0,
            )
        }?;
        // SAFETY: a fresh descriptor that the driver made for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(DmaBuf { fd, offset: address - start })
    }
}
