//! Makes a stream of the program's wait until ferry releases it.
//!
//! The device waits for a 32-bit flag in pinned memory to become 1 (cuStreamWaitValue32, which every device supports
//! since CUDA 12.0; a driver may still answer NOT_SUPPORTED). An event is recorded after the wait. A flag is used
//! again only after its event is reached, because a device that has not yet looked would miss the release. If the
//! device cannot wait, the stream runs a host function that waits (`sys::cuda::Gate`).

use super::contexts::Contexts;
use crate::device::Hold;
use crate::limits::HOLDS_MAX;
use crate::status::{Error, Result, Status};
use crate::sys::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sys::cuda::{result, Api, CurrentContext, Event, Gate, Handle, PinnedMemory};
use crate::sys::lock::{Mutex, MutexGuard};
use std::sync::Arc;

/// The flags of a driver, made on demand.
pub struct Flags {
    api: &'static Api,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    list: Vec<Arc<Flag>>,
    unused: UnusedFlags,
}

/// The unused flags of the newest page. Each is given out once: a stream may wait for a flag without bound, even after
/// the flag has left the list.
#[derive(Default)]
struct UnusedFlags {
    page: Option<Arc<PinnedMemory>>,
    given: usize,
}

impl UnusedFlags {
    fn next(&mut self, contexts: &Contexts) -> Result<(Arc<PinnedMemory>, usize)> {
        let page = match self.page.take().filter(|_| self.given < FLAGS_PER_PAGE) {
            Some(page) => page,
            None => {
                self.given = 0;
                Arc::new(PinnedMemory::new(&contexts.any()?, FLAGS_PER_PAGE * 4)?)
            }
        };
        self.page = Some(page.clone());
        self.given += 1;
        Ok((page, self.given - 1))
    }
}

struct Flag {
    /// Made in the stream's context, because events can only be recorded in streams of their own context.
    event: Event,
    context: Handle,
    at: usize,
    page: Arc<PinnedMemory>,
}

/// `cuStreamWaitValue32` waits until the flag is at least the value.
const GREATER_OR_EQUAL: u32 = 0;
const FLAGS_PER_PAGE: usize = 1024;

impl Flag {
    fn word(&self) -> &AtomicU32 {
        // SAFETY: inside the page, which lives as long as this; only ever used as an atomic. The device
        // reads it, by whole words.
        unsafe { &*self.page.pointer::<AtomicU32>().add(self.at) }
    }

    /// Releases the stream: what ferry wrote before is visible to the stream's next work.
    fn let_go(&self) {
        self.word().store(1, Ordering::Release);
    }

    /// Returns whether no stream waits or will wait for the flag.
    fn is_free(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 1 && self.event.is_reached().unwrap_or(false)
    }
}

impl Flags {
    pub fn new(api: &'static Api) -> Flags {
        Flags { api, made: Mutex::default() }
    }

    /// Returns a free flag. Its value is 0 from here on.
    fn take(&self, contexts: &Contexts, context: Handle) -> Result<Arc<Flag>> {
        let mut made = self.lock();
        let free = made.list.iter().find(|flag| flag.context == context && flag.is_free()).cloned();
        let flag = match free {
            Some(flag) => flag,
            None => {
                if made.list.len() >= HOLDS_MAX {
                    let text = format!("{HOLDS_MAX} streams are held or have not resumed yet");
                    return Err(Error::new(Status::Limit, text));
                }
                let event = Event::new(contexts.api, context)?;
                let (page, at) = made.unused.next(contexts)?;
                let flag = Arc::new(Flag { event, context, at, page });
                made.list.push(flag.clone());
                flag
            }
        };
        flag.word().store(0, Ordering::Relaxed);
        Ok(flag)
    }

    fn lock(&self) -> MutexGuard<'_, Made> {
        self.made.lock()
    }
}

impl Drop for Flags {
    fn drop(&mut self) {
        let made = self.made.get_mut();
        for flag in made.list.drain(..) {
            // SAFETY: the driver checks the handle, which may be of a context that its owner has destroyed.
            let entered = unsafe { CurrentContext::new(self.api, flag.context) };
            if entered.is_ok() && !flag.is_free() {
                // A device may still read the flag, so its memory is kept.
                std::mem::forget(flag);
            }
        }
    }
}

/// See `Driver::hold`. `point` has the numbers of default streams. While a stream is held, the program's calls that
/// wait for all work of the device wait for the hold too.
pub fn hold(contexts: &Contexts, flags: &Flags, stream: u64) -> Result<Box<dyn Hold>> {
    let (api, stream) = (contexts.api, stream as Handle);
    // SAFETY: the program's promise is that the stream exists until this call returns, and its context until the
    // stream has gone past.
    let (_entered, context) = unsafe { contexts.enter_stream(stream) }?;
    refuse_capture(api, stream)?;
    let flag = flags.take(contexts, context)?;
    // SAFETY: the stream exists, the flag's memory is reachable from every device and is kept until the
    // stream has gone past.
    let waits = unsafe { api.stream_wait_value_32(stream, flag.word().as_ptr() as u64, 1, GREATER_OR_EQUAL) };
    if let Err(failure) = waits {
        flag.let_go();
        if failure.code != result::NOT_SUPPORTED {
            return Err(failure.into());
        }
        let gate = Arc::new(Gate::default());
        // SAFETY: the stream exists.
        unsafe { gate.close(api, stream) }?;
        return Ok(Box::new(AtGate(gate)));
    }
    let held = AtFlag { flag, released: AtomicBool::new(false) };
    // On an error the stream is released at once. The event was not recorded, so the flag would count as free too
    // early: it is taken off the list and never used again.
    // SAFETY: the event belongs to the stream's context, which is current.
    if let Err(failure) = unsafe { held.flag.event.record(stream) } {
        flags.lock().list.retain(|flag| !Arc::ptr_eq(flag, &held.flag));
        held.release();
        std::mem::forget(held);
        return Err(failure.into());
    }
    Ok(Box::new(held))
}

/// INVALID for a stream that is being captured into a graph: the wait would not happen now, and would be repeated with
/// each launch.
pub fn refuse_capture(api: &'static Api, stream: Handle) -> Result<()> {
    let mut status = 0;
    // SAFETY: the result lives on this stack, the stream exists.
    unsafe { api.stream_is_capturing(stream, &mut status) }?;
    if status == 0 {
        return Ok(());
    }
    Err(Error::invalid(format!("the stream {stream:#x} is being captured into a graph")))
}

struct AtFlag {
    flag: Arc<Flag>,
    /// The flag may belong to another stream once this is set.
    released: AtomicBool,
}

impl Hold for AtFlag {
    fn release(&self) {
        if !self.released.swap(true, Ordering::AcqRel) {
            self.flag.let_go();
        }
    }
}

impl Drop for AtFlag {
    fn drop(&mut self) {
        self.release();
    }
}

struct AtGate(Arc<Gate>);

impl Hold for AtGate {
    fn release(&self) {
        self.0.open();
    }
}

impl Drop for AtGate {
    fn drop(&mut self) {
        self.0.open();
    }
}
