//! The simulated network: streams between hosts, as TCP gives them. Sent data leaves its memory at the call
//! (or later, if the socket is told to be zero-copy), travels for the latency of its link, and waits at the other end.
//!
//! ```text
//!  send_vectors ─▶ packets of a pipe ─▶ arrival: the inbox of the other end ─▶ receive_vectors
//!                  unacked: no room     └─▶ acknowledgement ─▶ room for the sender
//! ```
//! `dial` makes connections, `wire` lets packets arrive, `stream` has what programs do with an end, `link` and `fault`
//! what happens to the way between two hosts.

mod dial;
mod fault;
mod link;
mod stream;
mod wire;

pub use dial::{dial, free_port, Listener};
pub use fault::{
    connections, flip, hang_dials, heal, heal_all, partition, partition_one_way, replay, reset, set_faults,
    set_latency, Connected, Faults,
};
pub use stream::{
    ends, pending_error, receive, receive_vectors, released, send, send_vectors, set_zero_copy, shutdown,
    shutdown_writes, IoVec, IOV_MAX,
};

pub(crate) use stream::Cursor;

use crate::fd::FileId;
use crate::process::{HostId, ProcessId};
use crate::wait::Ticket;
use crate::world::World;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamEnd {
    pub connection: u32,
    /// 0 for who dialed, 1 for who accepts.
    pub side: u8,
}

impl StreamEnd {
    pub fn other(self) -> StreamEnd {
        StreamEnd { side: 1 - self.side, ..self }
    }
}

/// Something of a pipe is due at its far end, or its acknowledgements at its near end.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    from: StreamEnd,
    acknowledgements: bool,
}

/// A listening socket.
pub(crate) struct Queue {
    host: HostId,
    process: ProcessId,
    address: SocketAddr,
    waiting: VecDeque<u32>,
    backlog: usize,
    buffer_bytes: usize,
}

impl Queue {
    pub fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Connecting,
    Up,
    /// Reset, refused, or given up: nothing moves any more.
    Dead,
    /// The program has closed it. Sent data still travels.
    Gone,
}

struct End {
    host: HostId,
    process: ProcessId,
    address: SocketAddr,
    /// None before it is accepted and after it is closed.
    file: Option<FileId>,
    phase: Phase,
    /// SO_ERROR.
    error: Option<i32>,
    /// The other end's end of the stream has arrived.
    ended: bool,
    shut_read: bool,
    shut_write: bool,
    inbox: VecDeque<u8>,
    inbox_max: usize,
    /// Bytes that were sent and not acknowledged, and their bound.
    unacked: usize,
    outbox_max: usize,
    zero_copy: bool,
    /// Bytes of zero-copy sends that the kernel will not read any more.
    released: u64,
    /// A task is receiving, or sending: others wait for it.
    busy: [bool; 2],
    waiting: Vec<Ticket>,
}

enum Content {
    /// With the number of tries so far.
    Syn(u32),
    SynAck,
    Data(Chunk),
    Fin,
    Reset(i32),
}

enum Chunk {
    Now(Vec<u8>),
    /// Memory that is read when the packet arrives.
    Late {
        process: ProcessId,
        address: u64,
        length: usize,
    },
}

impl Chunk {
    fn late_bytes(&self) -> usize {
        match self {
            Chunk::Now(_) => 0,
            Chunk::Late { length, .. } => *length,
        }
    }
}

struct Packet {
    at: u64,
    content: Content,
}

#[derive(Clone, Copy)]
struct Acknowledgement {
    at: u64,
    bytes: usize,
    late: bool,
}

/// One direction of a connection.
#[derive(Default)]
struct Pipe {
    packets: VecDeque<Packet>,
    acknowledgements: VecDeque<Acknowledgement>,
    last_at: u64,
    /// The packet at the head waits for room in the inbox.
    stuck: bool,
    /// Faults of the next data: a bit is flipped, or the bytes arrive twice.
    flip: bool,
    replay: bool,
}

struct Connection {
    ends: [End; 2],
    /// By the side that sends.
    pipes: [Pipe; 2],
}

#[derive(Default)]
pub(crate) struct Net {
    connections: Vec<Connection>,
    links: BTreeMap<(HostId, HostId), link::Link>,
    listeners: Vec<FileId>,
    pub faults: Faults,
}

impl Net {
    pub fn new(faults: Faults) -> Net {
        Net { faults, ..Net::default() }
    }
}

impl World {
    fn end(&mut self, end: StreamEnd) -> &mut End {
        &mut self.net.connections[end.connection as usize].ends[end.side as usize]
    }

    fn pipe(&mut self, from: StreamEnd) -> &mut Pipe {
        &mut self.net.connections[from.connection as usize].pipes[from.side as usize]
    }

    fn hosts_of(&self, from: StreamEnd) -> (HostId, HostId) {
        let ends = &self.net.connections[from.connection as usize].ends;
        (ends[from.side as usize].host, ends[1 - from.side as usize].host)
    }

    /// Names an end for the story.
    fn told(&self, end: StreamEnd) -> String {
        let ends = &self.net.connections[end.connection as usize].ends;
        let (own, other) = (&ends[end.side as usize], &ends[1 - end.side as usize]);
        format!("connection {} ({} to {})", end.connection, own.address, other.address)
    }

    /// Records what happened at one end.
    fn note_end(
        &mut self,
        verb: &'static str,
        end: StreamEnd,
        number: u64,
        text: impl FnOnce(&World) -> String,
    ) {
        let numbers = [end.connection.into(), end.side.into(), number];
        self.note(verb, &numbers, |world| format!("{} {}", text(world), world.told(end)));
    }

    /// Tells the pollers that watch this end.
    fn end_changed(&mut self, end: StreamEnd) {
        if let Some(file) = self.end(end).file {
            self.changed(file);
        }
    }
}
