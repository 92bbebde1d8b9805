//! Calls that need a context, for threads without one. A context cannot be taken off a thread again, so such a call
//! runs on a thread of its own, under the context of an open queue, or else under a new one.

use crate::status::{Error, Result, Status};
use crate::sys::acl::{Context, Runtime};
use crate::sys::lock::{Mutex, MutexGuard};
use crate::types::Transport;
use std::ffi::c_void;
use std::sync::Arc;

/// The contexts of the open queues.
#[derive(Default)]
pub struct Contexts(Mutex<Vec<Shared>>);

#[derive(Clone, Copy, PartialEq)]
struct Shared(*mut c_void);

// SAFETY: AscendCL lets several threads have one context current.
unsafe impl Send for Shared {}
// SAFETY: only the pointer's value is used.
unsafe impl Sync for Shared {}

impl Contexts {
    pub fn add(&self, context: &Context) {
        self.lock().push(Shared(context.raw()));
    }

    /// Removes a context. Afterwards no other thread has it current.
    pub fn remove(&self, context: &Context) {
        self.lock().retain(|shared| *shared != Shared(context.raw()));
    }

    /// Calls `work` on a thread that has a context: the calling thread, if it has one. UNAVAILABLE if no device gives
    /// one.
    pub fn run<T: Send>(&self, runtime: &Arc<Runtime>, work: impl FnOnce() -> T + Send) -> Result<T> {
        if runtime.current_context().is_some() {
            return Ok(work());
        }
        // Held so that the context outlives its use.
        let open = self.lock();
        let shared = open.first().copied();
        crate::sys::thread::scope(|scope| {
            let body = || {
                let _own = enter(runtime, shared)?;
                Ok(work())
            };
            let thread = crate::sys::thread::spawn_scoped(scope, "ferry-ascend", body)
                .map_err(|error| Error::system("starting a thread for a call of AscendCL", &error))?;
            thread.join().unwrap_or_else(|_| {
                Err(Error::new(Status::Unavailable, "a call of AscendCL panicked").over(Transport::Ascend))
            })
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Shared>> {
        self.0.lock()
    }
}

/// Gives the calling thread a context: the given one, or a new one on the first device that allows it.
fn enter(runtime: &Arc<Runtime>, shared: Option<Shared>) -> Result<Option<Context>> {
    if let Some(Shared(context)) = shared {
        // SAFETY: it stands as long as `Contexts` is locked.
        let code = unsafe { (runtime.calls.aclrtSetCurrentContext)(context) };
        runtime.check("aclrtSetCurrentContext", code)?;
        return Ok(None);
    }
    let mut failed = Error::new(Status::Unavailable, "there is no Ascend device").over(Transport::Ascend);
    for device in 0..runtime.device_count()? {
        match Context::create(runtime, device) {
            Ok(context) => return Ok(Some(context)),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
