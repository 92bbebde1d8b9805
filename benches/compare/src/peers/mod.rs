//! `ferry-compare peers`, which `make compare` runs: ferry through its C ABI, the peers as their wheels install them,
//! and the raw references, on one set of workloads, in turn, with every byte checked.
//!
//! From the bottom up: a process that drives an engine (`agent`), a pair of processes
//! as an `Engine` (`python`), the engines (`roster`), the workloads (`rows`), the engines during the measurements
//! (`field`), the targets (`targets`), and the table (`table`).

mod agent;
mod field;
mod python;
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

use crate::contest::{self, parse_rows, Plan, Results, RowResult, Side};

pub use python::{Launch, PythonEngine};
pub use roster::Places;

use field::Place;
use roster::Entry;
use rows::Row;

const SETUP_ROUNDS_MAX: usize = 5;

/// The measurement and its means.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    pub plan: Plan,
    #[command(flatten)]
    pub places: Places,
    /// Only engines whose name matches this regular expression
    #[arg(long, value_parser = parse_rows)]
    pub engines: Option<Regex>,
    /// Damage a byte before each check, to see the check fail
    #[arg(long, hide = true)]
    pub spoil: bool,
}

/// Measures everything in the plan; writes progress to `progress` and the table to `out`.
pub fn run(
    options: &Options,
    program: PathBuf,
    out: &mut dyn Write,
    progress: &mut dyn Write,
) -> anyhow::Result<Results> {
    let Options { plan, places, engines, spoil } = options;
    let wanted = |entry: &Entry| engines.as_ref().is_none_or(|only| only.is_match(entry.name));
    let entries = roster::entries(places).into_iter().filter(wanted);
    let mut field: Vec<_> = entries.map(|entry| Place::new(entry, program.clone(), *spoil)).collect();
    let rows: Vec<_> = rows::all().into_iter().filter(|row| plan.wants(&row.to_string())).collect();
    ensure!(!field.is_empty(), "no engine has such a name");
    ensure!(!rows.is_empty(), "no row has such a name");
    let mut results = Results::new(plan, Vec::new());
    for row in &rows {
        write!(progress, "{row}: ")?;
        progress.flush()?;
        let start = Instant::now();
        results.add(measure(plan, row, &mut field), &targets::of(row));
        writeln!(progress, "{:.0} s", start.elapsed().as_secs_f64())?;
    }
    results.engines = field.iter().map(|place| place.taker.clone()).collect();
    table::print(out, &results)?;
    Ok(results)
}

/// Measures one row: every engine prepares, then the rounds run in turn.
fn measure(plan: &Plan, row: &Row, field: &mut [Place]) -> RowResult {
    // These rows use several targets each, or pairs of their own: the pairs of the other rows only take memory.
    if matches!(row, Row::Setup | Row::Peers(_)) {
        field.iter_mut().for_each(Place::end);
    }
    let enter = |place: &mut Place| Side { out: place.enter(row, plan), ..Side::new(place.taker.engine) };
    let sides = field.iter_mut().map(enter).collect();
    // Pairs that start in each round take seconds, and no verdict depends on them.
    let rounds = if *row == Row::Setup { plan.rounds.min(SETUP_ROUNDS_MAX) } else { plan.rounds };
    contest::measure(row.to_string(), sides, rounds, |index| field[index].run(row, plan))
}
