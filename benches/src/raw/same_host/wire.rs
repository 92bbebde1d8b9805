//! What the target of a same-host reference is told on its command line, and says first.

use serde::{Deserialize, Serialize};

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

/// Where the target's memory is, in its own terms: its first line.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Place {
    pub address: u64,
    /// The memory file's descriptor, if it is one.
    pub fd: Option<i32>,
}
