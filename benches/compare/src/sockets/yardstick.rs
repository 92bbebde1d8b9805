//! Checks that the reference itself is near the machine's limit; otherwise a good ratio to the reference means
//! nothing.
//!
//! The limit is the speed that a tuned throwaway program once reached (shared/reference/tcp-measured.md), converted to
//! this machine by one-thread memcpy, with which both figures scale.

use std::hint::black_box;

use ferry_bench::cpu::{allowed_cpus, own_cpu_seconds};
use ferry_bench::dispense::Dispenser;
use ferry_bench::memory::private;
use ferry_bench::stats::median;
use ferry_bench::walk::Walk;
use ferry_bench::workload::{CpuSeconds, Engine, Limit, Operation, Sample, Workload, GB, GIB, KIB};

use super::rows::{large, scattered};
use crate::contest::{Plan, Standing};

/// One-thread memcpy of 1 MiB blocks on the machine of those measurements.
const MEASURED_MEMCPY_GB_PER_SECOND: f64 = 6.3;
/// Two connections with a thread pair each, GiB/s: the best row of that table.
const MEASURED_LARGE: f64 = 6.25;
const MEASURED_16_KIB: f64 = 5.7;
const MEASURED_4_KIB: f64 = 4.8;
/// The share of those figures that the reference must reach.
const SHARE_MIN: f64 = 0.9;
const ROUNDS: usize = 5;

/// Judges the reference on the rows over TCP.
pub fn over_tcp(plan: &Plan, reference: &mut dyn Engine) -> anyhow::Result<Vec<Standing>> {
    let write = Operation::Write;
    let best = [
        (large(write), MEASURED_LARGE),
        (scattered(write, 16 * KIB), MEASURED_16_KIB),
        (scattered(write, 4 * KIB), MEASURED_4_KIB),
    ];
    let rows = best.into_iter().map(|(workload, measured)| (workload.to_string(), workload, measured));
    standings(plan, rows, reference)
}

/// Compares a reference with earlier measurements of its kind, in GiB/s: names, workloads and measured speeds.
pub fn standings(
    plan: &Plan,
    rows: impl Iterator<Item = (String, Workload, f64)>,
    reference: &mut dyn Engine,
) -> anyhow::Result<Vec<Standing>> {
    let wanted = rows.filter(|(name, ..)| plan.wants(name));
    wanted.map(|(name, workload, measured)| standing(plan, name, &workload, measured, reference)).collect()
}

/// Measures memcpy and the reference in turn.
fn standing(
    plan: &Plan,
    row: String,
    workload: &Workload,
    measured_gib_per_second: f64,
    reference: &mut dyn Engine,
) -> anyhow::Result<Standing> {
    reference.prepare(workload)?;
    let limit = Limit::Seconds(plan.seconds);
    let cpus = allowed_cpus()?.len() as f64;
    let (mut copies, mut samples) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        copies.push(memcpy(&large(Operation::Write), limit)?.gb_per_second());
        samples.push(reference.throughput(workload, limit)?);
    }
    let median_of = |figure: &dyn Fn(&Sample) -> f64| median(&samples.iter().map(figure).collect::<Vec<_>>());
    let memcpy_gb_per_second = median(&copies);
    let measured_share = measured_gib_per_second * GIB / GB / MEASURED_MEMCPY_GB_PER_SECOND;
    let required_gb_per_second = SHARE_MIN * measured_share * memcpy_gb_per_second;
    let reference_gb_per_second = median_of(&Sample::gb_per_second);
    Ok(Standing {
        row,
        memcpy_gb_per_second,
        reference_gb_per_second,
        reference_cpu_seconds_per_gib: median_of(&Sample::cpu_seconds_per_gib),
        cpu_share_of_machine: median_of(&|sample| sample.cpu_seconds.sum() / sample.seconds / cpus),
        required_gb_per_second,
        counts: reference_gb_per_second >= required_gb_per_second,
        settings: reference.settings(workload),
    })
}

/// Copies the workload's blocks in their order with one thread of this process: the speed of the machine's memory, by
/// which figures of different machines can be compared.
fn memcpy(workload: &Workload, limit: Limit) -> anyhow::Result<Sample> {
    let walk = Walk::new(*workload);
    let mut source = private(workload.walk_bytes)?;
    let target = private(workload.walk_bytes)?;
    walk.fill(walk.origin(), &mut source, 1)?;
    let cpu = own_cpu_seconds();
    let dispenser = Dispenser::new(limit);
    while let Some(number) = dispenser.take() {
        for (from, to) in walk.offsets(number) {
            // SAFETY: a validated workload's blocks lie within `walk_bytes` of both mappings, which are
            // distinct and which nothing else accesses now.
            unsafe {
                let (from, to) = (source.address().add(from), target.address().add(to));
                std::ptr::copy_nonoverlapping(from, to, workload.block_bytes);
            }
        }
        black_box(target.address());
    }
    let seconds = dispenser.start().elapsed().as_secs_f64();
    let cpu_seconds = CpuSeconds { initiator: own_cpu_seconds() - cpu, target: 0.0 };
    Ok(Sample::of(workload, dispenser.transfers(), seconds, cpu_seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memcpy_counts_what_it_copied() {
        let workload =
            Workload { block_bytes: 64, blocks: 8, walk_bytes: 4_096, ..scattered(Operation::Write, 64) };
        let sample = memcpy(&workload, Limit::Transfers(20)).expect("memory");
        assert_eq!((sample.transfers, sample.bytes), (20, 20 * 512));
    }
}
