//! `ferry-compare sockets`, which `make bench` runs: compares a subject with the raw reference, row by row, in
//! interleaved pairs, with a verdict on each target.

mod alone;
mod plot;
mod rows;
mod same_host;
mod screen;
mod standby;
mod yardstick;

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use regex_lite::Regex;
use serde::Serialize;

use crate::arguments::{from_to, parse_rows, parse_seconds};
use crate::figures::{Quantity, Run};
use crate::judge::{Goal, Judged};
use crate::turns;
use ferry_bench::cpu::{allowed_cpus, Machine};
use ferry_bench::options::parse_count;
use ferry_bench::stats::{median, Latency};
use ferry_bench::subject::{Pair, PairConfig};
use ferry_bench::workload::{Engine, KIB};

pub use plot::drawing;
pub use rows::WALK_BYTES;
pub use same_host::Unavailable;
pub use standby::Cost;
pub use yardstick::Standing;

use rows::Row;

/// Bytes of each transfer whose time is taken.
const BYTES: usize = 4 * KIB;

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

    /// Returns the samples of one latency run.
    fn samples_each(&self) -> usize {
        self.samples.div_ceil(self.pairs)
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

/// One judged quantity of one row.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    pub row: String,
    pub quantity: &'static str,
    pub reference_median: f64,
    pub subject_median: f64,
    #[serde(flatten)]
    pub judged: Judged,
    pub ratios: Vec<f64>,
    /// The settings of each side for this row.
    pub reference_settings: String,
    pub subject_settings: String,
}

impl Line {
    /// Judges values in pairs: the reference's and the subject's. Fails without a single pair.
    pub fn judge(
        row: &str,
        quantity: &'static str,
        goal: Goal,
        pairs: &[(f64, f64)],
    ) -> anyhow::Result<Line> {
        let ratios: Vec<_> = pairs.iter().map(|(reference, subject)| subject / reference).collect();
        let judged = Judged::of(Some(goal), &ratios);
        judged.ratio.context("no pair was measured")?;
        let (reference, subject): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
        Ok(Line {
            row: row.to_owned(),
            quantity,
            reference_median: median(&reference),
            subject_median: median(&subject),
            judged,
            ratios,
            reference_settings: String::new(),
            subject_settings: String::new(),
        })
    }
}

/// A comparison under way: prints each line as it is measured, and keeps it.
struct Course<'a> {
    plan: &'a Plan,
    out: &'a mut dyn Write,
    found: Comparison,
}

/// Prints all of `make bench`: `run`, the figures of ferry alone, and the final table.
pub fn run_with_ferry(
    plan: &Plan,
    reference: &mut dyn Engine,
    pair: &mut Pair,
    config: &PairConfig,
    out: &mut dyn Write,
) -> anyhow::Result<Comparison> {
    let mut course = Course::start(plan, reference, &mut pair.client, out)?;
    course.sockets(reference, &mut pair.client)?;
    alone::submission(&mut course, &mut pair.client)?;
    course.found.costs.extend(standby::idle(plan, pair)?);
    course.found.costs.extend(standby::crowd(plan, &config.program)?);
    alone::beside(&mut course, config)?;
    same_host::measure(&mut course, config)?;
    screen::standings(course.out, &course.found.standings)?;
    screen::summary(course.out, &course.found)?;
    Ok(course.found)
}

impl<'a> Course<'a> {
    fn start(
        plan: &'a Plan,
        reference: &mut dyn Engine,
        subject: &mut dyn Engine,
        out: &'a mut dyn Write,
    ) -> anyhow::Result<Course<'a>> {
        let found = Comparison {
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
        screen::heading(out, &found)?;
        Ok(Course { plan, out, found })
    }

    /// Measures the rows over TCP, and whether the reference itself is near the limit.
    fn sockets(&mut self, reference: &mut dyn Engine, subject: &mut dyn Engine) -> anyhow::Result<()> {
        let spin = Duration::from_micros(self.plan.spin_us.into());
        let rows = rows::all(&allowed_cpus()?, spin, self.plan.samples_each());
        for row in rows.iter().filter(|row| self.plan.wants(&row.name)) {
            self.measure(row, reference, subject)?;
        }
        self.found.standings.extend(yardstick::over_tcp(self.plan, reference)?);
        Ok(())
    }

    fn measure(
        &mut self,
        row: &Row,
        reference: &mut dyn Engine,
        subject: &mut dyn Engine,
    ) -> anyhow::Result<()> {
        row.reference.prepare(reference)?;
        row.subject.prepare(subject)?;
        let seconds = self.plan.seconds;
        let runs = turns::pairs(
            self.plan.pairs,
            || row.reference.run(reference, seconds),
            || row.subject.run(subject, seconds),
        )?;
        let settings = [row.reference.settings(reference), row.subject.settings(subject)];
        self.add(&row.name, &row.goals, runs, settings)
    }

    /// Judges the pairs of a row: a line for each goal. Samples are pooled over all pairs.
    fn add(
        &mut self,
        name: &str,
        goals: &[(Quantity, Goal)],
        runs: Vec<(Run, Run)>,
        [reference_settings, subject_settings]: [String; 2],
    ) -> anyhow::Result<()> {
        for (quantity, goal) in goals {
            let of = |run: &Run| run.figures[quantity];
            let pairs: Vec<_> = runs.iter().map(|(left, right)| (of(left), of(right))).collect();
            let line = Line {
                reference_settings: reference_settings.clone(),
                subject_settings: subject_settings.clone(),
                ..Line::judge(name, quantity.unit(), *goal, &pairs)?
            };
            screen::line(self.out, &line)?;
            self.found.lines.push(line);
        }
        let samples = |(left, right): (Run, Run)| (left.nanoseconds, right.nanoseconds);
        let (left, right): (Vec<_>, Vec<_>) = runs.into_iter().map(samples).unzip();
        if left.iter().any(|samples| !samples.is_empty()) {
            let of = |samples: &[Vec<u64>]| Latency::of(BYTES, &samples.concat());
            let (reference, subject) = (of(&left)?, of(&right)?);
            let pooled = LatencyPair { row: name.to_owned(), reference, subject };
            screen::latency(self.out, &pooled)?;
            self.found.latencies.push(pooled);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
