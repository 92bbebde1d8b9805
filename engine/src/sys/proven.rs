//! Another process of this host that was proven to be the peer's. `transport::local` proves it. `stage` passes it to
//! the device drivers, which take memory from that process and from no other.

use super::fd::{AsFd, BorrowedFd, OwnedFd};
use super::packet::{poll, Polled};
use super::{host, unix};
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

#[derive(Debug)]
pub struct Proven {
    /// The process's pid in this process's pid namespace; 0 if it has none there.
    pub pid: i32,
    pidfd: Arc<OwnedFd>,
    /// A socket whose other end the proven program closes when it ends, or when another takes its place by exec.
    program: Option<Weak<OwnedFd>>,
}

/// Returns whether the other end of a socket is closed. A hang-up is reported without being asked for.
pub fn is_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut polled = [Polled::new(socket, false, false)];
    poll(&mut polled, 0);
    polled[0].is_ready()
}

impl Proven {
    /// `pidfd` refers to the process that was proven.
    pub fn new(pid: i32, pidfd: Arc<OwnedFd>) -> Proven {
        Proven { pid, pidfd, program: None }
    }

    /// Restricts this to the program at the other end of a socket, as long as this side has the socket.
    pub fn while_connected(self, socket: &Arc<OwnedFd>) -> Proven {
        Proven { program: Some(Arc::downgrade(socket)), ..self }
    }

    /// True if this is the current process. No other process has its pid while it lives.
    pub fn is_self(&self) -> bool {
        self.pid == host::pid()
    }

    /// Duplicates a descriptor of that process, by its number there (pidfd_getfd; Linux 5.6), close-on-exec. Fails with
    /// EPERM if this process may not trace that one, and with ESRCH if the process runs another program by now, for
    /// which the number means another descriptor.
    pub fn descriptor(&self, number: RawFd) -> io::Result<OwnedFd> {
        let taken = unix::descriptor_of(self.pidfd.as_fd(), number)?;
        // An exec closes the other end before the new program runs: if that end is open now, the descriptor was taken
        // from the proven program.
        let is_same = |socket: &Weak<OwnedFd>| socket.upgrade().is_some_and(|it| !is_hung_up((*it).as_fd()));
        if self.program.as_ref().is_none_or(is_same) {
            Ok(taken)
        } else {
            Err(io::Error::from_raw_os_error(libc::ESRCH))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn descriptors_come_from_the_process_behind_the_pidfd_whatever_its_number() {
        let (own, file) = (std::process::id() as i32, std::fs::File::open("/proc/self/stat").unwrap());
        let pidfd = Arc::new(unix::pidfd_of(own).unwrap());
        // The process with this pid is not asked.
        let here = Proven::new(1, pidfd.clone());
        assert!(!here.is_self() && Proven::new(own, pidfd.clone()).is_self());
        let copy = here.descriptor(file.as_raw_fd()).unwrap();
        assert_ne!(copy.as_raw_fd(), file.as_raw_fd());
        assert_eq!(here.descriptor(-1).unwrap_err().raw_os_error(), Some(libc::EBADF));
        // As long as the program at the other end of a socket is there.
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let ours = Arc::new(ours.into());
        let here = Proven::new(own, pidfd.clone()).while_connected(&ours);
        assert!(here.descriptor(file.as_raw_fd()).is_ok());
        drop(theirs);
        assert_eq!(here.descriptor(file.as_raw_fd()).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        // Another process has other descriptors; an ended process has none.
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let there = Proven::new(own, Arc::new(unix::pidfd_of(child.id() as i32).unwrap()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(there.descriptor(0).is_err());
    }
}
