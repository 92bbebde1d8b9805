//! Protection domains and the memory registered in them. Work requests, here and at the peer, refer to memory by keys.

use super::{created, library, Context};
use rdma_mummy_sys as ffi;
use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// A protection domain: a QP reaches only memory of its own domain.
#[derive(Debug)]
pub struct Pd {
    raw: NonNull<ffi::ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs lets any thread use and free a domain.
unsafe impl Send for Pd {}
// SAFETY: libibverbs lets threads use a domain in parallel.
unsafe impl Sync for Pd {}

impl Pd {
    pub fn new(context: &Arc<Context>) -> io::Result<Arc<Pd>> {
        // SAFETY: the context is open, and kept so by the Arc.
        let raw = created(unsafe { library::ibv_alloc_pd(context.raw()) })?;
        Ok(Arc::new(Pd { raw, context: context.clone() }))
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_pd {
        self.raw.as_ptr()
    }

    /// Pins memory and lets this device write it, and peers access it only as far as asked. With `relaxed`, writes may
    /// become visible in any order until a completion reports them; devices that can't do that ignore it. ENOMEM often
    /// means RLIMIT_MEMLOCK, EFAULT memory that is not mapped writable.
    ///
    /// # Safety
    ///
    /// The range stays mapped until the `Mr` has been dropped, and the owner of its bytes agrees to what
    /// devices and, as allowed here, peers do to them meanwhile.
    pub unsafe fn register(
        self: &Arc<Pd>,
        address: u64,
        length: u64,
        remote_read: bool,
        remote_write: bool,
        relaxed: bool,
    ) -> io::Result<Mr> {
        let required = access(remote_read, remote_write);
        let wished = ffi::ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
        let register = |access: u32| {
            let pointer = address as usize as *mut libc::c_void;
            // SAFETY: the domain lives; the memory is the caller's promise.
            created(unsafe {
                library::ibv_reg_mr_iova2(self.raw(), pointer, length as usize, address, access)
            })
        };
        let raw = match register(if relaxed { required | wished } else { required }) {
            // An old libibverbs knows no optional access flags.
            Err(error) if relaxed && error.raw_os_error() == Some(libc::EOPNOTSUPP) => register(required)?,
            result => result?,
        };
        Ok(Mr { raw, _pd: self.clone() })
    }

    /// Like `register`, for memory of another device behind a dma-buf: `length` bytes from `offset` on, which work
    /// requests address from `iova` on. EOPNOTSUPP if the library, the kernel or the driver can't do that.
    ///
    /// # Safety
    ///
    /// As in `register`. The descriptor may be closed afterwards: the registration holds the buffer.
    pub unsafe fn register_dmabuf(
        self: &Arc<Pd>,
        fd: RawFd,
        offset: u64,
        length: u64,
        iova: u64,
        remote_read: bool,
        remote_write: bool,
    ) -> io::Result<Mr> {
        let access = access(remote_read, remote_write) as libc::c_int;
        // SAFETY: the domain lives, the kernel checks the descriptor; the memory is the caller's promise.
        let raw =
            unsafe { library::ibv_reg_dmabuf_mr(self.raw(), offset, length as usize, iova, fd, access) };
        Ok(Mr { raw: created(raw)?, _pd: self.clone() })
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: made by `new`; everything in the domain holds an Arc, so nothing is left.
        unsafe { library::ibv_dealloc_pd(self.raw()) };
    }
}

fn access(remote_read: bool, remote_write: bool) -> u32 {
    let mut access = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
    if remote_read {
        access |= ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
    }
    if remote_write {
        access |= ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
    }
    access
}

/// Registered memory. Once it is dropped, no device touches the memory any more, and its keys are refused.
#[derive(Debug)]
pub struct Mr {
    raw: NonNull<ffi::ibv_mr>,
    /// Dropped after the registration.
    _pd: Arc<Pd>,
}

// SAFETY: libibverbs lets any thread end a registration.
unsafe impl Send for Mr {}
// SAFETY: shared references only read the keys, which do not change.
unsafe impl Sync for Mr {}

impl Mr {
    pub fn lkey(&self) -> u32 {
        // SAFETY: a live registration.
        unsafe { self.raw.as_ref().lkey }
    }

    pub fn rkey(&self) -> u32 {
        // SAFETY: a live registration.
        unsafe { self.raw.as_ref().rkey }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // Waits for no requests: those that still need it fail. Fails itself only for memory windows,
        // which ferry does not create, and devices that are gone.
        // SAFETY: made by `Pd`, ended once.
        unsafe { library::ibv_dereg_mr(self.raw.as_ptr()) };
    }
}
