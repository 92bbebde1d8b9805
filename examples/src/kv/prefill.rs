//! The worker that has the cache: pushes it, then lets the other worker pull it.

use super::message::Message;
use super::report::{Direction, Moved};
use super::story::{self, Line};
use super::worker::{Bench, Orders, Outcome};
use ferry::types::Op;
use std::time::Duration;

pub fn run(orders: &Orders, address: &str) -> Outcome {
    let bench = Bench::open(orders, 1)?;
    let peer = bench.engine.connect(address, Some(Duration::from_secs(10)))?;
    let worker = bench.meet(Some(peer))?;
    let mut pushed = Moved::default();
    for pass in 1..=orders.passes {
        worker.bench.cache.fill(pass);
        story::tell(&Line::Doing(format!("push {pass}/{}: prefill WRITEs", orders.passes)));
        pushed.merge(worker.move_layers(Op::Write, pass, orders.corrupt)?);
        story::tell(&Line::Doing(format!("push {pass}/{}: decode checks", orders.passes)));
        worker.expect(&Message::Checked { pass })?;
    }
    story::tell(&Line::Report(pushed.report(Direction::Push)));
    for path in worker.bench.engine.peer_paths(worker.peer)? {
        story::tell(&Line::Path(path.transport.name().into(), path.chosen, path.why));
    }
    for pass in orders.passes + 1..=2 * orders.passes {
        worker.bench.cache.fill(pass);
        worker.tell(&Message::Filled { pass })?;
        worker.expect(&Message::Checked { pass })?;
    }
    worker.leave_second()
}
