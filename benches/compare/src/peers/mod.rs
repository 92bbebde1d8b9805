//! `ferry-compare peers`, which `make compare` runs: ferry through its C ABI, the peers as their wheels install them,
//! and the raw references, on one set of workloads, in turn, with every byte checked.
//!
//! From the bottom up: a process that drives an engine (`agent`), access to its memory (`foreign`), a pair of processes
//! as an `Engine` (`python`), the engines (`roster`), the workloads (`rows`), the measurements in turn (`field`), the
//! results (`results`), the targets (`targets`), and the screen (`table`).

mod agent;
mod field;
mod foreign;
mod python;
mod results;
mod roster;
mod rows;
mod table;
mod targets;

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::ensure;
use clap::Args;
use regex_lite::Regex;

use crate::arguments::{from_to, parse_rows, parse_seconds};
use crate::turns::order;
use ferry_bench::cpu::Machine;

pub use python::{Launch, PythonEngine};
pub use results::{Outcome, Results};
pub use roster::Places;

use field::Place;
use results::{Cell, RowResult};
use rows::Row;

const SETUP_ROUNDS_MAX: usize = 5;

/// What is measured.
#[derive(Args, Clone, Debug)]
pub struct Plan {
    /// Rounds of each row; below 6 nothing is decided
    #[arg(long, default_value_t = 7, value_parser = from_to(1, 1_000))]
    pub rounds: usize,
    /// Seconds of each throughput run
    #[arg(long, default_value_t = 0.3, value_parser = parse_seconds)]
    pub seconds: f64,
    /// Latency samples of each engine in each round
    #[arg(long, default_value_t = 3_000, value_parser = from_to(1, 1_000_000))]
    pub samples: usize,
    /// Only rows whose name matches this regular expression
    #[arg(long, value_parser = parse_rows)]
    pub rows: Option<Regex>,
    /// Only engines whose name matches this regular expression
    #[arg(long, value_parser = parse_rows)]
    pub engines: Option<Regex>,
    /// Damage a byte before each check, to see the check fail
    #[arg(long, hide = true)]
    pub spoil: bool,
}

/// Measures everything in the plan; writes progress to `progress` and the table to `out`.
pub fn run(
    plan: &Plan,
    places: &Places,
    program: PathBuf,
    out: &mut dyn Write,
    progress: &mut dyn Write,
) -> anyhow::Result<Results> {
    let wants = |only: &Option<Regex>, name: &str| only.as_ref().is_none_or(|only| only.is_match(name));
    let entries = roster::entries(places).into_iter().filter(|entry| wants(&plan.engines, entry.name));
    let mut field: Vec<_> = entries.map(|entry| Place::new(entry, program.clone(), plan.spoil)).collect();
    let rows: Vec<_> = rows::all().into_iter().filter(|row| wants(&plan.rows, &row.to_string())).collect();
    ensure!(!field.is_empty(), "no engine has such a name");
    ensure!(!rows.is_empty(), "no row has such a name");
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        write!(progress, "{row}: ")?;
        let start = Instant::now();
        found.push(measure(plan, row, &mut field, progress)?);
        writeln!(progress, " {:.0} s", start.elapsed().as_secs_f64())?;
    }
    let mut results = Results {
        machine: Machine::describe(),
        units: "GB = 10^9 bytes, GiB = 2^30 bytes",
        rounds: plan.rounds,
        seconds: plan.seconds,
        samples: plan.samples,
        engines: field.iter().map(|place| place.taker.clone()).collect(),
        rows: found,
        targets: Vec::new(),
    };
    results.targets = targets::judge(&results);
    table::print(out, &results)?;
    Ok(results)
}

/// Measures one row: every engine prepares, then the rounds run in turn.
fn measure(
    plan: &Plan,
    row: &Row,
    field: &mut [Place],
    progress: &mut dyn Write,
) -> anyhow::Result<RowResult> {
    // These rows use several targets each, or pairs of their own: the pairs of the other rows only take memory.
    if matches!(row, Row::Setup | Row::Peers(_)) {
        field.iter_mut().for_each(Place::end);
    }
    field.iter_mut().for_each(|place| place.enter(row, plan));
    // Pairs that start in each round take seconds, and no verdict depends on them.
    let rounds = if *row == Row::Setup { plan.rounds.min(SETUP_ROUNDS_MAX) } else { plan.rounds };
    for round in 0..rounds {
        for index in order(round, field.len()) {
            field[index].run(row, plan);
        }
        write!(progress, ".")?;
        progress.flush()?;
        if !field.iter().any(Place::in_row) {
            break;
        }
    }
    let cells = field.iter_mut().map(|place| Cell::new(place.taker.engine, place.leave())).collect();
    Ok(RowResult { row: row.to_string(), cells })
}
