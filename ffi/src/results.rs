//! The outcome of a transfer and of each of its requests.

use crate::engine::ferry_engine;
use crate::error::ferry_error;
use crate::guard::call;
use crate::handles::ferry_transfer;
use crate::pointers::Out as ScalarOut;
use crate::status::{ferry_status, FERRY_OK};
use crate::versioned::{Out, OutArray, Versioned};
use engine::status::Result;
use engine::types::TransferId;
use engine::{Engine, Error, RequestResult, Status, TransferCore, TransferResult};
use std::mem::size_of;

/// Every byte is at its destination and visible there.
pub const FERRY_STATE_DONE: u32 = 3;
/// The transfer failed; status has the cause.
pub const FERRY_STATE_FAILED: u32 = 4;
/// The transfer was cancelled.
pub const FERRY_STATE_CANCELLED: u32 = 5;
/// The transfer passed its deadline.
pub const FERRY_STATE_TIMED_OUT: u32 = 6;

/// The target has confirmed that nothing of the transfer can touch memory any more.
pub const FERRY_FENCE_CONFIRMED: u32 = 1;
/// The peer's process is known to be gone.
pub const FERRY_FENCE_DEAD: u32 = 2;
/// The target's lease on the data has ended. A transfer that is DONE has this fence if ferry sent a part of it again
/// after a lease had ended: the target reports late bytes of the first sending by FERRY_EVENT_LATE_APPLY.
pub const FERRY_FENCE_LEASE: u32 = 3;

/// The transfer had no notification.
pub const FERRY_NOTIFICATION_NONE: u32 = 0;
/// The peer has the notification.
pub const FERRY_NOTIFICATION_DELIVERED: u32 = 1;
/// The peer doesn't have the notification, and never will.
pub const FERRY_NOTIFICATION_NOT_SENT: u32 = 2;
/// The notification was given up, or the peer was lost, before the peer said whether it has the notification.
pub const FERRY_NOTIFICATION_UNKNOWN: u32 = 3;

/// ferry_transfer_results lists every request.
pub const FERRY_RESULTS_ALL: u32 = 0;
/// ferry_transfer_results lists the requests that are not FERRY_OK.
pub const FERRY_RESULTS_FAILED: u32 = 1;

/// How a transfer ended. The caller sets struct_size before the call. Times are CLOCK_MONOTONIC, in
/// nanoseconds.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_result {
    /// In: sizeof(ferry_result). Out: how many bytes were written.
    pub struct_size: u32,
    /// FERRY_STATE_*.
    pub state: u32,
    /// FERRY_OK when DONE, else the cause. FERRY_ERR_PARTIAL if some requests failed and others did not,
    /// unless the cause is FERRY_ERR_TIMEOUT or FERRY_ERR_CANCELLED.
    pub status: ferry_status,
    /// FERRY_FENCE_*: why the memory is the caller's again.
    pub fence: u32,
    /// FERRY_NOTIFICATION_*.
    pub notification: u32,
    /// FERRY_TRANSPORT_* that carried the transfer.
    pub transport: u32,
    /// errno of the failure, or 0.
    pub os_error: i32,
    /// Always 0.
    pub reserved: u32,
    /// The value from ferry_transfer_options.
    pub user_data: u64,
    /// Bytes confirmed to be at their destination. All other bytes of the target memory are undefined.
    pub bytes_confirmed: u64,
    /// Requests that are not FERRY_OK.
    pub requests_failed: u64,
    /// Requests submitted.
    pub requests_in: u64,
    /// Slices that ferry made of the requests by merging and cutting.
    pub slices_out: u64,
    /// When the transfer was submitted.
    pub submitted_ns: u64,
    /// When the first slice was posted; 0 if no slice was.
    pub started_ns: u64,
    /// When the transfer became final.
    pub finished_ns: u64,
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_result {
    const SIZE_MIN: usize = 96;
}

/// How one request of a final transfer ended.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_request_result {
    /// Out: how many bytes were written.
    pub struct_size: u32,
    /// FERRY_OK, or the cause.
    pub status: ferry_status,
    /// Index in the caller's list; for blocks, layer * pair_count + pair.
    pub request_index: u64,
    /// Bytes of the request confirmed to be at their destination.
    pub bytes_confirmed: u64,
    /// errno of the failure, or 0.
    pub os_error: i32,
    /// Code of the device library, or 0.
    pub vendor_error: i32,
    /// FERRY_TRANSPORT_* that carried the request.
    pub transport: u32,
    /// Always 0.
    pub reserved: u32,
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_request_result {
    const SIZE_MIN: usize = 40;
}

/// Lists the outcome of each request of a final transfer, in the caller's order; `which` is FERRY_RESULTS_*.
/// The call can be repeated until the transfer is released. Returns FERRY_PENDING or FERRY_DRAINING, and
/// writes nothing, if the transfer is not final yet. Returns lists as ferry_config_settings does.
#[no_mangle]
pub unsafe extern "C" fn ferry_transfer_results(
    engine: *mut ferry_engine,
    transfer: ferry_transfer,
    which: u32,
    out_results: *mut ferry_request_result,
    element_size: usize,
    capacity: usize,
    out_count: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let failed_only = match which {
                FERRY_RESULTS_ALL => false,
                FERRY_RESULTS_FAILED => true,
                which => {
                    return Err(Error::invalid(format!("which is {which}, not a FERRY_RESULTS_* value")))
                }
            };
            let array = OutArray::new(out_results, element_size, capacity, "out_results")?;
            let count = ScalarOut::new(out_count, "out_count")?;
            let core = engine.engine.transfer(TransferId::from_raw(transfer))?;
            if let Some(status) = unfinished(&core) {
                return Ok(status);
            }
            let mut results = core.results();
            if failed_only {
                results.retain(|result| result.status != Status::Ok);
            }
            array.fill(results.iter().map(ferry_request_result::from));
            count.set(results.len());
            Ok(FERRY_OK)
        })
    }
}

/// Returns PENDING or DRAINING, or None for a final transfer.
pub(crate) fn unfinished(core: &TransferCore) -> Option<ferry_status> {
    let state = core.state();
    // The states before the final states have the numbers of their statuses.
    (!state.is_final()).then_some(state as ferry_status)
}

/// The place of a transfer's result: the caller's struct, or NULL.
pub(crate) struct Outcome(Option<Out<ferry_result>>);

impl Outcome {
    /// # Safety
    /// `pointer` is NULL or the caller's for as long as this lives.
    pub unsafe fn new(pointer: *mut ferry_result) -> Result<Outcome> {
        if pointer.is_null() {
            return Ok(Outcome(None));
        }
        // SAFETY: the caller's promise.
        Ok(Outcome(Some(unsafe { Out::new(pointer, "out_result") }?)))
    }

    /// Writes the result of a final transfer and returns its failure as the call's own.
    pub fn tell(self, engine: &Engine, core: &TransferCore, result: TransferResult) -> Result<ferry_status> {
        self.done(&result);
        engine.result_or_error(core, result).map(|_| FERRY_OK)
    }

    /// Writes the result of a transfer that is done.
    pub fn done(self, result: &TransferResult) -> ferry_status {
        if let Some(out) = self.0 {
            out.set(&ferry_result::from(result));
        }
        FERRY_OK
    }
}

impl From<&TransferResult> for ferry_result {
    fn from(result: &TransferResult) -> ferry_result {
        ferry_result {
            struct_size: size_of::<ferry_result>() as u32,
            state: result.state as u32,
            status: result.status as ferry_status,
            fence: result.fence as u32,
            notification: result.notification as u32,
            transport: result.transport as u32,
            os_error: result.os_error,
            reserved: 0,
            user_data: result.user_data,
            bytes_confirmed: result.bytes_confirmed,
            requests_failed: result.requests_failed,
            requests_in: result.requests_in,
            slices_out: result.slices_out,
            submitted_ns: result.submitted_ns.ns(),
            started_ns: result.started_ns.ns(),
            finished_ns: result.finished_ns.ns(),
        }
    }
}

impl From<&RequestResult> for ferry_request_result {
    fn from(result: &RequestResult) -> ferry_request_result {
        ferry_request_result {
            struct_size: size_of::<ferry_request_result>() as u32,
            status: result.status as ferry_status,
            request_index: result.index,
            bytes_confirmed: result.bytes_confirmed,
            os_error: result.os_error,
            vendor_error: result.vendor_error,
            transport: result.transport as u32,
            reserved: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{FERRY_DRAINING, FERRY_PENDING};
    use engine::{Fence, Notification, State};

    /// The header needs literals; they must equal the engine's numbers.
    #[test]
    fn the_constants_are_the_engine_s() {
        let states = [State::Pending, State::Draining, State::Done, State::Failed, State::Cancelled];
        let numbers = [FERRY_PENDING as u32, FERRY_DRAINING as u32, FERRY_STATE_DONE, FERRY_STATE_FAILED];
        assert_eq!(states.map(|state| state as u32)[..4], numbers);
        assert_eq!(State::Cancelled as u32, FERRY_STATE_CANCELLED);
        assert_eq!(State::TimedOut as u32, FERRY_STATE_TIMED_OUT);
        assert_eq!(Fence::Confirmed as u32, FERRY_FENCE_CONFIRMED);
        assert_eq!(Fence::Dead as u32, FERRY_FENCE_DEAD);
        assert_eq!(Fence::Lease as u32, FERRY_FENCE_LEASE);
        assert_eq!(Notification::None as u32, FERRY_NOTIFICATION_NONE);
        assert_eq!(Notification::Delivered as u32, FERRY_NOTIFICATION_DELIVERED);
        assert_eq!(Notification::NotSent as u32, FERRY_NOTIFICATION_NOT_SENT);
        assert_eq!(Notification::Unknown as u32, FERRY_NOTIFICATION_UNKNOWN);
    }
}
