//! The table: the engines with their settings, the figures or the reasons for their absence, and the targets. It is
//! Markdown, readable on the screen and in a document.

use std::io::{self, Write};

use super::results::{Outcome, Results};
use super::rows::{peers, workloads, Row, LATENCY_BYTES};
use crate::figures::Quantity;
use crate::judge::tally;
use crate::palette;
use ferry_bench::layout::Layout;
use ferry_bench::workload::{format_bytes, format_count, Operation, Workload};

pub fn print(out: &mut dyn Write, results: &Results) -> io::Result<()> {
    heading(out, results)?;
    let mut notes = Notes::default();
    for block in blocks() {
        let columns: Vec<_> =
            block.columns.into_iter().filter(|column| results.row(&column.row).is_some()).collect();
        if !columns.is_empty() {
            writeln!(out, "\n{}\n", block.title)?;
            grid(out, &figures(results, &columns, &mut notes))?;
        }
    }
    notes.print(out)?;
    targets(out, results)
}

fn heading(out: &mut dyn Write, results: &Results) -> io::Result<()> {
    let machine = &results.machine;
    writeln!(
        out,
        "{}, {} CPUs, {:.0} GiB, Linux {}; the host's congestion control for those who choose none: {}",
        machine.cpu_model,
        machine.cpus_allowed,
        machine.memory_gib,
        machine.kernel,
        machine.congestion_control_default
    )?;
    writeln!(
        out,
        "{} rounds in turn; runs of {} s, {} latency samples each; medians; every byte checked in its place.\n",
        results.rounds, results.seconds, results.samples
    )?;
    let row = |[a, b, c]: [&str; 3]| vec![a.to_owned(), b.to_owned(), c.to_owned()];
    let mut rows = vec![row(["engine", "version", "settings"])];
    rows.extend(results.engines.iter().map(|engine| row([engine.engine, &engine.version, &engine.settings])));
    grid(out, &rows)?;
    // The choice of `auto` is part of the measurement.
    let told = results.engines.iter().filter(|engine| engine.engine.starts_with("ferry"));
    let told: Vec<_> = told.filter(|engine| !engine.path.is_empty()).collect();
    told.iter().enumerate().try_for_each(|(index, engine)| {
        let gap = if index == 0 { "\n" } else { "" };
        writeln!(out, "{gap}{}: {}", engine.engine, engine.path)
    })
}

struct Column {
    head: String,
    row: String,
    /// The quantities whose medians the column shows, and how.
    quantities: &'static [Quantity],
    show: fn(&[f64]) -> String,
}

struct Block {
    title: &'static str,
    columns: Vec<Column>,
}

fn blocks() -> [Block; 3] {
    let bulk = |head, row: Row| Column {
        head,
        row: row.to_string(),
        quantities: &[Quantity::GbPerSecond, Quantity::CpuSecondsPerGib],
        show: |medians| format!("{:.2} ({:.2})", medians[0], medians[1]),
    };
    let throughput = |operation| {
        let column = |workload: Workload| bulk(shape(&workload), Row::Throughput(workload));
        workloads(operation).into_iter().map(column).collect()
    };
    let latency = |bytes| Column {
        head: format!("{} WRITE, µs", format_bytes(bytes)),
        row: Row::Latency(bytes).to_string(),
        quantities: &[Quantity::P50Us, Quantity::P99Us],
        show: |medians| format!("{:.1}/{:.1}", medians[0], medians[1]),
    };
    let setup = |head: &str, quantities| Column {
        head: head.to_owned(),
        row: Row::Setup.to_string(),
        quantities,
        show: |medians| format!("{:.2}", medians[0]),
    };
    let mut rest: Vec<_> = LATENCY_BYTES.map(latency).into();
    rest.extend([
        setup("connect, ms", &[Quantity::ConnectMs]),
        setup("register 1 GiB, ms", &[Quantity::RegisterMs]),
        bulk("4 peers, GB/s".to_owned(), peers()),
    ]);
    [
        Block {
            title: "WRITE, GB/s (CPU seconds per GiB of both ends)",
            columns: throughput(Operation::Write),
        },
        Block {
            title: "READ, GB/s (CPU seconds per GiB of both ends)",
            columns: throughput(Operation::Read),
        },
        Block {
            title: "One synchronous WRITE at a time, p50/p99; connecting until the first WRITE is done; \
                    registering; 1 MiB × 16 WRITE to four targets, all together",
            columns: rest,
        },
    ]
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
            let outcome = results.row(&column.row).and_then(|row| row.outcome(engine.engine));
            let Some(outcome) = outcome else { return String::new() };
            let medians: Option<Vec<f64>> = column.quantities.iter().map(|it| outcome.median(*it)).collect();
            medians.map_or_else(|| notes.mark(engine.engine, outcome), |medians| (column.show)(&medians))
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

fn targets(out: &mut dyn Write, results: &Results) -> io::Result<()> {
    if results.targets.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nTargets: medians of the ratios within a round, with 95 % intervals\n")?;
    let mut rows =
        vec![["row", "quantity", "ferry", "beside", "ratio", "95 % interval", "target", "verdict"]
            .map(str::to_owned)
            .to_vec()];
    rows.extend(results.targets.iter().map(|target| {
        let named = [target.row.as_str(), target.quantity.unit(), target.subject, target.beside];
        named.map(str::to_owned).into_iter().chain(target.judged.cells("rounds")).collect()
    }));
    grid(out, &rows)?;
    let verdicts: Vec<_> = results.targets.iter().filter_map(|target| target.judged.verdict).collect();
    let unmeasured = results.targets.len() - verdicts.len();
    writeln!(out, "\n{}, {unmeasured} not measured", tally(verdicts))
}

/// Prints a Markdown table whose columns are padded; the first row is its head.
fn grid(out: &mut dyn Write, rows: &[Vec<String>]) -> io::Result<()> {
    let Some(head) = rows.first() else { return Ok(()) };
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    let wanted = palette::is_wanted();
    let line = |out: &mut dyn Write, row: &[String]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| {
            let padded = format!("{cell:<width$}");
            let colour = palette::of_engine(cell);
            format!(" {} |", colour.map_or(padded.clone(), |it| palette::paint(&padded, it, wanted)))
        });
        writeln!(out, "|{}", cells.collect::<String>())
    };
    line(out, head)?;
    writeln!(
        out,
        "|{}",
        widths.iter().map(|width| format!("{}|", "-".repeat(width + 2))).collect::<String>()
    )?;
    rows[1..].iter().try_for_each(|row| line(out, row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Figures;
    use crate::peers::results::{Cell, RowResult, Taker};
    use crate::peers::roster::{FERRY_LOCAL, FERRY_TCP, MOONCAKE};
    use crate::peers::targets::judge;
    use ferry_bench::cpu::Machine;

    fn measured(values: [(Quantity, f64); 2]) -> Outcome {
        Outcome::measured(&vec![Figures::from(values); 6])
    }

    fn results() -> Results {
        let taker = |engine| Taker {
            engine,
            version: "1".to_owned(),
            settings: "defaults".to_owned(),
            path: String::new(),
        };
        let speed = |value| measured([(Quantity::GbPerSecond, value), (Quantity::CpuSecondsPerGib, 0.25)]);
        let row = Row::Throughput(workloads(Operation::Write)[0]).to_string();
        let cells = vec![
            Cell::new(FERRY_TCP, speed(8.0)),
            Cell::new(FERRY_LOCAL, Outcome::Unavailable { reason: "UNAVAILABLE: no such path".to_owned() }),
            Cell::new(MOONCAKE, speed(2.0)),
        ];
        let mut results = Results {
            machine: Machine::describe(),
            units: "",
            rounds: 6,
            seconds: 0.3,
            samples: 10,
            engines: [FERRY_TCP, FERRY_LOCAL, MOONCAKE].map(taker).into(),
            rows: vec![RowResult { row, cells }],
            targets: Vec::new(),
        };
        results.targets = judge(&results);
        results
    }

    #[test]
    fn figures_reasons_and_verdicts_are_all_there() {
        let mut out = Vec::new();
        print(&mut out, &results()).expect("written");
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

    #[test]
    fn columns_are_as_wide_as_their_widest() {
        let mut out = Vec::new();
        let rows = [["a", "µs"], ["long", "1"]].map(|row| row.map(str::to_owned).to_vec());
        grid(&mut out, &rows).expect("written");
        assert_eq!(String::from_utf8(out).expect("text"), "| a    | µs |\n|------|----|\n| long | 1  |\n");
    }
}
