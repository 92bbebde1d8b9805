//! An operation of the workload: what was asked, what the node said of it, and which bytes may be where.

use crate::arena;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Write,
    Read,
    /// A notification alone.
    Note,
}

/// Bytes that move from a node's arena to another's.
#[derive(Clone, Copy)]
pub struct Piece {
    pub source: usize,
    pub target: usize,
    pub bytes: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Life {
    Submitted,
    Refused,
    Final,
    /// The node that submitted the operation died.
    Orphan,
}

pub struct Operation {
    pub id: u64,
    pub kind: Kind,
    pub from: usize,
    pub from_epoch: u64,
    pub to: usize,
    pub pieces: Vec<Piece>,
    pub notifies: bool,
    /// The request names a region of a process that has ended.
    pub stale: bool,
    pub submitted: Instant,
    /// How long the process that submitted had been stopped at the submit.
    pub stopped_before: Duration,
    pub deadline: Duration,
    pub life: Life,
    pub status: String,
    pub notification: String,
    pub noted: bool,
    /// The program wrote over the target after the end.
    pub scrubbed: bool,
    /// A place in the target that was wrong after the end, and when.
    pub touched: Option<(usize, Duration)>,
}

impl Operation {
    /// Returns the nodes whose arenas hold the source and the target.
    pub fn places(&self) -> (usize, usize) {
        if self.kind == Kind::Read {
            (self.to, self.from)
        } else {
            (self.from, self.to)
        }
    }

    /// Returns the seeds of words that may stand in the target now.
    pub fn allowed(&self) -> Vec<u64> {
        let (data, over) = (arena::data(self.id), arena::scrubbed(self.id));
        if self.scrubbed || self.noted && !self.pieces.is_empty() {
            return vec![over];
        }
        let done = self.life == Life::Final && self.status == "OK";
        let mut allowed = vec![data];
        if !done && self.life != Life::Refused {
            allowed.push(arena::CANARY);
        }
        if self.life == Life::Refused {
            allowed = vec![arena::CANARY];
        }
        if self.notifies {
            allowed.push(over);
        }
        allowed
    }

    pub fn command(&self, peer: &str, region: &str, flags: &str) -> String {
        let (id, deadline) = (self.id, self.deadline.as_millis());
        if self.kind == Kind::Note {
            return format!("notify {id} {peer} {deadline}");
        }
        let letter = if self.kind == Kind::Write { "w" } else { "r" };
        let mut text = format!("op {id} {letter} {peer} {region} {deadline} {flags}");
        for piece in &self.pieces {
            let (local, remote) = match self.kind {
                Kind::Read => (piece.target, piece.source),
                _ => (piece.source, piece.target),
            };
            text += &format!(" {local}:{remote}:{}", piece.bytes);
        }
        text
    }
}
