//! `ferry_pool_key`: names a chunk.

use crate::error::ferry_error;
use crate::guard::call;
use crate::pointers::{reference, text, BytesOut, Out};
use crate::status::ferry_status;
use ::ferry_pool::Digest;
use engine::{Error, Status};
use std::ffi::c_char;

/// 32 bytes that name a value, of a chunk of a KV cache for example. ferry_pool_key_of and ferry_pool_chain make keys.
/// A program may fill the 32 bytes itself: the last 8 then say which tenant's value it is, for quotas. This struct
/// never grows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_pool_key {
    /// The bytes. Compare keys with memcmp.
    pub bytes: [u8; 32],
}

/// Length of a key as text: 64 hexadecimal digits and the terminating zero.
pub const FERRY_POOL_KEY_TEXT_BYTES: usize = 65;

/// Writes a key as 64 hexadecimal digits. `buffer` has room for FERRY_POOL_KEY_TEXT_BYTES; `capacity` is its size.
/// FERRY_ERR_LIMIT: the buffer is smaller.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_key_format(
    key: *const ferry_pool_key,
    buffer: *mut c_char,
    capacity: usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let text = Digest(reference(key, "key")?.bytes).to_string();
            if capacity == 0 {
                let message = format!("buffer needs {FERRY_POOL_KEY_TEXT_BYTES} bytes, but capacity is 0");
                return Err(Error::new(Status::Limit, message));
            }
            BytesOut::new(buffer.cast(), capacity, &mut 0)?.put_text(&text)
        })
    }
}

/// Reads a key as ferry_pool_key_format writes it. FERRY_ERR_INVALID: `text` is not 64 hexadecimal digits.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_key_parse(
    text: *const c_char,
    out_key: *mut ferry_pool_key,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let out = Out::new(out_key, "out_key")?;
            let digest: Digest = self::text(text, "text")?.parse()?;
            out.set(ferry_pool_key { bytes: digest.0 });
            Ok(())
        })
    }
}
