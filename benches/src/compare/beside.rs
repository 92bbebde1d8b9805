//! A small transfer beside a bulk one to the same peer, over TCP: the reference is the same transfer
//! alone.

use std::io::Write;

use super::pairs::Pairs;
use super::{screen, Comparison, LatencyPair, Plan};
use crate::layout::Layout;
use crate::report::Latency;
use crate::stats::{median, Goal, Summary};
use crate::subject::{Client, Pair, PairConfig};
use crate::workload::{LatencyWorkload, Operation, Placement, Workload, KIB, MIB};

const ROW: &str = "WRITE 4 KiB synchronous beside 1 GiB bulk";
const BYTES: usize = 4 * KIB;
const BULK: Workload = Workload {
    operation: Operation::Write,
    layout: Layout::Contiguous,
    block_bytes: MIB,
    blocks: 1_024,
    walk_bytes: 1_024 * MIB,
};
/// Of the p99 alone.
const GOAL: Goal = Goal::AtMost(5.0);

/// A pair of its own, because the bulk transfer needs more memory than all other rows.
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
    let workload = LatencyWorkload {
        operation: Operation::Write,
        bytes: BYTES,
        samples,
        spin: None,
        placement: Placement::Anywhere,
    };
    let (mut alone, mut beside, mut bulk) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.pairs {
        alone.push(pair.client.time_each(&workload)?);
        let run = pair.client.time_beside(&BULK, BYTES, samples)?;
        beside.push(run.nanoseconds);
        bulk.push(run.bulk_gb_per_second);
    }
    let p99 = |runs: &[Vec<u64>]| {
        runs.iter().filter_map(|run| Summary::of(run)).map(|run| run.p99 as f64 / 1e3).collect()
    };
    let pairs = Pairs { reference: p99(&alone), subject: p99(&beside) };
    let mut line = pairs.judge(ROW.to_owned(), "µs p99", GOAL)?;
    line.reference_settings = "ferry, alone".to_owned();
    line.subject_settings = format!("beside {:.2} GB/s", median(&bulk));
    screen::line(out, &line)?;
    comparison.lines.push(line);
    let pooled = |runs: Vec<Vec<u64>>| Summary::of(&runs.concat()).map(|all| Latency::of(BYTES, &all));
    if let (Some(reference), Some(subject)) = (pooled(alone), pooled(beside)) {
        let pooled = LatencyPair { row: ROW.to_owned(), reference, subject };
        screen::latency(out, &pooled)?;
        comparison.latencies.push(pooled);
    }
    Ok(())
}
