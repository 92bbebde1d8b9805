//! A program's calls on an end: send, receive, shut, and ask. A call moves its bytes piece by piece, and others may
//! run between two pieces, as they may while a real kernel copies.

use super::{Chunk, Content, Phase, StreamEnd};
use crate::device;
use crate::fd::{call, errno, FileId, Kind};
use crate::memory;
use crate::pages;
use crate::poller::Ready;
use crate::process;
use crate::wait::{block_until, ticket};
use crate::world::{point, with, World};
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// The most vectors of one call.
pub const IOV_MAX: usize = 1024;
/// How many bytes move between two points.
const PIECE_BYTES: (u64, u64) = (2 << 10, 512 << 10);

const READ: usize = 0;
const WRITE: usize = 1;

/// Memory by address, as a `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IoVec {
    pub address: u64,
    pub length: usize,
}

impl IoVec {
    pub const fn new(address: u64, length: usize) -> IoVec {
        IoVec { address, length }
    }

    /// Returns an empty vector, to fill arrays.
    pub const fn nothing() -> IoVec {
        IoVec::new(0, 0)
    }
}

/// Goes through vectors piece by piece.
pub(crate) struct Cursor<'a> {
    vectors: &'a [IoVec],
    offset: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(vectors: &'a [IoVec]) -> Cursor<'a> {
        Cursor { vectors: &vectors[..vectors.len().min(IOV_MAX)], offset: 0 }
    }

    pub fn left(&self) -> usize {
        self.vectors.iter().map(|vector| vector.length).sum::<usize>() - self.offset
    }

    /// Returns what is left of the vector that is next.
    pub fn peek(&mut self) -> Option<IoVec> {
        while self.vectors.first()?.length == self.offset {
            (self.vectors, self.offset) = (&self.vectors[1..], 0);
        }
        let vector = self.vectors[0];
        Some(IoVec { address: vector.address + self.offset as u64, length: vector.length - self.offset })
    }

    /// Takes at most so many bytes of one vector.
    pub fn take(&mut self, most: usize) -> Option<IoVec> {
        let next = self.peek()?;
        let length = most.min(next.length);
        self.offset += length;
        (length > 0).then_some(IoVec { length, ..next })
    }
}

impl World {
    pub(crate) fn piece_bytes(&mut self) -> usize {
        let (least, most) = PIECE_BYTES;
        self.fate.log_uniform(least, most) as usize
    }

    /// Moves a piece from memory to the pipe.
    fn send_piece(&mut self, end: StreamEnd, cursor: &mut Cursor, limit: usize) -> io::Result<usize> {
        let own = self.end(end);
        if let Some(error) = own.error.take() {
            return errno(error);
        }
        match own.phase {
            Phase::Connecting => return errno(libc::EAGAIN),
            Phase::Dead | Phase::Gone => return errno(libc::EPIPE),
            Phase::Up if own.shut_write => return errno(libc::EPIPE),
            Phase::Up => (),
        }
        let (process, zero_copy) = (own.process, own.zero_copy);
        let most = limit.min(own.outbox_max.saturating_sub(own.unacked));
        if most == 0 {
            return errno(libc::EAGAIN);
        }
        let most = most.min(self.piece_bytes());
        let mut count = 0;
        let mut gathered = Vec::new();
        while let Some(part) = cursor.take(most - count) {
            count += part.length;
            if zero_copy {
                let chunk = Chunk::Late { process, address: part.address, length: part.length };
                self.push(end, Content::Data(chunk));
            } else {
                gathered.extend(self.read_memory(process, part.address, part.length, "send"));
            }
        }
        if !gathered.is_empty() {
            self.push(end, Content::Data(Chunk::Now(gathered)));
        }
        self.end(end).unacked += count;
        Ok(count)
    }

    /// Moves a piece from the inbox to memory. 0 is the end of the stream.
    fn receive_piece(&mut self, end: StreamEnd, cursor: &mut Cursor, limit: usize) -> io::Result<usize> {
        let own = self.end(end);
        if own.inbox.is_empty() {
            return match own.error.take() {
                Some(error) => errno(error),
                None if own.ended || own.shut_read || own.phase == Phase::Dead => Ok(0),
                None => errno(libc::EAGAIN),
            };
        }
        let (process, most) = (own.process, limit.min(own.inbox.len()));
        let most = most.min(self.piece_bytes());
        let mut count = 0;
        while let Some(part) = cursor.take(most - count) {
            self.touch(process, process, part.address, part.length as u64, true, "receive");
            let inbox = &mut self.end(end).inbox;
            let (first, second) = inbox.as_slices();
            let first = &first[..first.len().min(part.length)];
            memory::write(part.address, first);
            memory::write(part.address + first.len() as u64, &second[..part.length - first.len()]);
            inbox.drain(..part.length);
            count += part.length;
        }
        self.unstick(end.other());
        Ok(count)
    }

    pub(crate) fn stream_readiness(&self, end: StreamEnd) -> Ready {
        let own = &self.net.connections[end.connection as usize].ends[end.side as usize];
        let dead = own.phase == Phase::Dead || own.error.is_some();
        let up = own.phase == Phase::Up;
        let over = own.ended || own.shut_read;
        // As Linux: a third of the buffer must be free.
        let room = own.shut_write || own.outbox_max.saturating_sub(own.unacked) > own.outbox_max / 3;
        Ready {
            token: 0,
            readable: dead || up && (over || !own.inbox.is_empty()),
            writable: dead || up && room,
            hangup: dead || up && over && own.shut_write,
            end: up && over,
        }
    }

    fn stream(&self, id: FileId) -> io::Result<StreamEnd> {
        match self.kind(id) {
            Kind::Stream(end) => Ok(*end),
            Kind::Closed => errno(libc::EBADF),
            _ => errno(libc::ENOTSOCK),
        }
    }
}

enum Begun {
    /// A local socket has moved so many bytes.
    Done(usize),
    Stream(FileId, StreamEnd),
}

/// Moves bytes piece by piece until the vectors or the limit are used up, or `piece` has no more. EFAULT if memory is a
/// device's.
fn transfer(
    number: RawFd,
    vectors: &[IoVec],
    direction: usize,
    piece: impl Fn(&mut World, StreamEnd, &mut Cursor, usize) -> io::Result<usize>,
) -> io::Result<usize> {
    if vectors.iter().any(|vector| device::has(vector.address)) {
        return errno(libc::EFAULT);
    }
    let begun = call(number, |world, id| match world.local_transfer(id, vectors, direction == WRITE) {
        Some(moved) => moved.map(Begun::Done),
        None => Ok(Begun::Stream(id, world.stream(id)?)),
    })?;
    let (id, end) = match begun {
        Begun::Stream(id, end) => (id, end),
        Begun::Done(count) => {
            memory::tell();
            return Ok(count);
        }
    };
    let mut cursor = Cursor::new(vectors);
    occupy(id, end, direction)?;
    let wanted = cursor.left();
    let limit = with(|world| {
        let short_ppm = [world.net.faults.short_receive_ppm, world.net.faults.short_send_ppm][direction];
        if wanted > 1 && world.fate.chance(short_ppm) {
            world.fate.log_uniform(1, wanted as u64 - 1) as usize
        } else {
            wanted
        }
    });
    let mut done = 0;
    let mut result = Ok(0);
    let mut lands = false;
    while done < limit && matches!(result, Ok(count) if done == 0 || count > 0) {
        if done > 0 {
            if direction == READ && lands {
                process::inside_receive();
            }
            point();
        }
        result = reach(id, end, direction, &mut cursor).and_then(|most| {
            with(|world| {
                if world.is_open(id) {
                    piece(world, end, &mut cursor, most.min(limit - done))
                } else {
                    errno(libc::EBADF)
                }
            })
        });
        lands = memory::tell();
        match &result {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(_) => (),
        }
    }
    with(|world| {
        if world.is_open(id) {
            world.end(end).busy[direction] = false;
            for waiting in std::mem::take(&mut world.end(end).waiting) {
                world.wake(waiting);
            }
        }
        if done > 0 {
            let verb = ["receive", "send"][direction];
            world.note_end(verb, end, done as u64, |_| format!("{verb}s {done} of {wanted} bytes on"));
        }
    });
    match result {
        Err(error) if done == 0 => Err(error),
        _ => Ok(done),
    }
}

/// Returns how many bytes the pages of the next vector allow. Waits for a page that is late.
fn reach(id: FileId, end: StreamEnd, direction: usize, cursor: &mut Cursor) -> io::Result<usize> {
    let touches = with(|world| {
        world.has_holes() && world.is_open(id) && {
            let own = world.end(end);
            match direction {
                READ => !own.inbox.is_empty(),
                _ => own.phase == Phase::Up && own.outbox_max > own.unacked && !own.zero_copy,
            }
        }
    });
    match cursor.peek().filter(|_| touches) {
        Some(next) => pages::reach(next.address, next.length, direction == READ),
        None => Ok(usize::MAX),
    }
}

/// Waits until no other task receives (or sends) by this socket.
fn occupy(id: FileId, end: StreamEnd, direction: usize) -> io::Result<()> {
    loop {
        let own = ticket();
        let busy = with(|world| {
            if !world.is_open(id) {
                return errno(libc::EBADF);
            }
            let busy = std::mem::replace(&mut world.end(end).busy[direction], true);
            if busy {
                world.end(end).waiting.push(own);
            }
            Ok(busy)
        })?;
        if !busy {
            return Ok(());
        }
        block_until("a socket that another task uses", None);
    }
}

/// Sends without waiting.
///
/// # Safety
/// Each vector is readable memory until the call returns, or, on a zero-copy socket, until `released` counts its bytes.
pub unsafe fn send_vectors(number: RawFd, vectors: &[IoVec]) -> io::Result<usize> {
    transfer(number, vectors, WRITE, World::send_piece)
}

/// Receives without waiting. Ok(0) is the end of the stream.
///
/// # Safety
/// Each vector is writable memory that nothing refers to until the call returns.
pub unsafe fn receive_vectors(number: RawFd, vectors: &[IoVec]) -> io::Result<usize> {
    transfer(number, vectors, READ, World::receive_piece)
}

/// Sends bytes of the caller. For sockets that are not zero-copy.
pub fn send(number: RawFd, bytes: &[u8]) -> io::Result<usize> {
    call(number, |world, id| match world.stream(id) {
        Ok(end) if world.end(end).zero_copy => errno(libc::EINVAL),
        _ => Ok(()),
    })?;
    // SAFETY: borrowed until the call returns.
    unsafe { send_vectors(number, &[IoVec { address: bytes.as_ptr() as u64, length: bytes.len() }]) }
}

/// Receives into memory of the caller.
pub fn receive(number: RawFd, bytes: &mut [u8]) -> io::Result<usize> {
    // SAFETY: borrowed by nobody else until the call returns.
    unsafe { receive_vectors(number, &[IoVec { address: bytes.as_mut_ptr() as u64, length: bytes.len() }]) }
}

/// Lets sends of this socket read memory when the bytes arrive at the other end, not at the call.
pub fn set_zero_copy(number: RawFd, zero_copy: bool) -> io::Result<()> {
    call(number, |world, id| {
        let end = world.stream(id)?;
        world.end(end).zero_copy = zero_copy;
        Ok(())
    })
}

/// Returns how many bytes of zero-copy sends the kernel will not read any more, from the socket's beginning.
pub fn released(number: RawFd) -> io::Result<u64> {
    call(number, |world, id| {
        let end = world.stream(id)?;
        Ok(world.end(end).released)
    })
}

/// Shuts both directions.
pub fn shutdown(number: RawFd) {
    shut(number, true);
}

/// Shuts the direction to the other end.
pub fn shutdown_writes(number: RawFd) {
    shut(number, false);
}

fn shut(number: RawFd, reads_too: bool) {
    let _ = call(number, |world, id| {
        if reads_too && world.local_shutdown(id) {
            return Ok(());
        }
        let end = world.stream(id)?;
        match world.end(end).phase {
            Phase::Up => {
                world.end(end).shut_read |= reads_too;
                if !std::mem::replace(&mut world.end(end).shut_write, true) {
                    world.push(end, Content::Fin);
                }
                world.note_end("shut", end, 0, |_| "shuts".into());
            }
            Phase::Connecting => world.end_dies(end, libc::ECONNRESET),
            Phase::Dead | Phase::Gone => (),
        }
        world.end_changed(end);
        Ok(())
    });
}

/// Takes the pending error of a socket, such as a failed dial.
pub fn pending_error(number: RawFd) -> Option<io::Error> {
    let taken = call(number, |world, id| {
        let end = world.stream(id)?;
        Ok(world.end(end).error.take())
    });
    match taken {
        Ok(error) => error.map(io::Error::from_raw_os_error),
        Err(error) => Some(error),
    }
}

/// Returns this end's address and the other end's.
pub fn ends(number: RawFd) -> io::Result<(SocketAddr, SocketAddr)> {
    call(number, |world, id| {
        let end = world.stream(id)?;
        Ok((world.end(end).address, world.end(end.other()).address))
    })
}
