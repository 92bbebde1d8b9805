//! The simulated side of `sys::tcp`.

use crate::sys::fd::{AsFd, OwnedFd};
use ferry_sim_kernel::net;
pub use ferry_sim_kernel::net::dial;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};

pub struct Listener(net::Listener);

impl Listener {
    pub fn bind(address: SocketAddr, buffer_bytes: usize) -> io::Result<Listener> {
        net::Listener::bind(address, buffer_bytes).map(Listener)
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.address()
    }

    pub fn accept(&self) -> io::Result<(OwnedFd, SocketAddr)> {
        self.0.accept()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

pub fn local_address(socket: &impl AsFd) -> Option<SocketAddr> {
    Some(net::ends(socket.as_fd().as_raw_fd()).ok()?.0)
}

/// Unused: the simulated kernel does not run out of ports.
pub const NO_PORT: &str = "";

/// No socket connects to itself: the simulated kernel refuses connections to ports where nobody listens.
pub fn refuse_itself(_socket: &impl AsFd) -> Option<io::Error> {
    None
}

pub fn free_port(_host: IpAddr) -> io::Result<u16> {
    Ok(net::free_port())
}
