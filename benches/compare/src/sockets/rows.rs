//! The rows of `make bench`: the work of each side, and the ratios to reach.

use std::time::Duration;

use ferry_bench::layout::Layout;
use ferry_bench::workload::{LatencyWorkload, Operation, Workload, KIB, MIB};

use crate::figures::{Job, Quantity};
use crate::judge::Goal;

/// Larger than any cache of the machines at hand; both sides walk it.
pub const WALK_BYTES: usize = 256 * MIB;
pub const OPERATIONS: [Operation; 2] = [Operation::Write, Operation::Read];

/// The goals of the subject's figures, relative to the reference's.
pub type Goals = Vec<(Quantity, Goal)>;

#[derive(Clone, Debug)]
pub struct Row {
    pub name: String,
    /// The reference's and the subject's.
    pub jobs: [Job; 2],
    pub goals: Goals,
}

impl Row {
    /// Makes a row with the same work on both sides.
    pub fn alike(name: String, job: Job, goals: Goals) -> Row {
        Row { name, jobs: [job; 2], goals }
    }
}

/// 16 requests of 1 MiB: the row by which others are measured.
pub fn large(operation: Operation) -> Workload {
    blocks(operation, Layout::Contiguous, MIB, 16)
}

pub fn scattered(operation: Operation, block_bytes: usize) -> Workload {
    blocks(operation, Layout::Scattered, block_bytes, 1_024)
}

fn blocks(operation: Operation, layout: Layout, block_bytes: usize, blocks: usize) -> Workload {
    Workload { operation, layout, block_bytes, blocks, walk_bytes: WALK_BYTES }
}

/// Returns the rows over TCP. `spin` is that of both sides, `samples` those of one latency run.
pub fn all(cpus: &[usize], spin: Duration, samples: usize) -> Vec<Row> {
    let latency = latency(cpus, spin, samples);
    OPERATIONS.into_iter().flat_map(throughput).chain(latency).collect()
}

fn throughput(operation: Operation) -> [Row; 4] {
    let row = |subject: Workload, reference, goal| Row {
        name: subject.to_string(),
        jobs: [reference, subject].map(Job::Throughput),
        goals: vec![(Quantity::GbPerSecond, Goal::AtLeast(goal))],
    };
    let mergeable = blocks(operation, Layout::Contiguous, 16 * KIB, 1_024);
    let [middle, small] = [16 * KIB, 4 * KIB].map(|bytes| scattered(operation, bytes));
    let mut first = row(large(operation), large(operation), 0.95);
    first.goals.push((Quantity::CpuSecondsPerGib, Goal::AtMost(1.1)));
    [first, row(mergeable, large(operation), 0.95), row(middle, middle, 0.9), row(small, small, 0.8)]
}

/// A synchronous WRITE, with both ends on one CPU, and on two if there are two.
fn latency(cpus: &[usize], spin: Duration, samples: usize) -> impl Iterator<Item = Row> {
    let first = cpus.first().copied();
    let one = first.map(|cpu| ("both ends on one CPU", [cpu, cpu]));
    let two = first.zip(cpus.get(1).copied()).map(|(first, second)| ("ends on two CPUs", [first, second]));
    one.into_iter().chain(two).map(move |(place, cpus)| {
        let name = format!("WRITE 4 KiB synchronous, {place}");
        let goals = vec![(Quantity::P50Us, Goal::AtMost(1.3)), (Quantity::P99Us, Goal::AtMost(2.0))];
        Row::alike(name, synchronous(cpus, Some(spin), samples), goals)
    })
}

/// Synchronous WRITEs of 4 KiB, with the initiator and the target on these CPUs.
pub fn synchronous(cpus: [usize; 2], spin: Option<Duration>, samples: usize) -> Job {
    let workload = LatencyWorkload::of(Operation::Write, 4 * KIB, samples);
    Job::Latency(LatencyWorkload { spin, cpus: Some(cpus), ..workload })
}
