//! The results: every value of every round, and their ratios; also the JSON.

use serde::Serialize;

use super::rows::{Held, Row, Side};
use super::{Places, Plan};
use crate::cpu::Machine;
use crate::stats::{median, verdict, Goal, MedianInterval, Verdict};

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
    pub fn median(&self) -> Option<f64> {
        (self.failure.is_none() && !self.values.is_empty()).then(|| median(&self.values))
    }
}

/// The ratio of one side's values to another's, round by round.
#[derive(Debug, Serialize)]
pub struct Ratio {
    pub of: String,
    pub to: String,
    pub ratio: MedianInterval,
    pub goal: Option<Goal>,
    pub verdict: Option<Verdict>,
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
        let ratio = MedianInterval::of(&ratios)?;
        let verdict = goal.map(|goal| verdict(goal, &ratio));
        Some(Ratio { of: of.name.clone(), to: to.name.clone(), ratio, goal, verdict })
    }

    /// Judges whether ferry posted as few work requests as possible.
    pub fn requests_verdict(&self) -> Option<Verdict> {
        let (found, expected) = (self.requests_per_transfer?, self.requests_expected? as f64);
        Some(if found <= expected { Verdict::Met } else { Verdict::Missed })
    }

    pub fn verdicts(&self) -> impl Iterator<Item = Verdict> + '_ {
        self.ratios.iter().filter_map(|ratio| ratio.verdict).chain(self.requests_verdict())
    }
}

impl Results {
    /// Returns the sides that failed on some row, each with its first reason.
    pub fn failures(&self) -> Vec<(&str, &str)> {
        let mut found: Vec<(&str, &str)> = Vec::new();
        for taken in self.rows.iter().flat_map(|row| &row.sides) {
            if let Some(reason) = &taken.failure {
                if found.iter().all(|(name, _)| *name != taken.name) {
                    found.push((&taken.name, reason));
                }
            }
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
        let verdicts: Vec<_> = found.ratios.iter().map(|ratio| ratio.verdict).collect();
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
        assert_eq!(found.ratios[0].verdict, Some(Verdict::Met));
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
