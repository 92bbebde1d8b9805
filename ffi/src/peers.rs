//! Peers: connecting, asking after them, fencing, closing.

use crate::engine::ferry_engine;
use crate::error::ferry_error;
use crate::guard::call;
use crate::handles::{ferry_peer, ferry_queue, timeout};
use crate::pointers::{text, Out, OutList};
use crate::status::ferry_status;
use std::ffi::c_char;
use std::time::Duration;

/// Connects to the engine at `address` ("host:port") and waits until transfers can be submitted.
///
/// Idempotent: a peer that is connected already, from whichever side, is returned as it is; a peer that
/// has been restarted has a new handle. The attempt ends after the setting connect_timeout_ms at the
/// latest. Looking up the name may block beyond the timeout.
///
/// FERRY_ERR_UNREACHABLE or FERRY_ERR_TIMEOUT (nothing answers, or not in time), FERRY_ERR_NOT_FERRY,
/// FERRY_ERR_VERSION, FERRY_ERR_REFUSED;
/// FERRY_ERR_INVALID for an address that is none. FERRY_ERR_BUSY inside a callback.
#[no_mangle]
pub unsafe extern "C" fn ferry_peer_connect(
    engine: *mut ferry_engine,
    address: *const c_char,
    timeout_ns: u64,
    out_peer: *mut ferry_peer,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::blocking(engine, timeout_ns)?;
            let address = text(address, "address")?;
            let out = Out::new(out_peer, "out_peer")?;
            out.set(engine.engine.connect(address, timeout(timeout_ns))?);
            Ok(())
        })
    }
}

/// The same without waiting: `queue`, which must take FERRY_QUEUE_PEERS, gets one
/// FERRY_EVENT_PEER_CONNECTED with `user_data` and the outcome. May be called inside a callback.
///
/// Room in the queue is reserved now: FERRY_ERR_LIMIT when there is none. A call that fails reports
/// nothing to the queue.
#[no_mangle]
pub unsafe extern "C" fn ferry_peer_connect_async(
    engine: *mut ferry_engine,
    address: *const c_char,
    timeout_ns: u64,
    queue: ferry_queue,
    user_data: u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let address = text(address, "address")?;
            let queue = engine.engine.hub()?.get(queue)?;
            engine.engine.connect_async(address, timeout(timeout_ns), &queue, user_data)
        })
    }
}

/// Lists the peers that are known, lost ones included for a while: handles in no order. How
/// lists are returned: ferry_config_settings.
#[no_mangle]
pub unsafe extern "C" fn ferry_peer_list(
    engine: *mut ferry_engine,
    out_peers: *mut ferry_peer,
    capacity: usize,
    out_count: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let list = OutList::new(out_peers, capacity, "out_peers")?;
            let count = Out::new(out_count, "out_count")?;
            let peers = engine.engine.peers()?;
            count.set(peers.len());
            list.fill(peers);
            Ok(())
        })
    }
}

/// Asks a peer for a sign of life. *out_round_trip_ns (NULL: not wanted) gets the round trip.
///
/// FERRY_ERR_TIMEOUT when no answer comes in time, FERRY_ERR_PEER_LOST and the like when the peer is
/// lost. FERRY_ERR_BUSY inside a callback.
#[no_mangle]
pub unsafe extern "C" fn ferry_peer_probe(
    engine: *mut ferry_engine,
    peer: ferry_peer,
    timeout_ns: u64,
    out_round_trip_ns: *mut u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::blocking(engine, timeout_ns)?;
            let out = match out_round_trip_ns.is_null() {
                true => None,
                false => Some(Out::new(out_round_trip_ns, "out_round_trip_ns")?),
            };
            let round_trip = engine.engine.probe(peer, timeout(timeout_ns))?;
            if let Some(out) = out {
                out.set(nanoseconds(round_trip));
            }
            Ok(())
        })
    }
}

/// Returns when nothing of this peer can land here any more: its transfers towards this engine are cut
/// off, and this incarnation of it is refused until it is connected to from here.
///
/// What a decode worker calls before it uses the blocks of a prefill worker that has died. It closes this
/// side's connections, so that a silent peer is not waited for. FERRY_ERR_TIMEOUT: not yet; call again.
/// FERRY_ERR_BUSY inside a callback.
#[no_mangle]
pub unsafe extern "C" fn ferry_peer_fence(
    engine: *mut ferry_engine,
    peer: ferry_peer,
    timeout_ns: u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::blocking(engine, timeout_ns)?;
            engine.engine.fence(peer, timeout(timeout_ns))
        })
    }
}

/// Ends the session with a peer. Its transfers fail with FERRY_ERR_CLOSED, and when they are final this
/// returns FERRY_OK; the handle then names a lost peer, whose use is FERRY_ERR_CLOSED and, some thousand
/// lost peers later, FERRY_ERR_STALE. FERRY_ERR_BUSY when that takes longer than the timeout:
/// the peer is still closing; call again. FERRY_ERR_BUSY inside a callback.
#[no_mangle]
pub unsafe extern "C" fn ferry_peer_close(
    engine: *mut ferry_engine,
    peer: ferry_peer,
    timeout_ns: u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::blocking(engine, timeout_ns)?;
            engine.engine.close_peer(peer, timeout(timeout_ns))
        })
    }
}

/// Saturates after 584 years.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos().min(u64::MAX as u128) as u64
}
