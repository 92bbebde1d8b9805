//! One TCP connection, driven directly: options, gather and scatter, and waiting.
//!
//! The connection carries 64-byte headers; a WRITE's payload follows its header, a READ's payload comes back without a
//! header. Both ends know the layout, so no descriptor is sent: the reference has less work than any engine, and so is
//! a limit.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use ferry::internals::sys::socket::{congestion, poll_readable, set_congestion};
use socket2::{Domain, Socket, Type};

use super::pieces::{Pieces, HEADER_BYTES};
use crate::role::SocketOptions;

/// A peer that moves nothing for this long is broken; the run fails instead of hanging.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(10);

const MAGIC: u32 = 0x5741_5246;
/// The number in the header that ends a run.
pub const END: u64 = u64::MAX;

/// Makes the header of the transfer with this number: it starts the transfer, or says that a WRITE is in place. The
/// first header of a connection has the pair's token, which strangers don't know.
pub fn header(number: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Returns the number in a header.
pub fn number(header: &[u8; HEADER_BYTES]) -> io::Result<u64> {
    if header[..4] == MAGIC.to_le_bytes() {
        Ok(u64::from_le_bytes(header[8..16].try_into().expect("eight bytes")))
    } else {
        Err(io::Error::new(ErrorKind::InvalidData, "not a header: the stream is out of step"))
    }
}

/// Makes a socket for 127.0.0.1, not yet connected or listening: after that the window scale may be too small for
/// the buffers.
pub fn open(options: &SocketOptions) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    if let Some(bytes) = options.buffer_bytes {
        socket.set_send_buffer_size(bytes)?;
        socket.set_recv_buffer_size(bytes)?;
    }
    if let Some(name) = &options.congestion_control {
        match set_congestion(socket.as_raw_fd(), name) {
            // The algorithm is not in tcp_allowed_congestion_control, or not loaded: the report states the
            // algorithm in force, so continuing misleads nobody.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::ENOENT)) => {}
            other => other?,
        }
    }
    Ok(socket)
}

/// How an end waits for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Waits in the receiving call: nothing else runs on this thread, and no cycle is wasted.
    Block,
    /// Polls for this long, then sleeps in `poll`. Sleeps at once if the other end shares the CPU: there polling only
    /// delays the answer.
    Spin(Duration),
}

pub struct Link {
    stream: TcpStream,
}

impl Link {
    /// Takes a connected stream, and sets the options that may be set afterwards.
    pub fn new(stream: TcpStream) -> io::Result<Link> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PROGRESS_TIMEOUT))?;
        stream.set_write_timeout(Some(PROGRESS_TIMEOUT))?;
        Ok(Link { stream })
    }

    /// Returns the algorithm in force.
    pub fn congestion_control(&self) -> String {
        congestion(self.stream.as_raw_fd())
    }

    /// Sends all pieces.
    pub fn send(&self, pieces: &mut Pieces) -> io::Result<()> {
        move_all(pieces, 0, |pieces| {
            let message = message(pieces.window());
            // SAFETY: the message names the pieces' iovecs, whose memory `push` was promised stays valid.
            moved(unsafe { libc::sendmsg(self.stream.as_raw_fd(), &message, libc::MSG_NOSIGNAL) })
        })
    }

    pub fn send_header(&self, number: u64) -> io::Result<()> {
        let mut encoded = header(number);
        let mut pieces = Pieces::default();
        // SAFETY: `encoded` lives until the send below is over.
        unsafe { pieces.push(encoded.as_mut_ptr(), encoded.len()) };
        self.send(&mut pieces)
    }

    /// Tells the other end that this run is over.
    pub fn end(&self, wait: Wait) -> io::Result<()> {
        self.send_header(END)?;
        self.expect_header(END, wait)
    }

    /// Receives until at most `bytes_left` of the pieces are still empty.
    pub fn receive(&self, pieces: &mut Pieces, bytes_left: usize, wait: Wait) -> io::Result<()> {
        move_all(pieces, bytes_left, |pieces| match wait {
            Wait::Block => self.receive_some(pieces, 0),
            Wait::Spin(longest) => self.receive_spinning(pieces, longest),
        })
    }

    pub fn expect_header(&self, expected: u64, wait: Wait) -> io::Result<()> {
        match self.receive_header(wait)? {
            received if received == expected => Ok(()),
            received => {
                let text = format!("expected the header of {expected}, received that of {received}");
                Err(io::Error::new(ErrorKind::InvalidData, text))
            }
        }
    }

    /// Returns the number in the next header.
    pub fn receive_header(&self, wait: Wait) -> io::Result<u64> {
        let mut encoded = [0; HEADER_BYTES];
        let mut pieces = Pieces::default();
        // SAFETY: `encoded` lives until the receive below is over.
        unsafe { pieces.push(encoded.as_mut_ptr(), encoded.len()) };
        self.receive(&mut pieces, 0, wait)?;
        number(&encoded)
    }

    fn receive_some(&self, pieces: &mut Pieces, flags: i32) -> io::Result<usize> {
        let mut message = message(pieces.window());
        // SAFETY: as in `send`, and `push` was promised memory that may be written.
        moved(unsafe { libc::recvmsg(self.stream.as_raw_fd(), &mut message, flags) })
    }

    fn receive_spinning(&self, pieces: &mut Pieces, longest: Duration) -> io::Result<usize> {
        let mut started = None;
        loop {
            match self.receive_some(pieces, libc::MSG_DONTWAIT) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                other => return other,
            }
            let since = *started.get_or_insert_with(Instant::now);
            if since.elapsed() >= longest {
                let asleep = Instant::now();
                poll_readable(&[self.stream.as_raw_fd()], PROGRESS_TIMEOUT.as_nanos() as u64);
                if asleep.elapsed() >= PROGRESS_TIMEOUT {
                    return Err(ErrorKind::WouldBlock.into());
                }
                started = None;
            }
            // The sender may wait for this CPU.
            std::thread::yield_now();
        }
    }
}

fn message(window: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: all zeroes is an empty message without address or control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = window.as_mut_ptr();
    message.msg_iovlen = window.len();
    message
}

fn moved(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Repeats the call until at most `bytes_left` of the pieces are left.
fn move_all(
    pieces: &mut Pieces,
    bytes_left: usize,
    call: impl Fn(&mut Pieces) -> io::Result<usize>,
) -> io::Result<()> {
    while pieces.bytes() > bytes_left {
        match call(pieces) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => pieces.advance(bytes),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            // A blocking call ran into its time limit.
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                return Err(io::Error::new(ErrorKind::TimedOut, "no byte moved for 10 s"));
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_and_garbage_does_not() {
        for sent in [0, 1, END - 1, END] {
            assert_eq!(number(&header(sent)).expect("own header"), sent);
        }
        let mut bytes = header(1);
        bytes[3] += 1;
        assert!(number(&bytes).is_err(), "another magic");
        assert!(number(&[0; HEADER_BYTES]).is_err(), "no magic");
    }
}
