//! Finds the allocation at an address, by the driver.

use super::contexts::Contexts;
use crate::device::Allocation;
use crate::status::Result;
use crate::sys::cuda::{pointer, result, Failure, MEMORY_TYPE_DEVICE, MEMORY_TYPE_HOST};
use crate::types::{Location, MemoryKind};
use std::ffi::c_void;

/// Queries several attributes of a pointer in one call. Each has at most 64 bits; shorter values are padded with
/// zeros. None: not the driver's memory.
pub fn attributes<const N: usize>(
    contexts: &Contexts,
    names: [i32; N],
    address: u64,
) -> Result<Option<[u64; N]>, Failure> {
    let ask = || {
        let mut values = [0u64; N];
        let places = values.each_mut().map(|value| (value as *mut u64).cast::<c_void>());
        // SAFETY: as many names as places, each place as large as any attribute; all live on this stack. For
        // memory that isn't its own the driver reports zeros, or INVALID_VALUE, and touches nothing.
        unsafe { contexts.api.pointer_get_attributes(N as u32, names.as_ptr(), places.as_ptr(), address) }
            .map(|()| values)
    };
    match contexts.with_some(ask) {
        Ok(values) => Ok(Some(values)),
        Err(failure) => match failure.code {
            result::INVALID_VALUE
            | result::NOT_INITIALIZED
            | result::DEINITIALIZED
            | result::INVALID_CONTEXT => Ok(None),
            // The thread has no context, and no other exists.
            result::CONTEXT_IS_DESTROYED if contexts.active().is_none() => Ok(None),
            _ => Err(failure),
        },
    }
}

/// See `Driver::locate`. For memory that was mapped by hand (cuMemMap) the result is the reserved range, parts of
/// which may not be mapped.
pub fn locate(contexts: &Contexts, address: u64) -> Result<Option<Allocation>> {
    use pointer::*;
    let names = [MEMORY_TYPE, IS_MANAGED, DEVICE_ORDINAL, RANGE_START_ADDR, RANGE_SIZE, MAPPED];
    let Some([memory_type, managed, device, base, length, mapped]) = attributes(contexts, names, address)?
    else {
        return Ok(None);
    };
    // A boolean is an int or a byte, so only its low byte is read.
    let kind = match memory_type as u32 as u64 {
        _ if managed as u8 != 0 => MemoryKind::Managed,
        MEMORY_TYPE_DEVICE if mapped as u8 != 0 => MemoryKind::Cuda,
        MEMORY_TYPE_HOST => MemoryKind::Pinned,
        _ => return Ok(None),
    };
    if length == 0 {
        return Ok(None);
    }
    let device = if kind == MemoryKind::Pinned { 0 } else { device as i32 };
    Ok(Some(Allocation { location: Location { kind, device }, base, length }))
}
