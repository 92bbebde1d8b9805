//! How TCP connections come to be: a listener, a connection that is dialed, one that is accepted. All are non-blocking;
//! `socket` has what is done with them afterwards.

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

/// Connections that come at once: a thousand peers with their lanes. The system's own limit is the lower one.
const BACKLOG: i32 = 4096;

pub struct Listener(TcpListener);

impl Listener {
    /// `buffer_bytes`: of each direction of the sockets accepted, 0 for the system's choice. Accepted sockets inherit
    /// them, and with them the window scale that they announce.
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

/// Begins to connect. The socket is writable once the connection stands or has failed.
pub fn dial(remote: SocketAddr, buffer_bytes: usize) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // Otherwise the handshake's small messages wait for delayed acknowledgements, 40 ms at a time.
    socket.set_tcp_nodelay(true)?;
    set_buffers(&socket, buffer_bytes);
    match socket.connect(&remote.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket.into()),
    }
}

/// Buffer sizes decide a connection's window scale, so they are set before the connection stands.
fn set_buffers(socket: &Socket, bytes: usize) {
    if bytes > 0 {
        // The system may allow less; that is no error.
        let _ = socket.set_send_buffer_size(bytes);
        let _ = socket.set_recv_buffer_size(bytes);
    }
}

/// This end's address.
pub fn local_address(socket: &impl AsFd) -> Option<SocketAddr> {
    SockRef::from(socket).local_addr().ok()?.as_socket()
}

/// A port of this host that nobody has at this moment.
pub fn free_port(host: IpAddr) -> io::Result<u16> {
    Ok(TcpListener::bind((host, 0))?.local_addr()?.port())
}
