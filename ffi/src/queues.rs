//! Queues tell an application of transfers, notifications and peers without polling.

use crate::engine::ferry_engine;
use crate::error::ferry_error;
use crate::events::{ferry_callback, ferry_event};
use crate::guard::call;
use crate::handles::{ferry_queue, timeout};
use crate::options;
use crate::pointers::{reference, Out};
use crate::status::{ferry_status, FERRY_OK, FERRY_PENDING};
use crate::versioned::OutArray;
use engine::notify::{self, Callback, Event};
use engine::status::Result;
use engine::types::QueueId;
use engine::{Engine, Error, Status};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// Transfers that were submitted with this queue.
pub const FERRY_QUEUE_TRANSFERS: u32 = 1;
/// Notifications of all peers on one channel; at most one queue of an engine takes those of a channel.
pub const FERRY_QUEUE_NOTIFICATIONS: u32 = 2;
/// Peers that come up or are lost, late applies, and the outcome of ferry_peer_connect_async.
pub const FERRY_QUEUE_PEERS: u32 = 4;
/// Connections of known peers that go down (FERRY_EVENT_PEER_DOWN), and stand again (FERRY_EVENT_PEER_UP).
pub const FERRY_QUEUE_PEER_STATES: u32 = 8;

const _: () = assert!(FERRY_QUEUE_TRANSFERS == notify::WHAT_TRANSFERS);
const _: () = assert!(FERRY_QUEUE_NOTIFICATIONS == notify::WHAT_NOTIFICATIONS);
const _: () = assert!(FERRY_QUEUE_PEERS == notify::WHAT_PEERS);
const _: () = assert!(FERRY_QUEUE_PEER_STATES == notify::WHAT_PEER_STATES);

/// Creates a queue for the kinds of events in `what`, FERRY_QUEUE_* bits.
///
/// `capacity`, 1 to 1048576, bounds the transfers and connects that are in progress or wait to be drained.
/// Submit reserves room and fails with FERRY_ERR_LIMIT when the queue is full, so no event is lost.
/// Notifications are bounded by the credit of their senders. When several peer events of the same kind are about
/// one peer, the queue keeps the newest. A queue that takes notifications starts with those that came while no
/// queue took them.
///
/// Its notifications are those of channel 0. FERRY_ERR_BUSY: another queue takes them. FERRY_ERR_LIMIT above 4096
/// queues. FERRY_ERR_SYSTEM: the system is out of descriptors.
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
            out.set(engine.engine.queue(what, capacity)?.handle().raw());
            Ok(())
        })
    }
}

/// Creates a queue as ferry_queue_create does, which takes the notifications of `channel` instead of those of channel
/// 0. `channel` is 0 to FERRY_CHANNELS_MAX - 1. FERRY_ERR_BUSY: another queue takes the notifications of this
/// channel.
#[no_mangle]
pub unsafe extern "C" fn ferry_queue_create_channel(
    engine: *mut ferry_engine,
    what: u32,
    capacity: usize,
    channel: u32,
    out_queue: *mut ferry_queue,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = ferry_engine::live(engine)?;
            let out = Out::new(out_queue, "out_queue")?;
            let channel = options::channel(channel, "channel")?;
            out.set(engine.engine.channel_queue(what, capacity, channel)?.handle().raw());
            Ok(())
        })
    }
}

/// Returns a descriptor for poll, epoll or an event loop. It is readable when ferry_queue_drain has events, and when
/// the engine has been closed or is broken.
///
/// ferry owns the descriptor: don't read, write or close it. It becomes readable with the first event after a
/// drain that returned fewer events than it had room for. So poll, drain until a drain returns fewer, and
/// poll again. The descriptor is valid until the queue is destroyed or the engine freed.
#[no_mangle]
pub unsafe extern "C" fn ferry_queue_fd(
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
            out.set(engine.engine.hub()?.get(QueueId::from_raw(queue))?.eventfd());
            Ok(())
        })
    }
}

/// Takes up to `capacity` (not 0) events, oldest first; *out_count gets their number. Never waits.
///
/// Fewer than `capacity` events mean that the queue was empty and its eventfd is armed. Elements of
/// out_events are `element_size` bytes apart, normally sizeof(ferry_event). Release the data of each drained
/// event with ferry_event_release. Several threads may drain one queue; each event goes to one thread. After
/// the engine is closed the call returns the remaining events, then FERRY_ERR_CLOSED; on a broken engine,
/// FERRY_ERR_PANIC.
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

/// Waits until the queue has events, then takes up to `capacity` events as ferry_queue_drain does; after
/// FERRY_OK there is at least one. No descriptor and no loop are needed.
///
/// FERRY_PENDING: the timeout has passed, and *out_count is 0. FERRY_ERR_BUSY inside a callback, unless there are
/// events or the timeout is 0. FERRY_ERR_STALE: the queue was destroyed meanwhile. FERRY_ERR_CLOSED and
/// FERRY_ERR_PANIC as of ferry_queue_drain; closing the engine ends the wait. Several threads may wait for one
/// queue; each event goes to one thread. Signals do not end the wait.
#[no_mangle]
pub unsafe extern "C" fn ferry_queue_wait(
    engine: *mut ferry_engine,
    queue: ferry_queue,
    timeout_ns: u64,
    out_events: *mut ferry_event,
    element_size: usize,
    capacity: usize,
    out_count: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let engine = &reference(engine, "engine")?.engine;
            if capacity == 0 {
                return Err(Error::invalid("capacity is 0"));
            }
            let array = OutArray::new(out_events, element_size, capacity, "out_events")?;
            let count = Out::new(out_count, "out_count")?;
            let queue = engine.hub_of_closed()?.get(QueueId::from_raw(queue))?;
            match engine.wait_events(&queue, array.capacity(), timeout(timeout_ns)) {
                Ok(events) => {
                    count.set(events.len());
                    array.fill(events.into_iter().map(ferry_event::give));
                    Ok(FERRY_OK)
                }
                Err(error) if error.status == Status::Timeout => {
                    count.set(0);
                    Ok(FERRY_PENDING)
                }
                Err(error) => Err(error),
            }
        })
    }
}

/// Sets the callback of a queue. ferry calls it with each event on its callback thread, one event at a time and
/// without holding a lock. NULL removes the callback, also while the engine closes. On a broken engine, NULL removes
/// it too, and the call returns FERRY_ERR_PANIC. The call returns when the old callback no longer runs; inside a
/// callback it returns at once, and the change takes effect with the next event.
///
/// The callback may make every call that doesn't wait, submit included. Calls that wait, and
/// ferry_engine_close, return FERRY_ERR_BUSY there. The event and its data are valid until the callback
/// returns; don't release them. The callback must not throw, longjmp or end its thread. ferry passes `context` through.
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
            let engine = &ferry_engine::live(engine)?.engine;
            let queue = QueueId::from_raw(queue);
            let Some(function) = callback else { return remove_callback(engine, queue) };
            engine.hub()?.set_callback(queue, Some(bind(function, Context(context))))
        })
    }
}

/// Destroys a queue, also while the engine closes. When the call returns, the callback has ended and will not run
/// again, and the descriptor is closed. Undrained notifications wait for the next queue that takes them; other
/// events are dropped. FERRY_ERR_BUSY while transfers or connects have yet to report to the queue, and inside its
/// own callback. FERRY_ERR_PANIC on a broken engine, whose queue may stay; its callback is removed all the same.
#[no_mangle]
pub unsafe extern "C" fn ferry_queue_destroy(
    engine: *mut ferry_engine,
    queue: ferry_queue,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe { call(error, || destroy(&ferry_engine::live(engine)?.engine, QueueId::from_raw(queue))) }
}

/// Works as long as there is a callback thread, on a closing and on a broken engine too: the caller frees the context
/// next, whatever the status. An engine is closed, and `live` refuses the call, only after that thread has ended.
fn remove_callback(engine: &Engine, queue: QueueId) -> Result<()> {
    let removed = engine.hub_of_closed()?.set_callback(queue, None);
    engine.check_health()?;
    removed
}

/// Works as long as `remove_callback` does. A broken engine keeps a queue to which transfers have yet to report, but
/// not its callback.
fn destroy(engine: &Engine, queue: QueueId) -> Result<()> {
    let destroyed = engine.hub_of_closed()?.destroy(queue);
    engine.check_health().or_else(|_| remove_callback(engine, queue))?;
    destroyed
}

fn drain(hub: &notify::Hub, queue: ferry_queue, max: usize) -> Result<Vec<Event>> {
    let mut events = Vec::new();
    hub.get(QueueId::from_raw(queue))?.drain(&mut events, max);
    Ok(events)
}

/// # Safety
/// `function` may be called with `context` until the callback is removed.
unsafe fn bind(function: RawCallback, context: Context) -> Callback {
    Arc::new(move |event: &Event| {
        let event = ferry_event::lend(event);
        // SAFETY: the caller's promise; `event` lives on this stack, and the bytes that it lends outlive the
        // call.
        unsafe { function(context.pointer(), &event) }
    })
}

type RawCallback = unsafe extern "C" fn(*mut c_void, *const ferry_event);

/// A callback's context, passed to the callback thread.
#[derive(Clone, Copy)]
struct Context(*mut c_void);

impl Context {
    fn pointer(&self) -> *mut c_void {
        self.0
    }
}

// SAFETY: ferry only passes the pointer through. The application makes its target fit for the callback
// thread, as the documentation of ferry_queue_callback says.
unsafe impl Send for Context {}
// SAFETY: as above; calls come one at a time.
unsafe impl Sync for Context {}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::internals::api::break_engine;
    use engine::Config;

    #[test]
    fn a_callback_of_a_broken_engine_is_taken_away() {
        let mut config = Config::default();
        config.set("secret", &"11".repeat(32)).unwrap();
        let engine = Engine::open(config).unwrap();
        let queue = engine.queue(notify::WHAT_PEERS, 1).unwrap().handle();
        let context = Arc::new(());
        let held = context.clone();
        let callback = move |_: &Event| drop(held.clone());
        engine.hub().unwrap().set_callback(queue, Some(Arc::new(callback))).unwrap();
        assert_eq!(break_engine(&engine).unwrap_err().status, Status::Panic);
        assert_eq!(Arc::strong_count(&context), 2);
        assert_eq!(remove_callback(&engine, queue).unwrap_err().status, Status::Panic);
        assert_eq!(Arc::strong_count(&context), 1);
    }
}
