//! Peers: connecting, listing, probing, fencing, closing.

use crate::engine::ferry_engine;
use crate::error::ferry_error;
use crate::guard::call;
use crate::handles::{ferry_peer, ferry_queue, timeout};
use crate::pointers::{text, Out, OutList};
use crate::status::ferry_status;
use engine::types::{PeerId, QueueId};
use std::ffi::c_char;
use std::time::Duration;

/// Connects to the engine at `address` ("host:port") and waits until transfers can be submitted.
///
/// If the two engines are connected already, whichever side connected, the call returns the existing handle.
/// A restarted peer has a new handle. The attempt ends after the setting connect_timeout_ms at the latest.
///
/// FERRY_ERR_UNREACHABLE: nothing answers, nobody knows the name, or the connection is closed at once.
/// FERRY_ERR_TIMEOUT: nothing answers in time, neither the peer nor a name server; the message names the bound.
/// FERRY_ERR_NOT_FERRY, FERRY_ERR_VERSION, FERRY_ERR_REFUSED. FERRY_ERR_INVALID: `address` is no "host:port"; the
/// message says what to write. FERRY_ERR_BUSY inside a callback.
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
            out.set((engine.engine.connect(address, timeout(timeout_ns))?).raw());
            Ok(())
        })
    }
}

/// Starts to connect, without waiting, also for name servers. `queue`, which must take FERRY_QUEUE_PEERS, gets one
/// FERRY_EVENT_PEER_CONNECTED with `user_data` and the outcome. A callback may make this call.
///
/// The call reserves room in the queue, and returns FERRY_ERR_LIMIT if the queue is full. A call that fails
/// reports nothing to the queue.
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
            let queue = engine.engine.hub()?.get(QueueId::from_raw(queue))?;
            engine.engine.connect_async(address, timeout(timeout_ns), &queue, user_data)
        })
    }
}

/// Lists the handles of all known peers, in no order; lost peers stay for a while. Returns lists as
/// ferry_config_settings does, without element_size.
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
            list.fill(peers.into_iter().map(PeerId::raw));
            Ok(())
        })
    }
}

/// Sends a probe to a peer and waits for the answer. *out_round_trip_ns (may be NULL) gets the round trip.
///
/// FERRY_ERR_TIMEOUT: no answer came in time. FERRY_ERR_PEER_LOST, or the cause of the loss: the peer is
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
            let out = if out_round_trip_ns.is_null() {
                None
            } else {
                Some(Out::new(out_round_trip_ns, "out_round_trip_ns")?)
            };
            let round_trip = engine.engine.probe(PeerId::from_raw(peer), timeout(timeout_ns))?;
            if let Some(out) = out {
                out.set(nanoseconds(round_trip));
            }
            Ok(())
        })
    }
}

/// Fences a peer: returns when nothing of the peer can land here any more. The peer's transfers to this
/// engine are cut off. This incarnation of the peer is refused until this engine connects to it.
///
/// A decode worker calls this before it reuses the blocks of a prefill worker that has died. The call closes
/// this side's connections and so does not wait for a silent peer. FERRY_ERR_TIMEOUT: not yet; call again.
/// FERRY_ERR_BUSY inside a callback, unless the timeout is 0.
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
            engine.engine.fence(PeerId::from_raw(peer), timeout(timeout_ns))
        })
    }
}

/// Closes the session with a peer. Transfers to the peer fail with FERRY_ERR_CLOSED; when they are final, the call
/// returns FERRY_OK. Over TCP, transfers in progress become final only after lease_ms: wait for them or cancel them
/// first. The handle then names a lost peer. Calls with it return FERRY_ERR_CLOSED, and FERRY_ERR_STALE after 1,024
/// later peers were lost. FERRY_ERR_BUSY: the timeout has passed and the peer is still closing; call again. The call
/// also returns FERRY_ERR_BUSY inside a callback, unless the timeout is 0.
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
            engine.engine.close_peer(PeerId::from_raw(peer), timeout(timeout_ns))
        })
    }
}

/// Converts to nanoseconds; saturates after 584 years.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos().min(u64::MAX as u128) as u64
}
