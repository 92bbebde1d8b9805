//! The tables of all comparisons: Markdown, readable on a terminal and in a document. Colours tell engines apart on a
//! terminal; the program's output drops them elsewhere.

use std::io::{self, Write};

use ferry_bench::stats::Latency;

use crate::contest::{Ratio, Results, RowResult, Target};
use crate::judge::{tally, Goal};

/// Colours of Okabe and Ito, which readers who are colour-blind tell apart: the nearest of a terminal's.
const FAMILIES: [(&str, u8); 6] =
    [("raw", 244), ("ferry", 32), ("Mooncake", 214), ("NIXL", 36), ("perftest", 166), ("verbs,", 166)];

/// Colours a padded text that begins with the name of an engine's family.
fn painted(padded: &str) -> String {
    let family = FAMILIES.iter().find(|(name, _)| padded.split(' ').next() == Some(name));
    match family {
        None => padded.to_owned(),
        Some((_, colour)) => format!("\x1b[38;5;{colour}m{padded}\x1b[0m"),
    }
}

pub fn heading(out: &mut dyn Write, results: &Results) -> io::Result<()> {
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
    let plan = &results.plan;
    writeln!(
        out,
        "{} rounds in turn; runs of {} s, {} latency samples each; medians; every byte checked in its place.\n",
        plan.rounds, plan.seconds, plan.samples
    )
}

/// Prints the engines with their versions and settings, and their paths.
pub fn engines(out: &mut dyn Write, results: &Results) -> io::Result<()> {
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

/// Judges the row's targets, keeps the row, and prints it.
pub fn tell(
    out: &mut dyn Write,
    results: &mut Results,
    found: RowResult,
    targets: &[Target],
) -> io::Result<()> {
    let known = results.ratios.len();
    results.add(found, targets);
    results.rows.last().map_or(Ok(()), |found| row(out, found, &results.ratios[known..]))
}

/// Prints a row's medians with the settings, or the reason for their absence, and its ratios.
fn row(out: &mut dyn Write, row: &RowResult, ratios: &[Ratio]) -> io::Result<()> {
    writeln!(out, "\n{}", row.row)?;
    for cell in &row.cells {
        let side = painted(&format!("{:<20}", cell.side));
        let medians = cell.medians.iter();
        let medians = medians.map(|(quantity, it)| format!("{:>10.3} {}", it.median, quantity.unit()));
        let text = cell.outcome.reason().map_or_else(|| medians.collect(), str::to_owned);
        writeln!(out, "  {side} {text}   {}", cell.settings)?;
        if let Some(Latency { samples, p90_us, p99_9_us, max_us, .. }) = cell.latency {
            let text = format!("p90 {p90_us:.2}, p99.9 {p99_9_us:.2}, maximum {max_us:.2} µs");
            writeln!(out, "  {:<20} {samples} samples: {text}", "")?;
        }
    }
    for ratio in ratios {
        let [median, interval, goal, verdict] = ratio.judged.cells();
        let sides = format!("{} : {}", ratio.subject, ratio.beside);
        writeln!(out, "  {sides:<42} {:<10} {median:>7} {interval:>17} {goal:>9}  {verdict}", ratio.unit)?;
    }
    Ok(())
}

/// Prints all ratios, the figures with limits of their own, and the verdicts' number.
pub fn summary(out: &mut dyn Write, results: &Results) -> io::Result<()> {
    if !results.ratios.is_empty() {
        writeln!(out, "\nTargets: medians of the ratios within a round, with 95 % intervals\n")?;
        let named = ["row", "quantity", "subject", "beside", "its figure", "beside's"];
        let head = named.into_iter().chain(["ratio", "95 % interval", "target", "verdict"]);
        let mut rows = vec![head.map(str::to_owned).collect()];
        rows.extend(results.ratios.iter().map(|ratio| {
            let named = [ratio.row.as_str(), ratio.unit, ratio.subject, ratio.beside].map(str::to_owned);
            let medians = [ratio.subject_median, ratio.beside_median];
            let medians = medians.map(|it| it.map_or("–".to_owned(), |median| format!("{median:.3}")));
            named.into_iter().chain(medians).chain(ratio.judged.cells()).collect()
        }));
        grid(out, &rows)?;
    }
    if !results.costs.is_empty() {
        writeln!(out)?;
        let mut rows = vec![["row", "quantity", "value", "target", "verdict"].map(str::to_owned).to_vec()];
        rows.extend(results.costs.iter().map(|cost| {
            let limit = cost.limit.map_or("stated".to_owned(), |limit| Goal::AtMost(limit).to_string());
            let verdict = cost.verdict.map_or(String::new(), |verdict| verdict.to_string());
            vec![cost.row.clone(), cost.quantity.to_owned(), format!("{:.3}", cost.value), limit, verdict]
        }));
        grid(out, &rows)?;
    }
    let unmeasured = results.ratios.iter().filter(|ratio| ratio.judged.ratio.is_none()).count();
    writeln!(out, "\n{}, {unmeasured} not measured", tally(results.verdicts()))
}

/// Names the sides that were not measured everywhere.
pub fn failures(out: &mut dyn Write, results: &Results) -> io::Result<()> {
    let mut failures = results.failures().into_iter();
    failures.try_for_each(|(side, reason)| writeln!(out, "{side} was not measured everywhere: {reason}"))
}

/// Prints a Markdown table whose columns are padded; the first row is its head.
pub fn grid(out: &mut dyn Write, rows: &[Vec<String>]) -> io::Result<()> {
    let Some(head) = rows.first() else { return Ok(()) };
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    let line = |out: &mut dyn Write, row: &[String]| {
        let cells = row.iter().zip(&widths);
        let cells = cells.map(|(cell, width)| format!(" {} |", painted(&format!("{cell:<width$}"))));
        writeln!(out, "|{}", cells.collect::<String>())
    };
    line(out, head)?;
    let rule = widths.iter().map(|width| format!("{}|", "-".repeat(width + 2)));
    writeln!(out, "|{}", rule.collect::<String>())?;
    rows[1..].iter().try_for_each(|row| line(out, row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest() {
        let mut out = Vec::new();
        let rows = [["a", "µs"], ["long", "1"]].map(|row| row.map(str::to_owned).to_vec());
        grid(&mut out, &rows).expect("written");
        assert_eq!(String::from_utf8(out).expect("text"), "| a    | µs |\n|------|----|\n| long | 1  |\n");
    }

    #[test]
    fn each_family_has_its_colour() {
        let names = ["raw TCP", "ferry tcp", "Mooncake TCP best", "NIXL auto best", "verbs, proven"];
        let codes = names.map(|name| painted(name).split_once(name).map(|(code, _)| code.to_owned()));
        assert!(codes.iter().all(|code| code.as_ref().is_some_and(|code| !code.is_empty())), "{codes:?}");
        assert!(codes.iter().all(|code| codes.iter().filter(|other| *other == code).count() == 1));
        assert_eq!(painted("ferry local"), "\x1b[38;5;32mferry local\x1b[0m");
        assert_eq!(painted("WRITE 1 MiB × 16"), "WRITE 1 MiB × 16");
    }
}
