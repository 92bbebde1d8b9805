//! The messages of the two ends, as JSON in notifications. `terms` has the options on which they must agree.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::workload::{Described, Limit, Workload};

/// The version of these messages. Ends of different versions refuse each other.
pub const VERSION: u32 = 6;

/// Registered memory that the other end may name.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Area {
    pub region: u64,
    pub address: u64,
    pub bytes: usize,
}

/// The origin of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Mapped by this program and registered with ferry
    Own,
    /// Allocated by ferry
    Alloc,
}

/// How transfers are submitted: from how many threads, and how many are under way in total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flight {
    pub threads: usize,
    pub in_flight: usize,
}

/// The parameters of a run that both ends know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PingPong {
    pub bytes: usize,
    pub rounds: u64,
    pub slots: usize,
    pub acked_only: bool,
    pub validate: bool,
    /// The seed of the client's data.
    pub seed: u64,
}

/// A child server's first and only line on its standard output.
#[derive(Debug, Serialize, Deserialize)]
pub struct Listening {
    pub address: String,
}

/// How a client measures.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Manner {
    /// The kind of both ends' host memory.
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
    /// The first message. `inward` is the client's memory for transfers that the server starts (`-b`, `--pingpong`).
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
    /// Start your own half of a bidirectional run; answered by `Finished` at its end.
    Go,
    /// The client's part of the run is over after `transfers` transfers; answered by `Finished`. `spoil` damages a
    /// byte before the check, so that a test can see the check fail.
    Finish { transfers: u64, spoil: bool },
    /// Answer WRITEs into your memory with WRITEs into mine, as the terms say; answered by `Ready` before
    /// the first, and `Finish` follows the last.
    PingPong(PingPong),
    /// Send the next `count` notifications back as they are; answered by `Ready` before the first.
    Echo { count: usize },
    /// Print these lines: the server shows the client's table, row by row.
    Table { lines: String },
    /// The session is over. The server's process ends with success.
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
        /// The device of the server's memory; `None`: host memory.
        device: Option<Described>,
    },
    /// The terms are refused; nothing will be measured.
    Refused {
        reason: String,
    },
    Ready,
    Finished(Outcome),
    Failed {
        reason: String,
    },
}

/// The result of a run at the server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub cpu_seconds: f64,
    /// The error that the check found, if any.
    pub mismatch: Option<String>,
    /// The transfers of the server's own half.
    pub own_transfers: u64,
    pub own_seconds: f64,
}
