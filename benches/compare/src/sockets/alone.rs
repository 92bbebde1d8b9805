//! Rows of ferry alone, over TCP.
//!
//! Submission from several threads to one peer is compared with submission from one thread, with the same number of
//! transfers under way: the total must not suffer. A small transfer beside a bulk transfer to the same peer is compared
//! with the small transfer alone.

use std::cell::RefCell;

use super::rows::WALK_BYTES;
use super::{Course, BYTES};
use crate::figures::{Quantity, Run};
use crate::judge::Goal;
use crate::turns;
use ferry_bench::layout::Layout;
use ferry_bench::stats::median;
use ferry_bench::subject::{Client, Flight, Pair, PairConfig};
use ferry_bench::workload::{format_bytes, Engine, LatencyWorkload, Limit, Operation, Workload, KIB, MIB};

const THREADS: usize = 4;
const IN_FLIGHT: usize = 64;
/// Transfers of one request each. Small ones are judged by their number, larger ones by bytes.
const ROWS: [(usize, Quantity); 2] =
    [(4 * KIB, Quantity::MillionMessagesPerSecond), (64 * KIB, Quantity::GbPerSecond)];

const BESIDE: &str = "WRITE 4 KiB synchronous beside 1 GiB bulk";
const BULK: Workload = Workload {
    operation: Operation::Write,
    layout: Layout::Contiguous,
    block_bytes: MIB,
    blocks: 1_024,
    walk_bytes: 1_024 * MIB,
};
/// The goal of the p99 only.
const BESIDE_GOAL: Goal = Goal::AtMost(5.0);

/// Measures one line per row of the plan; the reference of each is ferry from one thread.
pub fn submission(course: &mut Course, client: &mut Client) -> anyhow::Result<()> {
    let before = client.flight();
    for (block_bytes, quantity) in ROWS {
        let name = format!("WRITE {} submitted by {THREADS} threads", format_bytes(block_bytes));
        if !course.plan.wants(&name) {
            continue;
        }
        let workload = Workload::single(Operation::Write, block_bytes, WALK_BYTES);
        let (limit, shared) = (Limit::Seconds(course.plan.seconds), RefCell::new(&mut *client));
        let run = |threads| {
            let mut client = shared.borrow_mut();
            client.set_flight(Flight { threads, in_flight: IN_FLIGHT });
            let sample = client.throughput(&workload, limit)?;
            let mut run = Run::throughput(&sample);
            let millions = sample.transfers as f64 / sample.seconds / 1e6;
            run.figures.insert(Quantity::MillionMessagesPerSecond, millions);
            Ok(run)
        };
        let runs = turns::pairs(course.plan.pairs, || run(1), || run(THREADS))?;
        let settings = ["one thread", &format!("{THREADS} threads")]
            .map(|threads| format!("ferry, {IN_FLIGHT} in flight from {threads}"));
        course.add(&name, &[(quantity, Goal::AtLeast(1.0))], runs, settings)?;
    }
    client.set_flight(before);
    Ok(())
}

/// Uses a pair of its own, because the bulk transfer needs more memory than all other rows.
pub fn beside(course: &mut Course, config: &PairConfig) -> anyhow::Result<()> {
    if !course.plan.wants(BESIDE) {
        return Ok(());
    }
    let memory_bytes = Client::bytes_beside(&BULK, BYTES);
    let Pair { client, .. } = &mut Pair::start(&PairConfig { memory_bytes, ..config.clone() })?;
    let samples = course.plan.samples_each();
    let workload = LatencyWorkload::of(Operation::Write, BYTES, samples);
    let (mut runs, mut bulk) = (Vec::new(), Vec::new());
    for _ in 0..course.plan.pairs {
        let alone = Run::latency(client.latency(&workload)?)?;
        let (nanoseconds, gb_per_second) = client.time_beside(&BULK, BYTES, samples)?;
        runs.push((alone, Run::latency(nanoseconds)?));
        bulk.push(gb_per_second);
    }
    let settings = ["ferry, alone".to_owned(), format!("beside {:.2} GB/s", median(&bulk))];
    course.add(BESIDE, &[(Quantity::P99Us, BESIDE_GOAL)], runs, settings)
}
