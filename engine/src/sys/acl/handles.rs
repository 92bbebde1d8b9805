//! Guards for AscendCL's objects, which release them when dropped: contexts, streams, events, memory. All except
//! contexts must be made and dropped under a context of the same device.

use super::bindings as ffi;
use super::library::Runtime;
use crate::status::{Error, Result, Status};
use crate::types::Transport;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

/// Calls a required function and turns its result into an error.
macro_rules! call {
    ($runtime:expr, $name:ident($($argument:expr),*)) => {
        $runtime.check(stringify!($name), ($runtime.calls.$name)($($argument),*))
    };
}

/// A context that ferry creates on a device. The program's current contexts are not affected.
pub struct Context {
    runtime: Arc<Runtime>,
    raw: *mut c_void,
}

impl Context {
    /// Creates a context, which becomes the calling thread's current one.
    pub fn create(runtime: &Arc<Runtime>, device: i32) -> Result<Context> {
        let mut raw = null_mut();
        // SAFETY: the pointer outlives the call.
        unsafe { call!(runtime, aclrtCreateContext(&mut raw, device))? };
        Ok(Context { runtime: runtime.clone(), raw })
    }

    pub fn raw(&self) -> *mut c_void {
        self.raw
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: made by `create`; what lives in it is dropped before it.
        unsafe { (self.runtime.calls.aclrtDestroyContext)(self.raw) };
    }
}

/// Memory of the current context's device.
pub struct DeviceMemory {
    runtime: Arc<Runtime>,
    address: *mut c_void,
}

impl DeviceMemory {
    pub fn new(runtime: &Arc<Runtime>, length: usize) -> Result<DeviceMemory> {
        DeviceMemory::with(runtime, length, ffi::ACL_MALLOC_HUGE_FIRST)
    }

    /// Allocates huge pages only, so the memory begins at a multiple of 2 MiB.
    pub fn huge(runtime: &Arc<Runtime>, length: usize) -> Result<DeviceMemory> {
        DeviceMemory::with(runtime, length, ffi::ACL_MALLOC_HUGE_ONLY)
    }

    fn with(runtime: &Arc<Runtime>, length: usize, policy: c_int) -> Result<DeviceMemory> {
        let mut address = null_mut();
        // SAFETY: the pointer outlives the call.
        unsafe { call!(runtime, aclrtMalloc(&mut address, length, policy))? };
        Ok(DeviceMemory { runtime: runtime.clone(), address })
    }

    /// Allocates memory with this content.
    pub fn holding(runtime: &Arc<Runtime>, bytes: &[u8]) -> Result<DeviceMemory> {
        let memory = DeviceMemory::new(runtime, bytes.len())?;
        let (to, length) = (memory.address, bytes.len());
        let kind = ffi::ACL_COPY_HOST_TO_DEVICE;
        // SAFETY: both are as long as `bytes`, and the call returns when it has copied.
        unsafe { call!(runtime, aclrtMemcpy(to, length, bytes.as_ptr().cast(), length, kind))? };
        Ok(memory)
    }

    pub fn address(&self) -> u64 {
        self.address as u64
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: from `new`; the owner drops it only once no outstanding work names it.
        unsafe { (self.runtime.calls.aclrtFree)(self.address) };
    }
}

/// Pinned host memory.
pub struct PinnedMemory {
    runtime: Arc<Runtime>,
    address: *mut c_void,
}

impl PinnedMemory {
    pub fn new(runtime: &Arc<Runtime>, length: usize) -> Result<PinnedMemory> {
        let mut address = null_mut();
        // SAFETY: the pointer outlives the call.
        unsafe { call!(runtime, aclrtMallocHost(&mut address, length))? };
        Ok(PinnedMemory { runtime: runtime.clone(), address })
    }

    pub fn address(&self) -> *mut c_void {
        self.address
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // SAFETY: from `new`; the owner drops it only once no outstanding work names it.
        unsafe { (self.runtime.calls.aclrtFreeHost)(self.address) };
    }
}

/// A stream of the context that was current when it was made. Its calls must be made under that context.
pub struct Stream {
    runtime: Arc<Runtime>,
    raw: *mut c_void,
}

impl Stream {
    /// Creates a stream that stops at the first task that fails: if a later task ends in order, all earlier ones have
    /// succeeded.
    pub fn create(runtime: &Arc<Runtime>) -> Result<Stream> {
        let mut raw = null_mut();
        let flags = (ffi::ACL_STREAM_FAST_LAUNCH | ffi::ACL_STREAM_FAST_SYNC) as u32;
        // SAFETY: the pointer outlives the call.
        unsafe { call!(runtime, aclrtCreateStreamWithConfig(&mut raw, 0, flags))? };
        let stream = Stream { runtime: runtime.clone(), raw };
        // SAFETY: the stream was made above.
        unsafe { call!(runtime, aclrtSetStreamFailureMode(raw, ffi::ACL_STOP_ON_FAILURE as u64))? };
        Ok(stream)
    }

    /// Adds a copy; `kind` is one of ACL_COPY_.
    ///
    /// # Safety
    ///
    /// Both ranges are memory of that kind, and stay so until the stream has got past them.
    pub unsafe fn copy(&self, kind: c_int, to: u64, from: u64, length: u64) -> Result<()> {
        let (to, from, length) = (to as *mut c_void, from as *const c_void, length as usize);
        // SAFETY: as the caller says.
        unsafe { call!(self.runtime, aclrtMemcpyAsync(to, length, from, length, kind, self.raw)) }
    }

    /// Adds copies between the host and this device in one call. UNSUPPORTED if the library lacks the function.
    ///
    /// # Safety
    ///
    /// As for `copy`, for each of the pieces (to, from, length).
    pub unsafe fn copy_batch(&self, kind: c_int, device: i32, pieces: &[(u64, u64, u64)]) -> Result<()> {
        let copy = self.runtime.need("aclrtMemcpyBatchAsync", self.runtime.calls.aclrtMemcpyBatchAsync)?;
        let mut to: Vec<*mut c_void> = pieces.iter().map(|(to, ..)| *to as *mut c_void).collect();
        let mut from: Vec<*mut c_void> = pieces.iter().map(|(_, from, _)| *from as *mut c_void).collect();
        let mut lengths: Vec<usize> = pieces.iter().map(|(.., length)| *length as usize).collect();
        let mut rooms = lengths.clone();
        let host = ffi::acl_location { id: 0, type_: ffi::ACL_AT_HOST };
        let device = ffi::acl_location { id: device as u32, type_: ffi::ACL_AT_DEVICE };
        let (target, source) =
            if kind == ffi::ACL_COPY_HOST_TO_DEVICE { (device, host) } else { (host, device) };
        let mut attribute = ffi::acl_batch_attribute { target, source, reserved: [0; 16] };
        let (mut from_first, mut failed) = (0, 0);
        // SAFETY: four lists of the same length and one attribute, which outlive the call; the memory is as
        // the caller says.
        let code = unsafe {
            copy(
                to.as_mut_ptr(),
                rooms.as_mut_ptr(),
                from.as_mut_ptr(),
                lengths.as_mut_ptr(),
                pieces.len(),
                &mut attribute,
                &mut from_first,
                1,
                &mut failed,
                self.raw,
            )
        };
        self.runtime.check("aclrtMemcpyBatchAsync", code)
    }

    /// True if everything added so far has ended.
    pub fn is_idle(&self) -> Result<bool> {
        let mut status = ffi::ACL_STREAM_NOT_READY;
        // SAFETY: the number outlives the call.
        unsafe { call!(self.runtime, aclrtStreamQuery(self.raw, &mut status))? };
        Ok(status == ffi::ACL_STREAM_COMPLETE)
    }

    /// Waits until everything has ended, at most `timeout_ms`. Fails on a time-out, or with the first task's error.
    pub fn wait(&self, timeout_ms: i32) -> Result<()> {
        // SAFETY: no memory is involved.
        unsafe { call!(self.runtime, aclrtSynchronizeStreamWithTimeout(self.raw, timeout_ms)) }
    }

    /// Stops the running task and drops the rest.
    pub fn abort(&self) -> Result<()> {
        // SAFETY: no memory is involved.
        unsafe { call!(self.runtime, aclrtStreamAbort(self.raw)) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: from `create`; the owner drops it only once no work is outstanding.
        unsafe { (self.runtime.calls.aclrtDestroyStream)(self.raw) };
    }
}

/// An event that ferry created, or one of the program's, which must not be destroyed here.
pub struct Event {
    runtime: Arc<Runtime>,
    raw: *mut c_void,
    own: bool,
}

// SAFETY: AscendCL takes events on any thread.
unsafe impl Send for Event {}

impl Event {
    /// Wraps an event of the program.
    pub fn of_program(runtime: &Arc<Runtime>, raw: u64) -> Event {
        Event { runtime: runtime.clone(), raw: raw as *mut c_void, own: false }
    }

    /// Records an event at the current end of the program's stream. UNSUPPORTED if the calling thread's current
    /// context is not the stream's.
    pub fn record(runtime: &Arc<Runtime>, stream: u64) -> Result<Event> {
        let explain = |error: Error| match error.vendor_error {
            ffi::ACL_NO_CONTEXT | ffi::ACL_STREAM_OF_OTHER_CONTEXT => Error {
                vendor_error: error.vendor_error,
                ..Error::new(
                    Status::Unsupported,
                    "a transfer can wait for an Ascend stream only if it is submitted by a thread whose \
                     current context is the stream's; record an event there instead",
                )
                .over(Transport::Ascend)
            },
            _ => error,
        };
        let mut raw = null_mut();
        let flags = ffi::ACL_EVENT_PROGRESS as u32;
        // SAFETY: the pointer outlives the call.
        unsafe { call!(runtime, aclrtCreateEventWithFlag(&mut raw, flags)).map_err(explain)? };
        let event = Event { runtime: runtime.clone(), raw, own: true };
        // SAFETY: the event was made above; the program vouches for its stream.
        unsafe { call!(runtime, aclrtRecordEvent(raw, stream as *mut c_void)).map_err(explain)? };
        Ok(event)
    }

    pub fn is_reached(&self) -> Result<bool> {
        let mut status = ffi::ACL_EVENT_NOT_READY;
        // SAFETY: the number outlives the call; the program vouches for events of its own.
        unsafe { call!(self.runtime, aclrtQueryEventStatus(self.raw, &mut status))? };
        Ok(status == ffi::ACL_EVENT_COMPLETE)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.own {
            // SAFETY: from `record`, and this is its only owner.
            unsafe { (self.runtime.calls.aclrtDestroyEvent)(self.raw) };
        }
    }
}
