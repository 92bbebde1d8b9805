//! A host function that a stream runs and that returns only when the gate opens. It holds up a stream on devices that
//! can't wait for a value.

use super::{Api, Failure, Handle};
use crate::sys::lock::{Condvar, Mutex};
use std::ffi::c_void;
use std::sync::Arc;

#[derive(Default)]
pub struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    /// Makes the stream wait here. The driver runs host functions on a thread of its own. That thread waits too, and
    /// so do the host functions of other streams.
    ///
    /// # Safety
    /// The stream exists.
    pub unsafe fn close(self: &Arc<Gate>, api: &'static Api, stream: Handle) -> Result<(), Failure> {
        let data = Arc::into_raw(self.clone()).cast_mut().cast();
        // SAFETY: the stream is the caller's promise; the reference in `data` is `wait`'s.
        let result = unsafe { api.launch_host_func(stream, wait, data) };
        if result.is_err() {
            // SAFETY: `wait` will not be called, so the reference is still ours. (In a context that fails
            // later it is not called either, and the reference is lost with the context.)
            drop(unsafe { Arc::from_raw(data.cast::<Gate>().cast_const()) });
        }
        result
    }

    pub fn open(&self) {
        *self.open.lock() = true;
        self.changed.notify_all();
    }
}

/// Makes no call into the driver, which host functions must not do.
unsafe extern "C" fn wait(data: *mut c_void) {
    // SAFETY: `close` gave this reference away, and the driver calls once.
    let gate = unsafe { Arc::from_raw(data.cast::<Gate>().cast_const()) };
    let mut open = gate.open.lock();
    while !*open {
        open = gate.changed.wait(open);
    }
}
