//! Prints a comparison.

use std::io::{self, Write};

use super::{Comparison, Cost, LatencyPair, Line, Standing, Unavailable};
use crate::stats::{tally, Goal, Latency};
use crate::workload::Engine;

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
    match line.reference_settings.is_empty() {
        true => Ok(()),
        false => {
            writeln!(out, "    reference {}; subject {}", line.reference_settings, line.subject_settings)
        }
    }
}

fn judged(out: &mut dyn Write, line: &Line) -> io::Result<()> {
    writeln!(
        out,
        "{:<46} {:<10} {:>9.3} {:>9.3} {:>7.3} {:>17} {:>8} {:>3}  {}",
        line.row,
        line.quantity,
        line.reference_median,
        line.subject_median,
        line.ratio.median,
        line.ratio.ends(),
        line.goal,
        line.ratio.n,
        if line.ratio.decides() { line.verdict.to_string() } else { "undecided: too few pairs".to_owned() }
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
    writeln!(
        out,
        "\nDoes the reference count? At least 0.9 of the best measured, scaled by one-thread memcpy:"
    )?;
    for s in standings {
        let answer = if s.counts { "counts" } else { "DOES NOT COUNT" };
        writeln!(
            out,
            "{:<46} memcpy {:.2} GB/s, reference {:.2} GB/s, required {:.2}: {answer}",
            s.row, s.memcpy_gb_per_second, s.reference_gb_per_second, s.required_gb_per_second
        )?;
        writeln!(
            out,
            "    {}; {:.3} CPU s/GiB, {:.0} % of all CPUs busy",
            s.settings,
            s.reference_cpu_seconds_per_gib,
            s.cpu_share_of_machine * 100.0
        )?;
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
    let lines = comparison.lines.iter().map(|line| line.verdict);
    let verdicts = lines.chain(comparison.costs.iter().filter_map(|cost| cost.verdict));
    write!(out, "{}", tally(verdicts))?;
    match comparison.unavailable.len() {
        0 => writeln!(out)?,
        count => writeln!(out, ", {count} unavailable")?,
    }
    match comparison.standings.iter().all(|standing| standing.counts) {
        true => Ok(()),
        false => writeln!(out, "the reference is not near enough to the limit on every row: see above"),
    }
}
