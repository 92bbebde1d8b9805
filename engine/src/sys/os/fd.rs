//! The owner of a descriptor, and what borrows it. The owner closes the descriptor in forked children too (`children`).
//! It keeps away from the numbers of standard input, output and error. A simulation has descriptors of its own.

use super::children::Listed;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

pub use std::os::fd::{AsFd, BorrowedFd};

/// A descriptor that only this process uses: a socket, shared memory, a process.
#[derive(Debug)]
pub struct OwnedFd {
    listed: Listed,
    fd: ManuallyDrop<std::os::fd::OwnedFd>,
}

impl<T: Into<std::os::fd::OwnedFd>> From<T> for OwnedFd {
    fn from(fd: T) -> OwnedFd {
        let fd = above_standard(fd.into());
        OwnedFd { listed: Listed::new(fd.as_raw_fd()), fd: ManuallyDrop::new(fd) }
    }
}

/// Gives a descriptor another number if it has that of standard input, output or error, which a daemon may have closed:
/// the daemon's output would go into the descriptor. The number stays if the limit leaves no other one.
pub fn above_standard(fd: std::os::fd::OwnedFd) -> std::os::fd::OwnedFd {
    if fd.as_raw_fd() > libc::STDERR_FILENO {
        return fd;
    }
    // SAFETY: no memory is involved.
    let moved = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, libc::STDERR_FILENO + 1) };
    match moved {
        -1 => fd,
        // SAFETY: a fresh descriptor that nobody else owns.
        moved => unsafe { std::os::fd::OwnedFd::from_raw_fd(moved) },
    }
}

impl FromRawFd for OwnedFd {
    unsafe fn from_raw_fd(fd: RawFd) -> OwnedFd {
        // SAFETY: the caller's promise is the same.
        OwnedFd::from(unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) })
    }
}

impl AsRawFd for OwnedFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl AsFd for OwnedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for OwnedFd {
    fn drop(&mut self) {
        if self.listed.strike() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

#[cfg(any(test, feature = "internals"))]
mod owners {
    use super::OwnedFd;
    use std::fs::File;
    use std::io;
    use std::mem::ManuallyDrop;
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    impl OwnedFd {
        pub fn try_clone(&self) -> io::Result<OwnedFd> {
            self.fd.try_clone().map(OwnedFd::from)
        }

        fn unlisted(self) -> std::os::fd::OwnedFd {
            let mut own = ManuallyDrop::new(self);
            own.listed.strike();
            // SAFETY: taken once: `own` is not dropped.
            unsafe { ManuallyDrop::take(&mut own.fd) }
        }
    }

    macro_rules! owners {
        ($($Owner:ty)*) => {
            $(impl From<OwnedFd> for $Owner {
                fn from(fd: OwnedFd) -> $Owner {
                    fd.unlisted().into()
                }
            })*
        };
    }

    owners!(File UnixStream TcpStream);
}
