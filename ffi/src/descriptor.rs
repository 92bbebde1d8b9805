//! Descriptors: engines find each other through a file, a database or a message of the application.

use crate::engine::ferry_engine;
use crate::error::ferry_error;
use crate::guard::call;
use crate::handles::{ferry_peer, timeout};
use crate::pointers::{slice, BytesOut, Out};
use crate::status::ferry_status;
use engine::Descriptor;
use std::ffi::c_void;

/// Writes this engine's descriptor: its address and identity. A descriptor has at most 300 bytes, a version
/// and a checksum. It is a hint, neither a secret nor a permission. Returns bytes as ferry_config_get does.
/// FERRY_ERR_UNAVAILABLE if the engine doesn't listen.
#[no_mangle]
pub unsafe extern "C" fn ferry_descriptor_export(
    engine: *mut ferry_engine,
    buffer: *mut c_void,
    capacity: usize,
    out_length: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let out = BytesOut::new(buffer.cast(), capacity, out_length)?;
            out.put(&engine.engine.descriptor()?.encode())
        })
    }
}

/// Connects to the engine that a descriptor names. Behaves as ferry_peer_connect otherwise.
///
/// FERRY_ERR_INVALID: the bytes are no descriptor. FERRY_ERR_CORRUPT: the descriptor is damaged.
/// FERRY_ERR_VERSION: the descriptor has another version. FERRY_ERR_STALE: another engine, or another
/// incarnation of the engine, answers at the address.
#[no_mangle]
pub unsafe extern "C" fn ferry_descriptor_import(
    engine: *mut ferry_engine,
    descriptor: *const c_void,
    length: usize,
    timeout_ns: u64,
    out_peer: *mut ferry_peer,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::blocking(engine, timeout_ns)?;
            let bytes = slice(descriptor.cast::<u8>(), length, "descriptor")?;
            let out = Out::new(out_peer, "out_peer")?;
            let descriptor = Descriptor::decode(bytes)?;
            out.set((engine.engine.import(&descriptor, timeout(timeout_ns))?).raw());
            Ok(())
        })
    }
}
