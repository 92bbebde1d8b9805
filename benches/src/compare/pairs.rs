//! Interleaved pairs: a run of the reference, then a run of the subject, repeatedly, so that a slow phase of the
//! machine slows both.

use anyhow::Context;
use serde::Serialize;

use crate::stats::{median, verdict, Goal, MedianInterval, Verdict};

/// One judged quantity of one row.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    pub row: String,
    pub quantity: &'static str,
    pub reference_median: f64,
    pub subject_median: f64,
    pub ratio: MedianInterval,
    pub ratios: Vec<f64>,
    pub goal: Goal,
    pub verdict: Verdict,
    /// The settings of each side for this row.
    pub reference_settings: String,
    pub subject_settings: String,
}

impl Line {
    /// Judges values in pairs: the reference's and the subject's. Fails without a single pair.
    pub fn judge(
        row: &str,
        quantity: &'static str,
        goal: Goal,
        pairs: &[(f64, f64)],
    ) -> anyhow::Result<Line> {
        let ratios: Vec<_> = pairs.iter().map(|(reference, subject)| subject / reference).collect();
        let ratio = MedianInterval::of(&ratios).context("no pair was measured")?;
        let (reference, subject): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
        Ok(Line {
            row: row.to_owned(),
            quantity,
            reference_median: median(&reference),
            subject_median: median(&subject),
            ratio,
            ratios,
            goal,
            verdict: verdict(goal, &ratio),
            reference_settings: String::new(),
            subject_settings: String::new(),
        })
    }
}

/// Runs `count` pairs. The first side of a pair alternates, so that neither always inherits the other's caches.
pub fn interleave<T>(
    count: usize,
    mut reference: impl FnMut() -> anyhow::Result<T>,
    mut subject: impl FnMut() -> anyhow::Result<T>,
) -> anyhow::Result<Vec<(T, T)>> {
    let mut pairs = Vec::with_capacity(count);
    for index in 0..count {
        pairs.push(if index % 2 == 0 {
            let first = reference()?;
            (first, subject()?)
        } else {
            let first = subject()?;
            (reference()?, first)
        });
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn the_sides_alternate_and_stay_apart() {
        let order = RefCell::new(String::new());
        let run = |name| {
            order.borrow_mut().push(name);
            Ok(name)
        };
        let pairs = interleave(4, || run('r'), || run('s')).expect("no run fails");
        assert_eq!(order.into_inner(), "rssrrssr");
        assert!(pairs.into_iter().all(|pair| pair == ('r', 's')));
    }

    #[test]
    fn ratios_are_paired_before_the_median_is_taken() {
        // The machine halves its speed in mid-run: the medians are useless, the ratios are right.
        let pairs: Vec<_> =
            [[8.0; 8], [4.0; 8]].concat().iter().map(|value| (*value, value * 0.96)).collect();
        let judge = |goal| Line::judge("row", "GB/s", Goal::AtLeast(goal), &pairs).expect("16 pairs");
        let line = judge(0.95);
        assert!((line.ratio.median - 0.96).abs() < 1e-12 && line.ratio.width() < 1e-12);
        assert_eq!(line.verdict, Verdict::Met);
        assert_eq!(judge(0.97).verdict, Verdict::Missed);
    }

    #[test]
    fn too_few_pairs_decide_nothing() {
        let judge = |pairs| Line::judge("row", "GB/s", Goal::AtLeast(0.9), pairs);
        assert_eq!(judge(&[(1.0, 1.0); 5]).expect("five pairs").verdict, Verdict::Undecided);
        assert!(judge(&[]).is_err());
    }
}
