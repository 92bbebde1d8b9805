//! The table: the engines with their settings, the figures or the reasons for their absence, and the targets. It is
//! Markdown, readable on the screen and in a document.

use std::io::{self, Write};

use ferry_bench::layout::Layout;
use ferry_bench::workload::{format_bytes, format_count, Operation, Workload};

use super::rows::{self, Row};
use crate::contest::{Outcome, Results};
use crate::figures::Quantity;
use crate::screen;

/// WRITEs, READs, and all other rows.
const TITLES: [&str; 3] = [
    "WRITE, GB/s (CPU seconds per GiB of both ends)",
    "READ, GB/s (CPU seconds per GiB of both ends)",
    "One synchronous WRITE at a time, p50/p99; connecting until the first WRITE is done; registering; \
     1 MiB × 16 WRITE to four targets, all together",
];

pub fn print(out: &mut dyn Write, results: &Results) -> io::Result<()> {
    screen::heading(out, results)?;
    screen::engines(out, results)?;
    let mut notes = Notes::default();
    for (block, title) in TITLES.into_iter().enumerate() {
        let measured = rows::all().into_iter().filter(|row| results.row(&row.to_string()).is_some());
        let columns: Vec<_> = measured.filter(|row| block_of(row) == block).flat_map(columns).collect();
        if !columns.is_empty() {
            writeln!(out, "\n{title}\n")?;
            screen::grid(out, &figures(results, &columns, &mut notes))?;
        }
    }
    notes.print(out)?;
    screen::summary(out, results)
}

/// Returns the place of the row's title.
fn block_of(row: &Row) -> usize {
    match row {
        Row::Throughput(Workload { operation: Operation::Write, .. }) => 0,
        Row::Throughput(_) => 1,
        _ => 2,
    }
}

struct Column {
    head: String,
    row: String,
    /// The quantities whose medians the column shows, and how.
    quantities: &'static [Quantity],
    show: fn(&[f64]) -> String,
}

fn columns(row: Row) -> Vec<Column> {
    let column = |head: &str, quantities, show| Column {
        head: head.to_owned(),
        row: row.to_string(),
        quantities,
        show,
    };
    let bulk = |head: &str| {
        let quantities = &[Quantity::GbPerSecond, Quantity::CpuSecondsPerGib];
        column(head, quantities, |medians| format!("{:.2} ({:.2})", medians[0], medians[1]))
    };
    let time = |head, quantity| column(head, quantity, |medians| format!("{:.2}", medians[0]));
    match &row {
        Row::Throughput(workload) => vec![bulk(&shape(workload))],
        Row::Peers(_) => vec![bulk("4 peers, GB/s")],
        Row::Latency(bytes) => {
            let head = format!("{} WRITE, µs", format_bytes(*bytes));
            let show = |medians: &[f64]| format!("{:.1}/{:.1}", medians[0], medians[1]);
            vec![column(&head, &[Quantity::P50Us, Quantity::P99Us], show)]
        }
        Row::Setup => vec![
            time("connect, ms", &[Quantity::ConnectMs]),
            time("register 1 GiB, ms", &[Quantity::RegisterMs]),
        ],
    }
}

fn shape(workload: &Workload) -> String {
    let bytes = format_bytes(workload.block_bytes);
    let layout = if workload.layout == Layout::Scattered { " scattered" } else { "" };
    format!("{bytes} × {}{layout}", format_count(workload.blocks))
}

fn figures(results: &Results, columns: &[Column], notes: &mut Notes) -> Vec<Vec<String>> {
    let head = std::iter::once("engine".to_owned()).chain(columns.iter().map(|column| column.head.clone()));
    let mut rows = vec![head.collect::<Vec<_>>()];
    for engine in &results.engines {
        let mut cell = |column: &Column| {
            let cell = results.row(&column.row).and_then(|row| row.cell(engine.engine));
            let Some(cell) = cell else { return String::new() };
            let medians: Option<Vec<f64>> = column.quantities.iter().map(|it| cell.median(*it)).collect();
            medians
                .map_or_else(|| notes.mark(engine.engine, &cell.outcome), |medians| (column.show)(&medians))
        };
        let name = std::iter::once(engine.engine.to_owned());
        rows.push(name.chain(columns.iter().map(&mut cell)).collect());
    }
    rows
}

/// Reasons, numbered in the order of their first appearance.
#[derive(Default)]
struct Notes {
    texts: Vec<String>,
}

impl Notes {
    fn mark(&mut self, engine: &str, outcome: &Outcome) -> String {
        let reason = outcome.reason().unwrap_or("no figure");
        let (word, text) = match outcome {
            Outcome::NotApplicable { .. } => return "–".to_owned(),
            Outcome::Unavailable { .. } => ("unavailable", format!("{engine}: unavailable: {reason}")),
            _ => ("failed", format!("{engine}: failed: {reason}")),
        };
        let known = self.texts.iter().position(|known| *known == text);
        let index = known.unwrap_or_else(|| {
            self.texts.push(text);
            self.texts.len() - 1
        });
        format!("{word} [{}]", index + 1)
    }

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        if !self.texts.is_empty() {
            writeln!(out)?;
        }
        for (index, text) in self.texts.iter().enumerate() {
            writeln!(out, "[{}] {text}", index + 1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::contest::{Cell, Plan, RowResult, Side, Taker};
    use crate::figures::Run;
    use crate::peers::roster::{FERRY_LOCAL, FERRY_TCP, MOONCAKE};
    use crate::peers::targets;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        plan: Plan,
    }

    #[test]
    fn figures_reasons_and_verdicts_are_all_there() {
        let names = [FERRY_TCP, FERRY_LOCAL, MOONCAKE];
        let taker = |engine| Taker { engine, settings: "defaults".to_owned(), ..Taker::default() };
        let mut results = Results::new(&Line::parse_from(["x"]).plan, names.map(taker).into());
        let row = rows::all().remove(0);
        let mut sides = names.map(Side::new);
        for (side, speed) in [(0, 8.0), (2, 2.0)] {
            let run = Run::of([(Quantity::GbPerSecond, speed), (Quantity::CpuSecondsPerGib, 0.25)]);
            sides[side].runs = vec![run; 6];
        }
        sides[1].out = Some(Outcome::Unavailable { reason: "UNAVAILABLE: no such path".to_owned() });
        let found = RowResult { row: row.to_string(), cells: sides.into_iter().map(Cell::of).collect() };
        results.add(found, &targets::of(&row));
        let mut out = Vec::new();
        print(&mut out, &results).expect("written");
        let text = String::from_utf8(out).expect("text");
        for part in [
            "8.00 (0.25)",
            "2.00 (0.25)",
            "unavailable [1]",
            "[1] ferry local, own memory: unavailable: UNAVAILABLE: no such path",
            "4.000 to 4.000",
            "1 met, 0 missed, 0 undecided, 0 not measured",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("READ, GB/s"), "rows that were not measured are not there: {text}");
    }
}
