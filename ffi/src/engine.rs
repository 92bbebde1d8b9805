//! `ferry_engine`: opening, closing and freeing, and what every other call asks of one first.

use crate::allocations::Allocations;
use crate::config::ferry_config;
use crate::error::ferry_error;
use crate::guard::{call, quietly};
use crate::handles::timeout;
use crate::pointers::{reference, BytesOut, Out};
use crate::status::ferry_status;
use engine::status::Result;
use engine::{Config, Engine, Error, Status};
use std::ffi::c_char;

/// An engine: registers memory, connects to peers, and moves bytes. Any thread may use it at any time,
/// save for ferry_engine_free.
pub struct ferry_engine {
    pub(crate) engine: Engine,
    /// What ferry_memory_alloc gave out; unmapped at the latest with the engine.
    pub(crate) allocations: Allocations,
}

impl ferry_engine {
    /// The engine that the caller points to. CLOSED once it is closed, and in a forked child.
    ///
    /// # Safety
    /// `pointer` is NULL or an engine that is not freed during `'a`.
    pub(crate) unsafe fn live<'a>(pointer: *const ferry_engine) -> Result<&'a ferry_engine> {
        // SAFETY: the caller's promise.
        let engine = unsafe { reference(pointer, "engine") }?;
        engine.engine.check_not_closed()?;
        Ok(engine)
    }

    /// The same for calls that wait, unless the timeout is 0: BUSY inside a callback, with nothing done.
    ///
    /// # Safety
    /// As for `live`.
    pub(crate) unsafe fn blocking<'a>(
        pointer: *const ferry_engine,
        timeout_ns: u64,
    ) -> Result<&'a ferry_engine> {
        // SAFETY: the caller's promise.
        let engine = unsafe { ferry_engine::live(pointer) }?;
        if timeout_ns != 0 && engine.engine.in_callback() {
            let message = "a call that waits would stop all callbacks if it ran inside one";
            return Err(Error::new(Status::Busy, message));
        }
        Ok(engine)
    }
}

/// Opens an engine: listens where the configuration says, and starts its threads.
///
/// `config` NULL: the defaults and the environment. It is copied. FERRY_ERR_INVALID for settings that
/// contradict each other; FERRY_ERR_SYSTEM when it cannot listen, or for lack of descriptors or threads.
/// End it with ferry_engine_close, then ferry_engine_free.
#[no_mangle]
pub unsafe extern "C" fn ferry_engine_open(
    config: *const ferry_config,
    out_engine: *mut *mut ferry_engine,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let out = Out::new(out_engine, "out_engine")?;
            let config = match config.is_null() {
                true => Config::new()?,
                false => reference(config, "config")?.config.clone(),
            };
            let engine = Engine::open(config)?;
            out.set(Box::into_raw(Box::new(ferry_engine { engine, allocations: Allocations::default() })));
            Ok(())
        })
    }
}

/// Ends an engine: new work is refused, every transfer becomes final, waits return, sessions end,
/// callbacks stop, and nothing of it or of a peer touches registered memory any more.
///
/// Once it has returned FERRY_OK every later call returns FERRY_ERR_CLOSED; only ferry_queue_drain first
/// hands out what its queue still holds, and ferry_engine_close says FERRY_OK again. FERRY_ERR_BUSY when
/// transfers are not final within the timeout: the engine is still closing, transfers can still be waited
/// for; call again. FERRY_ERR_BUSY inside a callback. In a forked child it does nothing and returns
/// FERRY_OK.
#[no_mangle]
pub unsafe extern "C" fn ferry_engine_close(
    engine: *mut ferry_engine,
    timeout_ns: u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe { call(error, || reference(engine, "engine")?.engine.close(timeout(timeout_ns))) }
}

/// Frees an engine, and the memory of ferry_memory_alloc that is left; NULL is none.
///
/// Only after ferry_engine_close has returned FERRY_OK, and with no other call on it in progress. One
/// that is not closed is closed first, however long that takes; inside one of its own callbacks, and in a
/// forked child, this does nothing and the engine's memory is never returned.
#[no_mangle]
pub unsafe extern "C" fn ferry_engine_free(engine: *mut ferry_engine) {
    quietly(|| {
        if engine.is_null() {
            return;
        }
        // SAFETY: from `ferry_engine_open`, and not freed before.
        let engine_ref = unsafe { &(*engine).engine };
        if engine_ref.is_forked() || engine_ref.close(None).is_err() {
            return;
        }
        // SAFETY: as above; the caller gives it up, and nobody else uses it.
        drop(unsafe { Box::from_raw(engine) });
    });
}

/// "host:port" at which peers reach the engine; "" if it does not listen. How texts are returned:
/// ferry_config_get.
#[no_mangle]
pub unsafe extern "C" fn ferry_engine_address(
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
            BytesOut::new(buffer.cast(), capacity, out_length)?.put_text(engine.engine.address())
        })
    }
}
