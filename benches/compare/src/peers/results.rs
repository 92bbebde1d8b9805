//! The results: every figure of every round, or the reason for its absence. Also the JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use super::targets::Verdict;
use crate::figures::{Figures, Quantity};
use crate::judge::MedianInterval;
use ferry_bench::cpu::Machine;
use ferry_bench::stats::median;

/// The outcome of an engine on a row.
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
    /// Collects the values of each quantity over all rounds. All rounds have the same quantities.
    pub fn measured(runs: &[Figures]) -> Outcome {
        let mut rounds: BTreeMap<Quantity, Vec<f64>> = BTreeMap::new();
        for (&quantity, &value) in runs.iter().flatten() {
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

    pub fn median(&self, quantity: Quantity) -> Option<f64> {
        self.rounds(quantity).filter(|values| !values.is_empty()).map(median)
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

#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    pub engine: &'static str,
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The median of each quantity over the rounds.
    pub medians: BTreeMap<Quantity, MedianInterval>,
}

impl Cell {
    pub fn new(engine: &'static str, outcome: Outcome) -> Cell {
        let medians = match &outcome {
            Outcome::Measured { rounds } => {
                let of = |(&quantity, values): (&Quantity, &Vec<f64>)| {
                    MedianInterval::of(values).map(|interval| (quantity, interval))
                };
                rounds.iter().filter_map(of).collect()
            }
            _ => BTreeMap::new(),
        };
        Cell { engine, outcome, medians }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct RowResult {
    pub row: String,
    pub cells: Vec<Cell>,
}

impl RowResult {
    pub fn outcome(&self, engine: &str) -> Option<&Outcome> {
        self.cells.iter().find(|cell| cell.engine == engine).map(|cell| &cell.outcome)
    }
}

/// An engine and its settings.
#[derive(Clone, Debug, Serialize)]
pub struct Taker {
    pub engine: &'static str,
    pub version: String,
    pub settings: String,
    /// The path in use, as far as the engine reports it.
    pub path: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct Results {
    pub machine: Machine,
    pub units: &'static str,
    pub rounds: usize,
    pub seconds: f64,
    /// Latency samples of each engine in each round.
    pub samples: usize,
    pub engines: Vec<Taker>,
    pub rows: Vec<RowResult>,
    pub targets: Vec<Verdict>,
}

impl Results {
    pub fn row(&self, name: &str) -> Option<&RowResult> {
        self.rows.iter().find(|row| row.row == name)
    }
}
