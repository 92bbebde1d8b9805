//! The simulated side of `sys::packet`.

use crate::sys::fd::{BorrowedFd, OwnedFd};
use ferry_sim_kernel::poller::{self, Interest};
use ferry_sim_kernel::unix;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

pub const DESCRIPTORS_MAX: usize = 2;

pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    unix::send_packet(socket, bytes, descriptors)
}

pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let packet = unix::receive_packet(socket, bytes)?;
    if packet.truncated || packet.descriptors.len() > DESCRIPTORS_MAX {
        let text = "the packet is too large or has too many descriptors";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok((packet.length, packet.descriptors))
}

pub struct Polled {
    fd: RawFd,
    interest: Interest,
    is_ready: bool,
}

impl Polled {
    pub fn new(fd: BorrowedFd<'_>, read: bool, write: bool) -> Polled {
        Polled { fd: fd.as_raw_fd(), interest: Interest { read, write }, is_ready: false }
    }

    pub fn is_ready(&self) -> bool {
        self.is_ready
    }
}

pub fn poll(polled: &mut [Polled], timeout_ms: i32) {
    let wanted: Vec<(RawFd, Interest)> = polled.iter().map(|one| (one.fd, one.interest)).collect();
    let timeout_ns = u64::try_from(timeout_ms).ok().map(|ms| ms * 1_000_000);
    let ready = poller::poll(&wanted, timeout_ns).unwrap_or_default();
    for (place, one) in polled.iter_mut().enumerate() {
        one.is_ready = ready.iter().any(|ready| ready.token == place as u64);
    }
}
