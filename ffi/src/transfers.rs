//! Transfers: submitting, waiting, cancelling, releasing, and the calls that do it all at once.

use crate::engine::ferry_engine;
use crate::error::ferry_error;
use crate::guard::call;
use crate::handles::{ferry_peer, ferry_region, ferry_transfer, op, timeout, FERRY_FOREVER};
use crate::options::{self, ferry_transfer_options};
use crate::pointers::{slice, Out};
use crate::results::{ferry_result, unfinished, Outcome};
use crate::status::{ferry_status, FERRY_OK, FERRY_PENDING};
use engine::complete::Transfer;
use engine::status::Result;
use engine::types::{MemoryKind, Op, Request};
use engine::{Error, Status, TransferOptions};
use std::mem::{align_of, offset_of, size_of};
use std::sync::Arc;

/// From the peer's memory into local memory.
pub const FERRY_OP_READ: u32 = 1;
/// From local memory into the peer's memory.
pub const FERRY_OP_WRITE: u32 = 2;

/// One range of a transfer. Frozen: 32 bytes for ever, so arrays of it take no element size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_request {
    /// Address in this process.
    pub local: u64,
    /// Address as the peer knows it.
    pub remote: u64,
    /// Bytes; not 0.
    pub length: u64,
    /// The peer's region that is meant: if it has been unregistered, the request fails with
    /// FERRY_ERR_STALE whatever is there now. 0: whatever is registered there at that moment.
    pub remote_region: ferry_region,
}

// `requests` hands the caller's array to the engine as it is.
const _: () = assert!(size_of::<ferry_request>() == size_of::<Request>());
const _: () = assert!(align_of::<ferry_request>() == align_of::<Request>());
const _: () = assert!(offset_of!(ferry_request, local) == offset_of!(Request, local));
const _: () = assert!(offset_of!(ferry_request, remote) == offset_of!(Request, remote));
const _: () = assert!(offset_of!(ferry_request, length) == offset_of!(Request, length));
const _: () = assert!(offset_of!(ferry_request, remote_region) == offset_of!(Request, remote_region));

/// Starts a transfer of all requests. A call that fails has done nothing.
///
/// Nothing is borrowed once it returns, but the memory that the requests name belongs to the transfer
/// until it is final. One failed request fails the transfer with FERRY_ERR_PARTIAL, and
/// ferry_transfer_results says what became of the others. Transfers to one peer are unordered unless
/// ORDERED; ranges that overlap in flight have no defined order, but nothing outside them is touched.
/// Release the transfer when it is final. May be called inside a callback.
///
/// FERRY_ERR_INVALID, FERRY_ERR_NOT_REGISTERED (local memory), FERRY_ERR_ACCESS, FERRY_ERR_STALE,
/// FERRY_ERR_LIMIT (no room in the queue, too many transfers or requests), FERRY_ERR_UNAVAILABLE
/// (transports_allowed), FERRY_ERR_PEER_LOST; ferry_error.request_index names the request at fault.
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
            out.set(engine.engine.submit_core(peer, op, requests, &options)?.handle);
            Ok(())
        })
    }
}

/// Waits until a transfer is final, however it ends, and returns its status: FERRY_OK if it is done.
///
/// *out_result (NULL: not wanted) is written exactly when the transfer is final. FERRY_PENDING or
/// FERRY_DRAINING: it is not final when the timeout ends, and goes on. A negative status is the
/// transfer's own when out_result was written, else the call's: FERRY_ERR_STALE and FERRY_ERR_INVALID for
/// a handle, FERRY_ERR_BUSY for a wait inside a callback. ferry_error then has the first failed request.
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
            let core = engine.engine.transfer(transfer)?;
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

/// Waits until one of several transfers is final; *out_index gets its place in the list. The transfer's
/// own status is for ferry_transfer_wait to tell. FERRY_PENDING when the timeout ends first.
/// FERRY_ERR_BUSY inside a callback, unless one is final or the timeout is 0.
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
            let handles = slice(transfers, count, "transfers")?;
            let out = Out::new(out_index, "out_index")?;
            let find = |(index, handle): (usize, &u64)| {
                engine.engine.transfer(*handle).map_err(|error| error.at_request(index as u64))
            };
            let cores: Vec<Arc<Transfer>> = handles.iter().enumerate().map(find).collect::<Result<_>>()?;
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

/// How far a transfer is: bytes known to be where they belong, and the bytes of all its requests.
///
/// *out_bytes_confirmed never goes back, is never above *out_bytes_total, and is the result's once the
/// transfer is final. It grows by what is confirmed at once, at most 2 MiB. FERRY_OK whatever state the
/// transfer is in. Never waits.
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
            let core = engine.engine.transfer(transfer)?;
            engine.engine.poll(&core);
            let progress = core.progress();
            confirmed.set(progress.bytes_confirmed);
            total.set(progress.bytes_total);
            Ok(())
        })
    }
}

/// Asks a transfer to stop. FERRY_OK means that it was asked, final or not: what came of it, the final
/// state tells. Never waits.
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
            engine.engine.cancel(&engine.engine.transfer(transfer)?)
        })
    }
}

/// Forgets a final transfer and its results; its handle is stale afterwards. FERRY_ERR_BUSY before it is
/// final.
#[no_mangle]
pub unsafe extern "C" fn ferry_transfer_release(
    engine: *mut ferry_engine,
    transfer: ferry_transfer,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe { call(error, || ferry_engine::live(engine)?.engine.release(transfer)) }
}

/// Has a stream of the caller's wait for a transfer: what is given to the stream from here on begins when the
/// transfer is final, however it ends; its result tells which. `stream` is the CUstream or cudaStream_t of
/// `kind` FERRY_MEMORY_CUDA, 0 the default stream; the call doesn't wait.
///
/// FERRY_ERR_UNSUPPORTED for FERRY_MEMORY_ASCEND, whose streams wait for nothing of the host's;
/// FERRY_ERR_UNAVAILABLE without the device's library; FERRY_ERR_INVALID for another kind, or a stream that is
/// being captured.
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
            let transfer = engine.transfer(transfer)?;
            let device = MemoryKind::from_number(kind).filter(|kind| kind.is_device());
            let device = device.ok_or_else(|| {
                Error::invalid(format!("kind: {kind} is neither FERRY_MEMORY_CUDA nor FERRY_MEMORY_ASCEND"))
            })?;
            engine.hold_stream(&transfer, device, stream)
        })
    }
}

/// WRITE in one call: submits, waits until the transfer is final, releases it, and returns its status.
/// *out_result (NULL: not wanted) is written exactly when a transfer took place. options.queue must be 0.
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
    unsafe { run(engine, peer, Op::Write, (requests, count), options, out_result, error) }
}

/// READ in one call; otherwise as ferry_write.
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
    unsafe { run(engine, peer, Op::Read, (requests, count), options, out_result, error) }
}

/// WRITE or READ here and now, if this thread can do that without waiting: by one copy, for one request of at
/// most the setting express_bytes_max, to or from a peer on this host. FERRY_OK: it is done, and *out_result
/// (NULL: not wanted) is written. FERRY_PENDING: it is not done; submit it. options.queue must be 0. May be
/// called inside a callback.
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
            let result = engine.engine.at_once(peer, op, requests, &options)?;
            Ok(result.map_or(FERRY_PENDING, |result| outcome.done(&result)))
        })
    }
}

/// Submits, waits, tells, releases.
///
/// # Safety
/// As for `ferry_write`: the pointers are NULL or the caller's for the length of the call.
unsafe fn run(
    engine: *mut ferry_engine,
    peer: ferry_peer,
    op: Op,
    (requests, count): (*const ferry_request, usize),
    options: *const ferry_transfer_options,
    out_result: *mut ferry_result,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: as the caller says.
    unsafe {
        call(error, || {
            let (engine, outcome) =
                (ferry_engine::blocking(engine, FERRY_FOREVER)?, Outcome::new(out_result)?);
            let (requests, options) = (self::requests(requests, count)?, options::read(engine, options)?);
            check_no_queue(&options)?;
            if let Some(result) = engine.engine.at_once(peer, op, requests, &options)? {
                return Ok(outcome.done(&result));
            }
            let core = engine.engine.submit_core(peer, op, requests, &options.awaited())?;
            let result = engine.engine.wait(&core, None)?;
            engine.engine.release(core.handle)?;
            outcome.tell(&engine.engine, &core, result)
        })
    }
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
