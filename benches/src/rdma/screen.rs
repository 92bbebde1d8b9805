//! What `ferry-bench rdma` prints.

use std::io::{self, Write};

use super::results::{Ratio, Results, RowResult};
use crate::stats::{Goal, Verdict};

pub fn heading(out: &mut dyn Write, results: &Results) -> io::Result<()> {
    let (machine, places, plan) = (&results.machine, &results.places, &results.plan);
    writeln!(
        out,
        "machine    {}, {} CPUs, Linux {}",
        machine.cpu_model, machine.cpus_allowed, machine.kernel
    )?;
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

/// Medians, then ratios.
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
        let verdict = row.requests_verdict().map_or("", word);
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
    let target = match ratio.goal {
        Some(Goal::AtLeast(ratio)) => format!("≥ {ratio}"),
        Some(Goal::AtMost(ratio)) => format!("≤ {ratio}"),
        None => "stated".to_owned(),
    };
    let interval = format!("{:.3} to {:.3}", ratio.ratio.low, ratio.ratio.high);
    let verdict = match ratio.verdict {
        Some(_) if !ratio.ratio.decides() => "undecided: too few rounds",
        Some(verdict) => word(verdict),
        None => "",
    };
    let sides = format!("{} : {}", ratio.of, ratio.to);
    writeln!(out, "  {sides:<42} {:>7.3} {interval:>17} {target:>9}  {verdict}", ratio.ratio.median)
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Met => "met",
        Verdict::Missed => "MISSED",
        Verdict::Undecided => "undecided",
    }
}

pub fn summary(out: &mut dyn Write, results: &Results) -> io::Result<()> {
    let verdicts: Vec<_> = results.rows.iter().flat_map(RowResult::verdicts).collect();
    let count = |verdict| verdicts.iter().filter(|found| **found == verdict).count();
    let (met, missed) = (count(Verdict::Met), count(Verdict::Missed));
    writeln!(out, "\n{met} met, {missed} missed, {} undecided", count(Verdict::Undecided))?;
    for (side, reason) in results.failures() {
        writeln!(out, "{side} was not measured everywhere: {reason}")?;
    }
    Ok(())
}
