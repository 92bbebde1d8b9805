//! What every transport must do, over `loopback`. Compiled into the engine, which alone has that transport.

#[path = "../../tests/common/mod.rs"]
mod common;

use super::*;
use common::data::{check, contents, prepare};
use common::suite::{no_coalesce, Setup};
use common::PATIENCE;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn the_conformance_suite_passes() {
    Setup::over(TRANSPORT, "loopback", &[]).all();
}

/// The lane closes between two frames of a transfer. The session makes another lane, and all bytes arrive.
#[test]
fn a_lane_that_closes_amid_a_transfer_is_replaced() {
    let setup = Setup::over(TRANSPORT, "loopback, lane closed", &[]);
    let (a, b) = (setup.pair.a.whole().clone(), setup.pair.b.whole().clone());
    let (b_at_a, a_at_b) = (setup.pair.b_at_a, setup.pair.a_at_b);
    let lengths = 6 << 20;
    for (op, closer, peer, lane) in
        [(Op::Write, &a, b_at_a, LaneId::from_raw(1)), (Op::Read, &b, a_at_b, LaneId::from_raw(2))]
    {
        let (local, remote) = setup.memories(lengths);
        let spans: Vec<_> = (0..6).map(|nth| (nth << 20, nth << 20, 1 << 20)).collect();
        let work = prepare(op, &local, &remote, &spans);
        let lost = || [&a, &b].map(|context| context.stats.lanes_lost.load(Ordering::Relaxed));
        let (before, closed) = (lost(), AtomicBool::new(false));
        let commands = closer.commands.clone();
        a.peers.get(b_at_a).unwrap().pulled.set(move |_| {
            if !closed.swap(true, Ordering::SeqCst) {
                let loss = Loss::of(Cause::Ours, "the test closes the lane").over(TRANSPORT);
                commands.push(Command::LaneLost { peer, lane, loss });
            }
        });
        let submitted = setup.pair.a.submit(b_at_a, op, &work.requests, &no_coalesce()).unwrap();
        let result = submitted.wait(Some(PATIENCE)).unwrap();
        assert_eq!((result.status, result.transport), (Status::Ok, TRANSPORT), "{op:?}");
        check("a lane closed", &contents(if op == Op::Write { &remote } else { &local }), &work.expected);
        common::eventually("both ends lose the lane", || {
            lost().iter().zip(before).all(|(lost, before)| *lost > before)
        });
        let there = || a.peers.get(b_at_a).unwrap().path(TRANSPORT).is_some();
        common::eventually("another lane stands", there);
    }
}
