//! The roles of this program's child processes, as JSON: the other end of a measurement. `main` has what they
//! do.

use ferry_bench::subject::{Origin, Setup};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The target of the reference over TCP. The token keeps stray connections apart, not attackers.
    RawTarget { memory_bytes: usize, token: u64, socket: SocketOptions },
    /// The target of the same-host references
    SameHostTarget { origin: Origin, memory_bytes: usize },
    /// The target of the reference over verbs
    VerbsTarget { port: Port, memory_bytes: usize },
    /// ferry's server; ferry-bench has the same role
    FerryTarget(Setup),
    /// The peers that `sockets` connects to the engine at `address`
    FerryCrowd { engine: Setup, address: String, peers: usize },
}

/// Settings of every connection of a pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketOptions {
    /// `SO_SNDBUF` and `SO_RCVBUF`; `None` leaves them to autotuning.
    pub buffer_bytes: Option<usize>,
    /// `TCP_CONGESTION`; `None` keeps the host's default.
    pub congestion_control: Option<String>,
}

/// One end's device, and the options of its queue pairs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Port {
    pub device: String,
    pub gid_index: u8,
    /// The largest path MTU; the smaller of both ends' counts.
    pub mtu: u32,
    pub queues: usize,
}
