//! Both ends on this machine: the server as a child process, the client here. What `compare` and
//! `selftest` measure; one configuration for everything.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;

use super::agreement::Agreement;
use super::client::Client;
use super::drive::Flight;
use super::registered::Origin;
use super::secret::SecretFile;
use super::setup::Setup;
use super::wire::Listening;
use crate::child::ChildProcess;
use crate::device::Described;
use crate::layout::Layout;
use crate::options::{DeviceOptions, RdmaOptions, Transport};
use crate::workload::{Engine, LatencyWorkload, Limit, Sample, Workload};

/// Transfers in flight, the same for every throughput row: enough that both lanes always have one under
/// way and one waiting.
pub const IN_FLIGHT: usize = 4;

#[derive(Clone, Debug)]
pub struct PairConfig {
    /// The ferry-bench binary; the running one, except in tests.
    pub program: PathBuf,
    /// No workload may walk more.
    pub memory_bytes: usize,
    /// `None` keeps ferry's default, as all else is.
    pub spin: Option<Duration>,
    pub congestion_control: Option<String>,
    /// What ferry may use; anything but auto fails rather than falls back.
    pub transport: Transport,
    /// Of the client and of the server.
    pub rdma: [RdmaOptions; 2],
    /// The same: whose memory they have.
    pub devices: [DeviceOptions; 2],
    /// Queue pairs; `None` keeps ferry's default.
    pub qps: Option<u32>,
    /// Room for `Engine::ping_pongs`.
    pub pingpong: bool,
    /// Both ends'.
    pub memory: Origin,
}

/// The fields' order is the order in which they go: the client says goodbye first.
pub struct Pair {
    pub client: Client,
    child: ChildProcess,
    _secret: SecretFile,
}

impl Pair {
    pub fn start(config: &PairConfig) -> anyhow::Result<Pair> {
        let secret = SecretFile::create()?;
        let setup = Setup {
            secret_file: Some(secret.path().to_owned()),
            spin: config.spin,
            congestion_control: config.congestion_control.clone(),
            transport: config.transport,
            qps: config.qps,
            ..Setup::default()
        };
        let [rdma, target_rdma] = config.rdma.clone();
        let [device, target_device] = config.devices;
        let target = Setup { rdma: target_rdma, device: target_device, ..setup.clone() };
        let setup = Setup { rdma, device, ..setup };
        let mut child = ChildProcess::start(&config.program, &target.child_arguments("ferry-target")?)?;
        let Listening { address } = child.reply().context("ferry's target")?;
        let opened = setup.config()?;
        let agreement = Agreement {
            test: None,
            sizes: Vec::new(),
            limit: Limit::Transfers(1),
            tx_depth: IN_FLIGHT,
            requests: 1,
            bidirectional: false,
            pingpong: config.pingpong,
            data_validation: true,
            acked_only: false,
            layout: Layout::Contiguous,
            memory: config.memory,
            transport: config.transport,
            lanes: if config.transport == Transport::Rdma { opened.rdma_qps } else { opened.lanes },
            spin_us: opened.spin_us,
        };
        let client = Client::connect(&setup, &address, agreement, config.memory_bytes)?;
        Ok(Pair { client, child, _secret: secret })
    }

    /// Process id of the target, this process's child.
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
