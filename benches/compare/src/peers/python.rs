//! An engine driven from Python, as an `Engine`: an agent that initiates, and agents that are its targets.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{bail, ensure, Context};
use ferry_bench::cpu::child_cpu_seconds;
use ferry_bench::layout::mix;
use ferry_bench::memory::spoil;
use ferry_bench::walk::{End, Walk};
use ferry_bench::workload::{CpuSeconds, Engine, LatencyWorkload, Limit, Sample, Workload, MIB};
use serde_json::{json, Value};

use super::agent::{field, Agent};
use crate::figures::{Quantity, Run};
use crate::foreign::ForeignMemory;

/// For filling memory, registering it, and building the lists of a workload, on a slow machine.
const SETUP_TIMEOUT: Duration = Duration::from_secs(60);
/// The time that a run may take beyond its own: an engine's slowest transfers, and its own timeouts.
const RUN_TIMEOUT: Duration = Duration::from_secs(40);
/// The first WRITE of a new pair.
const FIRST_BYTES: usize = 64;
const REGISTERED_BYTES: usize = 1 << 30;

/// The command that starts both ends of an engine.
#[derive(Clone, Debug)]
pub struct Launch {
    pub python: PathBuf,
    /// agent.py, with the engines beside it.
    pub agent: PathBuf,
    pub engine: String,
    pub initiator: Value,
    pub target: Value,
    /// Environment variables of both.
    pub variables: Vec<(String, String)>,
    pub log: PathBuf,
    /// The engine polls while it is idle, so it is stopped while others are measured.
    pub polls_when_idle: bool,
}

/// One end of a pair, and the place of its memory, as its peers have to know it.
struct Member {
    agent: Agent,
    address: u64,
    introduction: Value,
}

impl Member {
    fn start(launch: &Launch, options: &Value, memory_bytes: usize) -> anyhow::Result<Member> {
        let mut command = Command::new(&launch.python);
        command.arg(&launch.agent).args([&launch.engine, &options.to_string()]);
        command.envs(launch.variables.iter().cloned());
        let mut agent = Agent::start(&mut command, &launch.log)?;
        let mut area = agent.ask(&json!({"do": "memory", "bytes": memory_bytes}), SETUP_TIMEOUT)?;
        let (address, introduction) = (field(&mut area, "address")?, area["introduction"].take());
        Ok(Member { agent, address, introduction })
    }

    /// Returns its memory from this offset on.
    fn memory(&self, offset: usize) -> anyhow::Result<ForeignMemory> {
        ForeignMemory::open(self.agent.pid(), self.address + offset as u64)
    }

    fn cpu_seconds(&self) -> anyhow::Result<f64> {
        child_cpu_seconds(self.agent.pid()).context("the CPU time of an agent")
    }
}

pub struct PythonEngine {
    name: String,
    path: String,
    polls_when_idle: bool,
    /// Declared before its targets, so that it is dropped first.
    initiator: Member,
    targets: Vec<Member>,
    /// The memory of each target, and the initiator's memory for that target.
    area_bytes: usize,
    walk: Option<Walk>,
    seed: u64,
    spoil: bool,
}

impl PythonEngine {
    /// Starts an initiator and `targets` targets, and connects them.
    pub fn start(
        name: &str,
        launch: &Launch,
        targets: usize,
        area_bytes: usize,
    ) -> anyhow::Result<PythonEngine> {
        let start = |_| Member::start(launch, &launch.target, area_bytes).context("the target");
        let targets = (0..targets).map(start).collect::<anyhow::Result<Vec<_>>>()?;
        let mut initiator = Member::start(launch, &launch.initiator, area_bytes * targets.len())?;
        let introductions: Vec<_> = targets.iter().map(|target| &target.introduction).collect();
        let connect = json!({"do": "connect", "introductions": introductions});
        let path = field(&mut initiator.agent.ask(&connect, SETUP_TIMEOUT)?, "path")?;
        Ok(PythonEngine {
            name: name.to_owned(),
            path,
            polls_when_idle: launch.polls_when_idle,
            seed: mix(u64::from(initiator.agent.pid())),
            initiator,
            targets,
            area_bytes,
            walk: None,
            spoil: false,
        })
    }

    /// Times the setup of a new pair: from two open engines to the first WRITE done, and 1 GiB made ready at the
    /// initiator.
    pub fn time_setup(launch: &Launch) -> anyhow::Result<Run> {
        let target = Member::start(launch, &launch.target, MIB).context("the target")?;
        let mut initiator = Member::start(launch, &launch.initiator, MIB)?;
        let first = json!({"do": "first", "introduction": target.introduction, "bytes": FIRST_BYTES});
        let register = json!({"do": "register", "bytes": REGISTERED_BYTES});
        let mut ms = |step| {
            let seconds: f64 = field(&mut initiator.agent.ask(step, SETUP_TIMEOUT)?, "seconds")?;
            anyhow::Ok(seconds * 1e3)
        };
        Ok(Run::of([(Quantity::ConnectMs, ms(&first)?), (Quantity::RegisterMs, ms(&register)?)]))
    }

    pub fn version(&self) -> &str {
        self.initiator.agent.version()
    }

    /// Damages one byte before each later check, which must find it.
    pub fn spoil_checks(&mut self) {
        self.spoil = true;
    }

    fn members(&mut self) -> impl Iterator<Item = &mut Member> {
        std::iter::once(&mut self.initiator).chain(&mut self.targets)
    }

    /// Stops the processes until they are needed again, if they poll while idle.
    pub fn rest(&mut self) {
        if self.polls_when_idle {
            self.members().for_each(|member| member.agent.rest());
        }
    }

    pub fn wake(&mut self) {
        self.members().for_each(|member| member.agent.wake());
    }

    fn prepare_walk(&mut self, workload: &Workload) -> anyhow::Result<Walk> {
        if let Some(walk) = self.walk.take().filter(|walk| walk.workload() == workload) {
            return Ok(walk);
        }
        let workload = workload.validated()?;
        ensure!(workload.walk_bytes <= self.area_bytes, "the workload walks more than there is memory");
        let walk = Walk::new(workload);
        let block = workload.block_bytes;
        let slots = 0..workload.slots() as u64;
        let (local, remote): (Vec<_>, Vec<_>) = slots
            .flat_map(|slot| walk.offsets(slot))
            .map(|(here, there)| (here / block, there / block))
            .unzip();
        let message = json!({
            "do": "prepare",
            "operation": workload.operation,
            "block_bytes": block,
            "blocks": workload.blocks,
            "local": local,
            "remote": remote,
            "area_bytes": self.area_bytes,
        });
        self.initiator.agent.ask(&message, SETUP_TIMEOUT)?;
        Ok(walk)
    }

    /// Returns the memory at both ends of the transfers to target `index`, and their seed in this run.
    fn ends(&self, index: usize) -> anyhow::Result<(ForeignMemory, ForeignMemory, u64)> {
        let here = self.initiator.memory(index * self.area_bytes)?;
        Ok((here, self.targets[index].memory(0)?, mix(self.seed.wrapping_add(index as u64))))
    }

    fn fill(&mut self, walk: &Walk) -> anyhow::Result<()> {
        self.seed = mix(self.seed.wrapping_add(1));
        for index in 0..self.targets.len() {
            let (mut here, mut there, seed) = self.ends(index)?;
            walk.fill(End::Initiator, &mut here, seed)?;
            walk.fill(End::Target, &mut there, seed)?;
        }
        Ok(())
    }

    /// Transfer k goes to target k modulo their number.
    fn check(&self, walk: &Walk, transfers: u64) -> anyhow::Result<()> {
        let count = self.targets.len() as u64;
        for index in 0..self.targets.len() {
            let (here, there, seed) = self.ends(index)?;
            let transfers = (transfers + count - 1 - index as u64) / count;
            for (end, mut memory) in [(End::Initiator, here), (End::Target, there)] {
                if self.spoil && end != walk.origin() {
                    // Damages the first block of the first transfer.
                    walk.offsets_at(end, 0).take(1).try_for_each(|at| spoil(&mut memory, at))?;
                }
                let checked = walk.check(end, &memory, seed, transfers);
                checked.with_context(|| format!("after {transfers} transfers"))?;
            }
        }
        Ok(())
    }

    fn cpu_seconds(&self) -> anyhow::Result<CpuSeconds> {
        let target = self.targets.iter().map(Member::cpu_seconds).sum::<anyhow::Result<f64>>()?;
        Ok(CpuSeconds { initiator: self.initiator.cpu_seconds()?, target })
    }
}

impl Engine for PythonEngine {
    fn name(&self) -> &str {
        &self.name
    }

    fn path(&self) -> String {
        self.path.clone()
    }

    fn prepare(&mut self, workload: &Workload) -> anyhow::Result<()> {
        self.walk = Some(self.prepare_walk(workload)?);
        Ok(())
    }

    fn settings(&self, _: &Workload) -> String {
        String::new()
    }

    fn throughput(&mut self, workload: &Workload, limit: Limit) -> anyhow::Result<Sample> {
        let Limit::Seconds(seconds) = limit else { bail!("an agent's runs are timed, not counted") };
        let walk = self.prepare_walk(workload)?;
        self.fill(&walk)?;
        let before = self.cpu_seconds()?;
        let message = json!({"do": "throughput", "seconds": seconds});
        let timeout = RUN_TIMEOUT + Duration::from_secs_f64(seconds);
        let mut run = self.initiator.agent.ask(&message, timeout)?;
        let (transfers, seconds) = (field(&mut run, "transfers")?, field(&mut run, "seconds")?);
        let after = self.cpu_seconds()?;
        self.check(&walk, transfers)?;
        let cpu_seconds = CpuSeconds {
            initiator: after.initiator - before.initiator,
            target: after.target - before.target,
        };
        self.walk = Some(walk);
        Ok(Sample::of(workload, transfers, seconds, cpu_seconds))
    }

    fn latency(&mut self, workload: &LatencyWorkload) -> anyhow::Result<Vec<u64>> {
        let samples = workload.samples;
        let walk = self.prepare_walk(&workload.single(self.area_bytes))?;
        self.fill(&walk)?;
        let message = json!({"do": "latency", "samples": samples});
        let mut times = self.initiator.agent.ask(&message, RUN_TIMEOUT)?;
        self.check(&walk, samples as u64)?;
        self.walk = Some(walk);
        field(&mut times, "nanoseconds")
    }
}
