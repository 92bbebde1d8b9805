//! Makes TCP connections: a listener, dialed connections, and accepted ones. All are non-blocking. `socket` has the
//! operations on them.

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

/// Connections that may arrive at once: a thousand peers with their lanes. The system's own limit may be lower.
const BACKLOG: i32 = 4096;

pub struct Listener(TcpListener);

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
        self.0.local_addr()
    }

    pub fn accept(&self) -> io::Result<(OwnedFd, SocketAddr)> {
        let (socket, remote) = self.0.accept()?;
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
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
