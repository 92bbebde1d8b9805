//! Addresses by name.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// Returns the addresses of a host:port. May wait for a name server.
pub fn look_up(address: &str) -> io::Result<Vec<SocketAddr>> {
    let found = address.to_socket_addrs().map(Iterator::collect);
    // The standard library's preface says what the caller says.
    found.map_err(|error| match error.to_string().strip_prefix("failed to lookup address information: ") {
        Some(reason) if error.raw_os_error().is_none() => io::Error::new(error.kind(), reason),
        _ => error,
    })
}
