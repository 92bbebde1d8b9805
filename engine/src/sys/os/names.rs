//! Addresses by name, and addresses as text.

use std::ffi::CString;
use std::io;
use std::net::{SocketAddr, SocketAddrV6, ToSocketAddrs};

/// Returns the address of a host:port that needs no look-up. An IPv6 address may name an interface of this host, by
/// name or number: [fe80::1%eth0]:7000. None if the host is a name.
pub fn numeric(address: &str) -> Option<io::Result<SocketAddr>> {
    if let Ok(found) = address.parse() {
        return Some(Ok(found));
    }
    let (ip, rest) = address.strip_prefix('[')?.split_once('%')?;
    let (interface, port) = rest.rsplit_once("]:")?;
    let (ip, port) = (ip.parse().ok()?, port.parse().ok()?);
    Some(index_of(interface).map(|index| SocketAddrV6::new(ip, port, 0, index).into()))
}

fn index_of(interface: &str) -> io::Result<u32> {
    let unknown =
        || io::Error::new(io::ErrorKind::NotFound, format!("this host has no interface {interface}"));
    let name = CString::new(interface).map_err(|_| unknown())?;
    // SAFETY: `name` is text that ends with a zero, and is borrowed for the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(unknown()),
        index => Ok(index),
    }
}

/// Returns the addresses of a host:port. Waits for name servers as long as the system's resolver is set to: often many
/// seconds, and nothing can end that wait.
pub fn look_up(address: &str) -> io::Result<Vec<SocketAddr>> {
    if let Some(found) = numeric(address) {
        return found.map(|found| vec![found]);
    }
    let found = address.to_socket_addrs().map(Iterator::collect);
    // The standard library's prefix repeats what the caller says.
    found.map_err(|error| match error.to_string().strip_prefix("failed to lookup address information: ") {
        Some(reason) if error.raw_os_error().is_none() => io::Error::new(error.kind(), reason),
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_its_interface_by_name_or_number() {
        let loopback = index_of("lo").unwrap();
        let of = |text: &str| numeric(text).map(|found| found.map(|at| at.to_string()));
        let at = |index| format!("[fe80::1%{index}]:7000");
        assert_eq!(of("[fe80::1%lo]:7000").unwrap().unwrap(), at(loopback));
        assert_eq!(of(&at(9)).unwrap().unwrap(), at(9));
        let unknown = of("[fe80::1%nosuch0]:7000").unwrap().unwrap_err();
        assert_eq!(unknown.to_string(), "this host has no interface nosuch0");
        assert_eq!(of("127.0.0.1:7000").unwrap().unwrap(), "127.0.0.1:7000");
        assert!(of("node1:7000").is_none() && of("[fe80::x%lo]:7000").is_none());
    }
}
