//! `ferry-bench compare`, which `make bench` runs: compares a subject with the raw reference, row by row, in
//! interleaved pairs, with a verdict on each target.

mod beside;
mod pairs;
mod rows;
mod same_host;
mod screen;
mod standby;
mod submission;
mod yardstick;

use std::io::Write;
use std::time::Duration;

use clap::Args;
use regex_lite::Regex;
use serde::Serialize;

use crate::cpu::{allowed_cpus, Machine};
use crate::options::{from_to, parse_count, parse_rows, parse_seconds};
use crate::stats::Latency;
use crate::subject::{Pair, PairConfig};
use crate::workload::{Engine, LatencyWorkload, Limit, Sample};

pub use pairs::Line;
pub use rows::WALK_BYTES;
pub use same_host::Unavailable;
pub use standby::Cost;
pub use yardstick::Standing;

use pairs::interleave;
use rows::{LatencyRow, ThroughputRow};

/// How much is measured.
#[derive(Args, Clone, Debug)]
pub struct Plan {
    /// Interleaved pairs per row; below 6 nothing is decided
    #[arg(long, default_value_t = 15, value_parser = from_to(1, 1_000))]
    pub pairs: usize,
    /// Seconds of each throughput run
    #[arg(long, default_value_t = 0.4, value_parser = parse_seconds)]
    pub seconds: f64,
    /// Latency samples of each side per row, over all pairs
    #[arg(long, default_value_t = 100_000, value_parser = from_to(1, u32::MAX.into()))]
    pub samples: usize,
    /// Only rows whose name matches this regular expression
    #[arg(long, value_parser = parse_rows)]
    pub rows: Option<Regex>,
    /// Seconds for which idle engines are watched
    #[arg(long, default_value_t = 10.0, value_parser = parse_seconds)]
    pub idle_seconds: f64,
    /// Engines that are connected to one
    #[arg(long, default_value_t = 1_000, value_parser = parse_count)]
    pub peers: usize,
    /// Both ends look for data this long before sleeping, in microseconds
    #[arg(long = "spin-us", default_value_t = 50)]
    pub spin_us: u32,
}

impl Plan {
    fn wants(&self, row: &str) -> bool {
        self.rows.as_ref().is_none_or(|rows| rows.is_match(row))
    }
}

/// All results of a comparison; also its JSON.
#[derive(Debug, Serialize)]
pub struct Comparison {
    pub machine: Machine,
    pub reference: String,
    pub reference_path: String,
    pub subject: String,
    pub subject_path: String,
    pub spin_us: u32,
    /// Whether the reference itself is near the limit of this machine.
    pub standings: Vec<Standing>,
    pub lines: Vec<Line>,
    pub latencies: Vec<LatencyPair>,
    /// Figures with limits of their own.
    pub costs: Vec<Cost>,
    /// Rows that could not be measured.
    pub unavailable: Vec<Unavailable>,
}

/// All samples of a latency row, pooled over its pairs.
#[derive(Debug, Serialize)]
pub struct LatencyPair {
    pub row: String,
    pub reference: Latency,
    pub subject: Latency,
}

/// Prints all of `make bench`: `run`, the figures of ferry alone, and the final table.
pub fn run_with_ferry(
    plan: &Plan,
    reference: &mut dyn Engine,
    pair: &mut Pair,
    config: &PairConfig,
    out: &mut dyn Write,
) -> anyhow::Result<Comparison> {
    let mut comparison = run(plan, reference, &mut pair.client, out)?;
    let lines = submission::lines(plan, &mut pair.client, |line| Ok(screen::line(out, line)?))?;
    comparison.lines.extend(lines);
    comparison.costs.extend(standby::idle(plan, pair)?);
    comparison.costs.extend(standby::crowd(plan, &config.program)?);
    beside::measure(plan, config, &mut comparison, out)?;
    same_host::measure(plan, config, &mut comparison, out)?;
    screen::standings(out, &comparison.standings)?;
    screen::summary(out, &comparison)?;
    Ok(comparison)
}

/// Measures the reference and the subject on the plan's rows, and prints each row as it is measured.
pub fn run(
    plan: &Plan,
    reference: &mut dyn Engine,
    subject: &mut dyn Engine,
    out: &mut dyn Write,
) -> anyhow::Result<Comparison> {
    let mut comparison = Comparison {
        machine: Machine::describe(),
        reference: reference.name().to_owned(),
        reference_path: reference.path(),
        subject: subject.name().to_owned(),
        subject_path: subject.path(),
        spin_us: plan.spin_us,
        standings: Vec::new(),
        lines: Vec::new(),
        latencies: Vec::new(),
        costs: Vec::new(),
        unavailable: Vec::new(),
    };
    screen::heading(out, &comparison)?;
    let mut throughput = rows::throughput();
    throughput.retain(|row| plan.wants(&row.name));
    let mut latency =
        rows::latency(&allowed_cpus()?, Duration::from_micros(plan.spin_us.into()), plan.samples);
    latency.retain(|row| plan.wants(&row.name));
    measure_rows(plan, (&throughput, &latency), reference, subject, &mut comparison, out)?;
    comparison.standings = yardstick::standings(plan, reference)?;
    Ok(comparison)
}

/// Measures every row in turn, and prints each as it is measured.
fn measure_rows(
    plan: &Plan,
    (throughput, latency): (&[ThroughputRow], &[LatencyRow]),
    reference: &mut dyn Engine,
    subject: &mut dyn Engine,
    comparison: &mut Comparison,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    for row in throughput {
        for line in throughput_row(plan, row, reference, subject)? {
            screen::line(out, &line)?;
            comparison.lines.push(line);
        }
    }
    for row in latency {
        let (lines, pooled) = latency_row(plan, row, reference, subject)?;
        for line in lines {
            screen::line(out, &line)?;
            comparison.lines.push(line);
        }
        screen::latency(out, &pooled)?;
        comparison.latencies.push(pooled);
    }
    Ok(())
}

fn throughput_row(
    plan: &Plan,
    row: &ThroughputRow,
    reference: &mut dyn Engine,
    subject: &mut dyn Engine,
) -> anyhow::Result<Vec<Line>> {
    reference.prepare(&row.reference)?;
    subject.prepare(&row.workload)?;
    let limit = Limit::Seconds(plan.seconds);
    let samples = interleave(
        plan.pairs,
        || reference.throughput(&row.reference, limit),
        || subject.throughput(&row.workload, limit),
    )?;
    let judge = |quantity, goal, of: fn(&Sample) -> f64| {
        let pairs: Vec<_> = samples.iter().map(|(left, right)| (of(left), of(right))).collect();
        Line::judge(&row.name, quantity, goal, &pairs)
    };
    let speed = judge("GB/s", row.goal, Sample::gb_per_second);
    let cost = row.cpu_goal.map(|goal| judge("CPU s/GiB", goal, Sample::cpu_seconds_per_gib));
    let settled = |line| Line {
        reference_settings: reference.settings(&row.reference),
        subject_settings: subject.settings(&row.workload),
        ..line
    };
    [Some(speed), cost].into_iter().flatten().map(|line| line.map(settled)).collect()
}

fn latency_row(
    plan: &Plan,
    row: &LatencyRow,
    reference: &mut dyn Engine,
    subject: &mut dyn Engine,
) -> anyhow::Result<(Vec<Line>, LatencyPair)> {
    let workload = LatencyWorkload { samples: plan.samples.div_ceil(plan.pairs), ..row.workload };
    let runs = interleave(plan.pairs, || reference.latency(&workload), || subject.latency(&workload))?;
    let of = |run: &[u64]| Latency::of(workload.bytes, run);
    let each = runs.iter().map(|(left, right)| Ok((of(left)?, of(right)?)));
    let each = each.collect::<anyhow::Result<Vec<_>>>()?;
    let judge = |quantity, goal, of: fn(&Latency) -> f64| {
        let pairs: Vec<_> = each.iter().map(|(left, right)| (of(left), of(right))).collect();
        Line::judge(&row.name, quantity, goal, &pairs)
    };
    let p50 = judge("µs p50", row.p50_goal, |run| run.p50_us);
    let p99 = row.p99_goal.map(|goal| judge("µs p99", goal, |run| run.p99_us));
    let lines = [Some(p50), p99].into_iter().flatten().collect::<anyhow::Result<_>>()?;
    let (left, right): (Vec<_>, Vec<_>) = runs.into_iter().unzip();
    let (reference, subject) = (of(&left.concat())?, of(&right.concat())?);
    Ok((lines, LatencyPair { row: row.name.clone(), reference, subject }))
}

#[cfg(test)]
mod tests;
