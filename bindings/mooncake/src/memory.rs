//! Memory that the caller registered, by its address.

use crate::call::{lock, negative};
use crate::engine::Engine;
use crate::pointers::{list, opened, reserve};
use crate::types::BufferEntry;
use ferry::region::RegionSpec;
use ferry::status::Result;
use ferry::types::Access;
use ferry::{Error, Status};
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Mutex;

/// ferry's regions by where they begin. Any thread may use it.
#[derive(Default)]
pub struct Registered(Mutex<HashMap<u64, u64>>);

impl Registered {
    /// All of them or none.
    ///
    /// # Safety
    /// The memory stays mapped, readable and writable until `unregister` has returned.
    unsafe fn register(&self, engine: &ferry::Engine, specs: Vec<RegionSpec>) -> Result<()> {
        if specs.is_empty() {
            return Ok(());
        }
        let addresses: Vec<u64> = specs.iter().map(|spec| spec.address).collect();
        // SAFETY: the caller's promise; Rust holds no reference to the memory.
        let regions = unsafe { engine.register_batch(specs, None) }?;
        lock(&self.0).extend(addresses.into_iter().zip(regions));
        Ok(())
    }

    /// All that are known; unknown ones make it fail.
    fn unregister(&self, engine: &ferry::Engine, addresses: impl Iterator<Item = u64>) -> Result<()> {
        let mut outcome = Ok(());
        for address in addresses {
            let region = lock(&self.0).remove(&address);
            let done = match region {
                // However long who uses it takes: it is the caller's again when this returns.
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

/// Without `remote_accessible` it is for this engine's own transfers alone. The location is ferry's to find.
#[no_mangle]
pub unsafe extern "C" fn registerLocalMemory(
    engine: Option<&Engine>,
    addr: *mut c_void,
    length: usize,
    _location: *const c_char,
    remote_accessible: c_int,
) -> c_int {
    negative("registerLocalMemory", || {
        let engine = opened(engine)?;
        let access = if remote_accessible != 0 { Access::BOTH } else { Access(0) };
        // SAFETY: the caller keeps the memory until it has unregistered it or destroyed the engine.
        unsafe { engine.memory.register(&engine.ferry, vec![spec(addr, length, access)]) }
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
    _location: *const c_char,
) -> c_int {
    negative("registerLocalMemoryBatch", || {
        let engine = opened(engine)?;
        // SAFETY: NULL or that many entries, which the caller keeps for the length of the call.
        let buffers = unsafe { list(buffer_list, buffer_len, "buffer_list") }?;
        let mut specs = Vec::new();
        reserve(&mut specs, buffers.len())?;
        specs.extend(buffers.iter().map(|buffer| spec(buffer.addr, buffer.length, Access::BOTH)));
        // SAFETY: the caller keeps the memory until it has unregistered it or destroyed the engine.
        unsafe { engine.memory.register(&engine.ferry, specs) }
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
        // SAFETY: NULL or that many entries, which the caller keeps for the length of the call.
        let addresses = unsafe { list(addr_list, addr_len, "addr_list") }?;
        engine.memory.unregister(&engine.ferry, addresses.iter().map(|address| *address as u64))
    })
}
