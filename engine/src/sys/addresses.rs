//! The addresses of this host that peers may reach: an engine that listens at any address tells its peers one of them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Returns the address from which this host sends to other networks, by its default route; None without such a route.
/// Connecting a UDP socket sends nothing. The addresses are those of documentation (RFC 5737, RFC 3849), which no
/// network has, so no route but the default one leads to them.
pub fn of_default_route(v6: bool) -> Option<IpAddr> {
    let (from, to): (IpAddr, IpAddr) = if v6 {
        (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into())
    } else {
        (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(203, 0, 113, 1).into())
    };
    let socket = UdpSocket::bind(SocketAddr::new(from, 0)).ok()?;
    socket.connect(SocketAddr::new(to, 9)).ok()?;
    let source = socket.local_addr().ok()?.ip();
    is_outward(source).then_some(source)
}

/// Returns the addresses of the interfaces that are up, except those that are valid only on this host or link.
pub fn of_interfaces(v6: bool) -> io::Result<Vec<IpAddr>> {
    let mut first = std::ptr::null_mut();
    // SAFETY: the result lives on this stack; the list is freed below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut found, mut next) = (Vec::new(), first);
    // SAFETY: NULL, or an entry of the list, which stands until freeifaddrs.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as u32 == 0 {
            continue;
        }
        // SAFETY: NULL, or an address of this entry, whose length its family tells.
        let address = unsafe { entry.ifa_addr.as_ref() }.and_then(|address| unsafe { read(address) });
        found.extend(address.filter(|address| address.is_ipv6() == v6 && is_outward(*address)));
    }
    // SAFETY: the list from above, which nothing uses any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// # Safety
///
/// The address is followed by as many bytes as its family says.
unsafe fn read(address: &libc::sockaddr) -> Option<IpAddr> {
    let at = std::ptr::from_ref(address);
    match i32::from(address.sa_family) {
        libc::AF_INET => {
            // SAFETY: of this family, as the caller says.
            let found = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(found.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: of this family, as the caller says.
            let found = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(found.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// Whether other hosts can use the address without naming one of their interfaces.
fn is_outward(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_unspecified() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unspecified() && v6.segments()[0] & 0xffc0 != 0xfe80,
    }
}
