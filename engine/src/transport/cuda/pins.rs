//! Host memory that is pinned for every context of the process.

use super::contexts::Contexts;
use super::locate;
use crate::status::{Error, Result, Status};
use crate::sys::cuda::{result, Context};
use crate::sys::lock::Mutex;
use crate::sys::map::HashMap;
use crate::types::{end_of, MemoryKind};
use std::ffi::c_void;
use std::sync::Arc;

/// By address. A registration ends with its context, so the context is kept.
#[derive(Default)]
pub struct Pins(Mutex<HashMap<u64, Arc<Context>>>);

const PORTABLE: u32 = 1;

impl Pins {
    /// Pins host memory. Memory that the program has pinned itself is left alone, and must stay pinned until `unpin`.
    pub fn pin(&self, contexts: &Contexts, address: u64, length: usize) -> Result<()> {
        let context = contexts.any()?;
        let _entered = context.enter()?;
        let pointer = address as usize as *mut c_void;
        // SAFETY: the driver checks the range, and reads and writes none of it by itself.
        match unsafe { context.api.mem_host_register(pointer, length, PORTABLE) } {
            Ok(()) => {}
            // For memory of cuMemHostAlloc some drivers (13.0 in a virtual machine) have the second error.
            Err(failure)
                if matches!(failure.code, result::HOST_MEMORY_ALREADY_REGISTERED | result::INVALID_VALUE) =>
            {
                return if is_pinned(contexts, address, length)? {
                    Ok(())
                } else if failure.code == result::INVALID_VALUE {
                    Err(failure.into())
                } else {
                    Err(Error {
                        message: format!("a part of the {length} bytes at {address:#x} is pinned already"),
                        vendor_error: failure.code,
                        ..Error::new(Status::Overlap, "")
                    })
                };
            }
            Err(failure) => return Err(failure.into()),
        }
        drop(_entered);
        self.0.lock().insert(address, context);
        Ok(())
    }

    pub fn unpin(&self, address: u64) {
        let context = self.0.lock().remove(&address);
        if let Some(context) = context {
            if let Ok(_entered) = context.enter() {
                // SAFETY: registered by `pin`, and nothing copies from or to it any more.
                let _ = unsafe { context.api.mem_host_unregister(address as usize as *mut c_void) };
            }
        }
    }
}

/// Returns whether one pinned allocation covers the range.
fn is_pinned(contexts: &Contexts, address: u64, length: usize) -> Result<bool> {
    let Some(found) = locate::locate(contexts, address)? else { return Ok(false) };
    let end = end_of(address, length as u64);
    let last = found.base.saturating_add(found.length);
    Ok(found.location.kind == MemoryKind::Pinned && end.is_some_and(|end| end <= last))
}

impl Drop for Pins {
    fn drop(&mut self) {
        let addresses: Vec<u64> = self.0.lock().keys().copied().collect();
        addresses.into_iter().for_each(|address| self.unpin(address));
    }
}
