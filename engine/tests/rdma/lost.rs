//! Peers that die or stop in mid-transfer. A stopped process is not a lost one: its NIC still serves, so WRITEs to it
//! are done, and giving memory back must not wait for the process.

use crate::child::Child;
use crate::guest::{connect, engine, enter, is_quiet, knows, words};
use crate::support::*;
use ferry::notify::{EventBody, WHAT_PEERS, WHAT_PEER_STATES};
use ferry::types::{Op, Transport};
use ferry::{Deadline, Fence, State, Status, TransferOptions};
use std::time::{Duration, Instant};

const BYTES: usize = 4 * MIB;

/// The last moment at which the child can be reached, and slack for a busy machine.
const LOST_WITHIN: Duration = Duration::from_millis(3000 + 1500 + 3000);

/// The kernel of a killed process closes its connection, so the other end hears of the kill long before its NIC does or
/// its timers. From the end of the process, because an emulated kernel takes some 100 ms to take the process down.
const TOLD_WITHIN: Duration = Duration::from_millis(100);

/// A peer that is killed in mid-transfer over RDMA is down at once, whichever end moves the bytes.
#[test]
fn a_killed_peer_is_told_as_down_at_once() {
    let Some(_guest) = enter("lost::a_killed_peer_is_told_as_down_at_once") else { return };
    for is_target in [true, false] {
        let (mut child, address) = Child::engine(&words(1, &[]));
        let (region, remote) = child.alloc(BYTES, 3);
        let a = engine(0, &[]);
        let queue = a.queue(WHAT_PEERS | WHAT_PEER_STATES, 16).unwrap();
        let memory = alloc(&a, BYTES);
        let peer = connect(&a, &address);
        knows(&a, peer, region);
        let transfer = is_target.then(|| {
            fill(&memory, 7);
            let requests = rounds(memory.address(), remote, region, BYTES, 256);
            let endless = TransferOptions { deadline: Deadline::Never, ..options() };
            let transfer = a.submit(peer, Op::Write, &requests, &endless).unwrap();
            wait_until("the first bytes land", || child.peek(remote, 8) == pattern(7, 0, 8)[..]);
            transfer
        });
        if !is_target {
            let there = child.ask(&format!("connect {}", a.address()));
            child.ask(&format!("flood {there} {} {} {BYTES}", memory.region(), memory.address()));
            wait_until("the flood flows", || child.number("rounds") > 1);
        }
        let mut events = Vec::new();
        while queue.drain(&mut events, 16) > 0 {}
        events.clear();
        let killed = Instant::now();
        child.kill();
        let ended = Instant::now();
        wait_until("PEER_DOWN comes", || {
            queue.drain(&mut events, 16);
            events.iter().any(|event| event.peer == peer && matches!(event.body, EventBody::PeerDown { .. }))
        });
        let (took, teardown) = (ended.elapsed(), ended - killed);
        println!("told {took:?} after the end, which took {teardown:?}; the killed peer was the target: {is_target}");
        assert!(took < TOLD_WITHIN, "{took:?}");
        drop(transfer);
    }
}

#[test]
fn transfers_to_a_killed_target_fail_in_time() {
    let Some(_guest) = enter("lost::transfers_to_a_killed_target_fail_in_time") else { return };
    for op in [Op::Write, Op::Read] {
        let (mut child, address) = Child::engine(&words(1, &[]));
        let (region, remote) = child.alloc(BYTES, if op == Op::Read { 3 } else { 0 });
        let a = engine(0, &[]);
        let queue = a.queue(WHAT_PEERS, 16).unwrap();
        let memory = alloc(&a, BYTES);
        let peer = connect(&a, &address);
        knows(&a, peer, region);
        if op == Op::Write {
            fill(&memory, 7);
        }
        let requests = rounds(memory.address(), remote, region, BYTES, 256);
        let endless = TransferOptions { deadline: Deadline::Never, ..options() };
        let transfer = a.submit(peer, op, &requests, &endless).unwrap();
        wait_until("the first bytes land", || match op {
            Op::Write => child.peek(remote, 8) != [0; 8],
            Op::Read => read(&memory, 0, 8) != [0; 8],
        });
        let started = Instant::now();
        child.kill();
        let result = finish(&transfer);
        let took = started.elapsed();
        println!("{op:?}: final {took:?} after the target was killed: {:?}", result.fence);
        assert_eq!((result.state, result.status), (State::Failed, Status::PeerLost));
        // The posted part of a READ may have arrived completely; the rest was never posted.
        let known = matches!(result.fence, Fence::Lease | Fence::Dead)
            || (op == Op::Read && result.fence == Fence::Confirmed);
        assert!(known, "{:?}", result.fence);
        assert!(took < LOST_WITHIN, "{took:?}");
        let confirmed: u64 = transfer.results().iter().map(|request| request.bytes_confirmed).sum();
        assert_eq!(confirmed, result.bytes_confirmed);
        assert_eq!(wait_for_loss(&queue, peer), Status::PeerLost);
        // The memory is ours again: no peer holds its keys, and nothing of the READ lands.
        memory.write(0, &pattern(9, 0, BYTES));
        is_quiet(|| read(&memory, 0, BYTES), Duration::from_millis(300));
        drop(transfer);
        memory.free(Some(Duration::ZERO)).map_err(|(_, error)| error).unwrap();
    }
}

#[test]
fn a_killed_initiator_is_lost_and_leaves_the_target_its_memory() {
    let Some(_guest) = enter("lost::a_killed_initiator_is_lost_and_leaves_the_target_its_memory") else {
        return;
    };
    let b = engine(1, &[]);
    let queue = b.queue(WHAT_PEERS, 16).unwrap();
    let target = alloc(&b, BYTES);
    let mut child = Child::flooding(&words(0, &[]), &b, &target, BYTES);
    wait_until("the flood flows", || child.number("rounds") > 1);
    let peer = b.peers().unwrap()[0];
    let started = Instant::now();
    child.kill();
    assert_eq!(wait_for_loss(&queue, peer), Status::PeerLost);
    println!("told of the loss after {:?}", started.elapsed());
    assert!(started.elapsed() < LOST_WITHIN);
    // The memory is ours from here on: our writes stay.
    fill(&target, 8);
    is_quiet(|| read(&target, 0, BYTES), Duration::from_millis(500));
    target.unregister(Some(Duration::ZERO)).unwrap();
    assert_pattern(&target, 8, 0, BYTES);
}

/// The target's NIC needs no process.
#[test]
fn transfers_with_a_stopped_target_are_done() {
    let Some(_guest) = enter("lost::transfers_with_a_stopped_target_are_done") else { return };
    let (mut child, address) = Child::engine(&words(1, &[]));
    let (region, remote) = child.alloc(BYTES, 0);
    let a = engine(0, &[]);
    let memory = alloc(&a, BYTES);
    fill(&memory, 7);
    let peer = connect(&a, &address);
    knows(&a, peer, region);
    child.stop();
    for op in [Op::Write, Op::Read] {
        let requests = rounds(memory.address(), remote, region, BYTES, 1);
        let result = finish(&a.submit(peer, op, &requests, &options()).unwrap());
        assert_eq!((result.state, result.transport), (State::Done, Transport::Rdma), "{op:?}");
        assert_eq!(misplaced(&child.peek(remote, BYTES), 7, 0), None);
        memory.write(0, &vec![0; BYTES]);
    }
    child.resume();
    child.number("rounds");
}

/// A fence against a stopped peer doesn't need its answer: our queue pairs are destroyed when the fence returns.
#[test]
fn a_fence_against_a_stopped_initiator_returns_and_nothing_lands_behind_it() {
    let name = "lost::a_fence_against_a_stopped_initiator_returns_and_nothing_lands_behind_it";
    let Some(_guest) = enter(name) else { return };
    let b = engine(1, &[]);
    let target = alloc(&b, BYTES);
    let mut child = Child::flooding(&words(0, &[]), &b, &target, BYTES);
    wait_until("the flood flows", || child.number("rounds") > 0);
    let peer = b.peers().unwrap()[0];
    child.stop();
    let started = Instant::now();
    b.fence(peer, Some(BOUND)).unwrap();
    println!("fenced after {:?}", started.elapsed());
    assert!(started.elapsed() < LOST_WITHIN);
    target.write(0, &pattern(9, 0, BYTES));
    // Frames that the peer had posted would land now, stopped or not.
    is_quiet(|| read(&target, 0, BYTES), Duration::from_millis(500));
    child.resume();
    is_quiet(|| read(&target, 0, BYTES), Duration::from_millis(1000));
    assert_pattern(&target, 9, 0, BYTES);
    target.unregister(Some(Duration::ZERO)).unwrap();
}
