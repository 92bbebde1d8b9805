//! Lanes that are opened on demand, while connections are cut and refused from the first moment on: some lane in the
//! end carries everything that either end queues.

use crate::proxy::{Passing, Proxy, Verdict, Way};
use crate::support::*;
use ferry::internals::session::greeting::GREETING_BYTES;
use ferry::types::{Op, PeerId, Request};
use ferry::{Deadline, Engine, State, Status, Transfer, TransferOptions};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const ROUNDS: usize = 40;
const SIZES: [usize; 5] = [8, 4096, 100 << 10, MIB, 4 * MIB];

/// Submits a transfer of random size and kind.
fn submit(at: &Engine, peer: PeerId, dice: &mut Dice, whole: Request) -> Transfer {
    let length = SIZES[dice.below(SIZES.len() as u64) as usize] as u64;
    let op = if dice.below(2) == 0 { Op::Write } else { Op::Read };
    let notify = (op == Op::Write && dice.below(2) == 0).then_some(&b"word"[..]);
    let deadline = Deadline::After(BOUND);
    let options = TransferOptions { notify, deadline, ..TransferOptions::default() };
    at.submit(peer, op, &[Request { length, ..whole }], &options).unwrap()
}

#[test]
fn whatever_is_queued_while_lanes_come_and_go_is_carried() {
    let _turn = alone();
    let dice = Arc::new(Mutex::new(Dice::new("whatever_is_queued_while_lanes_come_and_go_is_carried")));
    for round in 0..ROUNDS {
        let settings =
            [("lease_ms", "3000"), ("reconnect_timeout_ms", "20000"), ("reconnect_backoff_ms", "10")];
        let (a, b) = (engine(&settings), engine(&settings));
        let proxy = Proxy::new(b.address());
        let peer = connect(&a, &proxy.address);
        a.probe(peer, Some(BOUND)).unwrap();
        wait_until("the other end has the peer", || b.peers().unwrap().len() == 1);
        let back = b.peers().unwrap()[0];
        let (local, remote) = (alloc(&a, 4 * MIB), alloc(&b, 4 * MIB));
        wait_until("both know the regions", || {
            let knows = |at: &Engine, peer| !at.peer_regions(peer).unwrap().is_empty();
            knows(&a, peer) && knows(&b, back)
        });
        let shared = dice.clone();
        proxy.judge(move |passing: &mut Passing| {
            let odds = passing.greeting.map_or(100, |it| if it.slot == 0 { 30 } else { 60 });
            if shared.lock().unwrap().below(odds) == 0 {
                Verdict::Cut
            } else {
                Verdict::Pass
            }
        });
        let seeds: Vec<u64> = (0..4).map(|_| dice.lock().unwrap().next()).collect();
        std::thread::scope(|scope| {
            let workers: Vec<_> = seeds
                .iter()
                .enumerate()
                .map(|(index, seed)| {
                    let (a, b, local, remote, proxy) = (&a, &b, &local, &remote, &proxy);
                    scope.spawn(move || {
                        let mut dice = Dice::of(*seed);
                        let (at, peer, whole) = match index % 2 {
                            0 => (a, peer, request(local, remote, 0, 4 * MIB)),
                            _ => (b, back, request(remote, local, 0, 4 * MIB)),
                        };
                        for _ in 0..3 {
                            // Refuses until all is queued, or until another thread that queues lets connections pass.
                            proxy.refuse(dice.below(2) == 0);
                            let count = 1 + dice.below(4);
                            let all: Vec<_> =
                                (0..count).map(|_| submit(at, peer, &mut dice, whole)).collect();
                            proxy.refuse(false);
                            for transfer in all {
                                let result = finish(&transfer);
                                assert_eq!(result.state, State::Done, "round {round}: {result:?}");
                            }
                        }
                    })
                })
                .collect();
            workers.into_iter().for_each(|it| it.join().unwrap());
        });
    }
}

/// The acceptor's message of the handshake has the first sample of its clock. A message that comes later than a lease
/// makes the estimate so early that the acceptor refuses every frame, and ends every lane.
#[test]
fn a_handshake_that_takes_longer_than_a_lease_leaves_lanes_that_carry() {
    let _turn = alone();
    let settings = [("lease_ms", "100"), ("drain_ms", "50")];
    let (a, b) = (engine(&settings), engine(&settings));
    let mut answers = 0;
    let proxy = Proxy::with_judge(b.address(), move |passing: &mut Passing| {
        let is_answer = !passing.is_lane && passing.way == Way::Back && !passing.bytes.is_empty();
        answers += u32::from(is_answer);
        // The second answer has the sample.
        if is_answer && answers == 2 {
            Verdict::Delay(Duration::from_millis(300))
        } else {
            Verdict::Pass
        }
    });
    let peer = connect(&a, &proxy.address);
    let (local, remote) = (alloc(&a, MIB), alloc(&b, MIB));
    for length in [8, MIB] {
        let deadline = Deadline::After(Duration::from_secs(3));
        let options = TransferOptions { deadline, ..TransferOptions::default() };
        let whole = [request(&local, &remote, 0, length)];
        let result = finish(&a.submit(peer, Op::Write, &whole, &options).unwrap());
        assert_eq!(result.state, State::Done, "{length} bytes: {result:?}");
    }
    let lanes = proxy.connections().iter().filter(|it| it.is_lane).count();
    assert!(lanes < 50, "{lanes} lanes were dialed");
}

/// A middlebox that ends each lane at its first frame leaves the session up, and fences are answered. Only the pauses
/// between the lanes keep both ends from dialing in a loop.
#[test]
fn lanes_that_end_at_their_first_frame_are_dialed_after_pauses() {
    let _turn = alone();
    let settings = [("reconnect_backoff_ms", "50"), ("lanes", "1")];
    let (a, b) = (engine(&settings), engine(&settings));
    let proxy = Proxy::new(b.address());
    let peer = connect(&a, &proxy.address);
    let (local, remote) = (alloc(&a, 4096), alloc(&b, 4096));
    fill(&local, 1);
    proxy.judge(|passing: &mut Passing| {
        if !passing.is_lane || passing.way == Way::Back || passing.at < GREETING_BYTES as u64 {
            return Verdict::Pass;
        }
        passing.bytes.clear();
        Verdict::Cut
    });
    let lanes = || proxy.connections().iter().filter(|it| it.is_lane).count();
    let before = lanes();
    let transfer =
        a.submit(peer, Op::Write, &[request(&local, &remote, 0, 4096)], &TransferOptions::default()).unwrap();
    // 50 + 100 + 200 ms of pauses, and the lane that stood.
    let early = transfer.wait(Some(Duration::from_millis(500)));
    assert_eq!(early.unwrap_err().status, Status::Timeout);
    let dialed = lanes() - before;
    assert!((1..=6).contains(&dialed), "{dialed} lanes in 500 ms");
    proxy.judge(|_| Verdict::Pass);
    assert_eq!(finish(&transfer).state, State::Done);
    assert_pattern(&remote, 1, 0, 4096);
}
