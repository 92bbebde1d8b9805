//! The simulated side of `sys::unix`.

use crate::limits::HANDSHAKES_MAX;
use crate::sys::fd::{BorrowedFd, OwnedFd};
use crate::sys::random_bytes;
pub use ferry_sim_kernel::eventfd::descriptor_of;
pub use ferry_sim_kernel::unix::accept;
use ferry_sim_kernel::{eventfd, process, unix};
pub use socket2::Type;
use std::io;

pub const PACKETS: libc::c_int = libc::SOCK_SEQPACKET;

const NAME_PREFIX: &[u8] = b"ferry-";
const NAME_RANDOM_BYTES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    pub pid: i32,
    pub uid: u32,
}

fn kind(kind: Type) -> unix::Type {
    if kind == Type::STREAM {
        unix::Type::Stream
    } else {
        unix::Type::Packets
    }
}

pub fn is_proof_name(name: &[u8]) -> bool {
    name.strip_prefix(NAME_PREFIX).is_some_and(|hex| {
        hex.len() == 2 * NAME_RANDOM_BYTES && hex.iter().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
    })
}

pub fn listen_abstract(of: Type) -> io::Result<(OwnedFd, Vec<u8>)> {
    let mut name = NAME_PREFIX.to_vec();
    for byte in random_bytes::<NAME_RANDOM_BYTES>()? {
        name.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
    Ok((unix::listen(&name, kind(of), HANDSHAKES_MAX)?, name))
}

pub fn is_exhaustion(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

pub fn connect_abstract(name: &[u8], of: Type) -> io::Result<OwnedFd> {
    unix::connect(name, kind(of))
}

pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let (pid, uid) = unix::peer_credentials(socket)?;
    Ok(Credentials { pid, uid })
}

pub fn same_user_credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let (peer, own_uid) = (peer_credentials(socket)?, process::current().user());
    if peer.uid != own_uid {
        let text = format!("the peer is user {}, this process {own_uid}", peer.uid);
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(peer)
}

pub fn pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    unix::peer_pidfd(socket)
}

pub fn attested_pidfd(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    unix::peer_pidfd(socket).map(Some)
}

pub fn pidfd_of(pid: i32) -> io::Result<OwnedFd> {
    eventfd::pidfd(pid)
}

pub fn set_close_on_exec(_fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(())
}
