//! The frame of all comparisons: rows whose sides are measured in turn, round after round, the ratios of their figures
//! with a verdict on each target, and all results, which are also the JSON. `screen` prints them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use anyhow::Context;
use clap::builder::RangedU64ValueParser;
use clap::Args;
use ferry_bench::cpu::Machine;
use ferry_bench::stats::{median, Latency};
use ferry_bench::subject::unavailable;
use regex_lite::Regex;
use serde::Serialize;

use crate::figures::{Quantity, Run};
use crate::judge::{Goal, Judged, MedianInterval, Verdict};

/// How much is measured.
#[derive(Args, Clone, Debug, Serialize)]
pub struct Plan {
    /// Rounds of each row; below 6 nothing is decided
    #[arg(long, default_value_t = 7, value_parser = from_to(1, 1_000))]
    pub rounds: usize,
    /// Seconds of each throughput run
    #[arg(long, default_value_t = 0.3, value_parser = parse_seconds)]
    pub seconds: f64,
    /// Latency samples of each side in each round
    #[arg(long, default_value_t = 3_000, value_parser = from_to(5, 1_000_000))]
    pub samples: usize,
    /// Only rows whose name matches this regular expression
    #[serde(skip)]
    #[arg(long, value_parser = parse_rows)]
    pub rows: Option<Regex>,
    /// Write every figure of every round to this file as one JSON object
    #[serde(skip)]
    #[arg(long)]
    pub json: Option<PathBuf>,
}

impl Plan {
    pub fn wants(&self, row: &str) -> bool {
        self.rows.as_ref().is_none_or(|rows| rows.is_match(row))
    }
}

/// Parses numbers from `first` to `last`.
fn from_to(first: u64, last: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(first..=last)
}

pub fn parse_rows(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|error| error.to_string())
}

pub fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.01..=60.0).contains(&seconds) => Ok(seconds),
        _ => Err("from 0.01 to 60 seconds".to_owned()),
    }
}

/// The error of a side that cannot take part, or fails, for a reason of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: String,
    /// The engine, or the requested path, is missing; otherwise the engine failed at its task.
    pub unavailable: bool,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Refusal {}

/// The outcome of a side on a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// A list for each quantity, with a value for each round.
    Measured { rounds: BTreeMap<Quantity, Vec<f64>> },
    /// The engine, or the requested path, is missing.
    Unavailable { reason: String },
    /// The engine failed at this workload.
    Failed { reason: String },
    /// The row does not apply to the engine.
    NotApplicable { reason: String },
}

impl Outcome {
    pub fn of_error(error: &anyhow::Error) -> Outcome {
        let refused = error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.unavailable);
        let reason = format!("{error:#}");
        if refused || unavailable(error).is_some() {
            Outcome::Unavailable { reason }
        } else {
            Outcome::Failed { reason }
        }
    }

    /// Collects the values of each quantity over all rounds. All rounds have the same quantities.
    pub fn measured(runs: &[Run]) -> Outcome {
        let mut rounds: BTreeMap<Quantity, Vec<f64>> = BTreeMap::new();
        for (&quantity, &value) in runs.iter().flat_map(|run| &run.figures) {
            rounds.entry(quantity).or_default().push(value);
        }
        Outcome::Measured { rounds }
    }

    pub fn rounds(&self, quantity: Quantity) -> Option<&[f64]> {
        match self {
            Outcome::Measured { rounds } => rounds.get(&quantity).map(Vec::as_slice),
            _ => None,
        }
    }

    pub fn reason(&self) -> Option<&str> {
        match self {
            Outcome::Measured { .. } => None,
            Outcome::Unavailable { reason }
            | Outcome::Failed { reason }
            | Outcome::NotApplicable { reason } => Some(reason),
        }
    }
}

/// A side of a row, during its rounds.
#[derive(Default)]
pub struct Side {
    pub name: &'static str,
    /// The reason why the side is out of the row.
    pub out: Option<Outcome>,
    pub runs: Vec<Run>,
}

impl Side {
    pub fn new(name: &'static str) -> Side {
        Side { name, ..Side::default() }
    }
}

/// The results of a side on a row.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    pub side: &'static str,
    pub settings: String,
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The median of each quantity over the rounds.
    pub medians: BTreeMap<Quantity, MedianInterval>,
    /// All samples of all rounds, if the row is about times.
    pub latency: Option<Latency>,
}

impl Cell {
    pub fn of(side: Side) -> Cell {
        let Side { name, out, runs } = side;
        let outcome = out.unwrap_or_else(|| Outcome::measured(&runs));
        let medians = match &outcome {
            Outcome::Measured { rounds } => {
                let of = |(&quantity, values): (&Quantity, &Vec<f64>)| {
                    MedianInterval::of(values).map(|interval| (quantity, interval))
                };
                rounds.iter().filter_map(of).collect()
            }
            _ => BTreeMap::new(),
        };
        let nanoseconds: Vec<_> = runs.into_iter().flat_map(|run| run.nanoseconds).collect();
        Cell {
            side: name,
            settings: String::new(),
            outcome,
            medians,
            latency: Latency::of(0, &nanoseconds).ok(),
        }
    }

    pub fn median(&self, quantity: Quantity) -> Option<f64> {
        self.medians.get(&quantity).map(|interval| interval.median)
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct RowResult {
    pub row: String,
    pub cells: Vec<Cell>,
}

impl RowResult {
    pub fn cell(&self, side: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.side == side)
    }
}

/// Returns the sides' order in a round. Each round begins with the next side and turns around. So every side begins
/// equally often, none always follows the same side, and two sides alternate: a slow phase of the machine slows all.
pub fn order(round: usize, count: usize) -> impl Iterator<Item = usize> {
    let step = move |place| if round % 2 == 0 { place } else { count - place };
    (0..count).map(move |place| (round + step(place)) % count)
}

/// Measures a row: `run` measures the side with an index once. A side that fails is out of the row.
pub fn measure(
    row: String,
    mut sides: Vec<Side>,
    rounds: usize,
    mut run: impl FnMut(usize) -> anyhow::Result<Run>,
) -> RowResult {
    for round in 0..rounds {
        for index in order(round, sides.len()) {
            let side = &mut sides[index];
            if side.out.is_none() {
                match run(index).with_context(|| format!("round {}", round + 1)) {
                    Ok(found) => side.runs.push(found),
                    Err(error) => side.out = Some(Outcome::of_error(&error)),
                }
            }
        }
    }
    RowResult { row, cells: sides.into_iter().map(Cell::of).collect() }
}

/// A ratio to reach, or only to state.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub quantity: Quantity,
    pub subject: &'static str,
    pub beside: Beside,
    pub goal: Option<Goal>,
}

/// A side; or the best of several in each round, among those that were measured.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    pub name: &'static str,
    pub best_of: &'static [&'static str],
}

impl Beside {
    pub const fn side(name: &'static str) -> Beside {
        Beside { name, best_of: &[] }
    }

    fn sides(&self) -> &[&'static str] {
        match self.best_of {
            [] => std::slice::from_ref(&self.name),
            several => several,
        }
    }
}

/// The ratios of a subject's figures to another side's, round by round, and the verdict.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    pub row: String,
    pub quantity: Quantity,
    pub unit: &'static str,
    pub subject: &'static str,
    pub beside: &'static str,
    pub subject_median: Option<f64>,
    pub beside_median: Option<f64>,
    #[serde(flatten)]
    pub judged: Judged,
    pub ratios: Vec<f64>,
    /// The reason, if a side was not measured.
    pub reason: Option<String>,
}

/// Judges the row's targets whose sides take part.
pub fn judge(row: &RowResult, targets: &[Target]) -> Vec<Ratio> {
    let takes_part = |side: &&'static str| row.cell(side).is_some();
    let concerned =
        |target: &&Target| takes_part(&target.subject) && target.beside.sides().iter().any(takes_part);
    targets.iter().filter(concerned).map(|target| judge_one(row, target)).collect()
}

fn judge_one(row: &RowResult, target: &Target) -> Ratio {
    let Target { quantity, subject, beside, goal } = *target;
    let pairs = pairs(row, target);
    let reason = pairs.as_ref().err().cloned();
    let (own, others): (Vec<_>, Vec<_>) = pairs.unwrap_or_default().into_iter().unzip();
    let ratios: Vec<_> = own.iter().zip(&others).map(|(own, other)| own / other).collect();
    let of = |values: &[f64]| (!values.is_empty()).then(|| median(values));
    Ratio {
        row: row.row.clone(),
        quantity,
        unit: quantity.unit(),
        subject,
        beside: beside.name,
        subject_median: of(&own),
        beside_median: of(&others),
        judged: Judged::of(goal, &ratios),
        ratios,
        reason,
    }
}

/// Returns the subject's value and the best of the others', round by round.
fn pairs(row: &RowResult, target: &Target) -> Result<Vec<(f64, f64)>, String> {
    let values = |side: &str| match row.cell(side).map(|cell| &cell.outcome) {
        None => Err(format!("{side}: not measured")),
        Some(outcome) => outcome
            .rounds(target.quantity)
            .ok_or_else(|| format!("{side}: {}", outcome.reason().unwrap_or("no such figure"))),
    };
    let own = values(target.subject)?;
    let found: Vec<_> = target.beside.sides().iter().map(|side| values(side)).collect();
    let others: Vec<&[f64]> = found.iter().flatten().copied().collect();
    if others.is_empty() {
        return Err(found.into_iter().filter_map(Result::err).collect::<Vec<_>>().join("; "));
    }
    let better = |a: f64, b: f64| match target.goal {
        Some(Goal::AtMost(_)) => a.min(b),
        _ => a.max(b),
    };
    let best = |round: usize| others.iter().filter_map(|values| values.get(round)).copied().reduce(better);
    Ok(own.iter().enumerate().filter_map(|(round, value)| Some((*value, best(round)?))).collect())
}

/// A figure with a limit of its own instead of a reference.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    pub row: String,
    pub quantity: &'static str,
    pub value: f64,
    /// The highest allowed value; `None` if the figure is only stated.
    pub limit: Option<f64>,
    pub verdict: Option<Verdict>,
}

impl Cost {
    pub fn stated(row: &str, quantity: &'static str, value: f64) -> Cost {
        Cost { row: row.to_owned(), quantity, value, limit: None, verdict: None }
    }

    pub fn limited(row: &str, quantity: &'static str, value: f64, limit: f64) -> Cost {
        let verdict = if value <= limit { Verdict::Met } else { Verdict::Missed };
        Cost { limit: Some(limit), verdict: Some(verdict), ..Cost::stated(row, quantity, value) }
    }
}

/// An engine, its version and settings, and the path in use, as far as the engine reports it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Taker {
    pub engine: &'static str,
    pub version: String,
    pub settings: String,
    pub path: String,
}

/// All results; also the JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    pub machine: Machine,
    pub units: &'static str,
    pub plan: Plan,
    pub engines: Vec<Taker>,
    pub rows: Vec<RowResult>,
    pub ratios: Vec<Ratio>,
    pub costs: Vec<Cost>,
}

impl Results {
    pub fn new(plan: &Plan, engines: Vec<Taker>) -> Results {
        Results {
            machine: Machine::describe(),
            units: "MB = 10^6 bytes, GB = 10^9 bytes, GiB = 2^30 bytes",
            plan: plan.clone(),
            engines,
            rows: Vec::new(),
            ratios: Vec::new(),
            costs: Vec::new(),
        }
    }

    pub fn row(&self, name: &str) -> Option<&RowResult> {
        self.rows.iter().find(|row| row.row == name)
    }

    /// Judges the row's targets, and keeps all of it.
    pub fn add(&mut self, row: RowResult, targets: &[Target]) {
        self.ratios.extend(judge(&row, targets));
        self.rows.push(row);
    }

    /// Returns the sides that were not measured on some row, each with its first reason.
    pub fn failures(&self) -> Vec<(&'static str, &str)> {
        let mut found: Vec<(&'static str, &str)> = Vec::new();
        for cell in self.rows.iter().flat_map(|row| &row.cells) {
            let (Outcome::Unavailable { reason } | Outcome::Failed { reason }) = &cell.outcome else {
                continue;
            };
            if found.iter().all(|(side, _)| *side != cell.side) {
                found.push((cell.side, reason));
            }
        }
        found
    }

    pub fn verdicts(&self) -> impl Iterator<Item = Verdict> + '_ {
        let ratios = self.ratios.iter().filter_map(|ratio| ratio.judged.verdict);
        ratios.chain(self.costs.iter().filter_map(|cost| cost.verdict))
    }
}

#[cfg(test)]
#[path = "contest_tests.rs"]
mod tests;
