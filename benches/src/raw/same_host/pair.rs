//! Both ends, held by the initiator: the child process, its control pipe, and the initiator's memory.

use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use anyhow::{bail, ensure, Context};

use super::wire::{Command, Kind, Reply};
use super::{Scratch, Way};
use crate::child::ChildProcess;
use crate::cpu::Pinned;
use crate::dispense::Dispenser;
use crate::layout::{mix, Layout};
use crate::memory::Memory;
use crate::raw::timed::timed;
use crate::walk::{End, Walk};
use crate::workload::{LatencyWorkload, Limit, Placement, Sample, Workload, LATENCY_SLOTS};

#[derive(Clone, Debug)]
pub struct SameHostConfig {
    /// The ferry-bench binary; the running one, except in tests.
    pub program: PathBuf,
    /// Memory on each side: no workload may walk more.
    pub memory_bytes: usize,
    /// Threads that move transfers, each its own.
    pub threads: usize,
}

pub struct SameHostPair<W> {
    way: W,
    child: ChildProcess,
    memory: Memory,
    threads: usize,
    seed: u64,
}

impl<W: Way> SameHostPair<W> {
    pub fn start(config: &SameHostConfig) -> anyhow::Result<SameHostPair<W>> {
        ensure!(config.threads > 0, "at least one thread moves the data");
        let bytes = config.memory_bytes;
        let memory = match W::KIND {
            Kind::Own => Memory::new(bytes),
            Kind::Shared => Memory::shared(bytes).map(|(memory, _)| memory),
        };
        let memory = memory.context("the initiator's memory")?;
        let arguments = [
            "same-host-target".to_owned(),
            format!("--kind={}", W::KIND.name()),
            format!("--memory-bytes={bytes}"),
        ];
        let mut child = ChildProcess::start(&config.program, &arguments)?;
        let place = match child.reply().context("the raw target")? {
            Reply::Holding(place) => place,
            other => bail!("the raw target began with {other:?}"),
        };
        let way = W::reach(child.pid(), place, bytes).context("reaching the raw target's memory")?;
        let seed = mix(u64::from(child.pid()));
        Ok(SameHostPair { way, child, memory, threads: config.threads, seed })
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Process id of the target, this process's child.
    pub fn target_pid(&self) -> u32 {
        self.child.pid()
    }

    /// One timed batch. The data is new in each, and checked after the clock has stopped.
    pub fn run(&mut self, workload: &Workload, setting: usize, limit: Limit) -> anyhow::Result<Sample> {
        let walk = self.prepare(workload)?;
        let sample =
            timed(self.child.pid(), workload, limit, |dispenser| self.drive(&walk, setting, dispenser))?;
        self.check(&walk, sample.transfers)?;
        Ok(sample)
    }

    /// From the first transfer to the last; returns when that was done.
    fn drive(&self, walk: &Walk, setting: usize, dispenser: &Dispenser) -> io::Result<Instant> {
        let work = || {
            let mut scratch = Scratch::default();
            while let Some(number) = dispenser.take() {
                self.way.carry(walk, &self.memory, number, setting, &mut scratch)?;
            }
            Ok(Instant::now())
        };
        if self.threads == 1 {
            return work();
        }
        thread::scope(|scope| {
            let workers: Vec<_> = (0..self.threads).map(|_| scope.spawn(work)).collect();
            let mut ends = workers.into_iter().map(|worker| worker.join().expect("a mover does not panic"));
            ends.try_fold(dispenser.start(), |last, end| Ok(last.max(end?)))
        })
    }

    /// Nanoseconds of each of the workload's transfers. The target has no part in them: where it may
    /// execute is of no consequence.
    pub fn time_each(&mut self, workload: &LatencyWorkload, setting: usize) -> anyhow::Result<Vec<u64>> {
        let LatencyWorkload { operation, bytes, samples, placement, .. } = *workload;
        let layout = Layout::Contiguous;
        let walk_bytes = bytes.saturating_mul(LATENCY_SLOTS).min(self.memory.bytes());
        let walk =
            self.prepare(&Workload { operation, layout, block_bytes: bytes, blocks: 1, walk_bytes })?;
        let pinned = match placement {
            Placement::Anywhere => None,
            Placement::Pinned { initiator_cpu, .. } => Some(Pinned::to(initiator_cpu)?),
        };
        let mut scratch = Scratch::default();
        let mut nanoseconds = Vec::with_capacity(samples);
        for number in 0..samples as u64 {
            let start = Instant::now();
            self.way.carry(&walk, &self.memory, number, setting, &mut scratch)?;
            nanoseconds.push(start.elapsed().as_nanos() as u64);
        }
        drop(pinned);
        self.check(&walk, samples as u64)?;
        Ok(nanoseconds)
    }

    fn prepare(&mut self, workload: &Workload) -> anyhow::Result<Walk> {
        let workload = workload.validated()?;
        ensure!(workload.walk_bytes <= self.memory.bytes(), "the workload walks more than there is memory");
        self.seed = mix(self.seed.wrapping_add(1));
        self.child.tell(&Command::Prepare { workload, seed: self.seed }).context("telling the raw target")?;
        let walk = Walk::new(workload);
        walk.fill(End::Initiator, &mut self.memory, self.seed);
        match self.child.reply().context("the raw target")? {
            Reply::Ready => Ok(walk),
            other => bail!("the raw target is not ready: {other:?}"),
        }
    }

    fn check(&mut self, walk: &Walk, transfers: u64) -> anyhow::Result<()> {
        self.child.tell(&Command::Check { transfers }).context("telling the raw target")?;
        match self.child.reply().context("the raw target")? {
            Reply::Right => {}
            Reply::Failed { reason } => bail!("the raw target: {reason}"),
            other => bail!("the raw target answered a check with {other:?}"),
        }
        walk.check(End::Initiator, &self.memory, self.seed, transfers).context("the raw initiator")
    }
}
