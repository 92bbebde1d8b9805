//! `ferry_pool_cost`: how long a get of a prefix would take, and how much of it is worth loading.

use super::key::ferry_pool_key;
use super::node::ferry_pool;
use super::results::ferry_pool_result;
use super::values::read_keys;
use crate::error::ferry_error;
use crate::guard::call;
use crate::pointers::slice;
use crate::status::ferry_status;
use crate::versioned::{self, Versioned};
use ::ferry_pool::{Cost, CostOptions};
use engine::status::Result;
use std::mem::size_of;
use std::time::Duration;

/// Arguments of an estimate beyond its keys. FERRY_POOL_COST_OPTIONS_INIT sets struct_size; all other fields may be 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_pool_cost_options {
    /// sizeof(ferry_pool_cost_options).
    pub struct_size: u32,
    /// Tokens of a chunk; 0: as ferry_pool_options says.
    pub chunk_tokens: u32,
    /// Bytes of each value whose result does not say them; 0: the mean of the values that this node's gets brought and
    /// its puts stored.
    pub value_bytes: u64,
    /// Tokens whose cache the caller computes in a second; 0: the caller does not compute.
    pub prefill_tokens_per_s: u64,
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_pool_cost_options {
    const SIZE_MIN: usize = 24;
}

/// The cost of a get of a prefix. The caller sets struct_size before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ferry_pool_cost {
    /// In: sizeof(ferry_pool_cost). Out: how many bytes were written.
    pub struct_size: u32,
    /// 1: the times are known. 0: no get through this node has been measured that they follow from, and they are 0.
    pub is_known: u32,
    /// Leading keys that exist.
    pub keys: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// How long a get of these takes, in nanoseconds.
    pub get_ns: u64,
    /// Leading keys to load: the caller computes from there on. All that exist if the times are not known, or no
    /// prefill rate was given.
    pub load_keys: u64,
    /// How long the get of these and the computing of all other keys take together, in nanoseconds. 0 without a prefill
    /// rate.
    pub best_ns: u64,
}

// SAFETY: repr(C), begins with struct_size, integers only, no padding (asserted from C).
unsafe impl Versioned for ferry_pool_cost {
    const SIZE_MIN: usize = 48;
}

/// Says how long a get of a prefix would take, and how many of its leading keys are worth loading. `results` are those
/// of ferry_pool_exists with the same keys: this call moves nothing and waits for nobody. Gets through this node are
/// measured as they end: each node that they came from, and this node's file, has a time for a call and one for a byte.
/// Any thread, and inside callbacks. `options` may be NULL. A closed pool still answers. FERRY_ERR_LIMIT: more than
/// 65,536 keys. FERRY_ERR_INVALID: a result has an outcome that is no FERRY_POOL_OUTCOME_*.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_estimate(
    pool: *const ferry_pool,
    keys: *const ferry_pool_key,
    results: *const ferry_pool_result,
    count: usize,
    options: *const ferry_pool_cost_options,
    out_cost: *mut ferry_pool_cost,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let pool = ferry_pool::own(pool)?;
            let keys = read_keys(keys, count, "keys")?;
            let results = slice(results, count, "results")?;
            let options =
                versioned::read(options, "options")?.map_or_else(Default::default, CostOptions::from);
            let out = versioned::Out::new(out_cost, "out_cost")?;
            let ends = results.iter().map(ferry_pool_result::read).collect::<Result<Vec<_>>>()?;
            out.set(&pool.pool.estimate(&keys, &ends, &options)?.into());
            Ok(())
        })
    }
}

impl From<ferry_pool_cost_options> for CostOptions {
    fn from(options: ferry_pool_cost_options) -> CostOptions {
        let ferry_pool_cost_options { chunk_tokens, value_bytes, prefill_tokens_per_s, .. } = options;
        CostOptions { chunk_tokens, value_bytes, prefill_tokens_per_s }
    }
}

impl From<Cost> for ferry_pool_cost {
    fn from(cost: Cost) -> ferry_pool_cost {
        let ns = |time: Option<Duration>| {
            time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        };
        ferry_pool_cost {
            struct_size: size_of::<ferry_pool_cost>() as u32,
            is_known: u32::from(cost.get.is_some()),
            keys: cost.keys as u64,
            bytes: cost.bytes,
            get_ns: ns(cost.get),
            load_keys: cost.load_keys as u64,
            best_ns: ns(cost.best),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_arrives_where_it_belongs() {
        let options = ferry_pool_cost_options {
            struct_size: 24,
            chunk_tokens: 1,
            value_bytes: 2,
            prefill_tokens_per_s: 3,
        };
        let expected = CostOptions { chunk_tokens: 1, value_bytes: 2, prefill_tokens_per_s: 3 };
        assert_eq!(CostOptions::from(options), expected);
        let time = |ns| Some(Duration::from_nanos(ns));
        let cost = Cost { keys: 1, bytes: 2, get: time(3), load_keys: 4, best: time(5) };
        let mut expected = ferry_pool_cost {
            struct_size: 48,
            is_known: 1,
            keys: 1,
            bytes: 2,
            get_ns: 3,
            load_keys: 4,
            best_ns: 5,
        };
        assert_eq!(ferry_pool_cost::from(cost), expected);
        (expected.is_known, expected.get_ns, expected.best_ns) = (0, 0, 0);
        assert_eq!(ferry_pool_cost::from(Cost { get: None, best: None, ..cost }), expected);
    }
}
