//! Prints the results of `ferry-bench rdma`.

use std::io::{self, Write};

use super::results::{Ratio, Results, RowResult};
use crate::stats::tally;

pub fn heading(out: &mut dyn Write, results: &Results) -> io::Result<()> {
    let (places, plan) = (&results.places, &results.plan);
    writeln!(out, "machine    {}", results.machine)?;
    let stated = |value: Option<u32>| value.map_or("each side's own".to_owned(), |value| value.to_string());
    writeln!(
        out,
        "devices    {} to {}, GID index {}; MTU {}, queue pairs {}, inline {}",
        places.initiator,
        places.target,
        places.gid_index,
        stated(places.mtu),
        stated(places.queue_pairs),
        stated(places.inline_bytes)
    )?;
    writeln!(
        out,
        "plan       {} rounds in turn, {} s and {} samples each",
        plan.rounds, plan.seconds, plan.samples
    )?;
    writeln!(out, "units      MB = 10^6 bytes; data of verbs and ferry checked after every run")
}

/// Prints medians, then ratios.
pub fn row(out: &mut dyn Write, row: &RowResult) -> io::Result<()> {
    writeln!(out, "\n{}, {}", row.row, row.quantity)?;
    for taken in &row.sides {
        match (taken.median(), &taken.failure) {
            (Some(median), _) => writeln!(out, "  {:<20} {median:>10.2}   {}", taken.name, taken.settings)?,
            (None, failure) => {
                writeln!(out, "  {:<20} {}", taken.name, failure.as_deref().unwrap_or("not measured"))?
            }
        }
    }
    for ratio in &row.ratios {
        self::ratio(out, ratio)?;
    }
    if let (Some(found), Some(expected)) = (row.requests_per_transfer, row.requests_expected) {
        let verdict = row.requests_verdict().map_or(String::new(), |verdict| verdict.to_string());
        writeln!(
            out,
            "  {:<42} {found:>7.2} {:>17} {:>9}  {verdict}",
            "work requests of a transfer",
            "",
            format!("≤ {expected}")
        )?;
    }
    Ok(())
}

fn ratio(out: &mut dyn Write, ratio: &Ratio) -> io::Result<()> {
    let target = ratio.goal.map_or("stated".to_owned(), |goal| goal.to_string());
    let verdict = match ratio.verdict {
        Some(_) if !ratio.ratio.decides() => "undecided: too few rounds".to_owned(),
        verdict => verdict.map_or(String::new(), |verdict| verdict.to_string()),
    };
    let interval = ratio.ratio.ends();
    let sides = format!("{} : {}", ratio.of, ratio.to);
    writeln!(out, "  {sides:<42} {:>7.3} {interval:>17} {target:>9}  {verdict}", ratio.ratio.median)
}

pub fn summary(out: &mut dyn Write, results: &Results) -> io::Result<()> {
    writeln!(out, "\n{}", tally(results.rows.iter().flat_map(RowResult::verdicts)))?;
    for (side, reason) in results.failures() {
        writeln!(out, "{side} was not measured everywhere: {reason}")?;
    }
    Ok(())
}
