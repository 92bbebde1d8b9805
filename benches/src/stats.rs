//! From samples to statements: percentiles, paired ratios with an interval, and the verdict on a target.

use serde::Serialize;

/// Percentiles by nearest rank: each is a sample that occurred, and the maximum is the true one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    pub count: usize,
    pub min: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
    pub max: u64,
    pub mean: f64,
    /// Sample standard deviation; 0 for a single sample.
    pub stdev: f64,
}

impl Summary {
    /// `None` without samples. Any order.
    pub fn of(samples: &[u64]) -> Option<Summary> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let count = sorted.len();
        let mean = sorted.iter().map(|&v| v as f64).sum::<f64>() / count as f64;
        let squares: f64 = sorted.iter().map(|&v| (v as f64 - mean).powi(2)).sum();
        let stdev = if count > 1 { (squares / (count - 1) as f64).sqrt() } else { 0.0 };
        let [p50, p90, p99, p99_9] = [500, 900, 990, 999].map(|rank| percentile(&sorted, rank));
        Some(Summary { count, min, p50, p90, p99, p99_9, max, mean, stdev })
    }
}

/// The smallest sample that at least `per_mille`/1000 of all samples do not exceed. Whole per mille
/// keep 0.9 × 10 from becoming 9.000…1 and the tenth sample.
fn percentile(sorted: &[u64], per_mille: usize) -> u64 {
    let rank = (sorted.len() * per_mille).div_ceil(1_000);
    sorted[rank.max(1) - 1]
}

/// The median of independent values and where the true one lies with at least 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MedianInterval {
    pub n: usize,
    pub median: f64,
    pub low: f64,
    pub high: f64,
    /// What the interval really covers: order statistics come in steps.
    pub coverage: f64,
}

const COVERAGE_MIN: f64 = 0.95;

impl MedianInterval {
    /// Assumes nothing of the distribution: the number of values below the true median is binomial(n,
    /// 1/2), so the k-th smallest and the k-th largest bracket it unless fewer than k fall on one side.
    /// Below six values even the extremes do not cover 95 %: the interval is theirs, and `coverage` says
    /// what it is worth. `None` without values.
    pub fn of(values: &[f64]) -> Option<MedianInterval> {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let n = sorted.len();
        if n == 0 {
            return None;
        }
        let (k, coverage) = widest_rank(n).unwrap_or((1, 1.0 - 0.5f64.powi(n as i32 - 1)));
        let median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0;
        Some(MedianInterval { n, median, low: sorted[k - 1], high: sorted[n - k], coverage })
    }

    /// Whether there were values enough to say anything of the true median.
    pub fn decides(&self) -> bool {
        self.coverage >= COVERAGE_MIN
    }

    pub fn width(&self) -> f64 {
        self.high - self.low
    }
}

/// Largest k, from 1, whose interval still covers enough, and its coverage 1 − 2 P(fewer than k).
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

/// What a ratio has to be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Met,
    /// The whole interval lies on the wrong side.
    Missed,
    /// Too wide an interval around the target to call it met, or too few values to call it anything.
    Undecided,
}

/// An interval wider than this, and not all on the right side, decides nothing in ferry's favour.
const WIDTH_MAX: f64 = 0.1;

pub fn verdict(goal: Goal, interval: &MedianInterval) -> Verdict {
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

/// Median of a non-empty list.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_known_samples_in_any_order() {
        let samples: Vec<u64> = (1..=1_000).rev().collect();
        let s = Summary::of(&samples).expect("not empty");
        assert_eq!((s.min, s.p50, s.p90, s.p99, s.p99_9, s.max), (1, 500, 900, 990, 999, 1_000));
        assert_eq!(s.mean, 500.5);
        // Sample variance of 1..=n is n(n+1)/12.
        assert!((s.stdev - (1_000.0f64 * 1_001.0 / 12.0).sqrt()).abs() < 1e-9);
    }

    #[test]
    fn the_maximum_is_kept_even_alone_far_out() {
        let mut samples = vec![10; 99_999];
        samples.push(1_000_000);
        let s = Summary::of(&samples).expect("not empty");
        assert_eq!((s.p99_9, s.max), (10, 1_000_000));
    }

    #[test]
    fn one_sample_and_none() {
        let s = Summary::of(&[7]).expect("one sample");
        assert_eq!((s.min, s.p50, s.p99_9, s.max, s.stdev), (7, 7, 7, 7, 0.0));
        assert_eq!(Summary::of(&[]), None);
    }

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

    fn interval(low: f64, high: f64) -> MedianInterval {
        MedianInterval { n: 15, median: (low + high) / 2.0, low, high, coverage: 0.96 }
    }

    #[test]
    fn verdicts_at_least() {
        let goal = Goal::AtLeast(0.95);
        assert_eq!(verdict(goal, &interval(0.96, 1.00)), Verdict::Met);
        assert_eq!(verdict(goal, &interval(0.90, 0.95)), Verdict::Met);
        assert_eq!(verdict(goal, &interval(0.90, 0.949)), Verdict::Missed);
        assert_eq!(verdict(goal, &interval(0.70, 0.90)), Verdict::Missed);
        assert_eq!(verdict(goal, &interval(0.90, 1.10)), Verdict::Undecided);
    }

    #[test]
    fn verdicts_at_most() {
        let goal = Goal::AtMost(1.25);
        assert_eq!(verdict(goal, &interval(1.15, 1.20)), Verdict::Met);
        assert_eq!(verdict(goal, &interval(1.25, 1.30)), Verdict::Met);
        assert_eq!(verdict(goal, &interval(1.26, 1.30)), Verdict::Missed);
        assert_eq!(verdict(goal, &interval(1.10, 1.40)), Verdict::Undecided);
        // Wide, and all of it on the right side.
        assert_eq!(verdict(goal, &interval(0.70, 1.25)), Verdict::Met);
        assert_eq!(verdict(goal, &interval(0.70, 1.26)), Verdict::Undecided);
    }
}
