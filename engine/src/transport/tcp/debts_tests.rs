//! What a target owes for frames that it has taken in, while a thread of its own is at the lane that they came by.

use super::drain_tests::{engine, stand, Stop, BOUND};
use crate::complete::{Notification, State};
use crate::notify::WHAT_NOTIFICATIONS;
use crate::sys::clock;
use crate::types::{Op, PeerId, Request};
use crate::{Deadline, Engine, Memory, RegionOptions, Transfer, TransferOptions};

/// Enough for all lanes.
const BYTES: u64 = 512 << 10;

/// What is small goes by the express lane: the calling thread posts it.
fn write(engine: &Engine, peer: PeerId, from: &Memory, to: &Memory, length: u64) -> Transfer {
    let request = Request { local: from.address(), remote: to.address(), length, remote_region: to.region() };
    let options =
        TransferOptions { deadline: Deadline::Never, notify: Some(b"word"), ..TransferOptions::default() };
    engine.submit(peer, Op::Write, &[request], &options).unwrap()
}

/// The target has applied it and ends the session: the initiator hears of the first before it hears of the second.
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
        let stop = Stop::next(&b, back);
        let (ours, theirs) = (&there, &here);
        let blocked = scope.spawn(|| write(&b, back, ours, theirs, 8));
        // A thread is about to post, and has the sending side of the lane.
        stop.wait();
        let transfer = write(&a, peer, &here, &there, 8);
        while taken_in.pending() == 0 {
            std::thread::yield_now();
        }
        let closing = scope.spawn(|| b.close_peer(back, Some(BOUND)).unwrap());
        // Nothing tells that the loop waits for that thread; what it does without waiting, it does now.
        let until_ns = clock::monotonic_ns() + 100_000_000;
        while clock::monotonic_ns() < until_ns {
            assert!(transfer.result().is_none(), "nobody can have answered it");
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
