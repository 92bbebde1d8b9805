//! A session's end waits for the answers to frames that were received, while a thread of the target uses their lane.

use super::drain_tests::{engine, stand, Stop, BOUND};
use crate::complete::{Notification, State};
use crate::notify::WHAT_NOTIFICATIONS;
use crate::sys::clock;
use crate::types::{Op, PeerId, Request};
use crate::{Deadline, Engine, Memory, RegionOptions, Transfer, TransferOptions};
use std::time::Instant;

/// Enough bytes to use all lanes.
const BYTES: u64 = 512 << 10;

/// Submits a WRITE. A small WRITE goes over the express lane: the calling thread posts it.
fn write(engine: &Engine, peer: PeerId, from: &Memory, to: &Memory, length: u64) -> Transfer {
    let request = Request { local: from.address(), remote: to.address(), length, remote_region: to.region() };
    let options =
        TransferOptions { deadline: Deadline::Never, notify: Some(b"word"), ..TransferOptions::default() };
    engine.submit(peer, Op::Write, &[request], &options).unwrap()
}

/// The target has applied a WRITE and ends the session: the acknowledgement reaches the initiator before the end.
#[test]
fn what_was_taken_in_is_acknowledged_before_the_bye() {
    let (a, b) = (engine(), engine());
    let peer = a.connect(b.address(), Some(BOUND)).unwrap();
    let back = b.peers().unwrap()[0];
    let options = RegionOptions::default();
    let (here, there) =
        (a.alloc(BYTES as usize, &options).unwrap(), b.alloc(BYTES as usize, &options).unwrap());
    let taken_in = b.queue(WHAT_NOTIFICATIONS, 4).unwrap();
    let (blocked, transfer) = std::thread::scope(|scope| {
        stand(&a, &b, peer, write(&a, peer, &here, &there, BYTES));
        assert_eq!(taken_in.drain(&mut Vec::new(), 4), 1);
        let stop = Stop::next_caller(&b, back);
        let (b, ours, theirs) = (&b, &there, &here);
        let mut blocked = scope.spawn(move || write(b, back, ours, theirs, 8));
        // Wait until the thread stops before it posts, with the lane's send lock. If the lane's own thread sent the
        // WRITE instead, the caller has finished, and another caller tries.
        let until = Instant::now() + BOUND;
        while !stop.has_stopped() {
            assert!(Instant::now() < until, "the caller never posts");
            if blocked.is_finished() {
                blocked.join().unwrap().wait(Some(BOUND)).unwrap();
                blocked = scope.spawn(move || write(b, back, ours, theirs, 8));
            }
            std::thread::yield_now();
        }
        let transfer = write(&a, peer, &here, &there, 8);
        while taken_in.pending() == 0 {
            std::thread::yield_now();
        }
        let closing = scope.spawn(move || b.close_peer(back, Some(BOUND)).unwrap());
        // No event shows that the loop waits for that thread, so the test allows time for a wrong answer.
        let until_ns = clock::monotonic_ns() + 100_000_000;
        while clock::monotonic_ns() < until_ns {
            assert!(transfer.result().is_none(), "no thread can have answered");
            std::thread::yield_now();
        }
        stop.go_on.send(()).unwrap();
        closing.join().unwrap();
        (blocked.join().unwrap(), transfer)
    });
    let result = transfer.wait(Some(BOUND)).unwrap();
    assert_eq!((result.state, result.notification), (State::Done, Notification::Delivered), "{result:?}");
    blocked.wait(Some(BOUND)).unwrap();
}
