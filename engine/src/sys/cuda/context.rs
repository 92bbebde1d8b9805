//! Primary contexts of devices, which ferry shares with the program's runtime library, and guards that make a context
//! current on a thread for the length of a call.

use super::{Api, Failure, Handle};
use std::marker::PhantomData;
use std::sync::Arc;

/// A retained primary context of a device: the context lives at least as long as this object. It is never reset, and
/// the program's own references to it are not touched.
pub struct Context {
    pub api: &'static Api,
    pub ordinal: i32,
    /// `CUdevice`.
    pub device: i32,
    raw: Handle,
}

impl Context {
    /// Retains the context. Creates it if the program has not done so yet, which takes time and device memory.
    pub fn retain(api: &'static Api, ordinal: i32) -> Result<Arc<Context>, Failure> {
        let (mut device, mut raw) = (0, 0);
        // SAFETY: the results live on this stack.
        unsafe { api.device_get(&mut device, ordinal) }?;
        // SAFETY: as above; Drop releases it.
        unsafe { api.primary_ctx_retain(&mut raw, device) }?;
        Ok(Arc::new(Context { api, ordinal, device, raw }))
    }

    /// True if the device's context is retained, by the program for example. Creates nothing.
    pub fn is_active(api: &'static Api, ordinal: i32) -> bool {
        let (mut device, mut flags, mut active) = (0, 0, 0);
        // SAFETY: the results live on this stack.
        let asked = unsafe {
            api.device_get(&mut device, ordinal)
                .and_then(|()| api.primary_ctx_get_state(device, &mut flags, &mut active))
        };
        asked.is_ok() && active != 0
    }

    pub fn handle(&self) -> Handle {
        self.raw
    }

    /// Makes the context current on this thread until the guard is dropped.
    pub fn enter(&self) -> Result<CurrentContext, Failure> {
        // SAFETY: retained, and borrowed by the caller; the program never destroys a primary context.
        unsafe { CurrentContext::new(self.api, self.raw) }
    }

    /// Lets work of this context access memory of `peer`. Returns false if the hardware can't.
    pub fn enable_peer(&self, peer: &Context) -> Result<bool, Failure> {
        let mut can = 0;
        // SAFETY: the result lives on this stack.
        unsafe { self.api.device_can_access_peer(&mut can, self.device, peer.device) }?;
        if can == 0 {
            return Ok(false);
        }
        let _entered = self.enter()?;
        // SAFETY: both contexts are retained.
        match unsafe { self.api.ctx_enable_peer_access(peer.raw, 0) } {
            Err(failure) if failure.code == super::result::PEER_ACCESS_ALREADY_ENABLED => Ok(true),
            result => result.map(|()| true),
        }
    }

    pub fn attribute(&self, attribute: i32) -> Result<i32, Failure> {
        let mut value = 0;
        // SAFETY: the result lives on this stack.
        unsafe { self.api.device_get_attribute(&mut value, attribute, self.device) }?;
        Ok(value)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Fails if the driver has shut down earlier, at the end of the process.
        // SAFETY: retained by `retain`, released once; what was made in it holds an Arc and is gone.
        let _ = unsafe { self.api.primary_ctx_release(self.device) };
    }
}

/// A context that is current on this thread. Dropping the guard restores the previous one, or none.
///
/// Meanwhile the thread may make calls while another thread of the program captures a graph. Otherwise such calls
/// would fail and spoil the capture (`cuThreadExchangeStreamCaptureMode`).
pub struct CurrentContext {
    api: &'static Api,
    capture_mode: i32,
    /// Bound to this thread.
    _thread: PhantomData<*const ()>,
}

const CAPTURE_MODE_RELAXED: i32 = 2;

impl CurrentContext {
    /// # Safety
    /// The context is one of the driver's, and lives until the guard goes.
    pub unsafe fn new(api: &'static Api, context: Handle) -> Result<CurrentContext, Failure> {
        // SAFETY: the caller's promise.
        unsafe { api.ctx_push_current(context) }?;
        let mut capture_mode = CAPTURE_MODE_RELAXED;
        // SAFETY: the mode lives on this stack. A driver without this call has no such mode.
        let _ = unsafe { api.exchange_capture_mode(&mut capture_mode) };
        Ok(CurrentContext { api, capture_mode, _thread: PhantomData })
    }
}

impl Drop for CurrentContext {
    fn drop(&mut self) {
        let mut context = 0;
        // SAFETY: both results live on this stack; what `new` pushed is popped.
        unsafe {
            let _ = self.api.exchange_capture_mode(&mut self.capture_mode);
            let _ = self.api.ctx_pop_current(&mut context);
        }
    }
}
