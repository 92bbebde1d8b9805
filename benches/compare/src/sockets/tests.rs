//! The whole comparison, over engines of known speed.

use ferry_bench::workload::{CpuSeconds, Sample};

use super::*;
use crate::contest::Ratio;
use crate::judge::Verdict;

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

fn compare(only: &str, reference: (f64, u64), subject: (f64, u64)) -> (Results, String) {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }
    let words = ["x", "--rounds", "15", "--seconds", "0.01", "--samples", "7", "--rows", only];
    let options = <Line as clap::Parser>::parse_from(words).options;
    let mut out = Vec::new();
    let mut reference = Pretended::new(reference.0, reference.1);
    let mut subject = Pretended::new(subject.0, subject.1);
    let mut course = Course::start(&options, [&reference, &subject], &mut out).expect("written");
    course.sockets(&mut reference, &mut subject).expect("nothing fails");
    screen::summary(course.out, &course.found).expect("written");
    let found = course.found;
    (found, String::from_utf8(out).expect("text"))
}

fn verdict(ratio: &Ratio) -> Verdict {
    ratio.judged.verdict.expect("every ratio has a goal")
}

#[test]
fn a_slow_subject_misses_only_what_it_is_too_slow_for() {
    let (found, text) = compare("WRITE", (10.0, 6_000), (9.2, 9_000));
    let verdicts: Vec<_> = found.ratios.iter().map(|ratio| (ratio.unit, verdict(ratio))).collect();
    let mut expected = vec![
        ("GB/s", Verdict::Missed),
        ("CPU s/GiB", Verdict::Met),
        ("GB/s", Verdict::Missed),
        ("GB/s", Verdict::Met),
        ("GB/s", Verdict::Met),
    ];
    // One pair of latencies per placement: p50 is 1.5 ×, above 1.3; p99 within 2 ×.
    let placements = allowed_cpus().expect("affinity").len().min(2);
    expected.extend([("µs p50", Verdict::Missed), ("µs p99", Verdict::Met)].repeat(placements));
    assert_eq!(verdicts, expected, "{text}");
    assert!(found.ratios.iter().all(|it| it.judged.ratio.is_some_and(|ratio| ratio.n == 15)));
    assert!(text.contains(&format!("{} missed, 0 undecided", 2 + placements)), "{text}");
}

#[test]
fn mergeable_blocks_are_measured_against_large_ones() {
    let (found, _) = compare("READ 16 KiB × 1,024 contiguous", (10.0, 1), (9.6, 1));
    let [ratio] = &found.ratios[..] else { panic!("one row: {found:?}") };
    assert_eq!((verdict(ratio), found.rows[0].cells[0].settings.as_str()), (Verdict::Met, "1 prepared"));
}

#[test]
fn every_latency_sample_is_pooled() {
    let (found, text) = compare("synchronous", (1.0, 5_000), (1.0, 6_000));
    for row in &found.rows {
        let pooled = [0, 1].map(|side| row.cells[side].latency.expect("a row about times"));
        assert_eq!((pooled[0].p99_9_us, pooled[1].max_us), (5.0, 6.0));
        assert_eq!(pooled[0].samples, 15 * 7, "{text}");
    }
    assert!(!found.rows.is_empty());
}
