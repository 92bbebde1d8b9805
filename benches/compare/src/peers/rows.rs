//! The rows of `ferry-compare peers`, and their quantities.

use std::fmt;

use ferry_bench::layout::Layout;
use ferry_bench::workload::{format_bytes, LatencyWorkload, Operation, Workload, KIB, MIB};

use crate::figures::Job;

/// Larger than the caches; both sides walk it.
pub const WALK_BYTES: usize = 256 * MIB;
/// Targets of the row with several, and the memory walked at each.
const PEERS: usize = 4;
pub const PEER_WALK_BYTES: usize = 64 * MIB;
const LATENCY_BYTES: [usize; 3] = [64, 4 * KIB, 64 * KIB];

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Row {
    Throughput(Workload),
    /// Synchronous WRITEs of this many bytes.
    Latency(usize),
    /// Setup steps: connecting, registering.
    Setup,
    /// One initiator, several targets.
    Peers(Workload),
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Row::Throughput(workload) => write!(f, "{workload}"),
            Row::Latency(bytes) => write!(f, "WRITE {} synchronous", format_bytes(*bytes)),
            Row::Setup => f.write_str("connect and register"),
            Row::Peers(workload) => write!(f, "{workload} to {PEERS} peers"),
        }
    }
}

impl Row {
    /// Returns the work of one run, if the row is not about setup steps.
    pub fn job(&self, samples: usize) -> Option<Job> {
        match self {
            Row::Throughput(workload) | Row::Peers(workload) => Some(Job::Throughput(*workload)),
            Row::Latency(bytes) => Some(Job::Latency(LatencyWorkload::of(Operation::Write, *bytes, samples))),
            Row::Setup => None,
        }
    }

    pub fn targets(&self) -> usize {
        if matches!(self, Row::Peers(_)) {
            PEERS
        } else {
            1
        }
    }
}

/// Returns the workloads in the order of the table's columns.
fn workloads(operation: Operation) -> Vec<Workload> {
    let walk_bytes = WALK_BYTES;
    let shapes = [
        (MIB, 16, Layout::Contiguous),
        (64 * KIB, 128, Layout::Contiguous),
        (16 * KIB, 1_024, Layout::Scattered),
        (4 * KIB, 1_024, Layout::Scattered),
        (16 * KIB, 1_024, Layout::Contiguous),
    ];
    let workload =
        |(block_bytes, blocks, layout)| Workload { operation, layout, block_bytes, blocks, walk_bytes };
    shapes.map(workload).into()
}

/// Returns the row with several peers: the first shape.
fn peers() -> Row {
    Row::Peers(Workload { walk_bytes: PEER_WALK_BYTES, ..workloads(Operation::Write)[0] })
}

pub fn all() -> Vec<Row> {
    let throughput = [Operation::Write, Operation::Read].into_iter().flat_map(workloads).map(Row::Throughput);
    let latency = LATENCY_BYTES.map(Row::Latency);
    throughput.chain(latency).chain([Row::Setup, peers()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let mut names: Vec<_> = all().iter().map(Row::to_string).collect();
        assert_eq!(names.len(), 15);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 15);
    }
}
