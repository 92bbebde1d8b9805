//! Memory that the caller registered, by address.

use crate::call::{lock, negative};
use crate::engine::Engine;
use crate::pointers::{list, opened, reserve, text};
use crate::types::BufferEntry;
use ferry::status::Result;
use ferry::types::{Access, Location, MemoryKind, RegionId};
use ferry::{Error, RegionSpec, Status};
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Mutex;

/// ferry's regions by their start. Any thread may use it.
#[derive(Default)]
pub struct Registered(Mutex<HashMap<u64, RegionId>>);

impl Registered {
    /// Registers all ranges or none.
    ///
    /// # Safety
    /// The memory stays mapped, readable and writable until `unregister` has returned.
    unsafe fn register(
        &self,
        engine: &ferry::Engine,
        specs: Vec<RegionSpec>,
        stated: Option<Location>,
    ) -> Result<()> {
        if specs.is_empty() {
            return Ok(());
        }
        let addresses: Vec<u64> = specs.iter().map(|spec| spec.address).collect();
        // SAFETY: the caller's promise; Rust holds no reference to the memory.
        let regions = unsafe { engine.register_batch(specs, stated) }?;
        lock(&self.0).extend(addresses.into_iter().zip(regions));
        Ok(())
    }

    /// Unregisters the memory at all addresses that are known; fails if some are unknown.
    fn unregister(&self, engine: &ferry::Engine, addresses: impl Iterator<Item = u64>) -> Result<()> {
        let mut outcome = Ok(());
        for address in addresses {
            let region = lock(&self.0).remove(&address);
            let done = match region {
                // This waits until nothing uses the memory, however long that takes: when it returns, the memory is the
                // caller's again.
                Some(region) => engine.unregister(region, None),
                None => {
                    let text = format!("addr: no memory at {address:#x} is registered");
                    Err(Error::new(Status::NotRegistered, text))
                }
            };
            outcome = outcome.and(done);
        }
        outcome
    }
}

fn spec(address: *mut c_void, length: usize, access: Access) -> RegionSpec {
    RegionSpec { address: address as u64, length: length as u64, access, ..RegionSpec::default() }
}

/// Returns the device that "cuda:0" or "npu:0" names. None for another word or NULL: ferry detects the
/// device.
///
/// # Safety
/// `location` is NULL or a terminated string that stays for the length of the call.
unsafe fn stated(location: *const c_char) -> Result<Option<Location>> {
    if location.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    device(unsafe { text(location, "location") }?)
}

fn device(location: &str) -> Result<Option<Location>> {
    let (name, number) = location.split_once(':').unwrap_or((location, ""));
    let kind = match name {
        "cuda" => MemoryKind::Cuda,
        "npu" => MemoryKind::Ascend,
        _ => return Ok(None),
    };
    // `parse` would accept a sign.
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    match number.parse::<i32>() {
        Ok(device) if digits => Ok(Some(Location { kind, device })),
        _ => Err(Error::invalid(format!("location {location:?} names no device: {name}:0 is the first"))),
    }
}

/// Registers memory; without `remote_accessible` only this engine's own transfers reach it.
#[no_mangle]
pub unsafe extern "C" fn registerLocalMemory(
    engine: Option<&Engine>,
    addr: *mut c_void,
    length: usize,
    location: *const c_char,
    remote_accessible: c_int,
) -> c_int {
    negative("registerLocalMemory", || {
        let engine = opened(engine)?;
        let access = if remote_accessible != 0 { Access::BOTH } else { Access(0) };
        // SAFETY: NULL or a terminated string that the caller keeps for the length of the call.
        let stated = unsafe { stated(location) }?;
        // SAFETY: the caller keeps the memory until it has unregistered it or destroyed the engine.
        unsafe { engine.memory.register(&engine.ferry, vec![spec(addr, length, access)], stated) }
    })
}

#[no_mangle]
pub extern "C" fn unregisterLocalMemory(engine: Option<&Engine>, addr: *mut c_void) -> c_int {
    negative("unregisterLocalMemory", || {
        let engine = opened(engine)?;
        engine.memory.unregister(&engine.ferry, [addr as u64].into_iter())
    })
}

#[no_mangle]
pub unsafe extern "C" fn registerLocalMemoryBatch(
    engine: Option<&Engine>,
    buffer_list: *const BufferEntry,
    buffer_len: usize,
    location: *const c_char,
) -> c_int {
    negative("registerLocalMemoryBatch", || {
        let engine = opened(engine)?;
        // SAFETY: NULL or `buffer_len` entries, which the caller keeps for the length of the call.
        let buffers = unsafe { list(buffer_list, buffer_len, "buffer_list") }?;
        let mut specs = Vec::new();
        reserve(&mut specs, buffers.len())?;
        specs.extend(buffers.iter().map(|buffer| spec(buffer.addr, buffer.length, Access::BOTH)));
        // SAFETY: NULL or a terminated string that the caller keeps for the length of the call.
        let stated = unsafe { stated(location) }?;
        // SAFETY: the caller keeps the memory until it has unregistered it or destroyed the engine.
        unsafe { engine.memory.register(&engine.ferry, specs, stated) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn unregisterLocalMemoryBatch(
    engine: Option<&Engine>,
    addr_list: *const *mut c_void,
    addr_len: usize,
) -> c_int {
    negative("unregisterLocalMemoryBatch", || {
        let engine = opened(engine)?;
        // SAFETY: NULL or `addr_len` entries, which the caller keeps for the length of the call.
        let addresses = unsafe { list(addr_list, addr_len, "addr_list") }?;
        engine.memory.unregister(&engine.ferry, addresses.iter().map(|address| *address as u64))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_a_device_or_to_be_found_out() {
        let at = |kind, device| Some(Location { kind, device });
        let cases = [
            ("cuda:0", at(MemoryKind::Cuda, 0)),
            ("cuda:2147483647", at(MemoryKind::Cuda, i32::MAX)),
            ("npu:7", at(MemoryKind::Ascend, 7)),
            ("*", None),
            ("", None),
            ("cpu:0", None),
            ("hip:0", None),
        ];
        for (location, found) in cases {
            assert_eq!(device(location).unwrap(), found, "{location}");
        }
        for location in ["cuda", "cuda:", "cuda:x", "cuda:+1", "cuda:-1", "npu:2147483648", "cuda:0:0"] {
            let message = device(location).unwrap_err().message;
            assert!(message.contains(&format!("location {location:?}")), "{message}");
        }
    }
}
