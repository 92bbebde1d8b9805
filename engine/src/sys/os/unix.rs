//! Identifies the process at the other end of a local connection by the kernel's data: abstract AF_UNIX sockets,
//! SO_PEERCRED and pidfds. The control loop uses streams for the proof in `session::handshake` (proof.rs);
//! `transport::local` uses packets (`packet`).

use super::fd::OwnedFd;
use crate::limits::HANDSHAKES_MAX;
pub use socket2::Type;
use socket2::{Domain, SockAddr, SockRef, Socket};
use std::ffi::OsStr;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;

/// The type of sockets that preserve packet boundaries and order.
pub const PACKETS: libc::c_int = libc::SOCK_SEQPACKET;

const NAME_PREFIX: &[u8] = b"ferry-";
const NAME_RANDOM_BYTES: usize = 16;
/// 77 on every architecture that ferry builds for (asm-generic); Linux 6.5. Not in libc for all of them.
const SO_PEERPIDFD: libc::c_int = 77;
/// The uid that the kernel shows, by default, for users without a number in our user namespace.
const OVERFLOW_UID: u32 = 65_534;

/// The process that connected or listened, as of that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// 0 if the process has no pid in our pid namespace.
    pub pid: i32,
    pub uid: u32,
}

/// True if `name` has the form that `listen_abstract` gives. A peer that sends another name wants us to connect to
/// another program's socket.
pub fn is_proof_name(name: &[u8]) -> bool {
    name.strip_prefix(NAME_PREFIX).is_some_and(|hex| {
        hex.len() == 2 * NAME_RANDOM_BYTES && hex.iter().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Listens on a new random name in this network namespace. Non-blocking, close-on-exec. The name disappears with the
/// last descriptor.
pub fn listen_abstract(kind: Type) -> io::Result<(OwnedFd, Vec<u8>)> {
    let mut random = [0; NAME_RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(|e| {
        e.raw_os_error().map_or_else(|| io::Error::other("getrandom"), io::Error::from_raw_os_error)
    })?;
    let mut name = NAME_PREFIX.to_vec();
    for byte in random {
        name.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
    let socket = socket(kind)?;
    socket.bind(&address(&name)?)?;
    socket.listen(HANDSHAKES_MAX as libc::c_int)?;
    Ok((socket.into(), name))
}

/// Accepts the next waiting connection; WouldBlock if none waits. Non-blocking, close-on-exec.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let (socket, _) = SockRef::from(&listener).accept()?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// True if accepting failed because this process or the system has no descriptor or memory left. The connection still
/// waits, so a poller keeps reporting the listener.
pub fn is_exhaustion(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// Connects without waiting. WouldBlock means that the listener's backlog is full and nothing was started (AF_UNIX has
/// no connection in progress): try again later. ConnectionRefused means that this network namespace has no such name,
/// most likely because the peer is on another host. Non-blocking, close-on-exec.
pub fn connect_abstract(name: &[u8], kind: Type) -> io::Result<OwnedFd> {
    let socket = socket(kind)?;
    socket.connect(&address(name)?)?;
    Ok(socket.into())
}

/// Returns the credentials of the connecting process (on an accepted socket) or the listening one (on a connected
/// socket).
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    // SAFETY: a ucred is three integers: any bytes are a value.
    unsafe { option(socket, libc::SO_PEERCRED, &mut found)? };
    Ok(Credentials { pid: found.pid, uid: found.uid })
}

/// Returns the peer's credentials if the peer runs as our effective user, or PermissionDenied. Both ends of a proof
/// check this before they write.
pub fn same_user_credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let peer = peer_credentials(socket)?;
    // SAFETY: geteuid takes nothing and cannot fail.
    let own_uid = unsafe { libc::geteuid() };
    if peer.uid != own_uid || (own_uid == OVERFLOW_UID && !users_are_distinct()) {
        let text = format!("the peer is user {}, this process {own_uid}", peer.uid);
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(peer)
}

/// Returns a descriptor that becomes readable when the peer's process ends; close-on-exec. On kernels from 6.5 on it
/// comes from the socket itself; an error may mean that the process has already ended. Older kernels use the pid,
/// which another process may have by now: do not trust that descriptor before a secret was read from the process.
pub fn pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    match attested_pidfd(socket)? {
        Some(pidfd) => Ok(pidfd),
        None => pidfd_of(peer_credentials(socket)?.pid),
    }
}

/// Like `pidfd`, but only from the socket, so it is certainly the process at the other end. None before Linux 6.5.
pub fn attested_pidfd(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let mut fd: libc::c_int = -1;
    // SAFETY: any bytes are an integer.
    match unsafe { option(socket, SO_PEERPIDFD, &mut fd) } {
        // SAFETY: the kernel has just installed this descriptor for us; nobody else knows its number.
        Ok(()) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Like `pidfd`, by pid. ESRCH if no such process exists or it is outside our pid namespace (0).
pub fn pidfd_of(pid: i32) -> io::Result<OwnedFd> {
    if pid <= 0 {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // SAFETY: pidfd_open takes two integers and no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor, close-on-exec by definition, that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// True if the process of a pidfd has ended, with all its threads.
pub fn has_exited(process: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, alive for the duration of the call, which does not wait.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 && poll.revents & libc::POLLIN != 0 }
}

/// Duplicates a descriptor of another process, by its number there (pidfd_getfd; Linux 5.6), close-on-exec. Fails with
/// EPERM if this process may not trace that one.
pub fn descriptor_of(process: BorrowedFd<'_>, number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_getfd takes three integers and no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor, close-on-exec by definition, that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// Sets close-on-exec on a descriptor that another library made, so that programs started here do not inherit it.
pub fn set_close_on_exec(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: this command takes no pointer.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn socket(kind: Type) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, kind, None)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A leading NUL makes the name abstract.
fn address(name: &[u8]) -> io::Result<SockAddr> {
    let mut path = vec![0];
    path.extend_from_slice(name);
    SockAddr::unix(OsStr::from_bytes(&path))
}

/// Reads a socket option into `value`.
///
/// # Safety
/// Any bytes the kernel may leave there must be a value of `T`.
unsafe fn option<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int, value: &mut T) -> io::Result<()> {
    let size = mem::size_of::<T>() as libc::socklen_t;
    let mut length = size;
    let target: *mut T = value;
    // SAFETY: the kernel writes at most `length` bytes to `target`, which is that large and borrowed
    // exclusively for the call; the caller answers for their meaning.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, target.cast(), &mut length) };
    match result {
        0 if length == size => Ok(()),
        0 => Err(io::Error::other("socket option of unexpected size")),
        _ => Err(io::Error::last_os_error()),
    }
}

/// True if a user shown as OVERFLOW_UID really is that user. In a user namespace of its own, a process that runs as
/// "nobody" sees every unmapped user under its own uid; the initial namespace maps all users.
fn users_are_distinct() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    fn pair() -> (OwnedFd, OwnedFd) {
        let (listener, name) = listen_abstract(Type::STREAM).unwrap();
        assert!(is_proof_name(&name));
        let dialer = connect_abstract(&name, Type::STREAM).unwrap();
        (dialer, accept(listener.as_fd()).unwrap())
    }

    fn own() -> Credentials {
        // SAFETY: geteuid takes nothing and cannot fail.
        Credentials { pid: std::process::id() as i32, uid: unsafe { libc::geteuid() } }
    }

    #[test]
    fn both_ends_see_the_other_and_talk() {
        let (dialer, acceptor) = pair();
        for end in [&dialer, &acceptor] {
            assert_eq!(peer_credentials(end.as_fd()).unwrap(), own());
            assert_eq!(same_user_credentials(end.as_fd()).unwrap(), own());
        }
        let (mut dialer, mut acceptor) = (UnixStream::from(dialer), UnixStream::from(acceptor));
        dialer.write_all(&[7; 32]).unwrap();
        let mut nonce = [0; 32];
        acceptor.read_exact(&mut nonce).unwrap();
        assert_eq!(nonce, [7; 32]);
    }

    #[test]
    fn another_user_is_seen_and_refused_at_both_ends() {
        if own().uid != 0 {
            eprintln!(
                "SKIPPED another_user_is_seen_and_refused_at_both_ends: only root can become another user"
            );
            return;
        }
        // The raw call changes only this thread, which ends with the closure.
        let stranger = |act: fn(&[u8]) -> (OwnedFd, Vec<u8>), name: Vec<u8>| {
            let thread = std::thread::spawn(move || {
                // SAFETY: setresuid takes three integers.
                assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, -1, 4321, -1) }, 0);
                act(&name)
            });
            thread.join().unwrap()
        };
        let (listener, name) = listen_abstract(Type::STREAM).unwrap();
        let (_dialer, _) = stranger(|name| (connect_abstract(name, Type::STREAM).unwrap(), Vec::new()), name);
        let acceptor = accept(listener.as_fd()).unwrap();
        let (_listener, name) = stranger(|_| listen_abstract(Type::STREAM).unwrap(), Vec::new());
        let dialer = connect_abstract(&name, Type::STREAM).unwrap();
        for end in [acceptor, dialer] {
            assert_eq!(peer_credentials(end.as_fd()).unwrap().uid, 4321);
            let refused = same_user_credentials(end.as_fd()).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        }
    }

    #[test]
    fn nothing_blocks_and_nothing_is_inherited() {
        let (listener, name) = listen_abstract(Type::STREAM).unwrap();
        assert_eq!(accept(listener.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let dialer = connect_abstract(&name, Type::STREAM).unwrap();
        let acceptor = accept(listener.as_fd()).unwrap();
        for end in [&listener, &dialer, &acceptor] {
            // SAFETY: these two fcntl commands take no pointer.
            let (status, flags) = unsafe {
                (libc::fcntl(end.as_raw_fd(), libc::F_GETFL), libc::fcntl(end.as_raw_fd(), libc::F_GETFD))
            };
            assert!(status & libc::O_NONBLOCK != 0 && flags & libc::FD_CLOEXEC != 0);
        }
        let mut byte = [0];
        let read = UnixStream::from(dialer).read(&mut byte).unwrap_err();
        assert_eq!(read.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_name_ends_with_its_listener_and_is_never_another_program_s() {
        let (listener, name) = listen_abstract(Type::STREAM).unwrap();
        drop(listener);
        assert_eq!(
            connect_abstract(&name, Type::STREAM).unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
        for other in [&b""[..], b"ferry-", &name[..name.len() - 1], &[&name[..], b"0"].concat(), b"/tmp/.X11"]
        {
            assert!(!is_proof_name(other));
        }
        let upper = name.to_ascii_uppercase();
        assert!(!is_proof_name(&upper));
    }

    #[test]
    fn a_pidfd_tells_when_the_process_ends() {
        let (dialer, _acceptor) = pair();
        let by_socket = pidfd(dialer.as_fd()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let by_number = pidfd_of(child.id() as i32).unwrap();
        assert!(!readable(&by_socket, 0) && !readable(&by_number, 0));
        child.kill().unwrap();
        assert!(readable(&by_number, 60_000));
        child.wait().unwrap();
        assert!(!readable(&by_socket, 0));
        for nobody in [0, -1, child.id() as i32] {
            assert_eq!(pidfd_of(nobody).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        }
    }

    fn readable(fd: &OwnedFd, timeout_ms: i32) -> bool {
        let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, alive for the duration of the call.
        unsafe { libc::poll(&mut poll, 1, timeout_ms) == 1 }
    }
}
