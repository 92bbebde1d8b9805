//! `ferry_kv_stats`: what a cache counts, as numbers and as text for Prometheus.

use super::cache::ferry_kv_cache;
use crate::error::ferry_error;
use crate::guard::call;
use crate::pointers::{BytesOut, Out};
use crate::status::ferry_status;
use crate::versioned::{self, Versioned};
use engine::{Error, Status};
use ferry_kv::handoff::Stats;
use std::ffi::c_char;
use std::mem::size_of;

/// Counters since the cache was opened, and the current number of what exists, all of one moment. The caller sets
/// struct_size before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ferry_kv_stats {
    /// In: sizeof(ferry_kv_stats). Out: how many bytes were written.
    pub struct_size: u32,
    /// Always 0.
    pub reserved: u32,
    /// Offers that have not ended.
    pub offers: u64,
    /// Takes that have not ended.
    pub takes: u64,
    /// Takes of peers that wait for an offer of this cache.
    pub takes_waiting: u64,
    /// Pairs of a producer's and a consumer's rank whose exchange is not over; of offers and of takes.
    pub parts: u64,
    /// Transfers of handoffs that are not final.
    pub transfers: u64,
    /// Blocks of sealed offers that have not ended.
    pub leased_blocks: u64,
    /// Nanoseconds since the first of these offers was sealed; 0 if there is none.
    pub oldest_lease_ns: u64,
    /// See ferry_kv_unfenced_blocks.
    pub unfenced_blocks: u64,
    /// Payload bytes of offers that were written to consumers, or read by consumers whose take by pull has everything.
    pub bytes_sent: u64,
    /// Payload bytes of takes that have arrived.
    pub bytes_received: u64,
    /// Ends of offers by FERRY_KV_EVENT_SENT.
    pub ended_sent: u64,
    /// Ends of takes by FERRY_KV_EVENT_RECEIVED.
    pub ended_received: u64,
    /// Ends by FERRY_KV_EVENT_FAILED; by status from ferry_kv_ended_failed.
    pub ended_failed: u64,
    /// Ends by FERRY_KV_EVENT_CANCELLED.
    pub ended_cancelled: u64,
    /// Ends by FERRY_KV_EVENT_EXPIRED because the lease was over.
    pub ended_expired_lease: u64,
    /// Ends by FERRY_KV_EVENT_EXPIRED because of ferry_kv_reclaim.
    pub ended_expired_pressure: u64,
    /// Ends by FERRY_KV_EVENT_PEER_LOST.
    pub ended_peer_lost: u64,
    /// FERRY_EVENT_LATE_APPLY events in blocks of an offer or a take; that offer or take failed.
    pub late_applies: u64,
    /// Entries of the timeline that newer ones have overwritten.
    pub timeline_overwritten: u64,
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_kv_stats {
    const SIZE_MIN: usize = 160;
}

/// Reads the cache's counts. A closed cache still answers.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_get_stats(
    cache: *const ferry_kv_cache,
    out_metrics: *mut ferry_kv_stats,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let cache = ferry_kv_cache::own(cache)?;
            let out = versioned::Out::new(out_metrics, "out_metrics")?;
            out.set(&cache.cache.stats().into());
            Ok(())
        })
    }
}

/// Returns how many offers and takes have ended by FERRY_KV_EVENT_FAILED with this status, one of FERRY_ERR_*. A
/// closed cache still answers.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_ended_failed(
    cache: *const ferry_kv_cache,
    status: ferry_status,
    out_count: *mut u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let cache = ferry_kv_cache::own(cache)?;
            let known = Status::from_number(status).filter(|_| status < 0);
            let known = known.ok_or_else(|| Error::invalid(format!("status: {status} is no error")))?;
            Out::new(out_count, "out_count")?.set(cache.cache.stats().ends.failed_with(known));
            Ok(())
        })
    }
}

/// Returns all of these numbers in Prometheus' text format. The text grows with the counters, so leave some room in the
/// buffer. Returns texts as ferry_config_get does. A closed cache still answers.
#[no_mangle]
pub unsafe extern "C" fn ferry_kv_metrics(
    cache: *const ferry_kv_cache,
    buffer: *mut c_char,
    capacity: usize,
    out_length: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let cache = ferry_kv_cache::own(cache)?;
            let out = BytesOut::new(buffer.cast(), capacity, out_length)?;
            out.put_text(&cache.cache.metrics())
        })
    }
}

impl From<Stats> for ferry_kv_stats {
    fn from(metrics: Stats) -> ferry_kv_stats {
        let ends = metrics.ends;
        ferry_kv_stats {
            struct_size: size_of::<ferry_kv_stats>() as u32,
            reserved: 0,
            offers: metrics.offers,
            takes: metrics.takes,
            takes_waiting: metrics.takes_waiting,
            parts: metrics.parts,
            transfers: metrics.transfers,
            leased_blocks: metrics.leased_blocks,
            oldest_lease_ns: metrics.oldest_lease.as_nanos().min(u64::MAX.into()) as u64,
            unfenced_blocks: metrics.unfenced_blocks,
            bytes_sent: metrics.bytes_sent,
            bytes_received: metrics.bytes_received,
            ended_sent: ends.sent,
            ended_received: ends.received,
            ended_failed: ends.failed(),
            ended_cancelled: ends.cancelled,
            ended_expired_lease: ends.expired_lease,
            ended_expired_pressure: ends.expired_pressure,
            ended_peer_lost: ends.peer_lost,
            late_applies: metrics.late_applies,
            timeline_overwritten: metrics.timeline_overwritten,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferry_kv::handoff::Ends;
    use std::time::Duration;

    #[test]
    fn every_field_arrives_where_it_belongs() {
        let mut ends = Ends::default();
        (ends.sent, ends.received, ends.cancelled) = (11, 12, 14);
        (ends.expired_lease, ends.expired_pressure, ends.peer_lost) = (15, 16, 17);
        let metrics = Stats {
            offers: 1,
            takes: 2,
            takes_waiting: 3,
            parts: 4,
            transfers: 5,
            leased_blocks: 6,
            oldest_lease: Duration::from_nanos(7),
            unfenced_blocks: 8,
            bytes_sent: 9,
            bytes_received: 10,
            ends,
            late_applies: 18,
            timeline_overwritten: 19,
        };
        let out = ferry_kv_stats::from(metrics);
        // SAFETY: repr(C), u64 from offset 8 on.
        let fields = unsafe { std::slice::from_raw_parts((&raw const out.offers), 19) };
        assert_eq!(fields[..12], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        // Nothing has failed.
        assert_eq!(fields[12..], [0, 14, 15, 16, 17, 18, 19]);
        assert_eq!((out.struct_size, out.reserved), (160, 0));
    }
}
