//! The results: every value of every round, and their ratios; also the JSON, and the screen.

use std::io::{self, Write};

use serde::Serialize;

use super::rows::{Held, Row, Side};
use super::{Places, Plan};
use crate::judge::{tally, Judged, Verdict};
use ferry_bench::cpu::Machine;
use ferry_bench::stats::median;

#[derive(Debug, Serialize)]
pub struct Results {
    pub machine: Machine,
    pub plan: Plan,
    pub places: Places,
    pub rows: Vec<RowResult>,
}

#[derive(Debug, Serialize)]
pub struct RowResult {
    pub row: String,
    pub quantity: &'static str,
    pub sides: Vec<Taken>,
    pub ratios: Vec<Ratio>,
    /// Slices of each of ferry's transfers, each a work request, and the expected number.
    pub requests_per_transfer: Option<f64>,
    pub requests_expected: Option<usize>,
}

/// The results of one side's rounds.
#[derive(Debug, Serialize)]
pub struct Taken {
    pub side: Side,
    pub name: String,
    pub settings: String,
    pub values: Vec<f64>,
    /// The reason why the side is out.
    pub failure: Option<String>,
}

impl Taken {
    fn median(&self) -> Option<f64> {
        (self.failure.is_none() && !self.values.is_empty()).then(|| median(&self.values))
    }
}

/// The ratio of one side's values to another's, round by round.
#[derive(Debug, Serialize)]
pub struct Ratio {
    pub of: String,
    pub to: String,
    #[serde(flatten)]
    pub judged: Judged,
}

impl RowResult {
    pub fn new(row: &Row, sides: Vec<Side>) -> RowResult {
        let taken = |side: Side| Taken {
            side,
            name: side.name(),
            settings: String::new(),
            values: Vec::new(),
            failure: None,
        };
        RowResult {
            row: row.name(),
            quantity: row.quantity(),
            sides: sides.into_iter().map(taken).collect(),
            ratios: Vec::new(),
            requests_per_transfer: None,
            requests_expected: row.requests_expected(),
        }
    }

    /// Computes, once all rounds are over, the ratios of the sides that finished.
    pub fn judge(&mut self, row: &Row) {
        self.ratios = row.held().iter().filter_map(|held| self.ratio(held)).collect();
    }

    fn ratio(&self, &(of, to, goal): &Held) -> Option<Ratio> {
        let find = |side| self.sides.iter().find(|taken| taken.side == side && taken.failure.is_none());
        let (of, to) = (find(of)?, find(to)?);
        let ratios: Vec<f64> = of.values.iter().zip(&to.values).map(|(of, to)| of / to).collect();
        let judged = Judged::of(goal, &ratios);
        judged.ratio.map(|_| Ratio { of: of.name.clone(), to: to.name.clone(), judged })
    }

    /// Judges whether ferry posted as few work requests as possible.
    fn requests_verdict(&self) -> Option<Verdict> {
        let (found, expected) = (self.requests_per_transfer?, self.requests_expected? as f64);
        Some(if found <= expected { Verdict::Met } else { Verdict::Missed })
    }

    /// Prints medians, then ratios.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\n{}, {}", self.row, self.quantity)?;
        for taken in &self.sides {
            let Taken { name, settings, .. } = taken;
            let failure = taken.failure.as_deref().unwrap_or("not measured");
            match taken.median() {
                Some(median) => writeln!(out, "  {name:<20} {median:>10.2}   {settings}")?,
                None => writeln!(out, "  {name:<20} {failure}")?,
            }
        }
        for Ratio { of, to, judged } in &self.ratios {
            let ([median, interval, target, verdict], sides) =
                (judged.cells("rounds"), format!("{of} : {to}"));
            writeln!(out, "  {sides:<42} {median:>7} {interval:>17} {target:>9}  {verdict}")?;
        }
        if let (Some(found), Some(expected)) = (self.requests_per_transfer, self.requests_expected) {
            let (name, target) = ("work requests of a transfer", format!("≤ {expected}"));
            let verdict = self.requests_verdict().map_or(String::new(), |verdict| verdict.to_string());
            writeln!(out, "  {name:<42} {found:>7.2} {:>17} {target:>9}  {verdict}", "")?;
        }
        Ok(())
    }

    fn verdicts(&self) -> impl Iterator<Item = Verdict> + '_ {
        self.ratios.iter().filter_map(|ratio| ratio.judged.verdict).chain(self.requests_verdict())
    }
}

impl Results {
    pub fn heading(&self, out: &mut dyn Write) -> io::Result<()> {
        let (places, plan) = (&self.places, &self.plan);
        writeln!(out, "machine    {}", self.machine)?;
        let stated =
            |value: Option<u32>| value.map_or("each side's own".to_owned(), |value| value.to_string());
        let [mtu, pairs, inline] = [places.mtu, places.queue_pairs, places.inline_bytes].map(stated);
        let Places { initiator, target, gid_index, .. } = places;
        writeln!(
            out,
            "devices    {initiator} to {target}, GID index {gid_index}; MTU {mtu}, queue pairs {pairs}, \
             inline {inline}"
        )?;
        let Plan { rounds, seconds, samples, .. } = plan;
        writeln!(out, "plan       {rounds} rounds in turn, {seconds} s and {samples} samples each")?;
        writeln!(out, "units      MB = 10^6 bytes; data of verbs and ferry checked after every run")
    }

    pub fn summary(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\n{}", tally(self.rows.iter().flat_map(RowResult::verdicts)))?;
        for (side, reason) in self.failures() {
            writeln!(out, "{side} was not measured everywhere: {reason}")?;
        }
        Ok(())
    }

    /// Returns the sides that failed on some row, each with its first reason.
    pub fn failures(&self) -> Vec<(&str, &str)> {
        let mut found: Vec<(&str, &str)> = Vec::new();
        for taken in self.rows.iter().flat_map(|row| &row.sides) {
            let is_new = found.iter().all(|(name, _)| *name != taken.name);
            found.extend(taken.failure.as_deref().filter(|_| is_new).map(|reason| (&*taken.name, reason)));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::{all, Visibility};
    use super::*;

    fn row(name: &str) -> Row {
        all().into_iter().find(|row| row.name() == name).expect("a row")
    }

    fn found(row: &Row, value: impl Fn(Side) -> Option<f64>) -> RowResult {
        let mut found = RowResult::new(row, row.sides(true));
        for taken in &mut found.sides {
            match value(taken.side) {
                Some(value) => taken.values = vec![value; 6],
                None => taken.failure = Some("broken".to_owned()),
            }
        }
        found.judge(row);
        found
    }

    #[test]
    fn ratios_are_judged_where_there_is_a_target() {
        let row = row("WRITE 16 KiB × 64 scattered");
        let found = found(&row, |side| match side {
            Side::Perftest => Some(100.0),
            Side::Ferry(Visibility::Proven) => Some(90.0),
            Side::Ferry(Visibility::AckedOnly) | Side::Verbs(_) => Some(99.0),
            Side::Mooncake => Some(60.0),
        });
        let verdicts: Vec<_> = found.ratios.iter().map(|ratio| ratio.judged.verdict).collect();
        let (met, missed) = (Some(Verdict::Met), Some(Verdict::Missed));
        assert_eq!(verdicts, [missed, met, None, None, None, None, met, met]);
        assert_eq!(
            (found.ratios[2].of.as_str(), found.ratios[2].to.as_str()),
            ("ferry, proven", "verbs, proven")
        );
    }

    #[test]
    fn who_failed_is_in_no_ratio_and_named_once() {
        let row = row("WRITE 2 B until done");
        let found = found(&row, |side| (!matches!(side, Side::Ferry(Visibility::Proven))).then_some(1.0));
        let of: Vec<_> = found.ratios.iter().map(|ratio| ratio.of.as_str()).collect();
        assert_eq!(of, ["ferry, acked only"]);
        assert_eq!(found.ratios[0].judged.verdict, Some(Verdict::Met));
    }

    #[test]
    fn work_requests_have_a_limit() {
        let mut found = found(&row("WRITE 16 KiB × 1,024 contiguous"), |_| Some(1.0));
        assert_eq!(found.requests_verdict(), None);
        found.requests_per_transfer = Some(16.0);
        assert_eq!(found.requests_verdict(), Some(Verdict::Met));
        found.requests_per_transfer = Some(17.0);
        assert_eq!(found.requests_verdict(), Some(Verdict::Missed));
    }
}
