//! What the two ends tell each other, as JSON in notifications. `terms` says what they have to agree on.

use serde::{Deserialize, Serialize};

use super::drive::Flight;
use super::pingpong::PingPong;
use super::registered::Origin;
use crate::device::Described;
use crate::workload::{Limit, Workload};

/// Of these messages. Ends of different versions refuse each other.
pub const VERSION: u32 = 5;

/// Registered memory that the other end may name.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Area {
    pub region: u64,
    pub address: u64,
    pub bytes: usize,
}

/// A child server's first and only line on its standard output.
#[derive(Debug, Serialize, Deserialize)]
pub struct Listening {
    pub address: String,
}

/// How a client measures.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Manner {
    /// Both ends' memory, where it is the host's.
    pub memory: Origin,
    pub tx_depth: usize,
    pub bidirectional: bool,
    /// Both ends' applications poll memory, and the server WRITEs back.
    pub pingpong: bool,
    pub validate: bool,
    /// Over RDMA, WRITEs are done before they are known to be visible at the target.
    pub acked_only: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Command {
    /// First of all. `inward` is the client's memory for transfers that the server starts (`-b`,
    /// `--pingpong`).
    Hello {
        version: u32,
        manner: Manner,
        /// Options and their values, for the server to agree with.
        terms: Vec<(String, String)>,
        memory_bytes: usize,
        inward: Option<Area>,
    },
    /// Prepare the memory for a run; answered by `Ready`.
    Prepare(Preparation),
    /// Start your own half of a bidirectional run; answered by `Finished` in the end.
    Go,
    /// The client's part of the run is over after `transfers` transfers; answered by `Finished`.
    /// `spoil` damages a byte before the check, so that a test can see the check fail.
    Finish { transfers: u64, spoil: bool },
    /// Answer WRITEs into your memory with WRITEs into mine, as the terms say; answered by `Ready` before
    /// the first, and `Finish` follows the last.
    PingPong(PingPong),
    /// Send the next `count` notifications back as they are; answered by `Ready` before the first.
    Echo { count: usize },
    /// No more. The server's process ends well.
    Bye,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Preparation {
    pub workload: Workload,
    pub seed: u64,
    pub validate: bool,
    /// The server's own half of a bidirectional run.
    pub own: Option<OwnHalf>,
    /// The only CPU on which the server may execute during the run.
    pub cpu: Option<usize>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct OwnHalf {
    pub flight: Flight,
    pub limit: Limit,
    pub acked_only: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The terms are accepted: `inward` is for the client's transfers.
    Welcome {
        inward: Area,
        /// Whose memory the server has; `None`: the host's.
        device: Option<Described>,
    },
    /// They are not; nothing will be measured.
    Refused {
        reason: String,
    },
    Ready,
    Finished(Outcome),
    Failed {
        reason: String,
    },
}

/// A run, seen from the server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub cpu_seconds: f64,
    /// What the check found wrong, or nothing.
    pub mismatch: Option<String>,
    /// Of the server's own half.
    pub own_transfers: u64,
    pub own_seconds: f64,
}
