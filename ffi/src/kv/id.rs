//! `ferry_kv_id`: names one attempt to hand a sequence over.

use crate::error::ferry_error;
use crate::guard::call;
use crate::pointers::{reference, Out};
use crate::status::ferry_status;
use engine::status::Result;
use ferry_kv::handoff::HandoffId;

/// 128 random bits that name one attempt to hand a sequence over. The router of the request draws the id, sends it to
/// the producer and the consumer, and never uses it again. Anyone who knows an id may take its offer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_kv_id {
    /// The bits. Compare ids with memcmp.
    pub bytes: [u8; 16],
}

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

/// # Safety
/// `id` is NULL or points to an id of the caller's.
pub(super) unsafe fn id(id: *const ferry_kv_id) -> Result<HandoffId> {
    // SAFETY: the caller's promise.
    Ok(HandoffId::from_bytes(unsafe { reference(id, "id") }?.bytes))
}
