//! Socket system calls that the standard library lacks: vectored send and receive on raw memory, polling, TCP options.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, RawFd};

/// The most vectors in one call (the kernel's IOV_MAX).
pub const IOV_MAX: usize = 1024;

/// A `struct iovec`: memory named by address, whose validity the caller of a send or receive vouches for.
#[repr(transparent)]
pub struct IoVec(libc::iovec);

// SAFETY: an address and a length, which only the calls below use.
unsafe impl Send for IoVec {}

impl IoVec {
    /// Returns an empty vector, to fill arrays.
    pub const fn nothing() -> IoVec {
        IoVec(libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 })
    }

    pub fn new(address: u64, length: usize) -> IoVec {
        IoVec(libc::iovec { iov_base: address as *mut libc::c_void, iov_len: length })
    }
}

fn message(vectors: &[IoVec]) -> libc::msghdr {
    // SAFETY: all-zero is a valid msghdr: null pointers with zero lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_ptr() as *mut libc::iovec;
    message.msg_iovlen = vectors.len().min(IOV_MAX) as _;
    message
}

fn counted(result: isize) -> io::Result<usize> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result as usize)
}

/// Returns this end's address and the other end's, if the socket has them.
pub fn ends(socket: &impl AsFd) -> (Option<SocketAddr>, Option<SocketAddr>) {
    let socket = socket2::SockRef::from(socket);
    let of = |address: io::Result<socket2::SockAddr>| address.ok()?.as_socket();
    (of(socket.local_addr()), of(socket.peer_addr()))
}

/// Sends without blocking and without SIGPIPE.
///
/// # Safety
/// Each vector is readable memory until the call returns.
pub unsafe fn send_vectors(fd: RawFd, vectors: &[IoVec]) -> io::Result<usize> {
    let message = message(vectors);
    // SAFETY: `message` points at `vectors`, whose memory the caller vouches for.
    counted(unsafe { libc::sendmsg(fd, &message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) })
}

/// Sends bytes that the caller owns: see `send_vectors`.
pub fn send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: `bytes` is borrowed until the call returns.
    unsafe { send_vectors(fd, &[IoVec::new(bytes.as_ptr() as u64, bytes.len())]) }
}

/// Receives into memory that the caller owns: see `receive_vectors`.
pub fn receive(fd: RawFd, bytes: &mut [u8]) -> io::Result<usize> {
    // SAFETY: `bytes` is borrowed by nobody else until the call returns.
    unsafe { receive_vectors(fd, &[IoVec::new(bytes.as_mut_ptr() as u64, bytes.len())]) }
}

/// Receives without blocking. Ok(0) is the end of the stream.
///
/// # Safety
/// Each vector is writable memory that nothing in this process holds a reference to, until the call
/// returns.
pub unsafe fn receive_vectors(fd: RawFd, vectors: &[IoVec]) -> io::Result<usize> {
    let mut message = message(vectors);
    // SAFETY: as above.
    counted(unsafe { libc::recvmsg(fd, &mut message, libc::MSG_DONTWAIT) })
}

/// Returns whether a send or receive failed because memory that a vector names faults. The call moved nothing.
pub fn is_fault(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EFAULT)
}

/// Shuts both directions. Blocked and later calls on the socket return at once.
pub fn shutdown(fd: RawFd) {
    // SAFETY: no memory is involved; a descriptor that is no connected socket is an ignorable error.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
}

/// Ends the stream to the other end. Input is still received.
pub fn shutdown_writes(fd: RawFd) {
    // SAFETY: as above.
    unsafe { libc::shutdown(fd, libc::SHUT_WR) };
}

/// Sleeps until one of the first two descriptors is readable (or in error), a signal comes, or the timeout. Returns the
/// last one that is readable.
pub fn poll_readable(fds: &[RawFd], timeout_ns: u64) -> Option<RawFd> {
    let mut polled = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; 2];
    let count = fds.len().min(polled.len());
    for (place, fd) in polled.iter_mut().zip(fds) {
        place.fd = *fd;
    }
    let timeout = libc::timespec {
        tv_sec: (timeout_ns / 1_000_000_000).min(i32::MAX as u64) as libc::time_t,
        tv_nsec: (timeout_ns % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: `polled` and `timeout` live on this stack for the duration of the call.
    unsafe { libc::ppoll(polled.as_mut_ptr(), count as libc::nfds_t, &timeout, std::ptr::null()) };
    polled[..count].iter().rfind(|polled| polled.revents != 0).map(|polled| polled.fd)
}

/// Sets the congestion control. Fails if the name is unknown or not permitted; callers may ignore that.
pub fn set_congestion(fd: RawFd, name: &str) -> io::Result<()> {
    // SAFETY: the bytes of `name` are borrowed for the call and their length is given.
    let result = unsafe {
        libc::setsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        )
    };
    counted(result as isize).map(|_| ())
}

/// Returns the congestion control in use.
#[cfg(feature = "internals")]
pub fn congestion(fd: RawFd) -> String {
    let mut name = [0u8; 16];
    let mut length = name.len() as libc::socklen_t;
    // SAFETY: `name` and `length` live on this stack and match in size.
    let result = unsafe {
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_mut_ptr().cast(), &mut length)
    };
    if result < 0 {
        return String::new();
    }
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

/// Returns an id of the socket's network namespace, which no other namespace of this boot has. On kernels before 5.14
/// returns the inode of the calling thread's namespace, which may be reused after that namespace is gone. None if
/// unknown.
pub fn network_namespace(fd: RawFd) -> Option<u64> {
    /// 71 on every architecture that ferry builds for (asm-generic). Not in libc for all of them.
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let mut cookie = 0u64;
    let mut length = std::mem::size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: `cookie` and `length` live on this stack and match in size.
    let result = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE, (&raw mut cookie).cast(), &mut length)
    };
    if result == 0 {
        return Some(cookie);
    }
    let namespace = std::fs::metadata("/proc/thread-self/ns/net").ok()?;
    Some(std::os::unix::fs::MetadataExt::ino(&namespace))
}

/// Returns the interface that a socket is bound to, 0 if none. A VRF binds sockets by itself, and then two sockets of
/// one network namespace can listen at the same address.
pub fn bound_interface(fd: RawFd) -> io::Result<u32> {
    /// 62 on every architecture that ferry builds for (asm-generic); Linux 5.0.
    const SO_BINDTOIFINDEX: libc::c_int = 62;
    let mut index: libc::c_int = 0;
    let mut length = std::mem::size_of_val(&index) as libc::socklen_t;
    // SAFETY: `index` and `length` live on this stack and match in size.
    let result = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, SO_BINDTOIFINDEX, (&raw mut index).cast(), &mut length)
    };
    counted(result as isize).map(|_| index as u32)
}

/// Takes the pending error of a socket (SO_ERROR), such as a failed connect.
pub fn pending_error(fd: RawFd) -> Option<io::Error> {
    let mut error: libc::c_int = 0;
    let mut length = std::mem::size_of_val(&error) as libc::socklen_t;
    // SAFETY: `error` and `length` live on this stack and match in size.
    let result = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &mut length)
    };
    if result < 0 {
        return Some(io::Error::last_os_error());
    }
    (error != 0).then(|| io::Error::from_raw_os_error(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::packet;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::process::Command;

    const ROLE: &str = "FERRY_TEST_SIGPIPE";

    /// Not a test: writes to sockets without a reader.
    #[test]
    #[ignore = "the other process of a test"]
    fn writes_to_nobody() {
        if std::env::var_os(ROLE).is_none() {
            return;
        }
        // SAFETY: no memory is involved. Rust's runtime ignores the signal; other programs do not.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let (stream, other) = UnixStream::pair().unwrap();
        drop(other);
        assert_eq!(send(stream.as_raw_fd(), b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        let kind = socket2::Type::from(libc::SOCK_SEQPACKET);
        let (packets, other) = socket2::Socket::pair(socket2::Domain::UNIX, kind, None).unwrap();
        drop(other);
        assert_eq!(packet::send(packets.as_fd(), b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        println!("@@ alive");
    }

    /// A program that leaves SIGPIPE at its default must survive the end of a peer.
    #[test]
    fn a_write_to_a_closed_socket_kills_no_process() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "sys::os::socket::tests::writes_to_nobody", "--ignored", "--nocapture"]);
        let output = child.env(ROLE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("@@ alive"), "{}: {said}", output.status);
    }
}
