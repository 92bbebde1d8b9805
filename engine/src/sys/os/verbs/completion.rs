//! Completion queues, and the channels through which they wake a poller.
//!
//! A sleeper arms the queue and then polls it once more: a completion from before arming raises no event.

use super::{check, created, library, set_nonblocking, wc, Context};
use crate::sys::children::Listed;
use rdma_mummy_sys as ffi;
use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// A descriptor that is readable when an armed queue has a completion.
#[derive(Debug)]
pub struct Channel {
    raw: NonNull<ffi::ibv_comp_channel>,
    listed: Listed,
    /// Dropped after the channel.
    _context: Arc<Context>,
}

// SAFETY: libibverbs lets any thread use and destroy a channel.
unsafe impl Send for Channel {}
// SAFETY: libibverbs lets threads use a channel in parallel: each event goes to one of them.
unsafe impl Sync for Channel {}

impl Channel {
    pub fn new(context: &Arc<Context>) -> io::Result<Arc<Channel>> {
        // SAFETY: the context is open, and kept so by the Arc.
        let raw = created(unsafe { library::ibv_create_comp_channel(context.raw()) })?;
        // SAFETY: made above.
        let listed = Listed::new(unsafe { raw.as_ref().fd });
        let channel = Channel { raw, listed, _context: context.clone() };
        set_nonblocking(channel.fd())?;
        Ok(Arc::new(channel))
    }

    /// Returns the descriptor: non-blocking, and owned by the channel.
    pub fn fd(&self) -> RawFd {
        // SAFETY: a live channel.
        unsafe { self.raw.as_ref().fd }
    }

    /// Returns the cookie of a queue that has an event, if there is one. The queue is no longer armed.
    pub fn next(&self) -> io::Result<Option<u64>> {
        let mut cq = std::ptr::null_mut();
        let mut cookie = std::ptr::null_mut();
        // SAFETY: a live channel; both pointers live on this stack for the duration of the call.
        if unsafe { library::ibv_get_cq_event(self.raw.as_ptr(), &mut cq, &mut cookie) } != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: a queue's destruction waits until the events taken for it are acknowledged, so it is
        // there still. Acknowledged once.
        unsafe { library::ibv_ack_cq_events(cq, 1) };
        Ok(Some(cookie as usize as u64))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.listed.strike();
        // SAFETY: made by `new`; queues that use it hold an Arc, so none is left.
        unsafe { library::ibv_destroy_comp_channel(self.raw.as_ptr()) };
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    raw: NonNull<ffi::ibv_cq>,
    /// Dropped after the queue.
    _channel: Option<Arc<Channel>>,
    _context: Arc<Context>,
}

// SAFETY: libibverbs lets any thread use and destroy a queue.
unsafe impl Send for Cq {}
// SAFETY: libibverbs lets threads use a queue in parallel: each completion goes to one of them.
unsafe impl Sync for Cq {}

impl Cq {
    /// Makes a queue for at least this many completions. One more than fits breaks the queue and every QP on it.
    /// `cookie` identifies the queue on its channel.
    pub fn new(
        context: &Arc<Context>,
        entries: u32,
        channel: Option<&Arc<Channel>>,
        cookie: u64,
    ) -> io::Result<Arc<Cq>> {
        let entries =
            libc::c_int::try_from(entries).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        let raw_channel = channel.map_or(std::ptr::null_mut(), |channel| channel.raw.as_ptr());
        let cookie = cookie as usize as *mut libc::c_void;
        // SAFETY: context and channel live, and are kept so by the Arcs; the cookie is never followed.
        let raw = created(unsafe { library::ibv_create_cq(context.raw(), entries, cookie, raw_channel, 0) })?;
        Ok(Arc::new(Cq { raw, _channel: channel.cloned(), _context: context.clone() }))
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_cq {
        self.raw.as_ptr()
    }

    /// Takes up to as many completions as `out` has room for. Returns their number.
    #[inline]
    pub fn poll(&self, out: &mut [Completion]) -> io::Result<usize> {
        let room = libc::c_int::try_from(out.len()).unwrap_or(libc::c_int::MAX);
        // SAFETY: a live queue; `out` is exclusively ours for the call, as long as we say, and its
        // elements are `ibv_wc` by another name.
        let count = unsafe { ffi::ibv_poll_cq(self.raw(), room, out.as_mut_ptr().cast()) };
        // Errors are the drivers' own numbers, not always errno. All mean a broken queue.
        usize::try_from(count).map_err(|_| io::Error::from_raw_os_error(libc::EIO))
    }

    /// Arms the queue: the next completion raises one event on the channel.
    pub fn arm(&self) -> io::Result<()> {
        // SAFETY: a live queue.
        check(unsafe { ffi::ibv_req_notify_cq(self.raw(), 0) })
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // Waits for events that another thread has taken and is about to acknowledge.
        // SAFETY: made by `new`; QPs that use it hold an Arc, so none is left.
        unsafe { library::ibv_destroy_cq(self.raw()) };
    }
}

/// The result of one work request. Also a slot for `poll` to fill.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Completion(ffi::ibv_wc);

impl Completion {
    #[inline]
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// Returns one of the numbers in `wc`.
    #[inline]
    pub fn status(&self) -> u32 {
        self.0.status
    }

    #[inline]
    pub fn is_success(&self) -> bool {
        self.0.status == wc::SUCCESS
    }

    #[inline]
    pub fn vendor_error(&self) -> u32 {
        self.0.vendor_err
    }

    #[inline]
    pub fn qp_number(&self) -> u32 {
        self.0.qp_num
    }

    /// Valid only on success: the number of bytes received or read.
    #[inline]
    pub fn bytes(&self) -> u32 {
        self.0.byte_len
    }
}

impl Default for Completion {
    fn default() -> Completion {
        // SAFETY: numbers only; all-zero is one of their values.
        Completion(unsafe { std::mem::zeroed() })
    }
}

impl std::fmt::Debug for Completion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (id, status, vendor) = (self.id(), wc::name(self.status()), self.vendor_error());
        write!(f, "{status} (work request {id:#x}, QP {}, vendor error {vendor:#x})", self.qp_number())
    }
}
