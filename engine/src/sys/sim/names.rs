//! The simulated side of `sys::names`: addresses are numbers, and no name server is asked.

use std::io;
use std::net::SocketAddr;

pub fn numeric(address: &str) -> Option<io::Result<SocketAddr>> {
    address.parse().ok().map(Ok)
}

pub fn look_up(address: &str) -> io::Result<Vec<SocketAddr>> {
    let none = || io::Error::new(io::ErrorKind::NotFound, "no name server");
    numeric(address).ok_or_else(none)?.map(|found| vec![found])
}
