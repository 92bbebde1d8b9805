//! `ferry_kv_id`: names one attempt to hand a sequence over.

use crate::error::ferry_error;
use crate::guard::call;
use crate::pointers::{self, reference, BytesOut, Out};
use crate::status::ferry_status;
use engine::status::Result;
use engine::{Error, Status};
use ferry_kv::handoff::HandoffId;
use std::ffi::c_char;

/// 128 random bits that name one attempt to hand a sequence over. The router of the request draws the id, sends it to
/// the producer and the consumer, and never uses it again. Anyone who knows an id may take its offer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_kv_id {
    /// The bits. Compare ids with memcmp.
    pub bytes: [u8; 16],
}

/// Length of an id as text: 32 hexadecimal digits and the terminating zero.
pub const FERRY_KV_ID_TEXT_BYTES: usize = 33;

/// Draws an id. Needs no engine. FERRY_ERR_SYSTEM: the system gives no random bits.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_id_new(out_id: *mut ferry_kv_id, error: *mut ferry_error) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let out = Out::new(out_id, "out_id")?;
            out.set(ferry_kv_id { bytes: HandoffId::random()?.bytes() });
            Ok(())
        })
    }
}

/// Writes an id as 32 hexadecimal digits, for the message that carries the id to another process. `buffer` has room for
/// FERRY_KV_ID_TEXT_BYTES; `capacity` is its size. Keep the text out of logs: anyone who knows an id may take its
/// offer. FERRY_ERR_LIMIT: the buffer is smaller.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_id_format(
    id: *const ferry_kv_id,
    buffer: *mut c_char,
    capacity: usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let text = self::id(id)?.to_string();
            let mut length = 0;
            match capacity {
                0 => Err(Error::new(
                    Status::Limit,
                    format!("buffer needs {FERRY_KV_ID_TEXT_BYTES} bytes, but capacity is 0"),
                )),
                _ => BytesOut::new(buffer.cast(), capacity, &mut length)?.put_text(&text),
            }
        })
    }
}

/// Reads an id as ferry_kv_id_format writes it. FERRY_ERR_INVALID: `text` is not 32 hexadecimal digits.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_id_parse(
    text: *const c_char,
    out_id: *mut ferry_kv_id,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let out = Out::new(out_id, "out_id")?;
            let id: HandoffId = pointers::text(text, "text")?.parse()?;
            out.set(ferry_kv_id { bytes: id.bytes() });
            Ok(())
        })
    }
}

/// # Safety
/// `id` is NULL or points to an id of the caller's.
pub(super) unsafe fn id(id: *const ferry_kv_id) -> Result<HandoffId> {
    // SAFETY: the caller's promise.
    Ok(HandoffId::from_bytes(unsafe { reference(id, "id") }?.bytes))
}
