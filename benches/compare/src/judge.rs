//! Paired ratios with an interval, and the verdict on a goal.

use std::fmt;

use ferry_bench::stats::median;
use serde::Serialize;

/// The median of independent values, and the interval of the true median with at least 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MedianInterval {
    pub n: usize,
    pub median: f64,
    pub low: f64,
    pub high: f64,
    /// The interval's actual coverage: order statistics come in steps.
    pub coverage: f64,
}

const COVERAGE_MIN: f64 = 0.95;

impl MedianInterval {
    /// Assumes no distribution: the number of values below the true median is binomial(n, 1/2), so the k-th smallest
    /// and the k-th largest bracket it unless fewer than k fall on one side. Below six values even the extremes do not
    /// cover 95 %: the interval is the extremes, and `coverage` states its confidence. Returns `None` without values.
    pub fn of(values: &[f64]) -> Option<MedianInterval> {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let n = sorted.len();
        if n == 0 {
            return None;
        }
        let (k, coverage) = widest_rank(n).unwrap_or((1, 1.0 - 0.5f64.powi(n as i32 - 1)));
        Some(MedianInterval { n, median: median(values), low: sorted[k - 1], high: sorted[n - k], coverage })
    }

    /// Returns whether there were enough values for a statement about the true median.
    pub fn decides(&self) -> bool {
        self.coverage >= COVERAGE_MIN
    }

    pub fn width(&self) -> f64 {
        self.high - self.low
    }

    /// Formats the interval's ends for a table.
    pub fn ends(&self) -> String {
        format!("{:.3} to {:.3}", self.low, self.high)
    }
}

/// Returns the largest k, from 1, whose interval still covers enough, and its coverage 1 − 2 P(fewer than k).
fn widest_rank(n: usize) -> Option<(usize, f64)> {
    let mut best = None;
    let mut log_term = -(n as f64) * std::f64::consts::LN_2;
    let mut below = 0.0;
    for k in 1..=n.div_ceil(2) {
        below += log_term.exp();
        let coverage = 1.0 - 2.0 * below;
        if coverage < COVERAGE_MIN {
            break;
        }
        best = Some((k, coverage));
        log_term += ((n - k + 1) as f64 / k as f64).ln();
    }
    best
}

/// The required range of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&match self {
            Goal::AtLeast(ratio) => format!("≥ {ratio}"),
            Goal::AtMost(ratio) => format!("≤ {ratio}"),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Met,
    /// The whole interval lies on the wrong side.
    Missed,
    /// The interval is too wide around the target, or there are too few values.
    Undecided,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Met => "met",
            Verdict::Missed => "MISSED",
            Verdict::Undecided => "undecided",
        })
    }
}

/// Counts the verdicts of each kind.
pub fn tally(verdicts: impl IntoIterator<Item = Verdict>) -> String {
    let verdicts: Vec<_> = verdicts.into_iter().collect();
    let count = |wanted| verdicts.iter().filter(|found| **found == wanted).count();
    let (met, missed) = (count(Verdict::Met), count(Verdict::Missed));
    format!("{met} met, {missed} missed, {} undecided", count(Verdict::Undecided))
}

/// The ratios of two sides' figures, round by round, beside the goal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Judged {
    pub goal: Option<Goal>,
    /// `None` if a side was not measured.
    pub ratio: Option<MedianInterval>,
    /// `None` if there is no goal or no ratio.
    pub verdict: Option<Verdict>,
}

impl Judged {
    pub fn of(goal: Option<Goal>, ratios: &[f64]) -> Judged {
        let ratio = MedianInterval::of(ratios);
        let verdict = goal.zip(ratio).map(|(goal, ratio)| verdict(goal, &ratio));
        Judged { goal, ratio, verdict }
    }

    /// Returns the median, its interval, the goal and the verdict for a table.
    pub fn cells(&self) -> [String; 4] {
        let none = || "–".to_owned();
        let goal = self.goal.map_or("stated".to_owned(), |goal| goal.to_string());
        let verdict = match (self.ratio, self.verdict) {
            (None, _) => "not measured".to_owned(),
            (Some(ratio), Some(_)) if !ratio.decides() => "undecided: too few rounds".to_owned(),
            (_, verdict) => verdict.map_or(String::new(), |verdict| verdict.to_string()),
        };
        let median = self.ratio.map_or_else(none, |ratio| format!("{:.3}", ratio.median));
        [median, self.ratio.map_or_else(none, |ratio| ratio.ends()), goal, verdict]
    }
}

/// A wider interval is a success only if all of it is on the right side.
const WIDTH_MAX: f64 = 0.1;

fn verdict(goal: Goal, interval: &MedianInterval) -> Verdict {
    let (missed, reached) = match goal {
        Goal::AtLeast(target) => (interval.high < target, interval.low >= target),
        Goal::AtMost(target) => (interval.low > target, interval.high <= target),
    };
    if !interval.decides() {
        Verdict::Undecided
    } else if missed {
        Verdict::Missed
    } else if !reached && interval.width() > WIDTH_MAX {
        Verdict::Undecided
    } else {
        Verdict::Met
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_fifteen_is_the_fourth_and_the_twelfth() {
        let values: Vec<f64> = (1..=15).map(f64::from).collect();
        let i = MedianInterval::of(&values).expect("enough values");
        assert_eq!((i.n, i.median, i.low, i.high), (15, 8.0, 4.0, 12.0));
        // 1 − 2 (1 + 15 + 105 + 455) / 2^15.
        assert!((i.coverage - 0.964_843_75).abs() < 1e-12);
    }

    #[test]
    fn six_values_are_the_fewest_that_decide() {
        assert_eq!(MedianInterval::of(&[]), None);
        let five = MedianInterval::of(&[1.0; 5]).expect("five values");
        assert_eq!((five.low, five.high, five.coverage), (1.0, 1.0, 0.9375));
        assert_eq!(verdict(Goal::AtLeast(2.0), &five), Verdict::Undecided);
        let i = MedianInterval::of(&[6.0, 5.0, 4.0, 3.0, 2.0, 1.0]).expect("six values");
        assert_eq!((i.median, i.low, i.high, i.coverage), (3.5, 1.0, 6.0, 0.968_75));
    }

    #[test]
    fn many_values_neither_underflow_nor_widen() {
        let values: Vec<f64> = (0..5_000).map(f64::from).collect();
        let i = MedianInterval::of(&values).expect("enough values");
        // Normal approximation: 1.96 √n / 2 ranks either side.
        assert!((i.width() - 1.96 * 5_000f64.sqrt()).abs() < 4.0, "{i:?}");
    }

    #[test]
    fn a_verdict_needs_an_interval_on_one_side_or_narrow() {
        let (least, most) = (Goal::AtLeast(0.95), Goal::AtMost(1.25));
        for (goal, low, high, expected) in [
            (least, 0.96, 1.00, Verdict::Met),
            (least, 0.90, 0.95, Verdict::Met),
            (least, 0.90, 0.949, Verdict::Missed),
            (least, 0.70, 0.90, Verdict::Missed),
            (least, 0.90, 1.10, Verdict::Undecided),
            (most, 1.15, 1.20, Verdict::Met),
            (most, 1.25, 1.30, Verdict::Met),
            (most, 1.26, 1.30, Verdict::Missed),
            (most, 1.10, 1.40, Verdict::Undecided),
            // Wide, and all of the interval is on the right side.
            (most, 0.70, 1.25, Verdict::Met),
            (most, 0.70, 1.26, Verdict::Undecided),
        ] {
            let median = (low + high) / 2.0;
            let interval = MedianInterval { n: 15, median, low, high, coverage: 0.96 };
            assert_eq!(verdict(goal, &interval), expected, "{goal}: {interval:?}");
        }
    }

    #[test]
    fn a_table_says_why_there_is_no_verdict() {
        let cells = |goal, ratios: &[f64]| Judged::of(goal, ratios).cells().join("|");
        let goal = Some(Goal::AtLeast(0.9));
        assert_eq!(cells(goal, &[1.0; 6]), "1.000|1.000 to 1.000|≥ 0.9|met");
        assert_eq!(cells(goal, &[0.5; 6]), "0.500|0.500 to 0.500|≥ 0.9|MISSED");
        assert_eq!(cells(goal, &[1.0; 5]), "1.000|1.000 to 1.000|≥ 0.9|undecided: too few rounds");
        assert_eq!(cells(goal, &[]), "–|–|≥ 0.9|not measured");
        assert_eq!(cells(None, &[1.0; 5]), "1.000|1.000 to 1.000|stated|");
    }
}
