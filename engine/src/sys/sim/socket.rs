//! The simulated side of `sys::socket`.

use crate::sys::fd::AsFd;
use ferry_sim_kernel::poller::{poll, Interest};
use ferry_sim_kernel::{net, process};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};

pub use ferry_sim_kernel::net::{
    pending_error, receive, receive_vectors, send, send_vectors, shutdown, shutdown_writes, IoVec, IOV_MAX,
};

pub fn ends(socket: &impl AsFd) -> (Option<SocketAddr>, Option<SocketAddr>) {
    match net::ends(socket.as_fd().as_raw_fd()) {
        Ok((own, other)) => (Some(own), Some(other)),
        Err(_) => (None, None),
    }
}

pub fn poll_readable(fds: &[RawFd], timeout_ns: u64) -> Option<RawFd> {
    let polled: Vec<(RawFd, Interest)> =
        fds.iter().map(|fd| (*fd, Interest { read: true, write: false })).collect();
    // As in the product, a descriptor that is not open is not waited for.
    let ready = poll(&polled, Some(timeout_ns)).ok()?;
    ready.iter().map(|event| event.token).max().map(|place| fds[place as usize])
}

pub fn is_fault(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EFAULT)
}

pub fn set_congestion(_fd: RawFd, _name: &str) -> io::Result<()> {
    Ok(())
}

#[cfg(feature = "internals")]
pub fn congestion(_fd: RawFd) -> String {
    String::new()
}

/// Each host has one network namespace.
pub fn network_namespace(_fd: RawFd) -> Option<u64> {
    Some(u64::from(process::current().host().number()))
}

pub fn bound_interface(_fd: RawFd) -> io::Result<u32> {
    Ok(0)
}
