//! A lane thread's turn begins within a frame's lease and lasts beyond it. After the lease the turn receives and
//! answers nothing: the lease is checked against the clock, not against the time at which the turn began. Contract 4.

use super::drain_tests::{engine, stand, BOUND};
use crate::loss::Cause;
use crate::types::{Op, Request};
use crate::{Deadline, RegionOptions, TransferOptions};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const BYTES: usize = 128 << 10;
/// Longer than the lease of `engine`.
const TURN: Duration = Duration::from_millis(600);

#[test]
fn a_turn_that_outlasts_a_lease_neither_receives_nor_answers() {
    let (a, b) = (engine(), engine());
    let peer = a.connect(b.address(), Some(BOUND)).unwrap();
    let options = RegionOptions::default();
    let (here, there) = (a.alloc(BYTES, &options).unwrap(), b.alloc(BYTES, &options).unwrap());
    let request = |length| Request {
        local: here.address(),
        remote: there.address(),
        length,
        remote_region: there.region(),
    };
    let options = || TransferOptions { deadline: Deadline::Never, ..TransferOptions::default() };
    let submit = |op, length| a.submit(peer, op, &[request(length)], &options()).unwrap();
    let late = || b.whole().stats.losses[Cause::Lease as usize].load(Ordering::SeqCst);
    for (thread, length) in [("ferry-express", 8), ("ferry-lane", BYTES as u64)] {
        for op in [Op::Write, Op::Read] {
            // The prolonged turn may be one that began before the frame was posted, and may end within the lease.
            let refused = (0..10).any(|_| {
                // Wait until the lanes that the last round lost are open again.
                stand(&a, &b, peer, submit(Op::Write, BYTES as u64));
                let before = late();
                let has_begun = b.whole().health().hook.prolong(thread, TURN);
                let result = submit(op, length).wait(Some(BOUND)).unwrap();
                assert!(has_begun.load(Ordering::SeqCst), "no turn of {thread} has begun");
                // The lane that replaces the lost lane completes the transfer.
                assert_eq!(result.status, crate::Status::Ok, "{op:?}: {result:?}");
                // The transfer may end before the target's control loop counts the loss.
                let began = Instant::now();
                while late() == before && began.elapsed() < TURN {
                    std::thread::yield_now();
                }
                late() > before
            });
            assert!(refused, "{op:?} of {length} bytes by {thread} was not refused");
        }
    }
}
