//! The reference over verbs: the least that a program can do to WRITE and READ lists of blocks over RC queue pairs, in
//! two processes of one machine with two devices.
//!
//! A list is one chain of work requests, posted at once and signalled once, at its end; a window of lists is under
//! way. Where ferry proves that WRITEs are visible by a READ behind them, each list here can have the same READ behind
//! it. The target registers its memory, sends its place, and sleeps.
//!
//! `end` is either process's part of its device, through ferry's bindings; `target` and `initiator` are the two
//! processes.

mod end;
mod initiator;
mod target;

use serde::{Deserialize, Serialize};

pub use initiator::{VerbsConfig, VerbsEngine};
pub use target::{serve, VerbsTargetOptions};

/// One end's device, and the options of its queue pairs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Port {
    pub device: String,
    pub gid_index: u8,
    /// The largest path MTU; the smaller of both ends' counts.
    pub mtu: u32,
    pub queues: usize,
}

/// A queue pair's address for the other end.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Address {
    gid: [u8; 16],
    queue: u32,
    psn: u32,
    mtu: u32,
    /// READs that the queue pair can answer at one time.
    reads_answered: u8,
}

/// The target's first line.
#[derive(Debug, Serialize, Deserialize)]
struct Place {
    address: u64,
    rkey: u32,
    queues: Vec<Address>,
}
