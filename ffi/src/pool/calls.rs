//! The calls of a pool: get, put, exists, remove and prefetch, each for many keys, each with and without a wait for the
//! end.

use super::key::ferry_pool_key;
use super::node::ferry_pool;
use super::results::ferry_pool_result;
use super::values::*;
use crate::error::ferry_error;
use crate::guard::call;
use crate::handles::timeout;
use crate::pointers::OutList;
use crate::status::ferry_status;
use ::ferry_pool::Call;
use engine::status::Result;

/// Gets values into the caller's memory, which belongs to the call until it has ended. Each owner that is asked
/// writes the bytes, and the call checks those that the CPU can read against the checksum that the put made. A value
/// shorter or longer than the memory is FERRY_POOL_OUTCOME_LENGTH. Waits for nodes at most about a second longer than
/// they answer.
///
/// FERRY_OK: all keys have ended, and `out_results` has one result for each, in their order. FERRY_ERR_TIMEOUT: the
/// call goes on, and cannot be taken back; its end comes by ferry_pool_poll with options.user_data. `options` may be
/// NULL.
///
/// FERRY_ERR_NOT_REGISTERED, FERRY_ERR_ACCESS: memory of the value that the message and error.request_index name is
/// not registered, or its region lacks FERRY_ACCESS_REMOTE_WRITE. FERRY_ERR_LIMIT: more than 65,536 values or open
/// calls beyond 16,384. FERRY_ERR_CLOSED: the pool or its engine is closed. FERRY_ERR_BUSY: inside a callback.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_get(
    pool: *mut ferry_pool,
    values: *const ferry_pool_value,
    count: usize,
    options: *const ferry_pool_call_options,
    timeout_ns: u64,
    out_results: *mut ferry_pool_result,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let (pool, options) = (ferry_pool::own(pool)?, read_options(options, 0)?);
            let (values, out) =
                (read_values(values, count)?, OutList::new(out_results, count, "out_results")?);
            run(pool, &Call::Get(&values), options.user_data, timeout_ns, &out)
        })
    }
}

/// Stores values from the caller's memory, which belongs to the call until it has ended. A value is immutable: a node
/// that has the key already moves no byte (FERRY_POOL_OUTCOME_HERE). All nodes find the value when the call has
/// ended. Everything else as for ferry_pool_get; the region grants FERRY_ACCESS_REMOTE_READ.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_put(
    pool: *mut ferry_pool,
    values: *const ferry_pool_value,
    count: usize,
    options: *const ferry_pool_call_options,
    timeout_ns: u64,
    out_results: *mut ferry_pool_result,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let (pool, options) = (ferry_pool::own(pool)?, read_options(options, 0)?);
            let (values, out) =
                (read_values(values, count)?, OutList::new(out_results, count, "out_results")?);
            run(pool, &Call::Put(&values, &options.put), options.user_data, timeout_ns, &out)
        })
    }
}

/// Says which keys exist. It holds nothing: a get may still find a value gone. A key that exists is used, and so is
/// evicted later. Results, timeout and errors as for ferry_pool_get.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_exists(
    pool: *mut ferry_pool,
    keys: *const ferry_pool_key,
    count: usize,
    options: *const ferry_pool_call_options,
    timeout_ns: u64,
    out_results: *mut ferry_pool_result,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let (pool, options) = (ferry_pool::own(pool)?, read_options(options, FERRY_POOL_PREFIX)?);
            let (keys, out) =
                (read_keys(keys, count, "keys")?, OutList::new(out_results, count, "out_results")?);
            let call = Call::Exists { keys: &keys, prefix: options.prefix };
            run(pool, &call, options.user_data, timeout_ns, &out)
        })
    }
}

/// Removes values from all nodes. A node that is absent removes them when it comes again within ten minutes. Results,
/// timeout and errors as for ferry_pool_get.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_remove(
    pool: *mut ferry_pool,
    keys: *const ferry_pool_key,
    count: usize,
    options: *const ferry_pool_call_options,
    timeout_ns: u64,
    out_results: *mut ferry_pool_result,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let (pool, options) = (ferry_pool::own(pool)?, read_options(options, 0)?);
            let (keys, out) =
                (read_keys(keys, count, "keys")?, OutList::new(out_results, count, "out_results")?);
            run(pool, &Call::Remove(&keys), options.user_data, timeout_ns, &out)
        })
    }
}

/// Brings values into this node's memory, which must lend some: values of other nodes, and those that its file alone
/// has. Others are evicted for them, as for a put. With FERRY_POOL_PREFIX the keys are the chunks of a prefix, in
/// order, and nothing is brought from the first miss on. One prefetch of a node is under way at a time; others wait for
/// it.
///
/// FERRY_POOL_OUTCOME_OK: the value was brought, from the node in the result. FERRY_POOL_OUTCOME_HERE: it was in
/// memory. FERRY_POOL_OUTCOME_FULL: there is no room beside the keys before it, the values in use and those used since
/// the prefetch began. FERRY_POOL_OUTCOME_TOO_LONG: it has more bytes than the node lends, or more than 128 MiB. A miss
/// has its reason, as for ferry_pool_get. FERRY_ERR_INVALID: the node lends no memory. FERRY_ERR_NO_MEMORY: the first
/// prefetch allocates 128 MiB, or as much as the node lends if that is less. Results, timeout and other errors as for
/// ferry_pool_get.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_prefetch(
    pool: *mut ferry_pool,
    keys: *const ferry_pool_key,
    count: usize,
    options: *const ferry_pool_call_options,
    timeout_ns: u64,
    out_results: *mut ferry_pool_result,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let (pool, options) = (ferry_pool::own(pool)?, read_options(options, FERRY_POOL_PREFIX)?);
            let (keys, out) =
                (read_keys(keys, count, "keys")?, OutList::new(out_results, count, "out_results")?);
            let call = Call::Prefetch { keys: &keys, prefix: options.prefix };
            run(pool, &call, options.user_data, timeout_ns, &out)
        })
    }
}

/// Begins a get as ferry_pool_get does, and does not wait: its end comes by ferry_pool_poll with options.user_data.
/// The arguments are copied; the memory belongs to the call until its end. Allowed inside callbacks.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_submit_get(
    pool: *mut ferry_pool,
    values: *const ferry_pool_value,
    count: usize,
    options: *const ferry_pool_call_options,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let (pool, options) = (ferry_pool::own(pool)?, read_options(options, 0)?);
            pool.pool.submit(&Call::Get(&read_values(values, count)?), options.user_data)
        })
    }
}

/// Begins a put as ferry_pool_put does, without waiting, as ferry_pool_submit_get.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_submit_put(
    pool: *mut ferry_pool,
    values: *const ferry_pool_value,
    count: usize,
    options: *const ferry_pool_call_options,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let (pool, options) = (ferry_pool::own(pool)?, read_options(options, 0)?);
            pool.pool.submit(&Call::Put(&read_values(values, count)?, &options.put), options.user_data)
        })
    }
}

/// Begins what ferry_pool_exists does, without waiting, as ferry_pool_submit_get.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_submit_exists(
    pool: *mut ferry_pool,
    keys: *const ferry_pool_key,
    count: usize,
    options: *const ferry_pool_call_options,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let (pool, options) = (ferry_pool::own(pool)?, read_options(options, FERRY_POOL_PREFIX)?);
            let call = Call::Exists { keys: &read_keys(keys, count, "keys")?, prefix: options.prefix };
            pool.pool.submit(&call, options.user_data)
        })
    }
}

/// Begins what ferry_pool_remove does, without waiting, as ferry_pool_submit_get.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_submit_remove(
    pool: *mut ferry_pool,
    keys: *const ferry_pool_key,
    count: usize,
    options: *const ferry_pool_call_options,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let (pool, options) = (ferry_pool::own(pool)?, read_options(options, 0)?);
            pool.pool.submit(&Call::Remove(&read_keys(keys, count, "keys")?), options.user_data)
        })
    }
}

/// Begins what ferry_pool_prefetch does, without waiting, as ferry_pool_submit_get.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_submit_prefetch(
    pool: *mut ferry_pool,
    keys: *const ferry_pool_key,
    count: usize,
    options: *const ferry_pool_call_options,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let (pool, options) = (ferry_pool::own(pool)?, read_options(options, FERRY_POOL_PREFIX)?);
            let call = Call::Prefetch { keys: &read_keys(keys, count, "keys")?, prefix: options.prefix };
            pool.pool.submit(&call, options.user_data)
        })
    }
}

/// Runs a call, and writes its results.
fn run(
    pool: &ferry_pool,
    call: &Call<'_>,
    user_data: u64,
    timeout_ns: u64,
    out: &OutList<ferry_pool_result>,
) -> Result<()> {
    let ends = pool.pool.run(call, user_data, timeout(timeout_ns))?;
    out.fill(ends.into_iter().map(ferry_pool_result::from));
    Ok(())
}
