//! The rows of one machine: ferry's same-host path beside the raw references of the same kind of memory.
//!
//! The program's own memory is compared with `process_vm_*` from as many threads as ferry has workers, memory that
//! ferry allocated with copies through a shared mapping from two threads.

use serde::Serialize;
use std::io::Write;

use super::rows::{large, scattered, LatencyRow, ThroughputRow};
use super::{measure_rows, screen, yardstick, Comparison, Plan, Standing};
use crate::cpu::allowed_cpus;
use crate::options::{Named, Transport};
use crate::raw::same_host::{SameHostConfig, SharedEngine, VmEngine};
use crate::stats::Goal;
use crate::subject::{NoPath, Origin, Pair, PairConfig, Setup};
use crate::workload::{Engine, LatencyWorkload, Operation, Placement, Workload, KIB};

/// ferry's default number of workers is the number of CPUs, up to this number.
const WORKERS_MAX: usize = 4;
const COPY_THREADS: usize = 2;

/// A row that could not be measured, and the reason.
#[derive(Debug, Serialize)]
pub struct Unavailable {
    pub row: String,
    pub reason: String,
}

/// One kind of memory, with the share of the reference that ferry has to reach.
struct Section {
    origin: Origin,
    threads: usize,
    /// 1 MiB, scattered 16 KiB and scattered 4 KiB.
    goals: [f64; 3],
    /// The GiB/s that a throwaway program once reached with two threads on these three workloads.
    measured: [f64; 3],
    /// The goal for a synchronous 4 KiB WRITE's p50.
    latency_goal: Option<f64>,
}

const SECTIONS: [Section; 2] = [
    Section {
        origin: Origin::Own,
        threads: WORKERS_MAX,
        goals: [0.95, 0.95, 0.85],
        measured: [9.3, 6.7, 4.4],
        latency_goal: Some(2.0),
    },
    Section {
        origin: Origin::Alloc,
        threads: COPY_THREADS,
        goals: [0.9, 0.9, 0.9],
        measured: [11.4, 12.2, 9.2],
        latency_goal: None,
    },
];

/// Measures both sections, and prints each line as it is measured. `config` is that of the other rows.
pub fn measure(
    plan: &Plan,
    config: &PairConfig,
    comparison: &mut Comparison,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    for section in &SECTIONS {
        section.measure(plan, config, comparison, out)?;
    }
    Ok(())
}

impl Section {
    fn measure(
        &self,
        plan: &Plan,
        config: &PairConfig,
        comparison: &mut Comparison,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        let (throughput, latency) = self.rows(plan)?;
        let names = throughput.iter().map(|row| &row.name).chain(latency.iter().map(|row| &row.name));
        let names: Vec<String> = names.cloned().collect();
        if names.is_empty() {
            return Ok(());
        }
        let mut reference = self.reference(config)?;
        let ends = config.ends.clone().map(|end| Setup { transport: Transport::Local, ..end });
        let local = PairConfig { ends, memory: self.origin, ..config.clone() };
        match Pair::start(&local) {
            Ok(mut pair) => {
                screen::section(out, reference.as_ref(), &pair.client)?;
                let rows = (&throughput[..], &latency[..]);
                measure_rows(plan, rows, reference.as_mut(), &mut pair.client, comparison, out)?;
            }
            Err(error) if error.downcast_ref::<NoPath>().is_some() => {
                for row in names {
                    let unavailable = Unavailable { row, reason: format!("{error:#}") };
                    screen::unavailable(out, &unavailable)?;
                    comparison.unavailable.push(unavailable);
                }
            }
            Err(error) => return Err(error),
        }
        comparison.standings.extend(self.standings(plan, reference.as_mut())?);
        Ok(())
    }

    /// Judges the reference against the figures of two threads.
    fn standings(&self, plan: &Plan, reference: &mut dyn Engine) -> anyhow::Result<Vec<Standing>> {
        if self.threads()? != 2 {
            return Ok(Vec::new());
        }
        let rows = self.workloads(Operation::Write).into_iter().zip(self.measured);
        let rows = rows.map(|(workload, measured)| (self.name(&workload), workload, measured));
        rows.filter(|(name, ..)| plan.wants(name))
            .map(|(name, workload, measured)| yardstick::standing(plan, name, &workload, measured, reference))
            .collect()
    }

    fn rows(&self, plan: &Plan) -> anyhow::Result<(Vec<ThroughputRow>, Vec<LatencyRow>)> {
        let operations = [Operation::Write, Operation::Read];
        let throughput = operations.into_iter().flat_map(|operation| {
            let goals = self.goals.map(Goal::AtLeast);
            self.workloads(operation).into_iter().zip(goals).map(|(workload, goal)| ThroughputRow {
                name: self.name(&workload),
                workload,
                reference: workload,
                goal,
                cpu_goal: None,
            })
        });
        let cpus = allowed_cpus()?;
        let initiator_cpu = cpus.first().copied().unwrap_or(0);
        let target_cpu = cpus.get(1).copied().unwrap_or(initiator_cpu);
        let latency = self.latency_goal.map(|goal| LatencyRow {
            name: format!("local, {}: WRITE 4 KiB synchronous", self.origin.name()),
            workload: LatencyWorkload {
                operation: Operation::Write,
                bytes: 4 * KIB,
                samples: plan.samples,
                spin: None,
                placement: Placement::Pinned { initiator_cpu, target_cpu },
            },
            p50_goal: Goal::AtMost(goal),
            p99_goal: None,
        });
        let throughput = throughput.filter(|row| plan.wants(&row.name)).collect();
        Ok((throughput, latency.into_iter().filter(|row| plan.wants(&row.name)).collect()))
    }

    fn workloads(&self, operation: Operation) -> [Workload; 3] {
        [large(operation), scattered(operation, 16 * KIB), scattered(operation, 4 * KIB)]
    }

    fn name(&self, workload: &Workload) -> String {
        format!("local, {}: {workload}", self.origin.name())
    }

    fn threads(&self) -> anyhow::Result<usize> {
        Ok(allowed_cpus()?.len().clamp(1, self.threads))
    }

    fn reference(&self, config: &PairConfig) -> anyhow::Result<Box<dyn Engine>> {
        let PairConfig { program, memory_bytes, .. } = config.clone();
        let config = SameHostConfig { program, memory_bytes, threads: self.threads()? };
        Ok(match self.origin {
            Origin::Own => Box::new(VmEngine::start(&config)?),
            Origin::Alloc => Box::new(SharedEngine::start(&config)?),
        })
    }
}
