//! The reference over verbs: the least that a program can do to WRITE and READ lists of blocks over RC queue
//! pairs, in two processes of one machine with two devices.
//!
//! A list is one chain of work requests, posted at once and signalled once, at its end; a window of lists is
//! under way. Where ferry proves that WRITEs are visible by a READ behind them, the same READ can be put
//! behind each list here. The target registers its memory, tells its place, and sleeps.
//!
//! `end` is what either process has of its device, through ferry's bindings; `target` and `initiator` are the
//! two processes.

mod end;
mod initiator;
mod target;

use serde::{Deserialize, Serialize};

pub use initiator::{VerbsConfig, VerbsEngine};
pub use target::{serve, VerbsTargetOptions};

/// One end's device, and how its queue pairs are set up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Port {
    pub device: String,
    pub gid_index: u8,
    /// At most; the smaller of both ends' holds.
    pub mtu: u32,
    pub queues: usize,
}

/// A queue pair as the other end has to know it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Address {
    gid: [u8; 16],
    queue: u32,
    psn: u32,
    mtu: u32,
    /// READs that it can answer at one time.
    reads_answered: u8,
}

/// What the target says first.
#[derive(Debug, Serialize, Deserialize)]
struct Place {
    address: u64,
    rkey: u32,
    queues: Vec<Address>,
}
