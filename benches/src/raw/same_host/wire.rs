//! What crosses the control pipe between the initiator and the target of a same-host reference.

use serde::{Deserialize, Serialize};

use crate::workload::Workload;

/// Of the target's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Anonymous and private: what an application brings.
    Own,
    /// A memory file that others can map: what ferry allocates.
    Shared,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Own => "own",
            Kind::Shared => "shared",
        }
    }
}

/// Where the target's memory is, in its own terms.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Place {
    pub address: u64,
    /// The memory file's descriptor, if it is one.
    pub fd: Option<i32>,
}

/// From the initiator, one JSON object a line.
#[derive(Debug, Serialize, Deserialize)]
pub enum Command {
    /// Prepare the memory for a run; answered by `Ready`.
    Prepare { workload: Workload, seed: u64 },
    /// After the run: is what its `transfers` transfers brought here in its place?
    Check { transfers: u64 },
}

/// And back.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// First of all.
    Holding(Place),
    Ready,
    Right,
    Failed {
        reason: String,
    },
}
