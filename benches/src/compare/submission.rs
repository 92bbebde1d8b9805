//! Submission from several threads to one peer, compared with submission from one thread: the total must not suffer.
//!
//! Both sides have the same number of transfers under way, so that only the number of threads differs.

use super::pairs::{interleave, Line};
use super::rows::WALK_BYTES;
use super::Plan;
use crate::layout::Layout;
use crate::stats::Goal;
use crate::subject::{Client, Flight};
use crate::workload::{format_bytes, Limit, Operation, Sample, Workload, KIB};

const THREADS: usize = 4;
const IN_FLIGHT: usize = 64;
/// Transfers of one request each. Small ones are judged by their number, larger ones by bytes.
const ROWS: [(usize, Quantity); 2] = [(4 * KIB, Quantity::Messages), (64 * KIB, Quantity::Bytes)];

#[derive(Clone, Copy)]
enum Quantity {
    Messages,
    Bytes,
}

impl Quantity {
    fn name(self) -> &'static str {
        match self {
            Quantity::Messages => "M msg/s",
            Quantity::Bytes => "GB/s",
        }
    }

    fn of(self, sample: &Sample) -> f64 {
        match self {
            Quantity::Messages => sample.transfers as f64 / sample.seconds / 1e6,
            Quantity::Bytes => sample.gb_per_second(),
        }
    }
}

/// Measures one line per row of the plan; the reference of each is ferry from one thread.
pub fn lines(
    plan: &Plan,
    client: &mut Client,
    mut found: impl FnMut(&Line) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<Line>> {
    let before = client.flight();
    let mut lines = Vec::new();
    for (block_bytes, quantity) in ROWS {
        let name = format!("WRITE {} submitted by {THREADS} threads", format_bytes(block_bytes));
        if plan.wants(&name) {
            let line = line(plan, client, name, block_bytes, quantity)?;
            found(&line)?;
            lines.push(line);
        }
    }
    client.set_flight(before);
    Ok(lines)
}

fn line(
    plan: &Plan,
    client: &mut Client,
    name: String,
    block_bytes: usize,
    quantity: Quantity,
) -> anyhow::Result<Line> {
    let (operation, layout) = (Operation::Write, Layout::Contiguous);
    let workload = Workload { operation, layout, block_bytes, blocks: 1, walk_bytes: WALK_BYTES };
    let client = std::cell::RefCell::new(client);
    let run = |threads| {
        let mut client = client.borrow_mut();
        client.set_flight(Flight { threads, in_flight: IN_FLIGHT });
        client.run(&workload, Limit::Seconds(plan.seconds))
    };
    let samples = interleave(plan.pairs, || run(1), || run(THREADS))?;
    let pairs: Vec<_> =
        samples.iter().map(|(one, several)| (quantity.of(one), quantity.of(several))).collect();
    let settings = |threads| format!("ferry, {IN_FLIGHT} in flight from {threads}");
    Ok(Line {
        reference_settings: settings("one thread".to_owned()),
        subject_settings: settings(format!("{THREADS} threads")),
        ..Line::judge(&name, quantity.name(), Goal::AtLeast(1.0), &pairs)?
    })
}
