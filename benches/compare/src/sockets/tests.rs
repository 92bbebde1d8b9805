//! The whole comparison, over engines of known speed.

use super::*;
use crate::judge::Verdict;
use ferry_bench::workload::{CpuSeconds, LatencyWorkload, Limit, Sample, Workload};

/// Moves nothing, at a fixed speed.
struct Pretended {
    gb_per_second: f64,
    latency_ns: u64,
    prepared: Vec<Workload>,
}

impl Pretended {
    fn new(gb_per_second: f64, latency_ns: u64) -> Pretended {
        Pretended { gb_per_second, latency_ns, prepared: Vec::new() }
    }
}

impl Engine for Pretended {
    fn name(&self) -> &str {
        "pretended"
    }

    fn path(&self) -> String {
        "none".to_owned()
    }

    fn prepare(&mut self, workload: &Workload) -> anyhow::Result<()> {
        self.prepared.push(*workload);
        Ok(())
    }

    fn settings(&self, _: &Workload) -> String {
        format!("{} prepared", self.prepared.len())
    }

    fn throughput(&mut self, workload: &Workload, _: Limit) -> anyhow::Result<Sample> {
        assert!(self.prepared.contains(workload), "{workload} was not prepared");
        let cpu_seconds = CpuSeconds { initiator: 1.0, target: 1.0 };
        Ok(Sample { bytes: 1 << 30, transfers: 64, seconds: 1.073_741_824 / self.gb_per_second, cpu_seconds })
    }

    fn latency(&mut self, workload: &LatencyWorkload) -> anyhow::Result<Vec<u64>> {
        Ok(vec![self.latency_ns; workload.samples])
    }
}

fn compare(only: &str, reference: (f64, u64), subject: (f64, u64)) -> (Comparison, String) {
    let plan = Plan {
        pairs: 15,
        seconds: 0.001,
        samples: 100,
        spin_us: 50,
        idle_seconds: 0.0,
        peers: 0,
        rows: Some(Regex::new(only).expect("a valid expression")),
    };
    let mut out = Vec::new();
    let mut reference = Pretended::new(reference.0, reference.1);
    let mut subject = Pretended::new(subject.0, subject.1);
    let mut course = Course::start(&plan, &mut reference, &mut subject, &mut out).expect("written");
    course.sockets(&mut reference, &mut subject).expect("nothing fails");
    screen::summary(course.out, &course.found).expect("written");
    let comparison = course.found;
    (comparison, String::from_utf8(out).expect("text"))
}

fn verdict(line: &Line) -> Verdict {
    line.judged.verdict.expect("every line has a goal")
}

#[test]
fn a_slow_subject_misses_only_what_it_is_too_slow_for() {
    let (comparison, text) = compare("WRITE", (10.0, 6_000), (9.2, 9_000));
    let verdicts: Vec<_> = comparison.lines.iter().map(|line| (line.quantity, verdict(line))).collect();
    let mut expected = vec![
        ("GB/s", Verdict::Missed),
        ("CPU s/GiB", Verdict::Met),
        ("GB/s", Verdict::Missed),
        ("GB/s", Verdict::Met),
        ("GB/s", Verdict::Met),
    ];
    // One pair of latency lines per placement: p50 is 1.5 ×, above 1.3; p99 within 2 ×.
    let placements = allowed_cpus().expect("affinity").len().min(2);
    expected.extend([("µs p50", Verdict::Missed), ("µs p99", Verdict::Met)].repeat(placements));
    assert_eq!(verdicts, expected, "{text}");
    assert!(comparison.lines.iter().all(|line| line.judged.ratio.is_some_and(|ratio| ratio.n == 15)));
    assert!(text.contains(&format!("{} missed, 0 undecided", 2 + placements)), "{text}");
}

#[test]
fn mergeable_blocks_are_measured_against_large_ones() {
    let (comparison, _) = compare("READ 16 KiB × 1,024 contiguous", (10.0, 1), (9.6, 1));
    let [line] = &comparison.lines[..] else { panic!("one row: {comparison:?}") };
    assert_eq!((verdict(line), line.reference_settings.as_str()), (Verdict::Met, "1 prepared"));
}

#[test]
fn every_latency_sample_is_pooled() {
    let (comparison, text) = compare("synchronous", (1.0, 5_000), (1.0, 6_000));
    for pair in &comparison.latencies {
        assert_eq!((pair.reference.p99_9_us, pair.subject.max_us), (5.0, 6.0));
        assert!(pair.reference.samples >= 100, "{text}");
    }
    assert!(!comparison.latencies.is_empty());
}

#[test]
fn ratios_are_paired_before_the_median_is_taken() {
    // The machine halves its speed in mid-run: the medians are useless, the ratios are right.
    let pairs: Vec<_> = [[8.0; 8], [4.0; 8]].concat().iter().map(|value| (*value, value * 0.96)).collect();
    let judge = |goal| Line::judge("row", "GB/s", Goal::AtLeast(goal), &pairs).expect("16 pairs");
    let line = judge(0.95);
    let ratio = line.judged.ratio.expect("16 pairs");
    assert!((ratio.median - 0.96).abs() < 1e-12 && ratio.width() < 1e-12);
    assert_eq!(line.judged.verdict, Some(Verdict::Met));
    assert_eq!(judge(0.97).judged.verdict, Some(Verdict::Missed));
}

#[test]
fn too_few_pairs_decide_nothing() {
    let judge = |pairs| Line::judge("row", "GB/s", Goal::AtLeast(0.9), pairs);
    let five = judge(&[(1.0, 1.0); 5]).expect("five pairs");
    assert_eq!(five.judged.verdict, Some(Verdict::Undecided));
    assert!(judge(&[]).is_err());
}
