//! The primary contexts in use. Each is retained once, while something needs it.

use crate::status::Result;
use crate::sys::cuda::{
    result, Api, Context, CurrentContext, Failure, Handle, STREAM_LEGACY, STREAM_PER_THREAD,
};
use crate::sys::lock::{Mutex, MutexGuard};
use crate::sys::map::HashMap;
use std::sync::{Arc, Weak};

pub struct Contexts {
    pub api: &'static Api,
    in_use: Mutex<HashMap<i32, Weak<Context>>>,
}

impl Contexts {
    pub fn new(api: &'static Api) -> Contexts {
        Contexts { api, in_use: Mutex::default() }
    }

    pub fn get(&self, device: i32) -> Result<Arc<Context>> {
        let mut in_use = self.lock();
        if let Some(context) = in_use.get(&device).and_then(Weak::upgrade) {
            return Ok(context);
        }
        let context = Context::retain(self.api, device)?;
        in_use.insert(device, Arc::downgrade(&context));
        Ok(context)
    }

    /// Returns a context for calls that concern all devices: one that ferry or the program has, if possible.
    pub fn any(&self) -> Result<Arc<Context>> {
        self.active().map_or_else(|| self.get(0), Ok)
    }

    /// Makes a call that some drivers refuse on a thread without a current context (`cuPointerGetAttributes`, on
    /// threads that have not used CUDA yet) or with a destroyed one. Creates no context: without any context the
    /// driver knows no memory and no streams either.
    pub fn with_some<T>(&self, call: impl Fn() -> Result<T, Failure>) -> Result<T, Failure> {
        use result::*;
        match call() {
            Err(failure) if matches!(failure.code, INVALID_CONTEXT | CONTEXT_IS_DESTROYED) => {
                let Some(context) = self.active() else { return Err(failure) };
                let _entered = context.enter()?;
                call()
            }
            result => result,
        }
    }

    /// Enters the context of a stream of the program's; for the default stream, the context that is current on this
    /// thread.
    ///
    /// # Safety
    /// The stream and its context exist until the guard is dropped.
    pub unsafe fn enter_stream(&self, stream: Handle) -> Result<(CurrentContext, Handle)> {
        let ask = || {
            let mut context = 0;
            // SAFETY: the stream is the caller's promise, the result lives on this stack.
            unsafe { self.api.stream_get_ctx(stream, &mut context) }.map(|()| context)
        };
        // Each context has its own default stream, so another context cannot replace the current one.
        let is_default = [0, STREAM_LEGACY, STREAM_PER_THREAD].contains(&(stream as u64));
        let context = if is_default { ask() } else { self.with_some(ask) }?;
        // SAFETY: as above.
        Ok((unsafe { CurrentContext::new(self.api, context) }?, context))
    }

    pub fn active(&self) -> Option<Arc<Context>> {
        if let Some(context) = self.lock().values().find_map(Weak::upgrade) {
            return Some(context);
        }
        let mut count = 0;
        // SAFETY: the result lives on this stack.
        unsafe { self.api.device_get_count(&mut count) }.ok()?;
        let device = (0..count).find(|device| Context::is_active(self.api, *device))?;
        self.get(device).ok()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i32, Weak<Context>>> {
        self.in_use.lock()
    }
}
