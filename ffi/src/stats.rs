//! Statistics as numbers, and as text for Prometheus.

use crate::engine::ferry_engine;
use crate::error::ferry_error;
use crate::guard::call;
use crate::pointers::BytesOut;
use crate::status::ferry_status;
use crate::versioned::{Out, Versioned};
use engine::EngineStats;
use std::ffi::c_char;
use std::mem::size_of;

/// Counters since the engine was opened, and the current number of objects. The caller sets struct_size
/// before the call. ferry reads each number on its own, so the numbers are no snapshot.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_stats {
    /// In: sizeof(ferry_stats). Out: how many bytes were written.
    pub struct_size: u32,
    /// Always 0.
    pub reserved: u32,
    /// Transfers that were submitted.
    pub transfers_submitted: u64,
    /// Transfers that ended as DONE.
    pub transfers_done: u64,
    /// Transfers that ended as FAILED.
    pub transfers_failed: u64,
    /// Transfers that ended as CANCELLED.
    pub transfers_cancelled: u64,
    /// Transfers that ended as TIMED_OUT.
    pub transfers_timed_out: u64,
    /// Requests in submitted transfers.
    pub requests_in: u64,
    /// Slices that ferry made of the requests by merging and cutting.
    pub slices_out: u64,
    /// Payload bytes of WRITEs confirmed by their targets.
    pub bytes_written: u64,
    /// Payload bytes of READs that arrived.
    pub bytes_read: u64,
    /// Payload bytes of peers' WRITEs placed in this engine's regions.
    pub bytes_applied: u64,
    /// Payload bytes sent for peers' READs.
    pub bytes_served: u64,
    /// Requests of peers that this engine's checks refused.
    pub requests_refused: u64,
    /// Notifications that this engine took in from peers.
    pub notifications_received: u64,
    /// Sessions established.
    pub sessions_up: u64,
    /// Sessions lost, whether ferry establishes them again or not.
    pub sessions_lost: u64,
    /// Data connections and RDMA endpoints that broke.
    pub lanes_lost: u64,
    /// Inbound connections that were refused.
    pub handshakes_refused: u64,
    /// FERRY_EVENT_LATE_APPLY events, drained or not.
    pub late_applies: u64,
    /// System calls that sent on data connections.
    pub send_calls: u64,
    /// System calls that received on data connections.
    pub receive_calls: u64,
    /// Peers whose session is up now.
    pub peers_up: u64,
    /// Regions registered now.
    pub regions: u64,
    /// Transfers that are not released, final or not.
    pub transfers: u64,
    /// Payload bytes that this engine copied over same-host paths.
    pub bytes_local: u64,
    /// Payload bytes that devices of this engine copied by themselves from or to memory of a peer's devices.
    pub bytes_device: u64,
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_stats {
    const SIZE_MIN: usize = 192;
}

/// Reads the engine's statistics.
#[no_mangle]
pub unsafe extern "C" fn ferry_engine_get_stats(
    engine: *const ferry_engine,
    out_stats: *mut ferry_stats,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let out = Out::new(out_stats, "out_stats")?;
            out.set(&engine.engine.stats()?.into());
            Ok(())
        })
    }
}

/// Returns the statistics in Prometheus' text format. The text grows with the counters, so leave some room in
/// the buffer. Returns texts as ferry_config_get does.
#[no_mangle]
pub unsafe extern "C" fn ferry_engine_metrics(
    engine: *const ferry_engine,
    buffer: *mut c_char,
    capacity: usize,
    out_length: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let out = BytesOut::new(buffer.cast(), capacity, out_length)?;
            out.put_text(&engine.engine.metrics()?)
        })
    }
}

impl From<EngineStats> for ferry_stats {
    fn from(stats: EngineStats) -> ferry_stats {
        let counts = stats.counts;
        ferry_stats {
            struct_size: size_of::<ferry_stats>() as u32,
            reserved: 0,
            transfers_submitted: counts.transfers_submitted,
            transfers_done: counts.transfers_done,
            transfers_failed: counts.transfers_failed,
            transfers_cancelled: counts.transfers_cancelled,
            transfers_timed_out: counts.transfers_timed_out,
            requests_in: counts.requests_in,
            slices_out: counts.slices_out,
            bytes_written: counts.bytes_written,
            bytes_read: counts.bytes_read,
            bytes_applied: counts.bytes_applied,
            bytes_served: counts.bytes_served,
            requests_refused: counts.requests_refused,
            notifications_received: counts.notifications_received,
            sessions_up: counts.sessions_up,
            sessions_lost: counts.sessions_lost,
            lanes_lost: counts.lanes_lost,
            handshakes_refused: counts.handshakes_refused,
            late_applies: counts.late_applies,
            send_calls: counts.send_calls,
            receive_calls: counts.receive_calls,
            peers_up: stats.peers_up,
            regions: stats.regions,
            transfers: stats.transfers,
            bytes_local: counts.bytes_local,
            bytes_device: counts.bytes_device,
        }
    }
}
