//! The rows of `make bench`: the workloads of each side, and the ratio to reach.

use std::time::Duration;

use crate::layout::Layout;
use crate::stats::Goal;
use crate::workload::{LatencyWorkload, Operation, Placement, Workload, KIB, MIB};

/// Larger than any cache of the machines at hand; both sides walk it.
pub const WALK_BYTES: usize = 256 * MIB;

/// Throughput of the subject on `workload`, relative to the reference on `reference`.
#[derive(Clone, Debug)]
pub struct ThroughputRow {
    pub name: String,
    pub workload: Workload,
    pub reference: Workload,
    pub goal: Goal,
    /// The goal for CPU seconds per GiB of both ends, where those are judged too.
    pub cpu_goal: Option<Goal>,
}

#[derive(Clone, Debug)]
pub struct LatencyRow {
    pub name: String,
    pub workload: LatencyWorkload,
    pub p50_goal: Goal,
    /// `None`: the p99 is stated, not judged.
    pub p99_goal: Option<Goal>,
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

pub fn throughput() -> Vec<ThroughputRow> {
    [Operation::Write, Operation::Read].into_iter().flat_map(throughput_of).collect()
}

fn throughput_of(operation: Operation) -> [ThroughputRow; 4] {
    let row = |workload: Workload, reference, goal, cpu_goal| ThroughputRow {
        name: workload.to_string(),
        workload,
        reference,
        goal: Goal::AtLeast(goal),
        cpu_goal,
    };
    let mergeable = blocks(operation, Layout::Contiguous, 16 * KIB, 1_024);
    let [middle, small] = [16 * KIB, 4 * KIB].map(|bytes| scattered(operation, bytes));
    [
        row(large(operation), large(operation), 0.95, Some(Goal::AtMost(1.1))),
        row(mergeable, large(operation), 0.95, None),
        row(middle, middle, 0.9, None),
        row(small, small, 0.8, None),
    ]
}

/// A synchronous WRITE, with both ends on one CPU, and on two if there are two.
pub fn latency(cpus: &[usize], spin: Duration, samples: usize) -> Vec<LatencyRow> {
    let mut places = Vec::new();
    if let [first, ..] = *cpus {
        places.push(("both ends on one CPU", Placement::Pinned { initiator_cpu: first, target_cpu: first }));
    }
    if let [first, second, ..] = *cpus {
        places.push(("ends on two CPUs", Placement::Pinned { initiator_cpu: first, target_cpu: second }));
    }
    let row = |(place, placement)| LatencyRow {
        name: format!("WRITE 4 KiB synchronous, {place}"),
        workload: LatencyWorkload {
            operation: Operation::Write,
            bytes: 4 * KIB,
            samples,
            spin: Some(spin),
            placement,
        },
        p50_goal: Goal::AtMost(1.3),
        p99_goal: Some(Goal::AtMost(2.0)),
    };
    places.into_iter().map(row).collect()
}
