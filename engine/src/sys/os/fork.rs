//! Tells a forked child from the process that opened an engine, by a page that the kernel wipes in the child
//! (MADV_WIPEONFORK). This needs no signal handler, no pthread_atfork, and no system call for a check. `children`
//! closes a child's copies of descriptors.

use super::children;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

pub struct ForkGuard(NonNull<AtomicU8>);

// SAFETY: the page holds one atomic byte, is never moved, and is unmapped only by Drop.
unsafe impl Send for ForkGuard {}
// SAFETY: as above; all access is atomic.
unsafe impl Sync for ForkGuard {}

const PAGE_BYTES: usize = 4096;

impl ForkGuard {
    /// Marks this process, and lets its children close their copies of descriptors.
    pub fn new() -> io::Result<ForkGuard> {
        children::watch()?;
        ForkGuard::of_this_process()
    }

    pub(super) fn of_this_process() -> io::Result<ForkGuard> {
        // SAFETY: a fresh anonymous mapping, at an address of the kernel's choice.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let guard =
            ForkGuard(NonNull::new(page.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?);
        // SAFETY: the page is the one mapped above.
        if unsafe { libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        guard.take_over();
        Ok(guard)
    }

    /// Marks this process as the one that is not a child.
    pub(super) fn take_over(&self) {
        self.byte().store(1, Ordering::Relaxed);
    }

    fn byte(&self) -> &AtomicU8 {
        // SAFETY: mapped by `new` until Drop, aligned, and only ever used as an atomic.
        unsafe { self.0.as_ref() }
    }

    /// True if this process is a child that inherited the engine by fork.
    pub fn is_child(&self) -> bool {
        self.byte().load(Ordering::Relaxed) == 0
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nothing refers to it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), PAGE_BYTES) };
    }
}
