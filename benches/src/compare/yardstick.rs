//! Checks that the reference itself is near the machine's limit; otherwise a good ratio to the reference means
//! nothing.
//!
//! The limit is the speed that a tuned throwaway program once reached (shared/reference/tcp-measured.md), converted to
//! this machine by one-thread memcpy, with which both figures scale.

use serde::Serialize;

use super::rows::{large, scattered};
use super::Plan;
use crate::cpu::{allowed_cpus, memcpy};
use crate::stats::median;
use crate::workload::{Engine, Limit, Operation, Sample, Workload, GB, GIB, KIB};

/// One-thread memcpy of 1 MiB blocks on the machine of those measurements.
const MEASURED_MEMCPY_GB_PER_SECOND: f64 = 6.3;
/// Two connections with a thread pair each, GiB/s: the best row of that table.
const MEASURED_LARGE: f64 = 6.25;
const MEASURED_16_KIB: f64 = 5.7;
const MEASURED_4_KIB: f64 = 4.8;
/// The share of those figures that the reference must reach.
const SHARE_MIN: f64 = 0.9;
const ROUNDS: usize = 5;

/// The reference on one workload, and the speed that it must reach on this machine.
#[derive(Clone, Debug, Serialize)]
pub struct Standing {
    pub row: String,
    pub memcpy_gb_per_second: f64,
    pub reference_gb_per_second: f64,
    pub reference_cpu_seconds_per_gib: f64,
    /// CPU time of both ends over the machine's CPU time: near 1, tuning can gain nothing.
    pub cpu_share_of_machine: f64,
    pub required_gb_per_second: f64,
    pub counts: bool,
    pub settings: String,
}

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
