//! The workloads on two devices, their sides, and the ratios to reach.

use ferry_bench::layout::Layout;
use ferry_bench::workload::{format_bytes, Operation, Workload, KIB, MIB};

use super::perftest::{Bandwidth, READ_BW, WRITE_BW};
use crate::contest::{Beside, Target};
use crate::figures::Quantity;
use crate::judge::Goal;

/// Work requests under way, perftest's default.
const REQUESTS: usize = 128;
/// The largest slice of ferry's, and so the largest work request.
const SLICE_BYTES: usize = MIB;
/// Both sides walk it; a run of a second under emulation moves about three times as much.
const WALK_BYTES: usize = 16 * MIB;
/// The largest that any row walks.
pub const WALK_BYTES_MAX: usize = 2 * WALK_BYTES;
const LATENCY_BYTES: usize = 2;

/// A side, and the meaning of "done" for its WRITEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Perftest,
    /// Our own reference.
    Verbs(Visibility),
    Ferry(Visibility),
    Mooncake,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    Proven,
    AckedOnly,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Side::Perftest => "perftest",
            Side::Verbs(Visibility::Proven) => "verbs, proven",
            Side::Verbs(Visibility::AckedOnly) => "verbs, acked only",
            Side::Ferry(Visibility::Proven) => "ferry, proven",
            Side::Ferry(Visibility::AckedOnly) => "ferry, acked only",
            Side::Mooncake => "Mooncake",
        }
    }
}

/// Throughput of the same bytes.
#[derive(Clone, Copy, Debug)]
pub struct Throughput {
    /// The workload of ferry and Mooncake.
    pub workload: Workload,
    /// The workload of the verbs reference, which merges nothing.
    pub merged: Workload,
    pub in_flight: usize,
    pub perftest: Bandwidth,
}

#[derive(Clone, Copy, Debug)]
pub enum Row {
    Throughput(Throughput),
    /// Half a round trip between applications that poll memory.
    PingPong(usize),
    /// A synchronous WRITE, from the call until it is done.
    Done(usize),
}

pub fn all() -> Vec<Row> {
    let (write, read) = (Operation::Write, Operation::Read);
    let (scattered, contiguous) = (Layout::Scattered, Layout::Contiguous);
    vec![
        throughput(workload(write, contiguous, 64 * KIB, 1)),
        throughput(workload(read, contiguous, 64 * KIB, 1)),
        throughput(workload(write, scattered, 16 * KIB, 64)),
        throughput(workload(write, scattered, 4 * KIB, 128)),
        throughput(workload(write, contiguous, 16 * KIB, 1_024)),
        Row::PingPong(LATENCY_BYTES),
        Row::Done(LATENCY_BYTES),
    ]
}

/// The memory is large enough that two transfers do not overlap.
fn workload(operation: Operation, layout: Layout, block_bytes: usize, blocks: usize) -> Workload {
    let walk_bytes = (2 * block_bytes * blocks).max(WALK_BYTES);
    Workload { operation, layout, block_bytes, blocks, walk_bytes }
}

fn throughput(workload: Workload) -> Row {
    let merged = merged(&workload);
    let in_flight = (REQUESTS / merged.blocks).min(workload.walk_bytes / workload.transfer_bytes()).max(2);
    let tool = match workload.operation {
        Operation::Write => WRITE_BW,
        Operation::Read => READ_BW,
    };
    // A merged list is a run of large blocks, which perftest posts one by one.
    let list = if merged.blocks == workload.blocks { merged.blocks } else { 1 };
    let tx_depth = in_flight * merged.blocks;
    let perftest = Bandwidth { tool, bytes: merged.block_bytes, list, tx_depth };
    Row::Throughput(Throughput { workload, merged, in_flight, perftest })
}

/// Returns the workload with the same bytes in as few requests as ferry may use.
fn merged(workload: &Workload) -> Workload {
    let bytes = workload.transfer_bytes();
    let block_bytes = bytes.min(SLICE_BYTES);
    if workload.layout == Layout::Contiguous && bytes % block_bytes == 0 {
        Workload { block_bytes, blocks: bytes / block_bytes, ..*workload }
    } else {
        *workload
    }
}

impl Row {
    pub fn name(&self) -> String {
        match self {
            Row::Throughput(row) => match row.workload {
                Workload { operation, block_bytes, blocks: 1, .. } => {
                    format!("{operation} {}", format_bytes(block_bytes))
                }
                workload => workload.to_string(),
            },
            Row::PingPong(bytes) => format!("WRITE {} ping-pong", format_bytes(*bytes)),
            Row::Done(bytes) => format!("WRITE {} until done", format_bytes(*bytes)),
        }
    }

    pub fn quantity(&self) -> Quantity {
        match self {
            Row::Throughput(_) => Quantity::MbPerSecond,
            Row::PingPong(_) | Row::Done(_) => Quantity::P50Us,
        }
    }

    /// Returns the sides in the table's order; Mooncake only if `mooncake` is set and it has a batch for the row.
    pub fn sides(&self, mooncake: bool) -> Vec<Side> {
        let (proven, acked) = (Visibility::Proven, Visibility::AckedOnly);
        let own = [Side::Verbs(proven), Side::Verbs(acked), Side::Ferry(proven), Side::Ferry(acked)];
        match self {
            // The bytes of a READ have arrived: visibility needs no proof.
            Row::Throughput(row) if row.workload.operation == Operation::Read => {
                vec![Side::Perftest, Side::Verbs(proven), Side::Ferry(proven)]
            }
            Row::Throughput(row) => {
                let scattered = row.workload.layout == Layout::Scattered;
                let others = (mooncake && scattered).then_some(Side::Mooncake);
                [Side::Perftest].into_iter().chain(own).chain(others).collect()
            }
            Row::PingPong(_) => vec![Side::Perftest, Side::Ferry(proven), Side::Ferry(acked)],
            Row::Done(_) => own.into(),
        }
    }

    /// Returns the ratios of one side to another, with their goals.
    pub fn targets(&self) -> Vec<Target> {
        let both = [Visibility::Proven, Visibility::AckedOnly];
        let quantity = self.quantity();
        let target = |subject: Side, beside: Side, goal| {
            let beside = Beside::side(beside.name());
            Target { quantity, subject: subject.name(), beside, goal }
        };
        let ferry = |beside, goal| both.map(|how| target(Side::Ferry(how), beside, Some(goal)));
        match self {
            Row::Throughput(_) => [
                ferry(Side::Perftest, Goal::AtLeast(0.95)),
                both.map(|how| target(Side::Ferry(how), Side::Verbs(how), None)),
                both.map(|how| target(Side::Verbs(how), Side::Perftest, None)),
                ferry(Side::Mooncake, Goal::AtLeast(1.5)),
            ]
            .concat(),
            Row::PingPong(_) => ferry(Side::Perftest, Goal::AtMost(1.15)).into(),
            Row::Done(_) => {
                both.map(|how| target(Side::Ferry(how), Side::Verbs(how), Some(Goal::AtMost(1.2)))).into()
            }
        }
    }

    /// Returns the work requests of one of ferry's transfers, if ferry has something to merge.
    pub fn requests_expected(&self) -> Option<usize> {
        match self {
            Row::Throughput(row) if row.merged.blocks != row.workload.blocks => Some(row.merged.blocks),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contest::{self, judge, Cell, RowResult};
    use crate::figures::Run;
    use crate::judge::Verdict;

    #[test]
    fn each_row_moves_the_same_bytes_on_every_side() {
        for row in all() {
            let Row::Throughput(Throughput { workload, merged, in_flight, perftest }) = row else { continue };
            assert_eq!(merged.transfer_bytes(), workload.transfer_bytes(), "{}", row.name());
            assert!(workload.validated().is_ok() && merged.validated().is_ok());
            assert!(workload.walk_bytes <= WALK_BYTES_MAX, "{}", row.name());
            assert_eq!(perftest.tx_depth, in_flight * merged.blocks);
            assert!(perftest.tx_depth >= 2 * perftest.list.min(64) && perftest.tx_depth % perftest.list == 0);
        }
    }

    #[test]
    fn rows_are_named_and_held_as_the_targets_say() {
        let names: Vec<_> = all().iter().map(Row::name).collect();
        let expected = [
            "WRITE 64 KiB",
            "READ 64 KiB",
            "WRITE 16 KiB × 64 scattered",
            "WRITE 4 KiB × 128 scattered",
            "WRITE 16 KiB × 1,024 contiguous",
            "WRITE 2 B ping-pong",
            "WRITE 2 B until done",
        ];
        assert_eq!(names, expected);
        let requests: Vec<_> = all().iter().filter_map(Row::requests_expected).collect();
        assert_eq!(requests, [16]);
    }

    #[test]
    fn ratios_are_judged_where_there_is_a_target() {
        let row = all().remove(2);
        let cell = |side: Side| {
            let value = match side {
                Side::Perftest => 100.0,
                Side::Ferry(Visibility::Proven) => 90.0,
                Side::Ferry(Visibility::AckedOnly) | Side::Verbs(_) => 99.0,
                Side::Mooncake => 60.0,
            };
            Cell::of(contest::Side {
                runs: vec![Run::of([(row.quantity(), value)]); 6],
                ..contest::Side::new(side.name())
            })
        };
        let found = RowResult { row: row.name(), cells: row.sides(true).into_iter().map(cell).collect() };
        let ratios = judge(&found, &row.targets());
        let verdicts: Vec<_> = ratios.iter().map(|ratio| ratio.judged.verdict).collect();
        let (met, missed) = (Some(Verdict::Met), Some(Verdict::Missed));
        assert_eq!(verdicts, [missed, met, None, None, None, None, met, met]);
        assert_eq!((ratios[2].subject, ratios[2].beside), ("ferry, proven", "verbs, proven"));
    }
}
