//! Interleaved pairs: one run of the reference, one of the subject, again and again, so that whatever
//! slows the machine for a while slows both.

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
    /// What each side was set to for this row.
    pub reference_settings: String,
    pub subject_settings: String,
}

/// Values of both sides, in pairs.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    pub reference: Vec<f64>,
    pub subject: Vec<f64>,
}

impl Pairs {
    /// Subject over reference, pair by pair.
    pub fn ratios(&self) -> Vec<f64> {
        self.subject.iter().zip(&self.reference).map(|(subject, reference)| subject / reference).collect()
    }

    /// An error without a single pair.
    pub fn judge(&self, row: String, quantity: &'static str, goal: Goal) -> anyhow::Result<Line> {
        let ratios = self.ratios();
        let ratio = MedianInterval::of(&ratios).context("no pair was measured")?;
        Ok(Line {
            row,
            quantity,
            reference_median: median(&self.reference),
            subject_median: median(&self.subject),
            ratio,
            ratios,
            goal,
            verdict: verdict(goal, &ratio),
            reference_settings: String::new(),
            subject_settings: String::new(),
        })
    }
}

/// Runs `count` pairs. Who goes first alternates, so that neither always inherits the other's caches.
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
        // The machine halves its speed in mid-run: the medians say nothing, the ratios everything.
        let reference = [vec![8.0; 8], vec![4.0; 7]].concat();
        let subject: Vec<f64> = reference.iter().map(|value| value * 0.96).collect();
        let pairs = Pairs { reference, subject };
        let line = pairs.judge("row".to_owned(), "GB/s", Goal::AtLeast(0.95)).expect("15 pairs");
        assert!((line.ratio.median - 0.96).abs() < 1e-12 && line.ratio.width() < 1e-12);
        assert_eq!(line.verdict, Verdict::Met);
        let line = pairs.judge("row".to_owned(), "GB/s", Goal::AtLeast(0.97)).expect("15 pairs");
        assert_eq!(line.verdict, Verdict::Missed);
    }

    #[test]
    fn too_few_pairs_decide_nothing() {
        let pairs = Pairs { reference: vec![1.0; 5], subject: vec![1.0; 5] };
        let line = pairs.judge("row".to_owned(), "GB/s", Goal::AtLeast(0.9)).expect("five pairs");
        assert_eq!(line.verdict, Verdict::Undecided);
        assert!(Pairs::default().judge("row".to_owned(), "GB/s", Goal::AtLeast(0.9)).is_err());
    }
}
