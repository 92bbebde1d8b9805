//! Addresses by name.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// Returns the addresses of a host:port. May wait for a name server.
pub fn look_up(address: &str) -> io::Result<Vec<SocketAddr>> {
    address.to_socket_addrs().map(Iterator::collect)
}
