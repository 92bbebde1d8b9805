//! Queues: how an application learns of transfers, notifications and peers without polling.

use crate::engine::ferry_engine;
use crate::error::ferry_error;
use crate::events::{ferry_callback, ferry_event};
use crate::guard::call;
use crate::handles::ferry_queue;
use crate::pointers::{reference, Out};
use crate::status::ferry_status;
use crate::versioned::OutArray;
use engine::notify::{self, Callback, Event};
use engine::status::Result;
use engine::Error;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// Transfers that were submitted with the queue.
pub const FERRY_QUEUE_TRANSFERS: u32 = 1;
/// Notifications of all peers; one queue of an engine at a time.
pub const FERRY_QUEUE_NOTIFICATIONS: u32 = 2;
/// Peers that come and go, late applies, and the outcome of ferry_peer_connect_async.
pub const FERRY_QUEUE_PEERS: u32 = 4;

const _: () = assert!(FERRY_QUEUE_TRANSFERS == notify::WHAT_TRANSFERS);
const _: () = assert!(FERRY_QUEUE_NOTIFICATIONS == notify::WHAT_NOTIFICATIONS);
const _: () = assert!(FERRY_QUEUE_PEERS == notify::WHAT_PEERS);

/// Creates a queue for the kinds of events in `what`, FERRY_QUEUE_* bits.
///
/// `capacity`, 1 to 1048576, is how many transfers and connects may be under way or wait to be drained:
/// room is reserved when they are submitted, which fails with FERRY_ERR_LIMIT rather than lose an event.
/// Notifications are bounded by what peers may send ahead, and of events about one peer that say the same
/// the newest is kept. A queue that takes notifications starts with those that came while none did.
///
/// FERRY_ERR_BUSY while another queue takes notifications; FERRY_ERR_LIMIT above 4096 queues;
/// FERRY_ERR_SYSTEM when out of descriptors.
#[no_mangle]
pub unsafe extern "C" fn ferry_queue_create(
    engine: *mut ferry_engine,
    what: u32,
    capacity: usize,
    out_queue: *mut ferry_queue,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let out = Out::new(out_queue, "out_queue")?;
            out.set(engine.engine.queue(what, capacity)?.handle());
            Ok(())
        })
    }
}

/// A descriptor for poll, epoll or an event loop: readable when ferry_queue_drain has something.
///
/// ferry owns it: don't read, write or close it. It becomes readable with the first event after a drain
/// that returned fewer events than it had room for, so: poll, drain until that happens, poll again. Good
/// until the queue is destroyed or the engine freed.
#[no_mangle]
pub unsafe extern "C" fn ferry_queue_eventfd(
    engine: *mut ferry_engine,
    queue: ferry_queue,
    out_fd: *mut c_int,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let out = Out::new(out_fd, "out_fd")?;
            out.set(engine.engine.hub()?.get(queue)?.eventfd());
            Ok(())
        })
    }
}

/// Takes up to `capacity` (not 0) events, oldest first; *out_count gets how many. Never waits.
///
/// Fewer than `capacity`: the queue was empty, and its eventfd is armed. Elements of out_events are
/// `element_size` bytes apart, normally sizeof(ferry_event). Release each drained event's data with
/// ferry_event_release. Several threads may drain one queue: each event goes to one of them. Of a closed
/// engine's queue it hands out what is left, then returns FERRY_ERR_CLOSED; of a broken one's, FERRY_ERR_PANIC.
#[no_mangle]
pub unsafe extern "C" fn ferry_queue_drain(
    engine: *mut ferry_engine,
    queue: ferry_queue,
    out_events: *mut ferry_event,
    element_size: usize,
    capacity: usize,
    out_count: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = reference(engine, "engine")?;
            if capacity == 0 {
                return Err(Error::invalid("capacity is 0"));
            }
            let array = OutArray::new(out_events, element_size, capacity, "out_events")?;
            let count = Out::new(out_count, "out_count")?;
            let hub = engine.engine.hub_of_closed()?;
            let closed = engine.engine.check_not_closed().and_then(|()| engine.engine.check_health());
            let events = drain(hub, queue, array.capacity());
            if events.as_ref().map_or(true, Vec::is_empty) {
                closed?;
            }
            let events = events?;
            count.set(events.len());
            array.fill(events.into_iter().map(ferry_event::give));
            Ok(())
        })
    }
}

/// Has ferry call `callback` with each event of the queue, on a thread of its own, one at a time and
/// under no lock; NULL takes the callback away. Returns when a running call of the old one has ended, save
/// inside a callback, where the change takes effect with the next event.
///
/// Inside it, every call that doesn't wait is allowed, submit included; calls that wait, and
/// ferry_engine_close, return FERRY_ERR_BUSY. The event and its data are good for the length of the
/// callback; don't release it. It must not throw or longjmp. `context` is passed through.
#[no_mangle]
pub unsafe extern "C" fn ferry_queue_callback(
    engine: *mut ferry_engine,
    queue: ferry_queue,
    callback: ferry_callback,
    context: *mut c_void,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call; `callback` and `context` until
    // the callback is taken away.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let callback = callback.map(|function| bind(function, Context(context)));
            engine.engine.hub()?.set_callback(queue, callback)
        })
    }
}

/// Destroys a queue; when it returns, its callback has ended and will not run again, and its descriptor
/// is closed. Notifications that it holds wait for the next queue that takes them, other events are
/// dropped. FERRY_ERR_BUSY while transfers or connects have yet to report to it, and inside its own
/// callback.
#[no_mangle]
pub unsafe extern "C" fn ferry_queue_destroy(
    engine: *mut ferry_engine,
    queue: ferry_queue,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe { call(error, || ferry_engine::live(engine)?.engine.hub()?.destroy(queue)) }
}

fn drain(hub: &notify::Hub, queue: ferry_queue, max: usize) -> Result<Vec<Event>> {
    let mut events = Vec::new();
    hub.get(queue)?.drain(&mut events, max);
    Ok(events)
}

/// # Safety
/// `function` may be called with `context` until the callback has been taken away.
unsafe fn bind(function: RawCallback, context: Context) -> Callback {
    Arc::new(move |event: &Event| {
        let event = ferry_event::lend(event);
        // SAFETY: the caller's promise; `event` lives on this stack, and what it lends outlives the call.
        unsafe { function(context.pointer(), &event) }
    })
}

type RawCallback = unsafe extern "C" fn(*mut c_void, *const ferry_event);

/// A callback's context, on its way to the callback thread.
#[derive(Clone, Copy)]
struct Context(*mut c_void);

impl Context {
    fn pointer(&self) -> *mut c_void {
        self.0
    }
}

// SAFETY: ferry only passes the pointer through; what it points to is for the application to make fit
// for the callback thread, as the documentation of ferry_queue_callback says.
unsafe impl Send for Context {}
// SAFETY: as above; calls come one at a time.
unsafe impl Sync for Context {}
