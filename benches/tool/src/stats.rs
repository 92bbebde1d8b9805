//! Statistics: percentiles of a latency, and the median.

use anyhow::Context;
use serde::Serialize;

/// Percentiles by nearest rank: each is a sample that occurred, and the maximum is the true one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    pub request_bytes: usize,
    pub samples: usize,
    pub min_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p99_9_us: f64,
    pub max_us: f64,
    pub mean_us: f64,
    /// The standard deviation of the samples; 0 for a single sample.
    pub stdev_us: f64,
}

impl Latency {
    /// Computes the percentiles of samples in any order. Fails without samples.
    pub fn of(request_bytes: usize, nanoseconds: &[u64]) -> anyhow::Result<Latency> {
        let mut sorted = nanoseconds.to_vec();
        sorted.sort_unstable();
        let (min, max) = sorted.first().zip(sorted.last()).context("no sample was taken")?;
        let samples = sorted.len();
        let mean = sorted.iter().map(|&ns| ns as f64).sum::<f64>() / samples as f64;
        let squares: f64 = sorted.iter().map(|&ns| (ns as f64 - mean).powi(2)).sum();
        let stdev = if samples > 1 { (squares / (samples - 1) as f64).sqrt() } else { 0.0 };
        let us = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        let percentile_us = |per_mille| us(percentile(&sorted, per_mille));
        Ok(Latency {
            request_bytes,
            samples,
            min_us: us(*min),
            p50_us: percentile_us(500),
            p90_us: percentile_us(900),
            p99_us: percentile_us(990),
            p99_9_us: percentile_us(999),
            max_us: us(*max),
            mean_us: mean / 1e3,
            stdev_us: stdev / 1e3,
        })
    }
}

/// Returns the smallest sample that at least `per_mille`/1000 of all samples do not exceed. Whole per mille keep 0.9 ×
/// 10 from becoming 9.000…1 and the tenth sample.
fn percentile(sorted: &[u64], per_mille: usize) -> u64 {
    let rank = (sorted.len() * per_mille).div_ceil(1_000);
    sorted[rank.max(1) - 1]
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
        let samples: Vec<u64> = (1..=1_000).rev().map(|us| us * 1_000).collect();
        let s = Latency::of(2, &samples).expect("not empty");
        assert_eq!((s.min_us, s.p50_us, s.p90_us), (1.0, 500.0, 900.0));
        assert_eq!((s.p99_us, s.p99_9_us, s.max_us, s.mean_us), (990.0, 999.0, 1_000.0, 500.5));
        // Sample variance of 1..=n is n(n+1)/12.
        assert!((s.stdev_us - (1_000.0f64 * 1_001.0 / 12.0).sqrt()).abs() < 1e-9);
    }

    #[test]
    fn the_maximum_is_kept_even_alone_far_out() {
        let mut samples = vec![10_000; 99_999];
        samples.push(1_000_000);
        let s = Latency::of(2, &samples).expect("not empty");
        assert_eq!((s.p99_9_us, s.max_us), (10.0, 1_000.0));
    }

    #[test]
    fn one_sample_and_none() {
        let s = Latency::of(2, &[7_000]).expect("one sample");
        assert_eq!((s.min_us, s.p50_us, s.p99_9_us, s.max_us, s.stdev_us), (7.0, 7.0, 7.0, 7.0, 0.0));
        assert!(Latency::of(2, &[]).is_err());
    }
}
