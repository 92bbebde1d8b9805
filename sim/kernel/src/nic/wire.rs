//! The packets between two NICs, and each NIC's later work.

use super::completion::Wc;
use crate::process::ProcessId;

/// A packet's number: 24 bits, which wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Psn(u32);

impl Psn {
    pub fn new(number: u32) -> Psn {
        Psn(number & 0xff_ffff)
    }

    pub fn plus(self, count: u32) -> Psn {
        Psn::new(self.0.wrapping_add(count))
    }

    /// Returns how far this number comes after `other`; negative if it comes before.
    pub fn since(self, other: Psn) -> i32 {
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }
}

/// Events of NICs. Queue pairs are named by their serial numbers, which are never given again.
pub(crate) enum Due {
    /// The requester sends on.
    Send(u64),
    /// The responder answers on.
    Reply(u64),
    Complete(u64),
    Timeout(u64),
    /// A piece lands.
    Land(u64, u64),
    Arrive(Box<Packet>),
    /// The objects of a dead process are taken back.
    Bury(ProcessId),
}

pub(crate) struct Packet {
    /// Device and number of the queue pair at each end.
    pub(super) from: (u32, u32),
    pub(super) to: (u32, u32),
    /// The process that sends.
    pub(super) actor: ProcessId,
    pub(super) psn: Psn,
    pub(super) body: Body,
}

pub(super) enum Body {
    /// A piece of a WRITE of `length` bytes; the first one has the whole range checked.
    Write {
        address: u64,
        rkey: u32,
        offset: u64,
        length: u64,
        bytes: Vec<u8>,
        is_last: bool,
    },
    Read(Read),
    Send(Vec<u8>),
    /// All up to this number has arrived.
    Ack,
    /// A piece of a READ.
    Answer(Vec<u8>),
    Refusal(Refusal),
}

/// A READ, or what is left of it, as the responder has it.
#[derive(Clone, Copy)]
pub(super) struct Read {
    pub address: u64,
    pub rkey: u32,
    pub length: u64,
    /// The most bytes that one answer carries.
    pub piece_bytes: u64,
}

impl Read {
    pub fn pieces(&self) -> u32 {
        pieces(self.length, self.piece_bytes)
    }
}

pub(super) fn pieces(length: u64, piece_bytes: u64) -> u32 {
    length.div_ceil(piece_bytes).max(1) as u32
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// A packet before this one is missing.
    Sequence,
    /// There is no receive.
    NotReady,
    Access,
    Invalid,
}

/// An answer of the responder. Answers go out in the order of the requests.
pub(super) enum Reply {
    Ack(Psn),
    /// `is_again`: the READ was answered before.
    Read {
        psn: Psn,
        read: Read,
        actor: ProcessId,
        is_again: bool,
    },
    Refusal(Psn, Refusal),
}

/// A piece on its way into memory.
pub(super) struct Landing {
    pub number: u64,
    pub key: u32,
    pub address: u64,
    pub bytes: Vec<u8>,
    pub actor: ProcessId,
    /// The first packet of the READ here whose answer it is. None: a peer's WRITE.
    pub of: Option<Psn>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Write,
    Read,
    Send,
}

/// A work request as it is posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub op: Op,
    pub id: u64,
    pub local: u64,
    pub lkey: u32,
    pub remote: u64,
    pub rkey: u32,
    pub length: u32,
    pub is_inline: bool,
    pub is_signaled: bool,
}

/// A work request that is not retired.
pub(super) struct Send {
    pub request: Request,
    pub inline: Option<Vec<u8>>,
    pub psn: Psn,
    pub piece_bytes: u64,
    pub pieces: u32,
    /// For a READ: the pieces that are in memory.
    pub landed: u32,
}

impl Send {
    pub fn end(&self) -> Psn {
        self.psn.plus(self.pieces)
    }

    /// Returns where a piece begins, and its length.
    pub fn piece(&self, nth: u32) -> (u64, usize) {
        let offset = u64::from(nth) * self.piece_bytes;
        (offset, self.piece_bytes.min(u64::from(self.request.length) - offset) as usize)
    }

    pub fn completion(&self, number: u32, status: u32) -> Wc {
        let bytes = if self.request.op == Op::Read { self.request.length } else { 0 };
        Wc { id: self.request.id, status, bytes, qp: number }
    }
}

/// The statuses of completions, with the numbers of verbs.h.
pub mod status {
    pub const SUCCESS: u32 = 0;
    pub const LOC_LEN_ERR: u32 = 1;
    pub const LOC_PROT_ERR: u32 = 4;
    pub const WR_FLUSH_ERR: u32 = 5;
    pub const REM_INV_REQ_ERR: u32 = 9;
    pub const REM_ACCESS_ERR: u32 = 10;
    pub const RETRY_EXC_ERR: u32 = 12;
    pub const RNR_RETRY_EXC_ERR: u32 = 13;
}
