//! `ferry_pool_stats`: what a node counts, as numbers and as text for Prometheus.

use super::node::ferry_pool;
use crate::error::ferry_error;
use crate::guard::call;
use crate::pointers::{BytesOut, Out};
use crate::status::ferry_status;
use crate::versioned::{self, Versioned};
use ::ferry_pool::{Outcome, PoolStats};
use engine::Error;
use std::ffi::c_char;
use std::mem::size_of;

/// Counters since the pool was opened, and what is there now, all of one moment. The caller sets struct_size before
/// the call.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ferry_pool_stats {
    /// In: sizeof(ferry_pool_stats). Out: how many bytes were written.
    pub struct_size: u32,
    /// Always 0.
    pub reserved: u32,
    /// Keys of gets through this node that have ended; by outcome from ferry_pool_gets_ended.
    pub gets: u64,
    /// Those that ended with FERRY_POOL_OUTCOME_OK.
    pub hits: u64,
    /// Hits that this node's own memory served.
    pub hits_here: u64,
    /// Bytes that hits brought.
    pub got_bytes: u64,
    /// Keys of puts through this node that have ended; by outcome from ferry_pool_puts_ended.
    pub puts: u64,
    /// Bytes of values that puts through this node stored.
    pub put_bytes: u64,
    /// Nodes that owed this node an answer, were silent, and were fenced.
    pub silent_nodes: u64,
    /// Values that this node has stored, whoever put them.
    pub values_stored: u64,
    /// Bytes of these.
    pub bytes_stored: u64,
    /// Bytes that this node has sent for gets, whoever asked.
    pub bytes_served: u64,
    /// Values that this node has evicted.
    pub evictions: u64,
    /// Values of this node that did not match their checksum, and were dropped.
    pub corrupt: u64,
    /// Values that this node holds.
    pub values: u64,
    /// Bytes that this node lends.
    pub capacity: u64,
    /// Bytes of these that hold no value.
    pub free: u64,
    /// Entries of this node's part of the index.
    pub index_entries: u64,
    /// Bytes of that part.
    pub index_bytes: u64,
    /// Nodes that are connected, this one included.
    pub nodes: u64,
    /// Values in the node's file.
    pub file_values: u64,
    /// Bytes of the file for values.
    pub file_capacity: u64,
    /// Bytes of these that hold no value.
    pub file_free: u64,
    /// Values that were copied to the file.
    pub file_saved: u64,
    /// Values that were brought back from it, for gets.
    pub file_loaded: u64,
    /// Values that the file has evicted.
    pub file_evictions: u64,
    /// Copies to or from the file, and writes of its table, that have failed.
    pub file_failures: u64,
    /// Values whose copy here was bad, and that were brought again from another node.
    pub repaired: u64,
    /// Values of these that could not be brought, though another node may have them.
    pub repair_failures: u64,
    /// Values that ferry_pool_drain has moved to other nodes.
    pub drained: u64,
    /// Values that it found there.
    pub drained_here: u64,
    /// 1: the node is drained, and takes no puts.
    pub is_draining: u64,
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_pool_stats {
    const SIZE_MIN: usize = 152;
}

/// Reads the node's counts. A closed pool still answers.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_get_stats(
    pool: *const ferry_pool,
    out_stats: *mut ferry_pool_stats,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let pool = ferry_pool::own(pool)?;
            versioned::Out::new(out_stats, "out_stats")?.set(&pool.pool.stats().into());
            Ok(())
        })
    }
}

/// Returns how many keys of gets through this node have ended with this FERRY_POOL_OUTCOME_*: hits and, by their
/// reason, misses. A closed pool still answers. FERRY_ERR_INVALID: there is no such outcome.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_gets_ended(
    pool: *const ferry_pool,
    outcome: u32,
    out_count: *mut u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe { call(error, || ended(pool, outcome, out_count, PoolStats::gets_ended)) }
}

/// The same for puts.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_puts_ended(
    pool: *const ferry_pool,
    outcome: u32,
    out_count: *mut u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe { call(error, || ended(pool, outcome, out_count, PoolStats::puts_ended)) }
}

/// Returns all of these numbers in Prometheus' text format. The text grows with the counters, so leave some room in
/// the buffer. Returns texts as ferry_config_get does. A closed pool still answers.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_metrics(
    pool: *const ferry_pool,
    buffer: *mut c_char,
    capacity: usize,
    out_length: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let pool = ferry_pool::own(pool)?;
            let out = BytesOut::new(buffer.cast(), capacity, out_length)?;
            out.put_text(&pool.pool.metrics())
        })
    }
}

/// # Safety
/// `pool` is NULL or a pool that is not freed meanwhile; `out_count` as of `Out::new`.
unsafe fn ended(
    pool: *const ferry_pool,
    outcome: u32,
    out_count: *mut u64,
    count: fn(&PoolStats, Outcome) -> u64,
) -> engine::status::Result<()> {
    // SAFETY: the caller's promise.
    let (pool, out) = unsafe { (ferry_pool::own(pool)?, Out::new(out_count, "out_count")?) };
    let known = Outcome::from_number(outcome);
    let known =
        known.ok_or_else(|| Error::invalid(format!("outcome: {outcome} is no FERRY_POOL_OUTCOME_*")))?;
    out.set(count(&pool.pool.stats(), known));
    Ok(())
}

impl From<PoolStats> for ferry_pool_stats {
    fn from(stats: PoolStats) -> ferry_pool_stats {
        let (calls, owner) = (stats.calls, stats.owner);
        ferry_pool_stats {
            struct_size: size_of::<ferry_pool_stats>() as u32,
            reserved: 0,
            gets: calls.gets,
            hits: calls.hits,
            hits_here: calls.hits_here,
            got_bytes: calls.got_bytes,
            puts: calls.puts,
            put_bytes: calls.put_bytes,
            silent_nodes: calls.silent,
            values_stored: owner.stored,
            bytes_stored: owner.stored_bytes,
            bytes_served: owner.served_bytes,
            evictions: owner.evicted,
            corrupt: owner.corrupt,
            values: stats.objects,
            capacity: stats.capacity,
            free: stats.free,
            index_entries: stats.index_entries,
            index_bytes: stats.index_bytes,
            nodes: stats.nodes,
            file_values: stats.tier_objects,
            file_capacity: stats.tier_capacity,
            file_free: stats.tier_free,
            file_saved: owner.saved,
            file_loaded: owner.loaded,
            file_evictions: owner.tier_evicted,
            file_failures: owner.tier_failed,
            repaired: owner.repaired,
            repair_failures: owner.repairs_failed,
            drained: owner.drained,
            drained_here: owner.drained_here,
            is_draining: stats.is_draining.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_arrives_where_it_belongs() {
        let mut stats = PoolStats {
            objects: 13,
            capacity: 14,
            free: 15,
            index_entries: 16,
            index_bytes: 17,
            nodes: 18,
            tier_objects: 19,
            tier_capacity: 20,
            tier_free: 21,
            is_draining: true,
            ..PoolStats::default()
        };
        let (calls, owner) = (&mut stats.calls, &mut stats.owner);
        (calls.gets, calls.hits, calls.hits_here, calls.got_bytes) = (1, 2, 3, 4);
        (calls.puts, calls.put_bytes, calls.silent) = (5, 6, 7);
        (owner.stored, owner.stored_bytes, owner.served_bytes) = (8, 9, 10);
        (owner.evicted, owner.corrupt) = (11, 12);
        (owner.saved, owner.loaded, owner.tier_evicted, owner.tier_failed) = (22, 23, 24, 25);
        (owner.repaired, owner.repairs_failed, owner.drained, owner.drained_here) = (26, 27, 28, 29);
        let out = ferry_pool_stats::from(stats);
        // SAFETY: repr(C), u64 from offset 8 on.
        let fields = unsafe { std::slice::from_raw_parts(&raw const out.gets, 30) };
        assert_eq!(fields, (1..=29).chain([1]).collect::<Vec<u64>>());
        assert_eq!((out.struct_size, out.reserved), (248, 0));
    }
}
