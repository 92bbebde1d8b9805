//! Streams and events that ferry creates.

use super::{result, Api, Context, CurrentContext, Failure, Handle};
use std::sync::Arc;

/// No implicit ordering with the default stream: the program's work and ferry's are independent.
const NON_BLOCKING: u32 = 1;
/// Events without timing are cheaper.
const DISABLE_TIMING: u32 = 2;

pub struct Stream {
    pub raw: Handle,
    context: Arc<Context>,
}

impl Stream {
    pub fn new(context: &Arc<Context>) -> Result<Stream, Failure> {
        let _entered = context.enter()?;
        let mut raw = 0;
        // SAFETY: the result lives on this stack; Drop destroys the stream.
        unsafe { context.api.stream_create(&mut raw, NON_BLOCKING) }?;
        Ok(Stream { raw, context: context.clone() })
    }

    /// Makes later work of the stream wait for the event as it is recorded now.
    ///
    /// # Safety
    /// The event exists until the call returns.
    pub unsafe fn wait_for(&self, event: Handle) -> Result<(), Failure> {
        // SAFETY: the stream lives; the event is the caller's promise.
        unsafe { self.context.api.stream_wait_event(self.raw, event, 0) }
    }

    /// True if all work in the stream has ended.
    pub fn is_idle(&self) -> Result<bool, Failure> {
        // SAFETY: the stream lives.
        ready(unsafe { self.context.api.stream_query(self.raw) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // Outstanding work in it would continue; the owner drops it only when that is safe.
            // SAFETY: made by `new`, destroyed once.
            let _ = unsafe { self.context.api.stream_destroy(self.raw) };
        }
    }
}

/// A position in a stream, recorded again for each use.
pub struct Event {
    api: &'static Api,
    raw: Handle,
    /// The context of the stream. Ferry need not have retained it.
    context: Handle,
}

impl Event {
    /// Makes an event in `context`, which must be current on this thread.
    pub fn new(api: &'static Api, context: Handle) -> Result<Event, Failure> {
        let mut raw = 0;
        // SAFETY: the result lives on this stack; Drop destroys the event.
        unsafe { api.event_create(&mut raw, DISABLE_TIMING) }?;
        Ok(Event { api, raw, context })
    }

    /// # Safety
    /// The stream exists, and belongs to the event's context.
    pub unsafe fn record(&self, stream: Handle) -> Result<(), Failure> {
        // SAFETY: the event lives; the stream is the caller's promise.
        unsafe { self.api.event_record(self.raw, stream) }
    }

    /// True if all work before the event has ended, or the event was never recorded.
    pub fn is_reached(&self) -> Result<bool, Failure> {
        // SAFETY: the event lives.
        ready(unsafe { self.api.event_query(self.raw) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // A context that its owner has destroyed refuses to be entered, and has taken the event along.
        // SAFETY: the driver checks the handle.
        if let Ok(_entered) = unsafe { CurrentContext::new(self.api, self.context) } {
            // The driver destroys an event that is not reached yet once it is reached.
            // SAFETY: made by `new`, destroyed once.
            let _ = unsafe { self.api.event_destroy(self.raw) };
        }
    }
}

/// Like `Event::is_reached`, for an event of the program.
///
/// # Safety
/// The event exists.
pub unsafe fn is_event_reached(api: &'static Api, event: Handle) -> Result<bool, Failure> {
    // SAFETY: the caller's promise.
    ready(unsafe { api.event_query(event) })
}

/// Queries return NOT_READY while work is outstanding.
fn ready(result: Result<(), Failure>) -> Result<bool, Failure> {
    match result {
        Ok(()) => Ok(true),
        Err(failure) if failure.code == result::NOT_READY => Ok(false),
        Err(failure) => Err(failure),
    }
}
