//! Both ends of the raw reference, held by the initiator: the child process, its control pipe, the
//! connections and the initiator's memory.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context};
use socket2::{Domain, Socket, Type};

use super::initiator::Lane;
use super::socket::{Link, SocketOptions, Wait};
use super::timed::timed;
use super::wire::{Command, Header, Kind, Reply};
use crate::child::ChildProcess;
use crate::cpu::Pinned;
use crate::dispense::Dispenser;
use crate::layout::mix;
use crate::memory::Memory;
use crate::walk::{End, Walk};
use crate::workload::{LatencyWorkload, Limit, Placement, Sample, Workload};

/// ferry's own.
const SPIN_DEFAULT: Duration = Duration::from_micros(50);

#[derive(Clone, Debug)]
pub struct RawConfig {
    /// The ferry-bench binary; the running one, except in tests.
    pub program: PathBuf,
    /// Connections opened; a run may use fewer.
    pub connections: usize,
    /// Memory on each side: no workload may walk more.
    pub memory_bytes: usize,
    pub socket: SocketOptions,
}

/// How a run uses the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    pub connections: usize,
    /// Transfers under way in total, at least one per connection.
    pub in_flight: usize,
}

pub struct RawPair {
    /// Closed before the child is told to end.
    links: Vec<Link>,
    child: ChildProcess,
    memory: Memory,
    seed: u64,
}

impl RawPair {
    /// Starts the target and connects to it.
    pub fn start(config: &RawConfig) -> anyhow::Result<RawPair> {
        let memory = Memory::new(config.memory_bytes).context("the initiator's memory")?;
        // Told to the child alone. It keeps stray connections apart, not enemies.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_nanos() as u64;
        let token = mix(now ^ u64::from(std::process::id()));
        let child = ChildProcess::start(&config.program, &target_arguments(config, token))?;
        let mut pair = RawPair { links: Vec::new(), child, memory, seed: token };
        let Reply::Listening { port } = pair.reply()? else { bail!("the raw target did not listen") };
        for _ in 0..config.connections {
            let link = Link::new(connect(port, &config.socket)?)?;
            link.send_header(&Header { kind: Kind::Hello, number: token })?;
            pair.links.push(link);
        }
        pair.expect_ready()?;
        Ok(pair)
    }

    pub fn connections(&self) -> usize {
        self.links.len()
    }

    /// Process id of the target, this process's child.
    pub fn target_pid(&self) -> u32 {
        self.child.pid()
    }

    pub fn congestion_control(&self) -> anyhow::Result<String> {
        Ok(self.links.first().context("no connection")?.congestion_control()?)
    }

    /// One timed batch. The data is new in each, and checked after the clock has stopped.
    pub fn run(&mut self, workload: &Workload, tuning: Tuning, limit: Limit) -> anyhow::Result<Sample> {
        let Tuning { connections, in_flight } = tuning;
        ensure!(connections > 0 && in_flight >= connections, "each connection needs a transfer in flight");
        let walk = self.prepare(workload, connections, None, None)?;
        let sample =
            timed(self.child.pid(), workload, limit, |dispenser| self.drive(&walk, tuning, dispenser))?;
        self.check(&walk, sample.transfers)?;
        Ok(sample)
    }

    /// A thread per connection, from the first transfer to the last; returns when that was done.
    fn drive(&self, walk: &Walk, tuning: Tuning, dispenser: &Dispenser) -> std::io::Result<Instant> {
        let Tuning { connections, in_flight } = tuning;
        let work = |(index, link)| {
            let lane = Lane { link, walk, memory: &self.memory, wait: Wait::Block };
            let window = in_flight / connections + usize::from(index < in_flight % connections);
            move || lane.run(window, dispenser).map(|()| Instant::now())
        };
        thread::scope(|scope| {
            let links = self.links[..connections].iter().enumerate();
            let workers: Vec<_> = links.map(|part| scope.spawn(work(part))).collect();
            let mut ends = workers.into_iter().map(|worker| worker.join().expect("a lane does not panic"));
            ends.try_fold(dispenser.start(), |last, end| Ok(last.max(end?)))
        })
    }

    /// Nanoseconds of each of the workload's transfers, over the first connection.
    pub fn time_each(&mut self, workload: &LatencyWorkload) -> anyhow::Result<Vec<u64>> {
        let LatencyWorkload { samples, spin, placement, .. } = *workload;
        let spin = spin.unwrap_or(SPIN_DEFAULT);
        let (cpu, target_cpu) = match placement {
            Placement::Anywhere => (None, None),
            Placement::Pinned { initiator_cpu, target_cpu } => (Some(initiator_cpu), Some(target_cpu)),
        };
        let single = workload.single(self.memory.bytes());
        let walk = self.prepare(&single, 1, Some(spin), target_cpu)?;
        let lane = Lane { link: &self.links[0], walk: &walk, memory: &self.memory, wait: Wait::Spin(spin) };
        let _pinned = cpu.map(Pinned::to).transpose()?;
        let nanoseconds = lane.time_each(samples).context("the raw latency run")?;
        self.check(&walk, samples as u64)?;
        Ok(nanoseconds)
    }

    fn prepare(
        &mut self,
        workload: &Workload,
        connections: usize,
        spin: Option<Duration>,
        target_cpu: Option<usize>,
    ) -> anyhow::Result<Walk> {
        let workload = workload.validated()?;
        ensure!(workload.walk_bytes <= self.memory.bytes(), "the workload walks more than there is memory");
        ensure!(connections <= self.links.len(), "only {} connections are open", self.links.len());
        self.seed = mix(self.seed.wrapping_add(1));
        let spin_us = spin.map(|spin| spin.as_micros() as u64);
        let run = Command::Run { workload, connections, spin_us, cpu: target_cpu, seed: self.seed };
        self.tell(&run)?;
        let walk = Walk::new(workload);
        walk.fill(End::Initiator, &mut self.memory, self.seed);
        self.expect_ready()?;
        Ok(walk)
    }

    fn check(&mut self, walk: &Walk, transfers: u64) -> anyhow::Result<()> {
        self.tell(&Command::Check { transfers })?;
        match self.reply()? {
            Reply::Right => {}
            Reply::Failed { reason } => bail!("the raw target: {reason}"),
            other => bail!("the raw target answered a check with {other:?}"),
        }
        walk.check(End::Initiator, &self.memory, self.seed, transfers).context("the raw initiator")
    }

    fn tell(&mut self, command: &Command) -> anyhow::Result<()> {
        self.child.tell(command).context("telling the raw target")
    }

    fn reply(&mut self) -> anyhow::Result<Reply> {
        self.child.reply().context("the raw target")
    }

    fn expect_ready(&mut self) -> anyhow::Result<()> {
        match self.reply()? {
            Reply::Ready => Ok(()),
            other => bail!("the raw target is not ready: {other:?}"),
        }
    }
}

fn target_arguments(config: &RawConfig, token: u64) -> Vec<String> {
    let mut arguments = vec![
        "raw-target".to_owned(),
        format!("--connections={}", config.connections),
        format!("--memory-bytes={}", config.memory_bytes),
        format!("--token={token}"),
    ];
    arguments.extend(config.socket.buffer_bytes.map(|bytes| format!("--buffer-bytes={bytes}")));
    arguments
        .extend(config.socket.congestion_control.iter().map(|name| format!("--congestion-control={name}")));
    arguments
}

fn connect(port: u16, options: &SocketOptions) -> anyhow::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    options.apply(socket.as_raw_fd()).context("socket options")?;
    socket
        .connect(&SocketAddr::from(([127, 0, 0, 1], port)).into())
        .context("connecting to the raw target")?;
    Ok(socket.into())
}
