//! Notifications without a transfer. A notification that follows data is an option of the transfer.

use crate::engine::ferry_engine;
use crate::error::ferry_error;
use crate::guard::call;
use crate::handles::ferry_peer;
use crate::options::deadline;
use crate::pointers::slice;
use crate::status::ferry_status;
use engine::types::PeerId;
use std::ffi::c_void;

/// Length of the longest notification in bytes.
pub const FERRY_NOTIFY_BYTES_MAX: usize = 16384;
const _: () = assert!(FERRY_NOTIFY_BYTES_MAX == engine::limits::NOTIFY_BYTES_MAX);

/// Sends bytes to the peer's application, in order with the notifications of transfers to the peer. Returns
/// when the peer has taken them in. The peer gets them once, as FERRY_EVENT_NOTIFICATION.
///
/// `deadline_ns` is counted from now; 0 means the setting deadline_ms, FERRY_FOREVER no deadline.
/// FERRY_ERR_TIMEOUT: the deadline has passed, for example because the peer's application does not drain its
/// notifications; then the message counts those that wait there. A peer that does not answer may have taken them in, or
/// may do so later. FERRY_ERR_LIMIT above FERRY_NOTIFY_BYTES_MAX. FERRY_ERR_BUSY inside a callback.
#[no_mangle]
pub unsafe extern "C" fn ferry_notify(
    engine: *mut ferry_engine,
    peer: ferry_peer,
    bytes: *const c_void,
    length: usize,
    deadline_ns: u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let bytes = slice(bytes.cast::<u8>(), length, "bytes")?;
            engine.engine.notify(PeerId::from_raw(peer), bytes, deadline(deadline_ns))
        })
    }
}
