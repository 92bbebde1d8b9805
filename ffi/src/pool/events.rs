//! `ferry_pool_event`: the end of a call that nobody waits for, and the owner of its bytes.

use super::node::ferry_pool;
use super::results::ferry_pool_result;
use crate::error::ferry_error;
use crate::guard::{call, quietly};
use crate::handles::timeout;
use crate::pointers::Out;
use crate::status::{ferry_status, FERRY_OK, FERRY_PENDING};
use crate::versioned::{self, Versioned};
use ::ferry_pool::Ended;
use engine::status::Result;
use engine::Status;
use std::ffi::c_int;
use std::mem::{size_of, take};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

/// The end of a call that was submitted, or that has passed its timeout. Each has exactly one, after which nothing
/// touches its memory. The caller sets struct_size before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_pool_event {
    /// In: sizeof(ferry_pool_event). Out: how many bytes were written.
    pub struct_size: u32,
    /// Always 0.
    pub reserved: u32,
    /// The number from ferry_pool_call_options.
    pub user_data: u64,
    /// One result for each key, in the order of the call; NULL if the call had none. The event owns the list.
    pub results: *const ferry_pool_result,
    /// Length of results.
    pub result_count: u64,
}

// SAFETY: repr(C), begins with struct_size, integers and a raw pointer, no padding (asserted from C).
unsafe impl Versioned for ferry_pool_event {
    const SIZE_MIN: usize = 32;
}

/// Takes the end of a call, oldest first. Never waits. Release it with ferry_pool_event_release.
///
/// FERRY_PENDING: there is none, and *out_event is as it was. FERRY_ERR_CLOSED: the pool or its engine is closed, and
/// there are no more. Several threads may take ends of one pool; each end goes to one thread.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_poll(
    pool: *mut ferry_pool,
    out_event: *mut ferry_pool_event,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe { call(error, || next(pool, 0, out_event)) }
}

/// Waits until a call has ended, then takes its end as ferry_pool_poll does.
///
/// FERRY_PENDING: the timeout has passed. FERRY_ERR_BUSY: the call was made inside a callback with a timeout other
/// than 0. FERRY_ERR_CLOSED: as for ferry_pool_poll; closing the pool ends the wait. Signals do not end it.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_wait(
    pool: *mut ferry_pool,
    timeout_ns: u64,
    out_event: *mut ferry_pool_event,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe { call(error, || next(pool, timeout_ns, out_event)) }
}

/// Returns a descriptor for poll, epoll or an event loop. It is readable when ferry_pool_poll has an end, and when
/// the pool or its engine is closed.
///
/// ferry owns the descriptor: don't read, write or close it. So poll, take ends until ferry_pool_poll returns
/// FERRY_PENDING, and poll again. The descriptor is valid until the pool is freed.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_fd(
    pool: *mut ferry_pool,
    out_fd: *mut c_int,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let pool = ferry_pool::own(pool)?;
            Out::new(out_fd, "out_fd")?.set(pool.pool.as_fd().as_raw_fd());
            Ok(())
        })
    }
}

/// Frees the list of an event and sets it to NULL. The call does nothing for NULL, for an event without a list, and
/// for the same struct a second time. Release only one copy of an event. Any thread; also after the pool is gone.
#[no_mangle]
pub unsafe extern "C" fn ferry_pool_event_release(event: *mut ferry_pool_event) {
    quietly(|| {
        // SAFETY: NULL, or an event that ferry filled and the caller owns.
        let Some(event) = (unsafe { event.as_mut() }) else { return };
        let results = std::mem::replace(&mut event.results, ptr::null()).cast_mut();
        let count = take(&mut event.result_count) as usize;
        if !results.is_null() {
            // SAFETY: `give` took it from a Box, and the NULL above keeps it from coming twice.
            drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(results, count)) });
        }
    });
}

/// Takes an end, if one comes in time.
///
/// # Safety
/// `pool` is NULL or a pool that is not freed meanwhile; `out_event` as of `versioned::Out::new`.
unsafe fn next(
    pool: *const ferry_pool,
    timeout_ns: u64,
    out_event: *mut ferry_pool_event,
) -> Result<ferry_status> {
    // SAFETY: the caller's promise.
    let (pool, out) =
        unsafe { (ferry_pool::blocking(pool, timeout_ns)?, versioned::Out::new(out_event, "out_event")?) };
    match pool.pool.wait(timeout(timeout_ns)) {
        Ok(ended) => {
            out.set(&give(ended));
            Ok(FERRY_OK)
        }
        Err(error) if error.status == Status::Timeout => Ok(FERRY_PENDING),
        Err(error) => Err(error),
    }
}

/// Makes the event of the caller, who gets the list.
fn give(ended: Ended) -> ferry_pool_event {
    let results: Box<[ferry_pool_result]> = ended.keys.into_iter().map(ferry_pool_result::from).collect();
    let result_count = results.len() as u64;
    let results = if results.is_empty() { ptr::null() } else { Box::into_raw(results).cast() };
    let (struct_size, user_data) = (size_of::<ferry_pool_event>() as u32, ended.user_data);
    ferry_pool_event { struct_size, reserved: 0, user_data, results, result_count }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::ferry_pool::{KeyEnd, NodeId, Outcome};

    #[test]
    fn the_list_of_an_event_is_the_callers_until_released() {
        let keys = [Outcome::Ok, Outcome::Corrupt].map(|outcome| KeyEnd {
            outcome,
            bytes: 5,
            node: Some(NodeId(6)),
        });
        let mut event = give(Ended { user_data: 77, keys: keys.into() });
        assert_eq!((event.user_data, event.result_count, event.struct_size), (77, 2, 32));
        // SAFETY: what the event owns until its release, which may come twice.
        unsafe {
            let results = std::slice::from_raw_parts(event.results, 2);
            assert_eq!(
                results.iter().map(|it| (it.outcome, it.bytes, it.node)).collect::<Vec<_>>(),
                [(0, 5, 6), (6, 5, 6)]
            );
            ferry_pool_event_release(&mut event);
            assert!(event.results.is_null() && event.result_count == 0);
            ferry_pool_event_release(&mut event);
            ferry_pool_event_release(ptr::null_mut());
        }
        assert!(give(Ended { user_data: 0, keys: Vec::new() }).results.is_null());
    }
}
