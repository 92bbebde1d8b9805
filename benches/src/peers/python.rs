//! An engine driven from Python, as an `Engine`: an agent that initiates, and agents that are its targets.

use std::time::Duration;

use anyhow::{bail, ensure, Context};
use serde::Deserialize;
use serde_json::{json, Value};

use super::foreign::ForeignMemory;
use super::member::{Launch, Member, SETUP_TIMEOUT};
use crate::layout::mix;
use crate::memory::spoil;
use crate::walk::{End, Walk};
use crate::workload::{CpuSeconds, Engine, LatencyWorkload, Limit, Sample, Workload, MIB};

/// The time that a run may take beyond its own: an engine's slowest transfers, and its own timeouts.
const RUN_TIMEOUT: Duration = Duration::from_secs(40);
/// The first WRITE of a new pair.
const FIRST_BYTES: usize = 64;
const REGISTERED_BYTES: usize = 1 << 30;

#[derive(Deserialize)]
struct Connected {
    path: String,
}

#[derive(Deserialize)]
struct Took {
    seconds: f64,
}

#[derive(Deserialize)]
struct Run {
    transfers: u64,
    seconds: f64,
}

#[derive(Deserialize)]
struct Times {
    nanoseconds: Vec<u64>,
}

/// Durations of setup steps, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct SetupSeconds {
    pub connect: f64,
    pub register: f64,
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
        let command = launch.command(&launch.target);
        let start = |_| Member::start(&command, area_bytes).context("the target");
        let targets = (0..targets).map(start).collect::<anyhow::Result<Vec<_>>>()?;
        let command = launch.command(&launch.initiator);
        let mut initiator = Member::start(&command, area_bytes * targets.len())?;
        let introductions: Vec<_> = targets.iter().map(|target| &target.area.introduction).collect();
        let connect = json!({"do": "connect", "introductions": introductions});
        let Connected { path } = initiator.agent.ask(&connect, SETUP_TIMEOUT)?;
        let seed = mix(u64::from(initiator.agent.pid()));
        let polls_when_idle = launch.polls_when_idle;
        let name = name.to_owned();
        Ok(PythonEngine {
            name,
            path,
            polls_when_idle,
            initiator,
            targets,
            area_bytes,
            walk: None,
            seed,
            spoil: false,
        })
    }

    /// Times the setup of a new pair: from two open engines to the first WRITE done, and 1 GiB made ready at the
    /// initiator.
    pub fn time_setup(launch: &Launch) -> anyhow::Result<SetupSeconds> {
        let target = Member::start(&launch.command(&launch.target), MIB).context("the target")?;
        let mut initiator = Member::start(&launch.command(&launch.initiator), MIB)?;
        let first = json!({"do": "first", "introduction": target.area.introduction, "bytes": FIRST_BYTES});
        let connect: Took = initiator.agent.ask(&first, SETUP_TIMEOUT)?;
        let register = json!({"do": "register", "bytes": REGISTERED_BYTES});
        let register: Took = initiator.agent.ask(&register, SETUP_TIMEOUT)?;
        Ok(SetupSeconds { connect: connect.seconds, register: register.seconds })
    }

    pub fn version(&self) -> &str {
        &self.initiator.agent.opened().version
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
        let _: Value = self.initiator.agent.ask(&message, SETUP_TIMEOUT)?;
        Ok(walk)
    }

    /// Returns the memory at both ends of the transfers to target `index`, and their seed in this run.
    fn ends(&self, index: usize) -> anyhow::Result<(ForeignMemory, ForeignMemory, u64)> {
        let here = self.initiator.area.address + (index * self.area_bytes) as u64;
        let target = &self.targets[index];
        let there = target.memory.at(target.area.address)?;
        Ok((self.initiator.memory.at(here)?, there, mix(self.seed.wrapping_add(index as u64))))
    }

    fn fill(&mut self, walk: &Walk) -> anyhow::Result<()> {
        self.seed = mix(self.seed.wrapping_add(1));
        for index in 0..self.targets.len() {
            let (mut here, mut there, seed) = self.ends(index)?;
            walk.fill(End::Initiator, &mut here, seed);
            walk.fill(End::Target, &mut there, seed);
            here.intact().and(there.intact())?;
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
                    walk.offsets_at(end, 0).take(1).for_each(|at| spoil(&mut memory, at));
                }
                let checked = walk.check(end, &memory, seed, transfers);
                memory.intact()?;
                checked.with_context(|| format!("after {transfers} transfers"))?;
            }
        }
        Ok(())
    }

    fn cpu_seconds(&self) -> anyhow::Result<CpuSeconds> {
        let targets = self.targets.iter().map(|target| target.agent.cpu_seconds());
        let target = targets.sum::<anyhow::Result<f64>>()?;
        Ok(CpuSeconds { initiator: self.initiator.agent.cpu_seconds()?, target })
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
        let run: Run = self.initiator.agent.ask(&message, timeout)?;
        let after = self.cpu_seconds()?;
        self.check(&walk, run.transfers)?;
        let cpu_seconds = CpuSeconds {
            initiator: after.initiator - before.initiator,
            target: after.target - before.target,
        };
        let bytes = run.transfers * workload.transfer_bytes() as u64;
        self.walk = Some(walk);
        Ok(Sample { bytes, transfers: run.transfers, seconds: run.seconds, cpu_seconds })
    }

    fn latency(&mut self, workload: &LatencyWorkload) -> anyhow::Result<Vec<u64>> {
        let samples = workload.samples;
        let walk = self.prepare_walk(&workload.single(self.area_bytes))?;
        self.fill(&walk)?;
        let message = json!({"do": "latency", "samples": samples});
        let Times { nanoseconds } = self.initiator.agent.ask(&message, RUN_TIMEOUT)?;
        self.check(&walk, samples as u64)?;
        self.walk = Some(walk);
        Ok(nanoseconds)
    }
}
