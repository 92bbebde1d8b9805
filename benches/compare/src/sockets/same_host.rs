//! The rows of one machine: ferry's same-host path beside the raw references of the same kind of memory.
//!
//! The program's own memory is compared with `process_vm_*` from as many threads as ferry has workers, memory that
//! ferry allocated with copies through a shared mapping from two threads.

use ferry_bench::cpu::allowed_cpus;
use ferry_bench::options::Transport;
use ferry_bench::subject::{unavailable, Origin, Pair, PairConfig};
use ferry_bench::workload::{Named, Operation, Workload, KIB};

use super::rows::{large, scattered, synchronous, Row, OPERATIONS};
use super::{yardstick, Course, REFERENCE, SUBJECT};
use crate::contest::{measure as measure_row, Outcome, Plan, Side};
use crate::figures::{Job, Quantity};
use crate::judge::Goal;
use crate::raw::same_host::SameHostEngine;
use crate::screen;

/// ferry's default number of workers is the number of CPUs, up to this number.
const WORKERS_MAX: usize = 4;
const COPY_THREADS: usize = 2;

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

/// Measures both sections. `config` is that of the other rows.
pub fn measure(course: &mut Course, config: &PairConfig) -> anyhow::Result<()> {
    SECTIONS.iter().try_for_each(|section| section.measure(course, config))
}

impl Section {
    fn measure(&self, course: &mut Course, config: &PairConfig) -> anyhow::Result<()> {
        let cpus = allowed_cpus()?;
        let mut rows = self.rows(&cpus, course.plan);
        rows.retain(|row| course.plan.wants(&row.name));
        if rows.is_empty() {
            return Ok(());
        }
        let threads = cpus.len().clamp(1, self.threads);
        let reference =
            &mut SameHostEngine::start(&config.program, self.origin, config.memory_bytes, threads)?;
        let ends = config.ends.clone().map(|end| end.with("transports", Transport::Local.name()));
        match Pair::start(&PairConfig { ends, memory: self.origin, ..config.clone() }) {
            Ok(mut pair) => {
                rows.iter().try_for_each(|row| course.engines(row, [&mut *reference, &mut pair.client]))?;
            }
            Err(error) if unavailable(&error).is_some() => {
                for row in rows {
                    let mut sides = [REFERENCE, SUBJECT].map(Side::new);
                    let reason = "the reference of a path that is not here".to_owned();
                    sides[0].out = Some(Outcome::NotApplicable { reason });
                    sides[1].out = Some(Outcome::of_error(&error));
                    let found = measure_row(row.name, sides.into(), 0, |_| anyhow::bail!("both are out"));
                    screen::tell(course.out, &mut course.found, found, &[])?;
                }
            }
            Err(error) => return Err(error),
        }
        // The measured figures are of two threads.
        if threads == 2 {
            let rows = self.workloads(Operation::Write).into_iter().zip(self.measured);
            let rows = rows.map(|(workload, measured)| (self.name(&workload), workload, measured));
            yardstick::judge(course, rows, reference)?;
        }
        Ok(())
    }

    fn rows(&self, cpus: &[usize], plan: &Plan) -> Vec<Row> {
        let row = |(workload, goal): (Workload, f64)| {
            let goals = vec![(Quantity::GbPerSecond, Goal::AtLeast(goal))];
            Row::alike(self.name(&workload), Job::Throughput(workload), goals)
        };
        let throughput = OPERATIONS
            .into_iter()
            .flat_map(|operation| self.workloads(operation).into_iter().zip(self.goals));
        let initiator_cpu = cpus.first().copied().unwrap_or(0);
        let target_cpu = cpus.get(1).copied().unwrap_or(initiator_cpu);
        let latency = self.latency_goal.map(|goal| {
            let name = format!("local, {}: WRITE 4 KiB synchronous", self.origin.name());
            let job = synchronous([initiator_cpu, target_cpu], None, plan.samples);
            Row::alike(name, job, vec![(Quantity::P50Us, Goal::AtMost(goal))])
        });
        throughput.map(row).chain(latency).collect()
    }

    fn workloads(&self, operation: Operation) -> [Workload; 3] {
        [large(operation), scattered(operation, 16 * KIB), scattered(operation, 4 * KIB)]
    }

    fn name(&self, workload: &Workload) -> String {
        format!("local, {}: {workload}", self.origin.name())
    }
}
