//! An eventfd: a counter that a thread raises and a poller sees as readable.

use super::fd::above_standard;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Non-blocking and close-on-exec.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    pub fn new() -> io::Result<EventFd> {
        // SAFETY: no pointers are involved; a non-negative result is a descriptor that nobody else owns.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above: fresh, open, and owned by nobody else.
        Ok(EventFd(above_standard(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Makes the descriptor readable. A counter already at its maximum is readable anyway.
    pub fn raise(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the eight bytes live on this stack for the duration of the call.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Makes the descriptor unreadable again.
    pub fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: the eight bytes live on this stack for the duration of the call.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
