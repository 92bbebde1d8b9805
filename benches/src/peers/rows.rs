//! The rows of `ferry-bench peers`, and their quantities.

use std::fmt;

use serde::Serialize;

use crate::layout::Layout;
use crate::workload::{format_bytes, Operation, Workload, KIB, MIB};

/// Larger than the caches; both sides walk it.
pub const WALK_BYTES: usize = 256 * MIB;
/// Targets of the row with several, and the memory walked at each.
pub const PEERS: usize = 4;
pub const PEER_WALK_BYTES: usize = 64 * MIB;
pub const LATENCY_BYTES: [usize; 3] = [64, 4 * KIB, 64 * KIB];

/// A quantity measured of one engine in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    GbPerSecond,
    CpuSecondsPerGib,
    P50Us,
    P99Us,
    ConnectMs,
    RegisterMs,
}

impl Quantity {
    pub fn unit(self) -> &'static str {
        match self {
            Quantity::GbPerSecond => "GB/s",
            Quantity::CpuSecondsPerGib => "CPU s/GiB",
            Quantity::P50Us => "µs p50",
            Quantity::P99Us => "µs p99",
            Quantity::ConnectMs => "ms until the first WRITE is done",
            Quantity::RegisterMs => "ms to register 1 GiB",
        }
    }
}

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

/// Returns the shapes of a transfer, as the columns of the table have them.
pub fn shapes() -> [(usize, usize, Layout); 5] {
    [
        (MIB, 16, Layout::Contiguous),
        (64 * KIB, 128, Layout::Contiguous),
        (16 * KIB, 1_024, Layout::Scattered),
        (4 * KIB, 1_024, Layout::Scattered),
        (16 * KIB, 1_024, Layout::Contiguous),
    ]
}

pub fn workloads(operation: Operation) -> Vec<Workload> {
    let workload = |(block_bytes, blocks, layout)| Workload {
        operation,
        layout,
        block_bytes,
        blocks,
        walk_bytes: WALK_BYTES,
    };
    shapes().map(workload).into()
}

/// Returns the row with several peers.
pub fn peers() -> Row {
    let [(block_bytes, blocks, layout), ..] = shapes();
    let operation = Operation::Write;
    Row::Peers(Workload { operation, layout, block_bytes, blocks, walk_bytes: PEER_WALK_BYTES })
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
