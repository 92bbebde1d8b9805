//! Both ends on this machine: the server as a child process, the client here. `compare` and `selftest` measure it,
//! with one configuration for everything.

use std::path::PathBuf;

use anyhow::Context;

use super::client::Client;
use super::drive::Flight;
use super::registered::Origin;
use super::secret::SecretFile;
use super::setup::Setup;
use super::wire::{Listening, Manner};
use crate::child::ChildProcess;
use crate::device::Described;
use crate::role::Role;
use crate::workload::{Engine, LatencyWorkload, Limit, Sample, Workload};

/// Transfers in flight, in every throughput row: enough that both lanes always have a transfer under way and another
/// waiting.
pub const IN_FLIGHT: usize = 4;

#[derive(Clone, Debug)]
pub struct PairConfig {
    /// The ferry-bench binary: the running one, except in tests.
    pub program: PathBuf,
    /// No workload may walk more.
    pub memory_bytes: usize,
    /// The client's and the server's options, to which a secret is added.
    pub ends: [Setup; 2],
    /// The kind of both ends' memory.
    pub memory: Origin,
}

/// Fields are dropped in this order: the client says goodbye first.
pub struct Pair {
    pub client: Client,
    child: ChildProcess,
    _secret: SecretFile,
}

impl Pair {
    pub fn start(config: &PairConfig) -> anyhow::Result<Pair> {
        Pair::start_with(config, false)
    }

    /// Starts a pair with room for `Engine::ping_pongs`.
    pub fn start_for_ping_pongs(config: &PairConfig) -> anyhow::Result<Pair> {
        Pair::start_with(config, true)
    }

    fn start_with(config: &PairConfig, pingpong: bool) -> anyhow::Result<Pair> {
        let secret = SecretFile::create()?;
        let secret_file = Some(secret.path().to_owned());
        let ends = config.ends.clone().map(|end| Setup { secret_file: secret_file.clone(), ..end });
        let [setup, target] = ends;
        let mut child = ChildProcess::start(&config.program, &Role::FerryTarget(target))?;
        let Listening { address } = child.reply().context("ferry's target")?;
        let manner = Manner {
            memory: config.memory,
            tx_depth: IN_FLIGHT,
            bidirectional: false,
            pingpong,
            validate: true,
            acked_only: false,
        };
        let client = Client::connect(&setup, &address, manner, Vec::new(), config.memory_bytes)?;
        Ok(Pair { client, child, _secret: secret })
    }

    /// Returns the process id of the target, this process's child.
    pub fn target_pid(&self) -> u32 {
        self.child.pid()
    }
}

impl Engine for Client {
    fn name(&self) -> &str {
        "ferry"
    }

    fn path(&self) -> String {
        format!("{}; {}", self.paths(), self.configuration())
    }

    fn devices(&self) -> [Option<Described>; 2] {
        self.devices.clone()
    }

    /// Nothing is tuned: one configuration serves every workload.
    fn prepare(&mut self, _: &Workload) -> anyhow::Result<()> {
        Ok(())
    }

    fn settings(&self, _: &Workload) -> String {
        let Flight { threads, in_flight } = self.flight();
        let threads = if threads == 1 { "one thread".to_owned() } else { format!("{threads} threads") };
        format!("{in_flight} in flight from {threads}")
    }

    fn throughput(&mut self, workload: &Workload, limit: Limit) -> anyhow::Result<Sample> {
        self.run(workload, limit)
    }

    fn latency(&mut self, workload: &LatencyWorkload) -> anyhow::Result<Vec<u64>> {
        self.time_each(workload)
    }

    fn round_trips(&mut self, bytes: usize, samples: usize) -> anyhow::Result<Vec<u64>> {
        self.time_round_trips(bytes, samples)
    }

    fn ping_pongs(&mut self, bytes: usize, rounds: usize) -> anyhow::Result<Vec<u64>> {
        self.time_ping_pongs(bytes, rounds)
    }
}
