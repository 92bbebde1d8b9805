//! Packets with descriptors over AF_UNIX, between processes of one host. Non-blocking throughout.

use super::fd::OwnedFd;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};

/// The most descriptors in one packet.
pub const DESCRIPTORS_MAX: usize = 2;
const SPACE: usize = 64;

/// Room for one control message with `DESCRIPTORS_MAX` descriptors, aligned as its header.
#[repr(align(8))]
struct Ancillary([u8; SPACE]);

/// Sends one whole packet, or fails with WouldBlock. The receiver gets duplicates of the descriptors.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let count = descriptors.len();
    if count > DESCRIPTORS_MAX {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut part = libc::iovec { iov_base: bytes.as_ptr() as *mut libc::c_void, iov_len: bytes.len() };
    let mut ancillary = Ancillary([0; SPACE]);
    let data = (count * size_of::<libc::c_int>()) as libc::c_uint;
    // SAFETY: all-zero is a valid msghdr; every pointer set below outlives the call; the control message
    // is written inside `ancillary`, which is large enough for DESCRIPTORS_MAX.
    let sent = unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        if count > 0 {
            message.msg_control = ancillary.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(data) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(data) as _;
            let place = libc::CMSG_DATA(header).cast::<libc::c_int>();
            for (nth, descriptor) in descriptors.iter().enumerate() {
                place.add(nth).write_unaligned(descriptor.as_raw_fd());
            }
        }
        libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    };
    match sent {
        sent if sent < 0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Receives one packet into `bytes`. Returns its length (0: the other end closed) and its descriptors, which are
/// close-on-exec. Fails with InvalidData if the packet was longer or had more than `DESCRIPTORS_MAX` descriptors.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut ancillary = Ancillary([0; SPACE]);
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = ancillary.0.as_mut_ptr().cast();
    message.msg_controllen = SPACE as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: `bytes` and `ancillary` are borrowed exclusively for the call and of the lengths given.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    let descriptors = take_descriptors(&message);
    if message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the packet is too large or has too many descriptors",
        ));
    }
    Ok((received as usize, descriptors))
}

/// Takes ownership of every descriptor that the kernel installed with this message.
fn take_descriptors(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut descriptors = Vec::new();
    // SAFETY: the kernel has filled the control buffer that `message` points at, which is still
    // borrowed; the macros stay inside msg_controllen. The descriptors are fresh and ours.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let place = libc::CMSG_DATA(header).cast::<libc::c_int>();
                for nth in 0..bytes / size_of::<libc::c_int>() {
                    descriptors.push(OwnedFd::from_raw_fd(place.add(nth).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    descriptors
}

/// The events to wait for on a descriptor, and the events that came.
#[repr(transparent)]
pub struct Polled(libc::pollfd);

impl Polled {
    pub fn new(fd: BorrowedFd<'_>, read: bool, write: bool) -> Polled {
        let events = if read { libc::POLLIN } else { 0 } | if write { libc::POLLOUT } else { 0 };
        Polled(libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 })
    }

    pub fn is_ready(&self) -> bool {
        self.0.revents != 0
    }
}

/// Sleeps until one of them is ready, a signal comes, or the timeout in milliseconds (-1: none).
pub fn poll(polled: &mut [Polled], timeout_ms: i32) {
    // SAFETY: Polled is a transparent pollfd; the slice is borrowed exclusively for the call.
    unsafe { libc::poll(polled.as_mut_ptr().cast(), polled.len() as libc::nfds_t, timeout_ms) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    fn pair() -> (OwnedFd, OwnedFd) {
        let (a, b) =
            socket2::Socket::pair(socket2::Domain::UNIX, socket2::Type::from(libc::SOCK_SEQPACKET), None)
                .unwrap();
        (a.into(), b.into())
    }

    #[test]
    fn packets_keep_their_bounds_and_their_descriptors() {
        let (a, b) = pair();
        let (mut reader, writer) = UnixStream::pair().unwrap();
        send(a.as_fd(), b"one", &[writer.as_fd()]).unwrap();
        send(a.as_fd(), b"three", &[]).unwrap();
        drop(writer);
        let mut bytes = [0; 16];
        let (length, descriptors) = receive(b.as_fd(), &mut bytes).unwrap();
        assert_eq!((&bytes[..length], descriptors.len()), (&b"one"[..], 1));
        File::from(descriptors.into_iter().next().unwrap()).write_all(b"!").unwrap();
        let mut came = String::new();
        reader.read_to_string(&mut came).unwrap();
        assert_eq!(came, "!");
        assert_eq!(receive(b.as_fd(), &mut bytes).unwrap().0, 5);
        assert_eq!(receive(b.as_fd(), &mut bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(a);
        assert_eq!(receive(b.as_fd(), &mut bytes).unwrap().0, 0);
    }

    #[test]
    fn what_is_too_large_is_refused() {
        let (a, b) = pair();
        send(a.as_fd(), &[7; 17], &[]).unwrap();
        let refused = receive(b.as_fd(), &mut [0; 16]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        let three = [a.as_fd(), a.as_fd(), a.as_fd()];
        assert!(send(a.as_fd(), b"x", &three).is_err());
        let mut polled = [Polled::new(b.as_fd(), true, false), Polled::new(b.as_fd(), false, true)];
        poll(&mut polled, 0);
        assert_eq!(polled.map(|polled| polled.is_ready()), [false, true]);
    }
}
