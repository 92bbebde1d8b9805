//! A reference as an `Engine`: moves bytes into and out of a child process, timed, with its data checked, and with the
//! setting that is best for each workload.

use std::collections::HashMap;
use std::io::{self, Read};
use std::thread;
use std::time::Instant;

use anyhow::{ensure, Context};
use ferry_bench::child::{write_line, ChildProcess};
use ferry_bench::cpu::{child_cpu_seconds, own_cpu_seconds, Pinned};
use ferry_bench::dispense::Dispenser;
use ferry_bench::layout::mix;
use ferry_bench::memory::Memory;
use ferry_bench::stats::median;
use ferry_bench::walk::{End, Walk};
use ferry_bench::workload::{CpuSeconds, Engine, LatencyWorkload, Limit, Sample, Workload};
use serde::Serialize;

use crate::foreign::ForeignMemory;

/// Each setting is tried this often, in rounds, so that a busy moment spoils one try of each.
const TRIES: usize = 3;
pub const TRY: Limit = Limit::Seconds(0.15);

/// The initiator's memory in a run, or the target's, and the walk through it.
#[derive(Clone, Copy)]
pub struct Ground<'a> {
    pub walk: &'a Walk,
    pub memory: &'a Memory,
}

/// Sends the parent a line.
pub fn tell_parent(message: &impl Serialize) -> io::Result<()> {
    write_line(&mut io::stdout().lock(), message)
}

/// Waits until the parent closes this process's input: a target whose memory others reach does nothing.
pub fn await_parent() -> anyhow::Result<()> {
    let said = io::stdin().lock().read(&mut [0])?;
    ensure!(said == 0, "the parent sent input after its last command");
    Ok(())
}

/// A method to move bytes.
pub trait Way {
    type Setting: Copy;
    /// The state of a run, made before its clock starts.
    type Run;

    fn name(&self) -> &'static str;
    fn path(&self) -> String;
    /// Returns the settings worth trying for a workload. The first serves workloads that were not prepared.
    fn settings(&self) -> Vec<Self::Setting>;
    fn describe(&self, setting: Self::Setting, workload: &Workload) -> String;
    /// Prepares a run; fails if the setting is invalid here. `latency` is set for synchronous transfers.
    fn ready(
        &self,
        workload: &Workload,
        setting: Self::Setting,
        latency: Option<&LatencyWorkload>,
    ) -> anyhow::Result<Self::Run>;
    /// Makes the target ready for a run, if it has a part in it.
    fn begin(&self, _: &Self::Run, _: &mut ChildProcess) -> anyhow::Result<()> {
        Ok(())
    }
    /// Carries out the dispenser's transfers, and returns when the last of them was done.
    fn drive(&self, ground: Ground, run: &mut Self::Run, dispenser: &Dispenser) -> io::Result<Instant>;
    /// Carries out transfer `number`, and returns when it is done.
    fn carry(&self, ground: Ground, run: &mut Self::Run, number: u64) -> io::Result<()>;
    /// Ends a run of synchronous transfers.
    fn end(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Fields are dropped in this order: the method releases the memory and the target first.
pub struct Reference<W: Way> {
    way: W,
    target: ChildProcess,
    memory: Memory,
    /// The target's, filled and checked here.
    there: ForeignMemory,
    /// Of the last run's data.
    seed: u64,
    best: HashMap<Workload, W::Setting>,
}

impl<W: Way> Reference<W> {
    /// `way` moves bytes between `memory` and the memory of `target` at `address`.
    pub fn new(way: W, target: ChildProcess, memory: Memory, address: u64) -> anyhow::Result<Reference<W>> {
        let seed = mix(u64::from(target.pid()));
        let there = ForeignMemory::open(target.pid(), address)?;
        Ok(Reference { way, target, memory, there, seed, best: HashMap::new() })
    }

    pub fn way_mut(&mut self) -> &mut W {
        &mut self.way
    }

    /// Returns the process id of the target, this process's child.
    pub fn target_pid(&self) -> u32 {
        self.target.pid()
    }

    /// Runs one timed batch. The data of each is new, and checked after the clock has stopped.
    pub fn run(&mut self, workload: &Workload, setting: W::Setting, limit: Limit) -> anyhow::Result<Sample> {
        let (walk, mut run) = self.prepare_run(workload, setting, None)?;
        let target_before = child_cpu_seconds(self.target.pid())?;
        let own_before = own_cpu_seconds();
        let dispenser = Dispenser::new(limit);
        let end = self
            .way
            .drive(Ground { walk: &walk, memory: &self.memory }, &mut run, &dispenser)
            .context("the raw run")?;
        let cpu_seconds = CpuSeconds {
            initiator: own_cpu_seconds() - own_before,
            target: child_cpu_seconds(self.target.pid())? - target_before,
        };
        let transfers = dispenser.transfers();
        self.check(&walk, transfers)?;
        let seconds = (end - dispenser.start()).as_secs_f64();
        Ok(Sample::of(workload, transfers, seconds, cpu_seconds))
    }

    /// Fills the memory of both ends with data that no run had before.
    fn prepare_run(
        &mut self,
        workload: &Workload,
        setting: W::Setting,
        latency: Option<&LatencyWorkload>,
    ) -> anyhow::Result<(Walk, W::Run)> {
        let workload = workload.validated()?;
        ensure!(workload.walk_bytes <= self.memory.length(), "the workload walks more than there is memory");
        let run = self.way.ready(&workload, setting, latency)?;
        self.seed = mix(self.seed.wrapping_add(1));
        let walk = Walk::new(workload);
        walk.fill(End::Initiator, &mut self.memory, self.seed)?;
        walk.fill(End::Target, &mut self.there, self.seed)?;
        self.way.begin(&run, &mut self.target).context("the raw target")?;
        Ok((walk, run))
    }

    /// Checks the data of the run at both ends.
    fn check(&self, walk: &Walk, transfers: u64) -> anyhow::Result<()> {
        walk.check(End::Target, &self.there, self.seed, transfers).context("the raw target")?;
        walk.check(End::Initiator, &self.memory, self.seed, transfers).context("the raw initiator")
    }

    fn usual(&self) -> W::Setting {
        self.way.settings()[0]
    }

    fn setting(&self, workload: &Workload) -> W::Setting {
        self.best.get(workload).copied().unwrap_or(self.usual())
    }
}

impl<W: Way> Engine for Reference<W> {
    fn name(&self) -> &str {
        self.way.name()
    }

    fn path(&self) -> String {
        self.way.path()
    }

    /// Tries every setting and keeps the fastest.
    fn prepare(&mut self, workload: &Workload) -> anyhow::Result<()> {
        let mut settings = self.way.settings();
        if settings.len() > 1 && !self.best.contains_key(workload) {
            let best = fastest(&mut settings, |setting| self.run(workload, *setting, TRY))?;
            self.best.insert(*workload, settings[best]);
        }
        Ok(())
    }

    fn settings(&self, workload: &Workload) -> String {
        self.way.describe(self.setting(workload), workload)
    }

    fn throughput(&mut self, workload: &Workload, limit: Limit) -> anyhow::Result<Sample> {
        self.run(workload, self.setting(workload), limit)
    }

    /// Runs on the calling thread.
    fn latency(&mut self, workload: &LatencyWorkload) -> anyhow::Result<Vec<u64>> {
        let single = workload.single(self.memory.length());
        let (walk, mut run) = self.prepare_run(&single, self.usual(), Some(workload))?;
        let _pinned = workload.cpus.map(|[initiator, _]| Pinned::to(initiator)).transpose()?;
        let mut nanoseconds = Vec::with_capacity(workload.samples);
        let ground = Ground { walk: &walk, memory: &self.memory };
        for number in 0..workload.samples as u64 {
            let start = Instant::now();
            self.way.carry(ground, &mut run, number).context("the raw latency run")?;
            nanoseconds.push(start.elapsed().as_nanos() as u64);
        }
        self.way.end().context("the raw latency run")?;
        self.check(&walk, workload.samples as u64)?;
        Ok(nanoseconds)
    }
}

/// Runs `work` on this many threads, each with its index; returns when the last was done.
pub fn on_threads(threads: usize, work: impl Fn(usize) -> io::Result<()> + Sync) -> io::Result<Instant> {
    let work = |index| work(index).map(|()| Instant::now());
    if threads == 1 {
        return work(0);
    }
    thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..threads).map(|index| scope.spawn(move || work(index))).collect();
        let ends = workers.into_iter().map(|worker| worker.join().expect("a mover does not panic"));
        let ends = ends.collect::<io::Result<Vec<_>>>()?;
        Ok(ends.into_iter().max().unwrap_or_else(Instant::now))
    })
}

/// Returns the index of the candidate with the highest median speed over `TRIES` rounds.
pub fn fastest<T>(
    candidates: &mut [T],
    mut run: impl FnMut(&mut T) -> anyhow::Result<Sample>,
) -> anyhow::Result<usize> {
    let mut speeds = vec![Vec::with_capacity(TRIES); candidates.len()];
    for _ in 0..TRIES {
        for (candidate, speeds) in candidates.iter_mut().zip(&mut speeds) {
            speeds.push(run(candidate)?.gb_per_second());
        }
    }
    let medians = speeds.iter().map(|speeds| median(speeds)).enumerate();
    medians.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(index, _)| index).context("nothing to choose from")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lucky_round_does_not_choose() {
        let cpu_seconds = CpuSeconds::default();
        let sample = |seconds: &f64| Sample { bytes: 1, transfers: 1, seconds: *seconds, cpu_seconds };
        let mut rounds = [[1.0, 9.0, 9.0].iter(), [5.0, 5.0, 5.0].iter()];
        let chosen = fastest(&mut rounds, |times| times.next().map(sample).context("a fourth round"));
        assert_eq!(chosen.expect("two candidates"), 1);
    }
}
