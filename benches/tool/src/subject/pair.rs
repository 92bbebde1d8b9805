//! Both ends on this machine: the server as a child process, the client here. ferry-compare and `selftest` measure it,
//! with one configuration for everything.

use std::path::PathBuf;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::client::Client;
use super::secret::SecretFile;
use super::server::serve_child;
use super::setup::Setup;
use super::wire::{Listening, Manner, Origin};
use crate::child::ChildProcess;
use crate::cpu::raise_descriptor_limit;

/// The other end of a measurement, which a program starts from itself by a hidden command.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    FerryTarget(Setup),
}

impl Role {
    /// Serves the parent at the other end of standard input and output until it closes them.
    pub fn serve(&self) -> anyhow::Result<()> {
        // The usual 1,024 do not suffice for a thousand peers.
        raise_descriptor_limit()?;
        let Role::FerryTarget(setup) = self;
        serve_child(setup)
    }
}

/// Transfers in flight, in every throughput row: enough that both lanes always have a transfer under way and another
/// waiting.
pub const IN_FLIGHT: usize = 4;

#[derive(Clone, Debug)]
pub struct PairConfig {
    /// The program that plays the server as a child: the running one, except in tests.
    pub program: PathBuf,
    /// No workload may walk more.
    pub memory_bytes: usize,
    /// The client's and the server's options, to which a secret is added.
    pub ends: [Setup; 2],
    /// The kind of both ends' memory.
    pub memory: Origin,
    /// There is room for `Engine::ping_pongs`.
    pub pingpong: bool,
}

/// Fields are dropped in this order: the client says goodbye first.
pub struct Pair {
    pub client: Client,
    child: ChildProcess,
    _secret: SecretFile,
}

impl Pair {
    pub fn start(config: &PairConfig) -> anyhow::Result<Pair> {
        let PairConfig { program, memory_bytes, ends, memory, pingpong } = config.clone();
        let secret = SecretFile::create()?;
        let [setup, target] = ends.map(|end| end.with("secret_file", secret.path().display()));
        let mut child = ChildProcess::start(&program, &Role::FerryTarget(target))?;
        let Listening { address } = child.reply().context("ferry's target")?;
        let manner = Manner {
            memory,
            tx_depth: IN_FLIGHT,
            bidirectional: false,
            pingpong,
            validate: true,
            acked_only: false,
        };
        let client = Client::connect(&setup, &address, manner, Vec::new(), memory_bytes)?;
        Ok(Pair { client, child, _secret: secret })
    }

    /// Returns the process id of the target, this process's child.
    pub fn target_pid(&self) -> u32 {
        self.child.pid()
    }
}
