//! The reference over verbs: the least that a program can do to WRITE and READ lists of blocks over RC queue
//! pairs, in two processes of one machine with two devices.
//!
//! A list is one chain of work requests, posted at once and signalled once, at its end; a window of lists is
//! under way. Where ferry proves that WRITEs are visible by a READ behind them, the same READ can be put
//! behind each list here. The target registers its memory, tells its place, and sleeps.
//!
//! `device` and `queue` keep what verbs gives out, `chain` makes work requests, `target` and `pair` are the
//! two processes, `engine` is what is measured. Unsafe calls are in the first three.

mod chain;
mod device;
mod engine;
mod pair;
mod queue;
mod target;

use clap::Args;
use serde::{Deserialize, Serialize};

pub use engine::VerbsEngine;
pub use pair::VerbsConfig;
pub use target::serve;

/// One end's device, and how its queue pairs are set up.
#[derive(Args, Clone, Debug, Serialize)]
pub struct Port {
    #[arg(long = "ib-dev")]
    pub device: String,
    #[arg(long)]
    pub gid_index: u8,
    /// At most; the smaller of both ends' holds.
    #[arg(long)]
    pub mtu: u32,
    #[arg(long)]
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
