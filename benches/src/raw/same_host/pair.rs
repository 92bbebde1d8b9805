//! Both ends, held by the initiator: the child process, its control pipe, and the initiator's memory.

use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use anyhow::{ensure, Context};

use super::wire::Kind;
use super::{Scratch, Way};
use crate::child::ChildProcess;
use crate::dispense::Dispenser;
use crate::memory::Memory;
use crate::raw::passive::Passive;
use crate::raw::timed::{time_each, timed};
use crate::walk::Walk;
use crate::workload::{LatencyWorkload, Limit, Sample, Workload};

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
    target: Passive,
    memory: Memory,
    threads: usize,
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
        let place = child.reply().context("the raw target")?;
        let way = W::reach(child.pid(), place, bytes).context("reaching the raw target's memory")?;
        Ok(SameHostPair { way, target: Passive::new(child), memory, threads: config.threads })
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Process id of the target, this process's child.
    pub fn target_pid(&self) -> u32 {
        self.target.pid()
    }

    /// One timed batch. The data is new in each, and checked after the clock has stopped.
    pub fn run(&mut self, workload: &Workload, setting: usize, limit: Limit) -> anyhow::Result<Sample> {
        let walk = self.target.prepare(workload, &mut self.memory)?;
        let sample =
            timed(self.target.pid(), workload, limit, |dispenser| self.drive(&walk, setting, dispenser))?;
        self.target.check(&walk, &self.memory, sample.transfers)?;
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
        let single = workload.single(self.memory.bytes());
        let walk = self.target.prepare(&single, &mut self.memory)?;
        let mut scratch = Scratch::default();
        let nanoseconds =
            time_each(workload, |number| self.way.carry(&walk, &self.memory, number, setting, &mut scratch))?;
        self.target.check(&walk, &self.memory, workload.samples as u64)?;
        Ok(nanoseconds)
    }
}
