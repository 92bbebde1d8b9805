//! Makes TCP connections: a listener, dialed connections, and accepted ones. All are non-blocking. `socket` has the
//! operations on them.

use super::fd::{AsFd, OwnedFd};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, RawFd};

/// Connections that may arrive at once: a thousand peers with their lanes. The system's own limit may be lower.
const BACKLOG: i32 = 4096;

pub struct Listener(OwnedFd);

impl Listener {
    /// `buffer_bytes` is the size of each buffer of accepted sockets, 0 for the system's default. Accepted sockets
    /// inherit the size, and with it the window scale that they announce.
    pub fn bind(address: SocketAddr, buffer_bytes: usize) -> io::Result<Listener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        set_buffers(&socket, buffer_bytes);
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(Listener(socket.into()))
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        let address = SockRef::from(&self.0).local_addr()?;
        address.as_socket().ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))
    }

    pub fn accept(&self) -> io::Result<(OwnedFd, SocketAddr)> {
        let (socket, remote) = SockRef::from(&self.0).accept()?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        let remote = remote.as_socket().ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))?;
        Ok((socket.into(), remote))
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Starts to connect. The socket becomes writable once the connection is established or has failed.
pub fn dial(remote: SocketAddr, buffer_bytes: usize) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // Without this the small messages of the handshake wait for delayed acknowledgements, 40 ms each.
    socket.set_tcp_nodelay(true)?;
    set_buffers(&socket, buffer_bytes);
    match socket.connect(&remote.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket.into()),
    }
}

/// The text for EADDRNOTAVAIL from a connect.
pub const NO_PORT: &str =
    "this host has no free port for another connection there (net.ipv4.ip_local_port_range), or no address for one";

/// Ends a connection that leads to its own socket, and returns its error; None for another connection. Where nobody
/// listens at a port of this host, the system may give that port to the socket that connects to it. Such a connection
/// is refused here, without a TIME_WAIT that would keep the port from the program that is to listen there.
pub fn refuse_itself(socket: &impl AsFd) -> Option<io::Error> {
    let (Some(here), Some(there)) = super::socket::ends(socket) else { return None };
    if here != there {
        return None;
    }
    let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    let length = std::mem::size_of_val(&nowhere) as libc::socklen_t;
    // SAFETY: `nowhere` is borrowed for the call and its length is given. The call resets the connection.
    unsafe { libc::connect(socket.as_fd().as_raw_fd(), &nowhere, length) };
    Some(io::Error::from_raw_os_error(libc::ECONNREFUSED))
}

/// Buffer sizes decide a connection's window scale, so they are set before connecting.
fn set_buffers(socket: &Socket, bytes: usize) {
    if bytes > 0 {
        // The system may allow less, which is no error.
        let _ = socket.set_send_buffer_size(bytes);
        let _ = socket.set_recv_buffer_size(bytes);
    }
}

/// Returns this end's address.
pub fn local_address(socket: &impl AsFd) -> Option<SocketAddr> {
    SockRef::from(socket).local_addr().ok()?.as_socket()
}

/// Returns a port of this host that is free at this moment.
pub fn free_port(host: IpAddr) -> io::Result<u16> {
    Ok(TcpListener::bind((host, 0))?.local_addr()?.port())
}
