//! A process that dies in mid-transfer, and a process that restarts in its place.

use crate::child::Child;
use crate::support::*;
use ferry::notify::WHAT_PEERS;
use ferry::types::Op;
use ferry::{Deadline, Fence, PeerState, State, Status, TransferOptions};
use std::time::{Duration, Instant};

const BYTES: usize = 64 * MIB;

fn kill_the_target(settings: &[(&str, &str)], child_settings: &str, fence: Fence) {
    let _turn = alone();
    let (mut child, address) = Child::engine(child_settings);
    let (region, remote) = child.alloc(BYTES, 0);
    let a = engine(settings);
    let queue = a.queue(WHAT_PEERS, 16).unwrap();
    let memory = alloc(&a, BYTES);
    fill(&memory, 7);
    let peer = connect(&a, &address);
    let requests = rounds(memory.address(), remote, region, BYTES, 64);
    let options = TransferOptions { deadline: Deadline::Never, ..options() };
    let transfer = a.submit(peer, Op::Write, &requests, &options).unwrap();
    wait_until("the first bytes land", || child.peek(remote, 8) != [0; 8]);
    child.kill();
    let result = finish(&transfer);
    assert_eq!((result.state, result.status, result.fence), (State::Failed, Status::PeerLost, fence));
    let results = transfer.results();
    let confirmed: u64 = results.iter().map(|request| request.bytes_confirmed).sum();
    assert_eq!(confirmed, result.bytes_confirmed);
    for request in &results {
        let whole = request.bytes_confirmed == BYTES as u64;
        assert_eq!(request.status, if whole { Status::Ok } else { Status::PeerLost });
    }
    assert_eq!(results.iter().filter(|r| r.status != Status::Ok).count() as u64, result.requests_failed);
    assert_eq!(wait_for_loss(&queue, peer), Status::PeerLost);
    // Later calls with the handle still report why.
    let refused = a.submit(peer, Op::Write, &requests, &options).map(|_| ()).unwrap_err();
    assert_eq!(refused.status, Status::PeerLost);
    assert_eq!(a.peer_info(peer).unwrap().state, PeerState::Lost);
    drop(transfer);
    memory.free(Some(Duration::ZERO)).map_err(|(_, error)| error).unwrap();
}

#[test]
fn killed_target_with_a_secret_is_lost_behind_its_lease() {
    kill_the_target(&[], "", Fence::Lease);
}

#[test]
fn killed_target_of_the_same_user_is_dead_at_once() {
    // A pidfd reports the death: the time to reconnect plays no part.
    let started = Instant::now();
    kill_the_target(&[SAME_USER, ("reconnect_timeout_ms", "60000")], "secret=", Fence::Dead);
    assert!(started.elapsed() < BOUND);
}

fn kill_the_initiator(settings: &[(&str, &str)], child_settings: &str) {
    let _turn = alone();
    let b = engine(settings);
    let queue = b.queue(WHAT_PEERS, 16).unwrap();
    let target = alloc(&b, BYTES);
    let mut child = Child::flooding(child_settings, &b, &target, BYTES);
    wait_until("the flood flows", || b.stats().unwrap().counts.bytes_applied > 2 * BYTES as u64);
    let peer = b.peers().unwrap()[0];
    child.kill();
    assert_eq!(wait_for_loss(&queue, peer), Status::PeerLost);
    // The memory is ours from here on: our writes stay.
    fill(&target, 8);
    target.unregister(Some(Duration::ZERO)).unwrap();
    assert_pattern(&target, 8, 0, BYTES);
}

#[test]
fn killed_initiator_with_a_secret_leaves_the_target_its_memory() {
    kill_the_initiator(&[], "");
}

#[test]
fn killed_initiator_of_the_same_user_leaves_the_target_its_memory() {
    kill_the_initiator(&[SAME_USER], "secret=");
}

/// The same port, another incarnation: old handles are refused, and connecting again works.
#[test]
fn restarted_target_is_another_peer() {
    let _turn = alone();
    for settings in ["", "secret="] {
        let extra: &[(&str, &str)] = if settings.is_empty() { &[] } else { &[SAME_USER] };
        let (mut child, address) = Child::engine(settings);
        let (old_region, old_remote) = child.alloc(MIB, 0);
        let a = engine(extra);
        let memory = alloc(&a, MIB);
        fill(&memory, 4);
        let old_peer = connect(&a, &address);
        let old = rounds(memory.address(), old_remote, old_region, MIB, 1);
        a.write(old_peer, &old, &options()).unwrap();
        child.kill();
        let (mut child, again) = Child::engine(&format!("{settings} listen_address={address}"));
        assert_eq!(again, address);
        let (region, remote) = child.alloc(MIB, 0);
        // At once, while the engine may still redial for the old session.
        let peer = connect(&a, &address);
        assert_ne!(peer, old_peer);
        let lost = a.submit(old_peer, Op::Write, &old, &options()).map(|_| ()).unwrap_err();
        assert!(matches!(lost.status, Status::PeerLost | Status::Stale), "{lost}");
        let stale = a.submit(peer, Op::Write, &old, &options()).map(|_| ()).unwrap_err();
        assert_eq!(stale.status, Status::Stale);
        // The old handle, at an address that is registered again now.
        let aimed = rounds(memory.address(), remote, old_region, MIB, 1);
        let stale = a.submit(peer, Op::Write, &aimed, &options()).map(|_| ()).unwrap_err();
        assert_eq!(stale.status, Status::Stale);
        assert!(child.peek(remote, MIB).iter().all(|byte| *byte == 0));
        a.write(peer, &rounds(memory.address(), remote, region, MIB, 1), &options()).unwrap();
        assert_eq!(misplaced(&child.peek(remote, MIB), 4, 0), None);
    }
}
