//! `ferry_engine`: opening, closing and freeing, and the check that every other call begins with.

use crate::allocations::Allocations;
use crate::config::ferry_config;
use crate::error::ferry_error;
use crate::guard::{call, quietly};
use crate::handles::{ferry_peer, timeout};
use crate::pointers::{reference, BytesOut, Out};
use crate::status::ferry_status;
use engine::status::Result;
use engine::{Config, Engine, Error, Status};
use std::ffi::c_char;

/// An engine registers memory, connects to peers, and moves bytes. All threads may use an engine at the same
/// time; only ferry_engine_free must be alone.
pub struct ferry_engine {
    pub(crate) engine: Engine,
    /// The memory that ferry_memory_alloc returned; freeing the engine unmaps the rest.
    pub(crate) allocations: Allocations,
}

impl ferry_engine {
    /// Returns the caller's engine. CLOSED if it is closed, and in a forked child.
    ///
    /// # Safety
    /// `pointer` is NULL or an engine that is not freed during `'a`.
    pub(crate) unsafe fn live<'a>(pointer: *const ferry_engine) -> Result<&'a ferry_engine> {
        // SAFETY: the caller's promise.
        let engine = unsafe { reference(pointer, "engine") }?;
        engine.engine.check_not_closed()?;
        Ok(engine)
    }

    /// Returns the caller's engine for a call that waits. BUSY inside a callback, unless the timeout is 0.
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
            let message = "a call that waits is not allowed inside a callback: all callbacks would stop";
            return Err(Error::new(Status::Busy, message));
        }
        Ok(engine)
    }
}

/// Opens an engine: listens where the configuration says, and starts its threads. End it with
/// ferry_engine_close, then ferry_engine_free.
///
/// `config` is copied; NULL means the defaults and the environment. FERRY_ERR_INVALID: settings contradict
/// each other. FERRY_ERR_SYSTEM: the engine cannot listen, or the system is out of descriptors or threads.
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
            let config =
                if config.is_null() { Config::new()? } else { reference(config, "config")?.config.clone() };
            let engine = Engine::open(config)?;
            out.set(Box::into_raw(Box::new(ferry_engine { engine, allocations: Allocations::default() })));
            Ok(())
        })
    }
}

/// Closes an engine: refuses new work, makes every transfer final, returns every wait, ends sessions and
/// callbacks. After FERRY_OK neither the engine nor a peer touches registered memory.
///
/// After FERRY_OK every later call returns FERRY_ERR_CLOSED, with two exceptions: ferry_queue_drain first
/// returns the events that are left in its queue, and ferry_engine_close returns FERRY_OK again.
/// A peer that does not take the end of its session delays the call by half a second at most.
/// FERRY_ERR_BUSY: transfers are not final, or a callback has not returned, within the timeout. The engine is still
/// closing, and threads can still wait for transfers; call again. Also FERRY_ERR_BUSY inside a callback. In a forked
/// child the call does nothing and returns FERRY_OK.
#[no_mangle]
pub unsafe extern "C" fn ferry_engine_close(
    engine: *mut ferry_engine,
    timeout_ns: u64,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe { call(error, || reference(engine, "engine")?.engine.close(timeout(timeout_ns))) }
}

/// Frees an engine and the remaining memory of ferry_memory_alloc. NULL does nothing.
///
/// Call it only after ferry_engine_close has returned FERRY_OK, and while no other call uses the engine. If
/// the engine is not closed, this call closes it first, however long that takes. Inside a callback of the
/// engine, and in a forked child, it does nothing, and the engine's memory is never returned.
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
        // SAFETY: as above; the caller gives the engine up, and no other call uses it.
        drop(unsafe { Box::from_raw(engine) });
    });
}

/// Returns warnings from opening the engine: one sentence on each line, "" if there are none. Such a sentence names a
/// FERRY_* variable of the environment that is no setting, and the setting with the nearest name. Returns texts as
/// ferry_config_get does.
#[no_mangle]
pub unsafe extern "C" fn ferry_engine_warnings(
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
            BytesOut::new(buffer.cast(), capacity, out_length)?.put_text(&engine.engine.warnings().join("\n"))
        })
    }
}

/// Returns the engine as a peer of itself. The handle takes part in every call that takes a peer, needs no connect and
/// no listener, and is the same at each call. It is UP until the engine is closed; ferry_peer_list does not list it.
///
/// A transfer to oneself moves between two regions of this engine. It needs no access rights, and takes the transport
/// FERRY_TRANSPORT_LOCAL (between devices that copy directly, theirs) whatever `transports` and `transports_allowed`
/// name. FERRY_TRANSFER_CHECKSUM adds nothing, because no byte leaves the process. The regions at both ends are in use
/// until the transfer is final. If the source overlaps the destination, the bytes in the destination are undefined.
/// Notifications come to this engine's own queues. ferry_peer_probe and ferry_peer_fence return at once.
///
/// FERRY_ERR_LIMIT: a thread for device memory cannot be started; the message gives the cause.
#[no_mangle]
pub unsafe extern "C" fn ferry_engine_own_peer(
    engine: *mut ferry_engine,
    out_peer: *mut ferry_peer,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let out = Out::new(out_peer, "out_peer")?;
            out.set(engine.engine.own_peer()?.raw());
            Ok(())
        })
    }
}

/// Returns the "host:port" at which peers reach the engine, or "" if it does not listen. Returns texts as
/// ferry_config_get does.
///
/// An engine that listens at any address (0.0.0.0, [::]) reports advertise_address as the host if that is set, else
/// the source address of the default route, else the only interface address besides the loopback. Without any of
/// these, the engine does not open (FERRY_ERR_INVALID).
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
