//! A point in the program's own work: an event that it recorded, or an event that ferry records in one of its streams.

use super::contexts::Contexts;
use super::hold::refuse_capture;
use crate::device::{Point, Start};
use crate::status::Result;
use crate::sys::cuda::{is_event_reached, Api, Event, Handle, Stream};

/// An event of the program's, which must exist until the transfer that waits for it is final.
struct Theirs {
    api: &'static Api,
    event: Handle,
}

/// An event of ferry's, recorded at the stream's current end.
struct Ours(Event);

/// An event of ferry's, in a stream of ferry's that waits for the program's event.
struct Captured {
    event: Event,
    /// Dropped after its event; the driver ends the wait by itself.
    _stream: Stream,
}

/// See `Driver::capture`. A stream may wait for events of other devices, so any context will do.
pub fn capture(contexts: &Contexts, event: u64) -> Result<Box<dyn Point>> {
    let context = contexts.any()?;
    let _entered = context.enter()?;
    let stream = Stream::new(&context)?;
    let behind = Event::new(contexts.api, context.handle())?;
    // SAFETY: the program's promise is that its event exists until this call returns.
    unsafe { stream.wait_for(event as Handle) }?;
    // SAFETY: the stream lives, and both belong to this context.
    unsafe { behind.record(stream.raw) }?;
    Ok(Box::new(Captured { event: behind, _stream: stream }))
}

/// See `Driver::point`. Default streams are valid too: 0 and 1 are the legacy one, 2 is the calling thread's own.
pub fn point(contexts: &Contexts, at: Start) -> Result<Box<dyn Point>> {
    let api = contexts.api;
    let stream = match at {
        Start::Event(event) => return Ok(Box::new(Theirs { api, event: event as Handle })),
        Start::Stream(stream) => stream as Handle,
    };
    // SAFETY: the program's promise is that the stream exists until this call returns, and its context until the
    // transfer is final.
    let (_entered, context) = unsafe { contexts.enter_stream(stream) }?;
    refuse_capture(api, stream)?;
    let event = Event::new(api, context)?;
    // SAFETY: as above; the event belongs to the stream's context, which is current.
    unsafe { event.record(stream) }?;
    Ok(Box::new(Ours(event)))
}

impl Point for Theirs {
    fn is_reached(&self) -> Result<bool> {
        // SAFETY: the program's promise is that the event exists until the transfer is final.
        Ok(unsafe { is_event_reached(self.api, self.event) }?)
    }
}

impl Point for Captured {
    fn is_reached(&self) -> Result<bool> {
        Ok(self.event.is_reached()?)
    }
}

impl Point for Ours {
    fn is_reached(&self) -> Result<bool> {
        Ok(self.0.is_reached()?)
    }
}
