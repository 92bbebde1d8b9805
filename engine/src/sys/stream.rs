//! A non-blocking TCP or UNIX stream with bounded buffers, on a poller.

use crate::sys::fd::{AsFd, BorrowedFd, OwnedFd};
use crate::sys::poller::{Interest, Poller};
use crate::sys::socket;
use crate::sys::tcp;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// Bytes that may wait to be written. A peer that lets more pile up does not read its control channel.
const OUT_BYTES_MAX: usize = 64 << 20;
const READ_BYTES: usize = 32 << 10;
/// Written bytes that may stay in the buffer before the unwritten rest is moved to its front.
const WRITTEN_BYTES_MAX: usize = 256 << 10;

pub struct Stream {
    /// None once `release` has returned the descriptor.
    fd: Option<OwnedFd>,
    poller: Arc<Poller>,
    token: u64,
    out: Vec<u8>,
    written: usize,
    /// Bytes written since the stream was made.
    flushed: u64,
    wants_write: bool,
}

impl Drop for Stream {
    /// A forked child may hold a copy of the descriptor, so closing ours ends neither the connection nor
    /// the poller's interest in it.
    fn drop(&mut self) {
        if let Some(fd) = &self.fd {
            self.poller.remove(fd.as_raw_fd(), self.token);
            socket::shutdown(fd.as_raw_fd());
        }
    }
}

pub enum Input {
    Bytes(Vec<u8>),
    Nothing,
    End,
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Some(fd) => fd.as_fd(),
            // Only `release` takes the descriptor, and `release` consumes the stream.
            None => unreachable!(),
        }
    }
}

impl Stream {
    /// Registers a connected or connecting socket with the poller. `connecting`: report when the socket is writable.
    pub fn new(fd: OwnedFd, token: u64, poller: &Arc<Poller>, connecting: bool) -> io::Result<Stream> {
        poller.add(fd.as_raw_fd(), token, Interest { read: true, write: connecting })?;
        Ok(Stream {
            fd: Some(fd),
            poller: poller.clone(),
            token,
            out: Vec::new(),
            written: 0,
            flushed: 0,
            wants_write: connecting,
        })
    }

    pub fn fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }

    /// Removes the socket from the poller and returns it.
    pub fn release(mut self) -> OwnedFd {
        let Some(fd) = self.fd.take() else { unreachable!() };
        self.poller.remove(fd.as_raw_fd(), self.token);
        fd
    }

    /// Returns the output buffer to append to; `flush` sends its bytes.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Returns the bytes written so far, and their number once the backlog is written.
    pub fn progress(&self) -> (u64, u64) {
        (self.flushed, self.flushed + self.backlog() as u64)
    }

    /// Returns the number of bytes that wait to be written.
    pub fn backlog(&self) -> usize {
        self.out.len() - self.written
    }

    /// Writes as much as the socket takes. The poller reports when the rest can be written.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.written < self.out.len() {
            let rest = &self.out[self.written..];
            match socket::send(self.fd(), rest) {
                Ok(count) => {
                    self.written += count;
                    self.flushed += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.written == self.out.len() {
            self.out.clear();
            self.written = 0;
        } else if self.backlog() > OUT_BYTES_MAX {
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        } else if self.written > self.backlog().max(WRITTEN_BYTES_MAX) {
            // On a busy stream the buffer may never be empty.
            self.out.drain(..self.written);
            self.written = 0;
        }
        let wants_write = !self.out.is_empty();
        if wants_write != self.wants_write {
            self.wants_write = wants_write;
            self.poller.set(self.fd(), self.token, Interest { read: true, write: wants_write })?;
        }
        Ok(())
    }

    /// Reads at most `limit` bytes, with one system call.
    pub fn read(&mut self, limit: usize) -> io::Result<Input> {
        let mut bytes = vec![0u8; limit.min(READ_BYTES)];
        match socket::receive(self.fd(), &mut bytes) {
            Ok(0) => Ok(Input::End),
            Ok(count) => {
                bytes.truncate(count);
                Ok(Input::Bytes(bytes))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Input::Nothing),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Input::Nothing),
            Err(error) => Err(error),
        }
    }

    pub fn local_address(&self) -> Option<std::net::SocketAddr> {
        tcp::local_address(self)
    }

    /// Returns the error of a failed connect.
    pub fn connect_error(&self) -> Option<io::Error> {
        socket::pending_error(self.fd()).or_else(|| tcp::refuse_itself(self))
    }
}
