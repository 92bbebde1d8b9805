//! The processes that this program starts for the other end of a measurement: one hidden command, with its role as
//! JSON.

use std::io;

use ferry_bench::cpu::raise_descriptor_limit;
use ferry_bench::subject::{serve_child, Setup};
use serde::{Deserialize, Serialize};

use crate::crowd::serve_crowd;
use crate::raw::same_host::{self, SameHostTargetOptions};
use crate::raw::verbs::{self, VerbsTargetOptions};
use crate::raw::{self, TargetOptions};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The passive process of the raw reference
    RawTarget(TargetOptions),
    /// The passive process of the same-host references
    SameHostTarget(SameHostTargetOptions),
    /// The passive process of the verbs reference
    VerbsTarget(VerbsTargetOptions),
    /// ferry's server; ferry-bench has the same role
    FerryTarget(Setup),
    /// The peers that `sockets` connects to the engine at `address`
    FerryCrowd { engine: Setup, address: String, peers: usize },
}

impl Role {
    /// Serves the parent at the other end of standard input and output until it closes them.
    pub fn serve(&self) -> anyhow::Result<()> {
        let (from, to) = (io::stdin(), io::stdout());
        // The usual 1,024 do not suffice for a thousand peers.
        raise_descriptor_limit()?;
        match self {
            Role::RawTarget(options) => raw::serve(options, from.lock(), to.lock()),
            Role::SameHostTarget(options) => same_host::serve(options, from.lock(), to.lock()),
            Role::VerbsTarget(options) => verbs::serve(options, from.lock(), to.lock()),
            Role::FerryTarget(setup) => serve_child(setup),
            Role::FerryCrowd { engine, address, peers } => serve_crowd(engine, address, *peers),
        }
    }
}
