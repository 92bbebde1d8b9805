//! Prints a comparison.

use std::io::{self, Write};

use super::{Comparison, Cost, LatencyPair, Line, Standing, Unavailable};
use crate::judge::{tally, Goal};
use crate::palette;
use ferry_bench::stats::Latency;
use ferry_bench::workload::Engine;

pub fn heading(out: &mut dyn Write, comparison: &Comparison) -> io::Result<()> {
    writeln!(out, "machine    {}", comparison.machine)?;
    writeln!(out, "reference  {}: {}", comparison.reference, comparison.reference_path)?;
    writeln!(out, "subject    {}: {}", comparison.subject, comparison.subject_path)?;
    writeln!(out, "spin       {} µs before sleeping, both ends of both sides", comparison.spin_us)?;
    writeln!(out, "units      GB = 10^9 bytes, GiB = 2^30 bytes; data checked after every run")?;
    writeln!(out)?;
    columns(out)
}

fn columns(out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<46} {:<10} {:>9} {:>9} {:>7} {:>17} {:>8} {:>3}  verdict",
        "row", "quantity", "reference", "subject", "ratio", "95 % interval", "target", "n"
    )
}

/// Prints the sides of the rows that follow.
pub fn section(out: &mut dyn Write, reference: &dyn Engine, subject: &dyn Engine) -> io::Result<()> {
    for (side, engine) in [("reference", reference), ("subject", subject)] {
        writeln!(out, "{side:<10} {}: {}", engine.name(), engine.path())?;
    }
    Ok(())
}

pub fn unavailable(out: &mut dyn Write, row: &Unavailable) -> io::Result<()> {
    writeln!(out, "{:<46} {}", row.row, row.reason)
}

/// Prints a line with its settings.
pub fn line(out: &mut dyn Write, line: &Line) -> io::Result<()> {
    judged(out, line)?;
    let (reference, subject) = (&line.reference_settings, &line.subject_settings);
    if reference.is_empty() {
        Ok(())
    } else {
        writeln!(out, "    reference {reference}; subject {subject}")
    }
}

fn judged(out: &mut dyn Write, line: &Line) -> io::Result<()> {
    let Line { row, quantity, reference_median, subject_median, .. } = line;
    let ([ratio, interval, goal, verdict], count) = (line.judged.cells("pairs"), line.ratios.len());
    let wanted = palette::is_wanted();
    let reference = palette::paint(&format!("{reference_median:>9.3}"), palette::GREY, wanted);
    let subject = palette::paint(&format!("{subject_median:>9.3}"), palette::BLUE, wanted);
    writeln!(
        out,
        "{row:<46} {quantity:<10} {reference} {subject} {ratio:>7} {interval:>17} {goal:>8} {count:>3}  {verdict}"
    )
}

pub fn latency(out: &mut dyn Write, pair: &LatencyPair) -> io::Result<()> {
    for (side, latency) in [("reference", &pair.reference), ("subject", &pair.subject)] {
        let Latency { samples, p50_us, p90_us, p99_us, p99_9_us, max_us, .. } = latency;
        writeln!(
            out,
            "    {side}: {samples} samples, µs p50 {p50_us:.2} p90 {p90_us:.2} p99 {p99_us:.2} \
             p99.9 {p99_9_us:.2} maximum {max_us:.2}"
        )?;
    }
    Ok(())
}

pub fn standings(out: &mut dyn Write, standings: &[Standing]) -> io::Result<()> {
    let limit = "At least 0.9 of the best measured, scaled by one-thread memcpy:";
    writeln!(out, "\nDoes the reference count? {limit}")?;
    for standing in standings {
        let Standing { row, settings, memcpy_gb_per_second: memcpy, .. } = standing;
        let (reference, required) = (standing.reference_gb_per_second, standing.required_gb_per_second);
        let answer = if standing.counts { "counts" } else { "DOES NOT COUNT" };
        writeln!(
            out,
            "{row:<46} memcpy {memcpy:.2} GB/s, reference {reference:.2} GB/s, required {required:.2}: {answer}"
        )?;
        let (cost, busy) = (standing.reference_cpu_seconds_per_gib, standing.cpu_share_of_machine * 100.0);
        writeln!(out, "    {settings}; {cost:.3} CPU s/GiB, {busy:.0} % of all CPUs busy")?;
    }
    Ok(())
}

/// Prints all results once more, without their settings.
pub fn summary(out: &mut dyn Write, comparison: &Comparison) -> io::Result<()> {
    writeln!(out, "\nFinal table")?;
    columns(out)?;
    for line in &comparison.lines {
        judged(out, line)?;
    }
    for cost in &comparison.costs {
        let limit = cost.limit.map_or("stated".to_owned(), |limit| Goal::AtMost(limit).to_string());
        let verdict = cost.verdict.map_or(String::new(), |verdict| verdict.to_string());
        let Cost { row, quantity, value, .. } = cost;
        writeln!(out, "{row:<46} {quantity:<25} {value:>9.3} {limit:>33}      {verdict}")?;
    }
    for row in &comparison.unavailable {
        unavailable(out, row)?;
    }
    let lines = comparison.lines.iter().filter_map(|line| line.judged.verdict);
    let verdicts = lines.chain(comparison.costs.iter().filter_map(|cost| cost.verdict));
    write!(out, "{}", tally(verdicts))?;
    match comparison.unavailable.len() {
        0 => writeln!(out)?,
        count => writeln!(out, ", {count} unavailable")?,
    }
    if comparison.standings.iter().all(|standing| standing.counts) {
        Ok(())
    } else {
        writeln!(out, "the reference is not near enough to the limit on every row: see above")
    }
}
