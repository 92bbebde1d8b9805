//! Small transfers that no thread waits for, and whose completion raises no event: they are found done all the same,
//! and a thread that does wait is woken at once.

use crate::guest::{enter, leads_over, memories, pair};
use crate::support::*;
use ferry::types::{Op, PeerId};
use ferry::{Engine, Status};
use std::time::{Duration, Instant};

/// More than an endpoint takes at a time.
const MANY: usize = 200;
/// A completion that no thread asks for is found after this long at the earliest, and twice this at the latest.
const TICK: Duration = Duration::from_millis(5);

#[test]
fn what_nobody_asks_for_is_done_and_what_waits_for_room_is_posted() {
    let name = "unattended::what_nobody_asks_for_is_done_and_what_waits_for_room_is_posted";
    let Some(_guest) = enter(name) else { return };
    let (a, b, peer) = pair(&[]);
    leads_over(&a, peer, &["rva0", "rvb0"]);
    let (local, remote) = memories(&a, &b, peer, MANY * 64, 5);
    let transfers: Vec<_> = (0..MANY)
        .map(|at| a.submit(peer, Op::Write, &[request(&local, &remote, at * 64, 64)], &options()).unwrap())
        .collect();
    wait_until("all are done", || a.stats().unwrap().counts.transfers_done == MANY as u64);
    assert_pattern(&remote, 5, 0, MANY * 64);
    transfers.iter().for_each(|it| assert_eq!(it.result().unwrap().status, Status::Ok));
    // One more than an endpoint takes, which no later transfer pushes.
    let one = [request(&local, &remote, 0, 64)];
    let _last = a.submit(peer, Op::Read, &one, &options()).unwrap();
    wait_until("one alone is done", || a.stats().unwrap().counts.transfers_done == MANY as u64 + 1);
}

#[test]
fn what_is_asked_for_is_found() {
    let Some(_guest) = enter("unattended::what_is_asked_for_is_found") else { return };
    quickest("state", |a, peer, one| {
        let transfer = a.submit(PeerId::from_raw(peer), Op::Write, one, &options()).unwrap();
        wait_until("it is final", || transfer.state().is_final());
    });
    quickest("wait, without waiting", |a, peer, one| {
        let transfer = a.submit(PeerId::from_raw(peer), Op::Write, one, &options()).unwrap();
        wait_until("it is final", || transfer.wait(Some(Duration::ZERO)).is_ok());
    });
}

#[test]
fn a_sleeping_thread_is_woken_at_once() {
    let Some(_guest) = enter("unattended::a_sleeping_thread_is_woken_at_once") else { return };
    quickest("wait_any", |a, peer, one| {
        let core = a.submit_core(PeerId::from_raw(peer), Op::Write, one, &options()).unwrap();
        a.wait_any(std::slice::from_ref(&core), Some(BOUND)).unwrap();
        a.release(core.handle).unwrap();
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    quickest("a future", |a, peer, one| {
        let transfer = a.submit(PeerId::from_raw(peer), Op::Write, one, &options()).unwrap();
        runtime.block_on(async { transfer.await }).unwrap();
    });
}

/// A transfer that its caller cancels instead of waiting: it has been done for a while, which is seen at once, not
/// when `drain_ms` is over and its endpoint has been closed.
#[test]
fn what_is_stopped_is_looked_at_first() {
    let Some(_guest) = enter("unattended::what_is_stopped_is_looked_at_first") else { return };
    let (a, b, peer) = pair(&[]);
    let (local, remote) = memories(&a, &b, peer, 64, 5);
    let one = [request(&local, &remote, 0, 64)];
    for _ in 0..20 {
        remote.write(0, &[0; 64]);
        let core = a.submit_core(peer, Op::Write, &one, &options().awaited()).unwrap();
        wait_until("it has landed", || read(&remote, 0, 64) == pattern(5, 0, 64));
        a.cancel(&core).unwrap();
        wait_until("it is final", || core.is_final());
        a.release(core.handle).unwrap();
    }
    assert_eq!(a.stats().unwrap().counts.lanes_lost, 0);
}

/// Asserts that the quickest of some rounds, on an engine of their own, did not wait for a tick.
fn quickest(what: &str, mut round: impl FnMut(&Engine, u64, &[ferry::types::Request])) {
    let (a, b, peer) = pair(&[("spin_us", "0")]);
    let (local, remote) = memories(&a, &b, peer, 64, 5);
    let one = [request(&local, &remote, 0, 64)];
    let rounds = (0..30).map(|_| {
        let started = Instant::now();
        round(&a, peer.raw(), &one);
        started.elapsed()
    });
    let least = rounds.min().unwrap();
    println!("{what}: {least:?}");
    assert!(least < TICK, "{what}: {least:?}");
}
