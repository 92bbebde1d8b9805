//! Sockets between processes of one host: streams, and packets that carry descriptors. Sent data is at the other end
//! at once. Names belong to a host and end with their listener.

use crate::fd::{errno, AsFd, BorrowedFd, FileId, Kind, OwnedFd};
use crate::net::{Cursor, IoVec};
use crate::poller::Ready;
use crate::process::{HostId, ProcessId};
use crate::world::{point, with, World};
use std::collections::VecDeque;
use std::io;

/// The most bytes that a receive queue holds: Linux's default.
const QUEUE_BYTES_MAX: usize = 212_992;

/// Whether a socket preserves the bounds of what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Stream,
    Packets,
}

/// A listening socket.
pub(crate) struct Door {
    host: HostId,
    process: ProcessId,
    name: Vec<u8>,
    kind: Type,
    backlog: usize,
    waiting: VecDeque<u32>,
}

impl Door {
    pub fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }
}

/// One end of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalEnd {
    pair: u32,
    side: u8,
}

impl LocalEnd {
    fn other(self) -> LocalEnd {
        LocalEnd { side: 1 - self.side, ..self }
    }
}

struct Message {
    bytes: VecDeque<u8>,
    files: Vec<FileId>,
}

struct Side {
    process: ProcessId,
    file: Option<FileId>,
    /// False once it is closed.
    open: bool,
    shut: bool,
    error: Option<i32>,
    queue: VecDeque<Message>,
    queued: usize,
}

struct Pair {
    kind: Type,
    sides: [Side; 2],
}

#[derive(Default)]
pub(crate) struct Locals {
    pairs: Vec<Pair>,
    doors: Vec<FileId>,
}

impl World {
    fn side(&mut self, end: LocalEnd) -> &mut Side {
        &mut self.locals.pairs[end.pair as usize].sides[end.side as usize]
    }

    fn local(&self, id: FileId) -> io::Result<LocalEnd> {
        match self.kind(id) {
            Kind::Local(end) => Ok(*end),
            _ => errno(libc::ENOTSOCK),
        }
    }

    fn local_changed(&mut self, end: LocalEnd) {
        if let Some(file) = self.side(end).file {
            self.changed(file);
        }
    }

    pub(crate) fn local_readiness(&self, end: LocalEnd) -> Ready {
        let sides = &self.locals.pairs[end.pair as usize].sides;
        let (own, other) = (&sides[end.side as usize], &sides[1 - end.side as usize]);
        let over = own.shut || !other.open || other.shut;
        Ready {
            token: 0,
            readable: over || own.error.is_some() || !own.queue.is_empty(),
            writable: over || other.queued <= QUEUE_BYTES_MAX / 4,
            hangup: over || own.error.is_some(),
            end: false,
        }
    }

    /// Returns false if the file is no socket of this kind.
    pub(crate) fn local_shutdown(&mut self, id: FileId) -> bool {
        let Ok(end) = self.local(id) else { return false };
        self.side(end).shut = true;
        self.local_changed(end);
        self.local_changed(end.other());
        true
    }

    pub(crate) fn close_local(&mut self, end: LocalEnd) {
        let side = self.side(end);
        (side.file, side.open) = (None, false);
        let unread = std::mem::take(&mut side.queue);
        if !unread.is_empty() {
            self.side(end.other()).error = Some(libc::ECONNRESET);
        }
        for file in unread.into_iter().flat_map(|message| message.files) {
            self.release(file);
        }
        self.note("local close", &[end.pair.into(), end.side.into()], |_| {
            format!("closes pair {}", end.pair)
        });
        self.local_changed(end.other());
    }

    pub(crate) fn close_door(&mut self, id: FileId, door: Door) {
        self.locals.doors.retain(|other| *other != id);
        for pair in door.waiting {
            self.close_local(LocalEnd { pair, side: 1 });
        }
    }

    fn find_door(&self, host: HostId, name: &[u8]) -> Option<FileId> {
        let is_it =
            |id: &&FileId| matches!(self.kind(**id), Kind::Door(it) if it.host == host && it.name == name);
        self.locals.doors.iter().find(is_it).copied()
    }

    fn queue_up(&mut self, end: LocalEnd, bytes: Vec<u8>, files: Vec<FileId>) -> io::Result<()> {
        let own = self.side(end);
        if let Some(error) = own.error.take() {
            return errno(error);
        }
        let shut = own.shut;
        let other = self.side(end.other());
        if shut || !other.open || other.shut {
            return errno(libc::EPIPE);
        }
        if other.queued > 0 && other.queued + bytes.len() > QUEUE_BYTES_MAX {
            return errno(libc::EAGAIN);
        }
        let count = bytes.len();
        other.queued += count;
        other.queue.push_back(Message { bytes: bytes.into(), files: files.clone() });
        files.into_iter().for_each(|file| self.hold(file));
        self.note("local send", &[end.pair.into(), end.side.into(), count as u64], |_| {
            format!("sends {count} bytes on pair {}", end.pair)
        });
        self.local_changed(end.other());
        Ok(())
    }

    /// Returns true if there is something to take, false at the end.
    fn take_state(&mut self, end: LocalEnd) -> io::Result<bool> {
        let over = {
            let other = self.side(end.other());
            !other.open || other.shut
        };
        let own = self.side(end);
        match own.error.take() {
            _ if !own.queue.is_empty() => Ok(true),
            Some(error) => errno(error),
            None if over || own.shut => Ok(false),
            None => errno(libc::EAGAIN),
        }
    }

    /// Moves bytes of a stream; returns None if the file is no local socket.
    pub(crate) fn local_transfer(
        &mut self,
        id: FileId,
        vectors: &[IoVec],
        write: bool,
    ) -> Option<io::Result<usize>> {
        let end = self.local(id).ok()?;
        let mut cursor = Cursor::new(vectors);
        Some(if write { self.local_send(end, &mut cursor) } else { self.local_receive(end, &mut cursor) })
    }

    fn local_send(&mut self, end: LocalEnd, cursor: &mut Cursor) -> io::Result<usize> {
        let process = self.side(end).process;
        let room = QUEUE_BYTES_MAX - self.side(end.other()).queued.min(QUEUE_BYTES_MAX);
        let most = match self.locals.pairs[end.pair as usize].kind {
            Type::Stream => room.max(1),
            Type::Packets => usize::MAX,
        };
        let mut bytes = Vec::new();
        while let Some(part) = cursor.take(most - bytes.len()) {
            bytes.extend(self.read_memory(process, part.address, part.length, "send"));
        }
        let count = bytes.len();
        self.queue_up(end, bytes, Vec::new()).map(|()| count)
    }

    fn local_receive(&mut self, end: LocalEnd, cursor: &mut Cursor) -> io::Result<usize> {
        if !self.take_state(end)? {
            return Ok(0);
        }
        let (process, mut count) = (self.side(end).process, 0);
        while let Some(first) = self.side(end).queue.front_mut() {
            let Some(part) = cursor.take(first.bytes.len()) else { break };
            let bytes: Vec<u8> = first.bytes.drain(..part.length).collect();
            if first.bytes.is_empty() {
                self.side(end).queue.pop_front();
            }
            self.write_memory(process, part.address, &bytes, "receive");
            count += bytes.len();
        }
        self.side(end).queued -= count;
        self.local_changed(end.other());
        Ok(count)
    }
}

/// Listens at a name of this host. EADDRINUSE if it is taken.
pub fn listen(name: &[u8], kind: Type, backlog: usize) -> io::Result<OwnedFd> {
    point();
    with(|world| {
        let process = world.here();
        let host = world.process(process).host;
        if world.find_door(host, name).is_some() {
            return errno(libc::EADDRINUSE);
        }
        let door = Door { host, process, name: name.to_vec(), kind, backlog, waiting: VecDeque::new() };
        let fd = world.open(process, Kind::Door(door))?;
        let id = fd.as_fd().file(world)?;
        world.locals.doors.push(id);
        Ok(fd)
    })
}

/// Connects at once. ECONNREFUSED if this host has no such name, EAGAIN if too many wait there.
pub fn connect(name: &[u8], kind: Type) -> io::Result<OwnedFd> {
    point();
    with(|world| {
        let process = world.here();
        let host = world.process(process).host;
        let pair = world.locals.pairs.len() as u32;
        world.check_room(process, 1)?;
        let Some(id) = world.find_door(host, name) else { return errno(libc::ECONNREFUSED) };
        let Kind::Door(door) = &mut world.file(id).kind else { return errno(libc::ECONNREFUSED) };
        if door.kind != kind {
            return errno(libc::EPROTOTYPE);
        }
        if door.waiting.len() >= door.backlog {
            return errno(libc::EAGAIN);
        }
        door.waiting.push_back(pair);
        let sides = [process, door.process].map(|process| Side {
            process,
            file: None,
            open: true,
            shut: false,
            error: None,
            queue: VecDeque::new(),
            queued: 0,
        });
        world.locals.pairs.push(Pair { kind, sides });
        let end = LocalEnd { pair, side: 0 };
        let file = world.add_file(Kind::Local(end));
        world.side(end).file = Some(file);
        world.note("local dial", &[pair.into()], |_| format!("connects as pair {pair}"));
        world.changed(id);
        Ok(world.install(process, file))
    })
}

/// Accepts the next connection that waits; EAGAIN if there is none.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    point();
    with(|world| {
        let id = listener.file(world)?;
        let Kind::Door(door) = &mut world.file(id).kind else { return errno(libc::EINVAL) };
        let (process, Some(pair)) = (door.process, door.waiting.front().copied()) else {
            return errno(libc::EAGAIN);
        };
        world.check_room(process, 1)?;
        if let Kind::Door(door) = &mut world.file(id).kind {
            door.waiting.pop_front();
        }
        let end = LocalEnd { pair, side: 1 };
        let file = world.add_file(Kind::Local(end));
        world.side(end).file = Some(file);
        Ok(world.install(process, file))
    })
}

/// Returns pid and user of the process at the other end.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<(i32, u32)> {
    point();
    with(|world| {
        let end = world.local(socket.file(world)?)?;
        let peer = world.side(end.other()).process;
        let peer = world.process(peer);
        Ok((peer.pid as i32, peer.uid))
    })
}

/// Returns a descriptor of the process at the other end. ESRCH if it has ended.
pub fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    point();
    with(|world| {
        let end = world.local(socket.file(world)?)?;
        let peer = world.side(end.other()).process;
        if world.process(peer).alive {
            world.open_process(peer)
        } else {
            errno(libc::ESRCH)
        }
    })
}

/// Sends one whole packet, with duplicates of the descriptors.
pub fn send_packet(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    point();
    with(|world| {
        let end = world.local(socket.file(world)?)?;
        let files: io::Result<Vec<FileId>> =
            descriptors.iter().map(|descriptor| descriptor.file(world)).collect();
        world.queue_up(end, bytes.to_vec(), files?)
    })
}

/// A packet that was received.
#[derive(Debug)]
pub struct Packet {
    pub length: usize,
    pub descriptors: Vec<OwnedFd>,
    /// The packet was longer than the buffer, or the process had no room for its descriptors.
    pub truncated: bool,
}

/// Receives one packet. A length of 0 without descriptors is the end.
pub fn receive_packet(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Packet> {
    point();
    with(|world| {
        let end = world.local(socket.file(world)?)?;
        if !world.take_state(end)? {
            return Ok(Packet { length: 0, descriptors: Vec::new(), truncated: false });
        }
        let Some(message) = world.side(end).queue.pop_front() else { return errno(libc::EAGAIN) };
        world.side(end).queued -= message.bytes.len();
        let length = message.bytes.len().min(bytes.len());
        let mut truncated = length < message.bytes.len();
        for (place, byte) in bytes.iter_mut().zip(&message.bytes) {
            *place = *byte;
        }
        let here = world.here();
        let mut descriptors = Vec::new();
        for file in message.files {
            match world.check_room(here, 1) {
                Ok(()) => descriptors.push(world.install(here, file)),
                Err(_) => {
                    truncated = true;
                    world.release(file);
                }
            }
        }
        world.local_changed(end.other());
        Ok(Packet { length, descriptors, truncated })
    })
}

/// Returns two connected sockets of this process.
pub fn pair(kind: Type) -> io::Result<(OwnedFd, OwnedFd)> {
    let name = format!("pair-{}", with(|world| world.locals.pairs.len()));
    let listener = listen(name.as_bytes(), kind, 1)?;
    let one = connect(name.as_bytes(), kind)?;
    let other = accept(listener.as_fd())?;
    Ok((one, other))
}
