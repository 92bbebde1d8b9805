//! A small transfer beside a bulk transfer to the same peer, over TCP: the reference is the small transfer alone.

use std::io::Write;

use super::{screen, Comparison, LatencyPair, Line, Plan};
use crate::layout::Layout;
use crate::stats::{median, Goal, Latency};
use crate::subject::{Client, Pair, PairConfig};
use crate::workload::{LatencyWorkload, Operation, Workload, KIB, MIB};

const ROW: &str = "WRITE 4 KiB synchronous beside 1 GiB bulk";
const BYTES: usize = 4 * KIB;
const BULK: Workload = Workload {
    operation: Operation::Write,
    layout: Layout::Contiguous,
    block_bytes: MIB,
    blocks: 1_024,
    walk_bytes: 1_024 * MIB,
};
/// The goal of the p99 only.
const GOAL: Goal = Goal::AtMost(5.0);

/// Uses a pair of its own, because the bulk transfer needs more memory than all other rows.
pub fn measure(
    plan: &Plan,
    config: &PairConfig,
    comparison: &mut Comparison,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    if !plan.wants(ROW) {
        return Ok(());
    }
    let memory_bytes = Client::bytes_beside(&BULK, BYTES);
    let mut pair = Pair::start(&PairConfig { memory_bytes, ..config.clone() })?;
    let samples = plan.samples.div_ceil(plan.pairs);
    let workload = LatencyWorkload::of(Operation::Write, BYTES, samples);
    let (mut runs, mut bulk) = ((Vec::new(), Vec::new()), Vec::new());
    let mut p99 = Vec::new();
    for _ in 0..plan.pairs {
        let alone = pair.client.time_each(&workload)?;
        let run = pair.client.time_beside(&BULK, BYTES, samples)?;
        p99.push((Latency::of(BYTES, &alone)?.p99_us, Latency::of(BYTES, &run.nanoseconds)?.p99_us));
        bulk.push(run.bulk_gb_per_second);
        runs.0.extend(alone);
        runs.1.extend(run.nanoseconds);
    }
    let line = Line {
        reference_settings: "ferry, alone".to_owned(),
        subject_settings: format!("beside {:.2} GB/s", median(&bulk)),
        ..Line::judge(ROW, "µs p99", GOAL, &p99)?
    };
    screen::line(out, &line)?;
    comparison.lines.push(line);
    let (reference, subject) = (Latency::of(BYTES, &runs.0)?, Latency::of(BYTES, &runs.1)?);
    let pooled = LatencyPair { row: ROW.to_owned(), reference, subject };
    screen::latency(out, &pooled)?;
    comparison.latencies.push(pooled);
    Ok(())
}
