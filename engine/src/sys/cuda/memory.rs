//! Memory that ferry allocates: on the device, and pinned on the host.

use super::{Context, Failure};
use std::ffi::c_void;
use std::sync::Arc;

pub struct DeviceMemory {
    pub address: u64,
    #[cfg(feature = "internals")]
    pub length: usize,
    context: Arc<Context>,
}

impl DeviceMemory {
    pub fn new(context: &Arc<Context>, length: usize) -> Result<DeviceMemory, Failure> {
        let _entered = context.enter()?;
        let mut address = 0;
        // SAFETY: the result lives on this stack; Drop frees the memory.
        unsafe { context.api.mem_alloc(&mut address, length) }?;
        Ok(DeviceMemory {
            address,
            #[cfg(feature = "internals")]
            length,
            context: context.clone(),
        })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: allocated by `new`, freed once; the owner drops it only once nothing uses it.
            let _ = unsafe { self.context.api.mem_free(self.address) };
        }
    }
}

/// Host memory that every device of the process reaches at its CPU address. (Unified addressing guarantees that for
/// memory that the driver allocates, but not for memory that is registered later.)
pub struct PinnedMemory {
    pub address: u64,
    #[cfg(feature = "internals")]
    pub length: usize,
    context: Arc<Context>,
}

const PORTABLE_AND_MAPPED: u32 = 3;

impl PinnedMemory {
    pub fn new(context: &Arc<Context>, length: usize) -> Result<PinnedMemory, Failure> {
        let _entered = context.enter()?;
        let mut address: *mut c_void = std::ptr::null_mut();
        // SAFETY: the result lives on this stack; Drop frees the memory.
        unsafe { context.api.mem_host_alloc(&mut address, length, PORTABLE_AND_MAPPED) }?;
        Ok(PinnedMemory {
            address: address as u64,
            #[cfg(feature = "internals")]
            length,
            context: context.clone(),
        })
    }

    pub fn pointer<T>(&self) -> *mut T {
        self.address as usize as *mut T
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: allocated by `new`, freed once; the owner drops it only once nothing uses it.
            let _ = unsafe { self.context.api.mem_free_host(self.pointer()) };
        }
    }
}
