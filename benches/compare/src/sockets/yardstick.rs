//! Checks that the reference itself is near the machine's limit; otherwise a good ratio to the reference means
//! nothing.
//!
//! The limit is the speed that a tuned throwaway program once reached (shared/reference/tcp-measured.md), converted to
//! this machine by one-thread memcpy, with which both figures scale.

use std::hint::black_box;

use ferry_bench::cpu::own_cpu_seconds;
use ferry_bench::dispense::Dispenser;
use ferry_bench::memory::{private, Memory};
use ferry_bench::walk::Walk;
use ferry_bench::workload::{CpuSeconds, Engine, Limit, Operation, Sample, Workload, GB, GIB, KIB};

use super::rows::{large, scattered};
use super::{Course, REFERENCE};
use crate::figures::{Quantity, Run};
use crate::judge::Goal;

/// One-thread memcpy of 1 MiB blocks on the machine of those measurements.
const MEASURED_MEMCPY_GB_PER_SECOND: f64 = 6.3;
/// Two connections with a thread pair each, GiB/s: the best row of that table.
const MEASURED_LARGE: f64 = 6.25;
const MEASURED_16_KIB: f64 = 5.7;
const MEASURED_4_KIB: f64 = 4.8;
/// The share of those figures that the reference must reach.
const SHARE_MIN: f64 = 0.9;
const MEMCPY: &str = "memcpy";

/// Judges the reference on the rows over TCP.
pub fn over_tcp(course: &mut Course, reference: &mut dyn Engine) -> anyhow::Result<()> {
    let write = Operation::Write;
    let best = [
        (large(write), MEASURED_LARGE),
        (scattered(write, 16 * KIB), MEASURED_16_KIB),
        (scattered(write, 4 * KIB), MEASURED_4_KIB),
    ];
    let rows = best.into_iter().map(|(workload, measured)| (workload.to_string(), workload, measured));
    judge(course, rows, reference)
}

/// Compares a reference with earlier measurements of its kind, in GiB/s: names, workloads and measured speeds.
pub fn judge(
    course: &mut Course,
    rows: impl Iterator<Item = (String, Workload, f64)>,
    reference: &mut dyn Engine,
) -> anyhow::Result<()> {
    for (name, workload, measured) in rows {
        if !course.plan.wants(&name) {
            continue;
        }
        reference.prepare(&workload)?;
        let mut memcpy = Memcpy::new(large(Operation::Write))?;
        let share = SHARE_MIN * measured * GIB / GB / MEASURED_MEMCPY_GB_PER_SECOND;
        let goals = vec![(Quantity::GbPerSecond, Goal::AtLeast((share * 100.0).round() / 100.0))];
        let settings = ["one thread".to_owned(), reference.settings(&workload)];
        let limit = Limit::Seconds(course.plan.seconds);
        let run = |side| {
            let sample =
                if side == 0 { memcpy.run(limit) } else { reference.throughput(&workload, limit)? };
            Ok(Run::throughput(&sample))
        };
        course.row(&format!("{name}: the reference"), &goals, [MEMCPY, REFERENCE], settings, run)?;
    }
    Ok(())
}

/// Copies a workload's blocks in their order with one thread of this process: the speed of the machine's memory, by
/// which figures of different machines can be compared.
struct Memcpy {
    walk: Walk,
    source: Memory,
    target: Memory,
}

impl Memcpy {
    fn new(workload: Workload) -> anyhow::Result<Memcpy> {
        let walk = Walk::new(workload.validated()?);
        let [source, target] = [private(workload.walk_bytes)?, private(workload.walk_bytes)?];
        Ok(Memcpy { walk, source, target })
    }

    fn run(&mut self, limit: Limit) -> Sample {
        let Memcpy { walk, source, target } = self;
        let cpu = own_cpu_seconds();
        let dispenser = Dispenser::new(limit);
        while let Some(number) = dispenser.take() {
            for (from, to) in walk.offsets(number) {
                // SAFETY: a validated workload's blocks lie within `walk_bytes` of both mappings, which are
                // distinct and which nothing else accesses now.
                unsafe {
                    let (from, to) = (source.address().add(from), target.address().add(to));
                    std::ptr::copy_nonoverlapping(from, to, walk.workload().block_bytes);
                }
            }
            black_box(target.address());
        }
        let seconds = dispenser.start().elapsed().as_secs_f64();
        let cpu_seconds = CpuSeconds { initiator: own_cpu_seconds() - cpu, target: 0.0 };
        Sample::of(walk.workload(), dispenser.transfers(), seconds, cpu_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memcpy_counts_what_it_copied() {
        let workload =
            Workload { block_bytes: 64, blocks: 8, walk_bytes: 4_096, ..scattered(Operation::Write, 64) };
        let sample = Memcpy::new(workload).expect("memory").run(Limit::Transfers(20));
        assert_eq!((sample.transfers, sample.bytes), (20, 20 * 512));
    }
}
