//! Transfers: submitting, waiting, cancelling, releasing, and the calls that do all of these.

use crate::engine::ferry_engine;
use crate::error::ferry_error;
use crate::guard::call;
use crate::handles::{ferry_peer, ferry_region, ferry_transfer, op, timeout, FERRY_FOREVER};
use crate::options::{self, ferry_transfer_options};
use crate::pointers::{slice, Out, OutList};
use crate::results::{ferry_result, unfinished, Outcome};
use crate::status::{ferry_status, FERRY_OK, FERRY_PENDING};
use engine::status::Result;
use engine::types::{MemoryKind, Op, PeerId, Request, TransferId};
use engine::{Engine, Error, Status, TransferCore, TransferOptions};
use std::mem::{align_of, offset_of, size_of};
use std::sync::Arc;

/// Moves bytes from the peer's memory into local memory.
pub const FERRY_OP_READ: u32 = 1;
/// Moves bytes from local memory into the peer's memory.
pub const FERRY_OP_WRITE: u32 = 2;

/// One range of a transfer. The layout is frozen at 32 bytes, so arrays of it take no element_size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_request {
    /// Address in this process.
    pub local: u64,
    /// Address in the peer's process.
    pub remote: u64,
    /// Length in bytes; not 0.
    pub length: u64,
    /// The peer's region. If that region has been unregistered, the request fails with FERRY_ERR_STALE, even
    /// if another region is registered there now. 0 means the region that is registered there at that moment.
    pub remote_region: ferry_region,
}

// `requests` passes the caller's array to the engine without a copy.
const _: () = assert!(size_of::<ferry_request>() == size_of::<Request>());
const _: () = assert!(align_of::<ferry_request>() == align_of::<Request>());
const _: () = assert!(offset_of!(ferry_request, local) == offset_of!(Request, local));
const _: () = assert!(offset_of!(ferry_request, remote) == offset_of!(Request, remote));
const _: () = assert!(offset_of!(ferry_request, length) == offset_of!(Request, length));
const _: () = assert!(offset_of!(ferry_request, remote_region) == offset_of!(Request, remote_region));

/// Starts a transfer of all requests. A call that fails has done nothing.
///
/// ferry borrows no argument after the call, but the memory that the requests name belongs to the transfer
/// until the transfer is final. If some requests fail, the transfer fails with FERRY_ERR_PARTIAL, and
/// ferry_transfer_results has the outcome of each. Transfers to one peer are unordered unless they are
/// ORDERED. Ranges that overlap in flight have no defined order, but nothing outside them is touched. Release
/// the transfer when it is final. A callback may make this call.
///
/// FERRY_ERR_INVALID, FERRY_ERR_NOT_REGISTERED (local memory), FERRY_ERR_ACCESS, FERRY_ERR_STALE,
/// FERRY_ERR_LIMIT (no room in the queue, too many transfers or requests), FERRY_ERR_UNAVAILABLE
/// (transports_allowed), FERRY_ERR_PEER_LOST; ferry_error.request_index names the request that failed.
#[no_mangle]
pub unsafe extern "C" fn ferry_transfer_submit(
    engine: *mut ferry_engine,
    peer: ferry_peer,
    op: u32,
    requests: *const ferry_request,
    count: usize,
    options: *const ferry_transfer_options,
    out_transfer: *mut ferry_transfer,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call, and the memory that the requests
    // name until the transfer is final.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let out = Out::new(out_transfer, "out_transfer")?;
            let op = self::op(op)?;
            let (requests, options) = (self::requests(requests, count)?, options::read(engine, options)?);
            out.set(engine.engine.submit_core(PeerId::from_raw(peer), op, requests, &options)?.handle.raw());
            Ok(())
        })
    }
}

/// Waits until a transfer is final and returns its status: FERRY_OK if it is done.
///
/// *out_result (may be NULL) is written exactly when the transfer is final. FERRY_PENDING or FERRY_DRAINING:
/// the timeout has passed, and the transfer goes on. If out_result was written, a negative status is the
/// transfer's, and ferry_error has the first failed request. Otherwise a negative status is the call's:
/// FERRY_ERR_STALE or FERRY_ERR_INVALID for the handle, FERRY_ERR_BUSY for a wait inside a callback.
#[no_mangle]
pub unsafe extern "C" fn ferry_transfer_wait(
    engine: *mut ferry_engine,
    transfer: ferry_transfer,
    timeout_ns: u64,
    out_result: *mut ferry_result,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let outcome = Outcome::new(out_result)?;
            let core = engine.engine.transfer(TransferId::from_raw(transfer))?;
            match engine.engine.wait(&core, timeout(timeout_ns)) {
                Ok(result) => outcome.tell(&engine.engine, &core, result),
                Err(error) if error.status == Status::Timeout => {
                    Ok(unfinished(&core).unwrap_or(FERRY_PENDING))
                }
                Err(error) => Err(error),
            }
        })
    }
}

/// Waits until one of several transfers is final; *out_index gets its index in the list. Call
/// ferry_transfer_wait for the transfer's status. FERRY_PENDING: the timeout has passed. FERRY_ERR_BUSY
/// inside a callback, unless a transfer is final or the timeout is 0.
#[no_mangle]
pub unsafe extern "C" fn ferry_transfer_wait_any(
    engine: *mut ferry_engine,
    transfers: *const ferry_transfer,
    count: usize,
    timeout_ns: u64,
    out_index: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let out = Out::new(out_index, "out_index")?;
            let cores = cores(&engine.engine, slice(transfers, count, "transfers")?)?;
            match engine.engine.wait_any(&cores, timeout(timeout_ns)) {
                Ok(index) => {
                    out.set(index);
                    Ok(FERRY_OK)
                }
                Err(error) if error.status == Status::Timeout => Ok(FERRY_PENDING),
                Err(error) => Err(error),
            }
        })
    }
}

/// Waits until every transfer of the list is final, and returns FERRY_OK if each is done. Otherwise returns the
/// status of the first in the list that is not done, fills ferry_error as ferry_transfer_wait does for that
/// transfer, and sets *out_index (may be NULL) to its index.
///
/// FERRY_PENDING: the timeout has passed, and *out_index is the index of the first transfer that is not final; all go
/// on. If the error is the call's own, *out_index is SIZE_MAX: FERRY_ERR_STALE or FERRY_ERR_INVALID for a handle,
/// FERRY_ERR_INVALID for an empty list, FERRY_ERR_BUSY inside a callback unless all are final or the timeout is 0.
#[no_mangle]
pub unsafe extern "C" fn ferry_transfer_wait_all(
    engine: *mut ferry_engine,
    transfers: *const ferry_transfer,
    count: usize,
    timeout_ns: u64,
    out_index: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            // NULL is a list without room.
            let out = OutList::new(out_index, usize::from(!out_index.is_null()), "out_index")?;
            let tell = |index: usize| out.fill([index]);
            tell(usize::MAX);
            let engine = &ferry_engine::live(engine)?.engine;
            let cores = cores(engine, slice(transfers, count, "transfers")?)?;
            match engine.wait_all(&cores, timeout(timeout_ns)) {
                Ok(None) => Ok(FERRY_OK),
                Ok(Some(index)) => {
                    tell(index);
                    let result = cores[index].result().ok_or_else(|| Error::invalid("transfers"))?;
                    engine.result_or_error(&cores[index], result).map(|_| FERRY_OK)
                }
                Err(error) if error.status == Status::Timeout => {
                    tell(error.request_index.map_or(usize::MAX, |index| index as usize));
                    Ok(FERRY_PENDING)
                }
                Err(error) => Err(error),
            }
        })
    }
}

/// Returns the transfers of these handles. The error names the handle by its index.
fn cores(engine: &Engine, handles: &[u64]) -> Result<Vec<Arc<TransferCore>>> {
    let find = |(index, handle): (usize, &u64)| {
        engine.transfer(TransferId::from_raw(*handle)).map_err(|error| error.at_request(index as u64))
    };
    handles.iter().enumerate().map(find).collect()
}

/// Returns the progress of a transfer: the bytes confirmed to be at their destination, and the bytes of all
/// requests.
///
/// *out_bytes_confirmed never decreases, never exceeds *out_bytes_total, and equals the result's
/// bytes_confirmed once the transfer is final. It grows by the size of one confirmation, at most 2 MiB.
/// Returns FERRY_OK in every state of the transfer. Never waits.
#[no_mangle]
pub unsafe extern "C" fn ferry_transfer_progress(
    engine: *mut ferry_engine,
    transfer: ferry_transfer,
    out_bytes_confirmed: *mut u64,
    out_bytes_total: *mut u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let confirmed = Out::new(out_bytes_confirmed, "out_bytes_confirmed")?;
            let total = Out::new(out_bytes_total, "out_bytes_total")?;
            let core = engine.engine.transfer(TransferId::from_raw(transfer))?;
            engine.engine.poll(&core);
            let progress = core.progress();
            confirmed.set(progress.bytes_confirmed);
            total.set(progress.bytes_total);
            Ok(())
        })
    }
}

/// Cancels a transfer. FERRY_OK means that the request was made, also for a final transfer; the final state
/// has the outcome. Never waits.
#[no_mangle]
pub unsafe extern "C" fn ferry_transfer_cancel(
    engine: *mut ferry_engine,
    transfer: ferry_transfer,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            engine.engine.cancel(&engine.engine.transfer(TransferId::from_raw(transfer))?)
        })
    }
}

/// Releases a final transfer and its results; the handle is stale afterwards. FERRY_ERR_BUSY before the
/// transfer is final.
#[no_mangle]
pub unsafe extern "C" fn ferry_transfer_release(
    engine: *mut ferry_engine,
    transfer: ferry_transfer,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe { call(error, || ferry_engine::live(engine)?.engine.release(TransferId::from_raw(transfer))) }
}

/// Makes a stream of the caller wait for a transfer: work given to the stream after this call begins when the
/// transfer is final, however it ended. The transfer's result has the outcome. `kind` is FERRY_MEMORY_CUDA
/// and `stream` is the CUstream or cudaStream_t, 0 the default stream. The call itself doesn't wait.
///
/// FERRY_ERR_UNSUPPORTED: FERRY_MEMORY_ASCEND, whose streams cannot wait for the host. FERRY_ERR_UNAVAILABLE:
/// the device's library is missing. FERRY_ERR_INVALID: another kind, or a stream that is being captured.
#[no_mangle]
pub unsafe extern "C" fn ferry_transfer_stream_wait(
    engine: *mut ferry_engine,
    transfer: ferry_transfer,
    stream: u64,
    kind: u32,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || -> Result<()> {
            let engine = &ferry_engine::live(engine)?.engine;
            let transfer = engine.transfer(TransferId::from_raw(transfer))?;
            let device = MemoryKind::from_number(kind).filter(|kind| kind.is_device());
            let device = device.ok_or_else(|| {
                Error::invalid(format!("kind is {kind}, neither FERRY_MEMORY_CUDA nor FERRY_MEMORY_ASCEND"))
            })?;
            engine.hold_stream(&transfer, device, stream)
        })
    }
}

/// Writes in one call: submits a WRITE, waits until it is final, releases it, and returns its status.
/// *out_result (may be NULL) is written exactly when a transfer took place. options.queue must be 0.
/// FERRY_ERR_BUSY inside a callback, with nothing done.
#[no_mangle]
pub unsafe extern "C" fn ferry_write(
    engine: *mut ferry_engine,
    peer: ferry_peer,
    requests: *const ferry_request,
    count: usize,
    options: *const ferry_transfer_options,
    out_result: *mut ferry_result,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call, in which the transfer ends.
    unsafe {
        call(error, || {
            run(engine, peer, Op::Write, (requests, count), options, FERRY_FOREVER, None, out_result)
        })
    }
}

/// Reads in one call: submits a READ. Behaves as ferry_write otherwise.
#[no_mangle]
pub unsafe extern "C" fn ferry_read(
    engine: *mut ferry_engine,
    peer: ferry_peer,
    requests: *const ferry_request,
    count: usize,
    options: *const ferry_transfer_options,
    out_result: *mut ferry_result,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call, in which the transfer ends.
    unsafe {
        call(error, || {
            run(engine, peer, Op::Read, (requests, count), options, FERRY_FOREVER, None, out_result)
        })
    }
}

/// Does as ferry_write or ferry_read, but waits no longer than `timeout_ns`, for programs whose waits may have to
/// end early. *out_transfer is 0 if the call has released the transfer, or made none.
///
/// FERRY_PENDING or FERRY_DRAINING: the timeout has passed, and the transfer *out_transfer goes on. The memory that
/// the requests name belongs to the transfer; wait for the transfer and release it. FERRY_ERR_BUSY inside a
/// callback, with nothing done, unless the timeout is 0.
#[no_mangle]
pub unsafe extern "C" fn ferry_transfer_run(
    engine: *mut ferry_engine,
    peer: ferry_peer,
    op: u32,
    requests: *const ferry_request,
    count: usize,
    options: *const ferry_transfer_options,
    timeout_ns: u64,
    out_transfer: *mut ferry_transfer,
    out_result: *mut ferry_result,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call, and the memory that the requests name until
    // the transfer is final.
    unsafe {
        call(error, || {
            Out::new(out_transfer, "out_transfer")?.set(0);
            let out = Out::new(out_transfer, "out_transfer")?;
            run(engine, peer, self::op(op)?, (requests, count), options, timeout_ns, Some(out), out_result)
        })
    }
}

/// Completes a WRITE or READ at once if the calling thread can do so without waiting: with one copy, for one
/// request of at most the setting express_bytes_max, to or from a peer on this host. FERRY_OK: the transfer
/// is done, and *out_result (may be NULL) is written. FERRY_PENDING: nothing was done; submit the transfer.
/// options.queue must be 0. A callback may make this call.
#[no_mangle]
pub unsafe extern "C" fn ferry_transfer_try(
    engine: *mut ferry_engine,
    peer: ferry_peer,
    op: u32,
    requests: *const ferry_request,
    count: usize,
    options: *const ferry_transfer_options,
    out_result: *mut ferry_result,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call, and so is the memory that the
    // requests name: no transfer is left behind.
    unsafe {
        call(error, || {
            let (engine, outcome) = (ferry_engine::live(engine)?, Outcome::new(out_result)?);
            let op = self::op(op)?;
            let (requests, options) = (self::requests(requests, count)?, options::read(engine, options)?);
            check_no_queue(&options)?;
            let result = engine.engine.at_once(PeerId::from_raw(peer), op, requests, &options)?;
            Ok(result.map_or(FERRY_PENDING, |result| outcome.done(&result)))
        })
    }
}

/// Submits a transfer, waits for it, writes its result and releases it. A transfer that is not final in time is left
/// to the caller, by its handle in `out`.
///
/// # Safety
/// As for `ferry_transfer_run`: the pointers are NULL or the caller's for the length of the call.
#[allow(clippy::too_many_arguments)]
unsafe fn run(
    engine: *mut ferry_engine,
    peer: ferry_peer,
    op: Op,
    (requests, count): (*const ferry_request, usize),
    options: *const ferry_transfer_options,
    timeout_ns: u64,
    out: Option<Out<ferry_transfer>>,
    out_result: *mut ferry_result,
) -> Result<ferry_status> {
    // SAFETY: as the caller says.
    let (engine, outcome) =
        unsafe { (ferry_engine::blocking(engine, timeout_ns)?, Outcome::new(out_result)?) };
    // SAFETY: the same.
    let (requests, options) = unsafe { (self::requests(requests, count)?, options::read(engine, options)?) };
    check_no_queue(&options)?;
    let engine = &engine.engine;
    if let Some(result) = engine.at_once(PeerId::from_raw(peer), op, requests, &options)? {
        return Ok(outcome.done(&result));
    }
    let core = engine.submit_core(PeerId::from_raw(peer), op, requests, &options.awaited())?;
    let result = match (engine.wait(&core, timeout(timeout_ns)), out) {
        (Err(error), Some(out)) if error.status == Status::Timeout => {
            out.set(core.handle.raw());
            return Ok(unfinished(&core).unwrap_or(FERRY_PENDING));
        }
        (result, _) => result?,
    };
    engine.release(core.handle)?;
    outcome.tell(engine, &core, result)
}

fn check_no_queue(options: &TransferOptions) -> Result<()> {
    match options.queue {
        Some(_) => Err(Error::invalid("options.queue must be 0: this call returns the result itself")),
        None => Ok(()),
    }
}

/// # Safety
/// `requests` is NULL or points to `count` requests that are the caller's for `'a`.
unsafe fn requests<'a>(requests: *const ferry_request, count: usize) -> Result<&'a [Request]> {
    // SAFETY: the caller's promise; both types have the same layout (asserted above).
    unsafe { slice(requests.cast::<Request>(), count, "requests") }
}
