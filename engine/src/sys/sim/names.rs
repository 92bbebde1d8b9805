//! The simulated side of `sys::names`: addresses are numbers, and no name server is asked.

use std::io;
use std::net::SocketAddr;

pub fn look_up(address: &str) -> io::Result<Vec<SocketAddr>> {
    let parsed = address.parse().map(|address| vec![address]);
    parsed.map_err(|_| io::Error::new(io::ErrorKind::NotFound, "no name server"))
}
