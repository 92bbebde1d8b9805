//! The worker that needs the cache: waits during the push, then pulls the cache.

use super::message::Message;
use super::report::{Direction, Moved};
use super::story::{self, Line};
use super::worker::{Bench, Orders, Outcome};
use ferry::types::Op;

pub fn run(orders: &Orders) -> Outcome {
    let bench = Bench::open(orders, 2)?;
    story::tell(&Line::Address(bench.engine.address().into()));
    let worker = bench.meet(None)?;
    let cache = &worker.bench.cache;
    for pass in 1..=orders.passes {
        for layer in 0..cache.layers() {
            // Notifications arrive in order, each after its layer's data: a real decode could start on the
            // layer now.
            worker.expect(&Message::Layer { pass, layer: layer as u8 })?;
            if let Some(why) = cache.glance(pass, layer).explain() {
                return Err(format!("pushed: {why}").into());
            }
        }
        worker.check(pass).map_err(|why| format!("pushed: {why}"))?;
        worker.tell(&Message::Checked { pass })?;
    }
    let mut pulled = Moved::default();
    for pass in orders.passes + 1..=2 * orders.passes {
        worker.expect(&Message::Filled { pass })?;
        let number = pass - orders.passes;
        story::tell(&Line::Doing(format!("pull {number}/{}: decode READs", orders.passes)));
        pulled.merge(worker.move_layers(Op::Read, pass, orders.corrupt)?);
        story::tell(&Line::Doing(format!("pull {number}/{}: decode checks", orders.passes)));
        worker.check(pass).map_err(|why| format!("pulled: {why}"))?;
        worker.tell(&Message::Checked { pass })?;
    }
    story::tell(&Line::Report(pulled.report(Direction::Pull)));
    worker.leave()
}
