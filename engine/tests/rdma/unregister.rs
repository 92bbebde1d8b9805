//! Memory that is taken back: its keys are revoked, or the endpoints of peers that keep keys destroyed, before the
//! devices deregister it. After OK nothing changes the memory any more. Contract 12.

use crate::child::Child;
use crate::guest::{engine, enter, is_quiet, knows, memories, pair, words, LEASE};
use crate::support::*;
use ferry::types::{Op, PeerId};
use ferry::{Engine, Memory, State, Status};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BYTES: usize = 2 * MIB;

/// Ends the storm however the test ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Submits transfers of all sizes until the region is gone, or another error occurs.
fn storm<'a>(
    scope: &'a std::thread::Scope<'a, '_>,
    a: &'a Engine,
    peer: PeerId,
    (local, sink): (&'a Memory, &'a Memory),
    remote: &'a Memory,
    over: &'a AtomicBool,
) {
    for (op, length) in [(Op::Write, BYTES), (Op::Write, 64 << 10), (Op::Read, 4096), (Op::Write, 8)] {
        scope.spawn(move || {
            let here = if op == Op::Write { local } else { sink };
            let requests = rounds(here.address(), remote.address(), remote.region(), length, 2);
            while !over.load(Ordering::SeqCst) {
                let status = match a.submit(peer, op, &requests, &options()) {
                    Ok(transfer) => finish(&transfer).status,
                    Err(error) => error.status,
                };
                assert!(
                    matches!(status, Status::Ok | Status::Stale | Status::Partial),
                    "{op:?} {length}: {status}"
                );
                if status != Status::Ok {
                    return;
                }
            }
        });
    }
}

#[test]
fn unregister_at_the_target_under_a_storm_returns_and_nothing_lands_later() {
    let name = "unregister::unregister_at_the_target_under_a_storm_returns_and_nothing_lands_later";
    let Some(_guest) = enter(name) else { return };
    let (a, b, peer) = pair(&[]);
    let (local, other) = memories(&a, &b, peer, BYTES, 5);
    let sink = alloc(&a, BYTES);
    for round in 0..3 {
        let remote = alloc(&b, BYTES);
        knows(&a, peer, remote.region());
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _ending = Over(&over);
            storm(scope, &a, peer, (&local, &sink), &remote, &over);
            wait_until("the storm blows", || read(&remote, BYTES - 8, 8) != [0; 8]);
            // With a timeout of 0 nothing changes: the peer has its keys.
            let busy = remote.unregister(Some(Duration::ZERO)).unwrap_err();
            assert_eq!(busy.status, Status::Busy);
            remote.write(BYTES - 8, &[0; 8]);
            wait_until("the storm blows on", || read(&remote, BYTES - 8, 8) != [0; 8]);
            let started = Instant::now();
            remote.unregister(None).unwrap();
            println!("round {round}: unregister took {:?}", started.elapsed());
            assert!(started.elapsed() < LEASE + SLACK, "unregister took {:?}", started.elapsed());
            remote.write(0, &pattern(9, 0, BYTES));
        });
        is_quiet(|| read(&remote, 0, BYTES), Duration::from_millis(200));
        assert_pattern(&remote, 9, 0, BYTES);
        assert_eq!(remote.unregister(None).unwrap_err().status, Status::Stale);
        // The peer still works.
        a.write(peer, &[request(&local, &other, 0, BYTES)], &options()).unwrap();
        assert_pattern(&other, 5, 0, BYTES);
        other.write(0, &vec![0; BYTES]);
    }
}

#[test]
fn unregister_at_the_initiator_waits_for_the_transfer() {
    let Some(_guest) = enter("unregister::unregister_at_the_initiator_waits_for_the_transfer") else {
        return;
    };
    let (a, b, peer) = pair(&[]);
    let (local, remote) = memories(&a, &b, peer, BYTES, 5);
    let requests = rounds(local.address(), remote.address(), remote.region(), BYTES, 16);
    let transfer = a.submit(peer, Op::Write, &requests, &options()).unwrap();
    assert_eq!(local.unregister(Some(Duration::ZERO)).unwrap_err().status, Status::Busy);
    // Nothing has changed: the region can be used.
    let more = a.submit(peer, Op::Write, &[request(&local, &remote, 0, 8)], &options()).unwrap();
    assert_eq!(local.unregister(Some(Duration::from_millis(1))).unwrap_err().status, Status::Busy);
    // Now the region is revoked for new work.
    let refused = a.submit(peer, Op::Write, &[request(&local, &remote, 0, 8)], &options());
    assert_eq!(refused.map(|_| ()).unwrap_err().status, Status::NotRegistered);
    local.unregister(Some(BOUND)).unwrap();
    assert_eq!((finish(&transfer).state, finish(&more).state), (State::Done, State::Done));
    assert_pattern(&remote, 5, 0, BYTES);
}

/// A peer that is stopped while it writes can't give up its keys: after the lease its endpoints are closed, and the
/// memory is the target's. The resumed peer finds that out, and its session works again.
#[test]
fn unregister_while_a_writer_is_stopped_takes_the_lease_and_nothing_lands_later() {
    let name = "unregister::unregister_while_a_writer_is_stopped_takes_the_lease_and_nothing_lands_later";
    let Some(_guest) = enter(name) else { return };
    // This test is not about silence on the session.
    let patient = [("progress_timeout_ms", "20000")];
    let b = engine(1, &patient);
    let (remote, other) = (alloc(&b, BYTES), alloc(&b, BYTES));
    let (mut child, _) = Child::engine(&words(0, &patient));
    child.alloc(BYTES, 3);
    let there = child.number(&format!("connect {}", b.address()));
    child.ask(&format!("flood {there} {} {} {BYTES}", remote.region(), remote.address()));
    wait_until("the flood flows", || child.number("rounds") > 0);
    child.stop();
    assert_eq!(remote.unregister(Some(Duration::ZERO)).unwrap_err().status, Status::Busy);
    let started = Instant::now();
    remote.unregister(Some(BOUND)).unwrap();
    let took = started.elapsed();
    println!("unregister took {took:?} of a lease of {LEASE:?}");
    assert!(took < LEASE + SLACK, "{took:?}");
    remote.write(0, &pattern(9, 0, BYTES));
    is_quiet(|| read(&remote, 0, BYTES), Duration::from_millis(300));
    child.resume();
    let write = format!("write {there} {} {} {BYTES}", other.region(), other.address());
    wait_until("the peer writes elsewhere", || child.ask(&write) == BYTES.to_string());
    assert_pattern(&other, 3, 0, BYTES);
    assert_pattern(&remote, 9, 0, BYTES);
    is_quiet(|| read(&remote, 0, BYTES), Duration::from_millis(500));
}

/// Cancels one transfer: other transfers on the same queue pairs are done with the right bytes, and the cancelled one
/// no longer uses its memory.
#[test]
fn cancel_in_mid_transfer_leaves_the_neighbours_unharmed() {
    let Some(_guest) = enter("unregister::cancel_in_mid_transfer_leaves_the_neighbours_unharmed") else {
        return;
    };
    let (a, b, peer) = pair(&[]);
    let (local, remote) = memories(&a, &b, peer, 4 * BYTES, 5);
    for round in 0..2 {
        let (_, victim, took) = cancel_between(&a, peer, &local, &remote, [4, 512, 4, 4]);
        println!("round {round}: cancelled after {took:?}, {:?}", finish(&victim).fence);
        assert!(took < LEASE + SLACK, "{took:?}");
    }
}
