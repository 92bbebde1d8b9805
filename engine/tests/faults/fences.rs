//! The target's own fence: when nothing of that peer can land here any more.

use crate::child::Child;
use crate::support::*;
use ferry::types::Op;
use ferry::{Deadline, State, Status, TransferOptions};
use std::time::Duration;

const BYTES: usize = 16 * MIB;

#[test]
fn peer_fence_under_a_flood_stops_it_for_good_until_lifted() {
    let _turn = alone();
    for settings in [&[][..], &[SAME_USER]] {
        let (a, b, peer) = pair(settings);
        let (local, remote) = (alloc(&a, BYTES), alloc(&b, BYTES));
        fill(&local, 5);
        let requests = rounds(local.address(), remote.address(), remote.region(), BYTES, 256);
        let options = TransferOptions { deadline: Deadline::Never, ..options() };
        let transfer = a.submit(peer, Op::Write, &requests, &options).unwrap();
        wait_until("the flood flows", || b.stats().unwrap().counts.bytes_applied > BYTES as u64);
        let intruder = b.peers().unwrap()[0];
        b.fence(intruder, Some(BOUND)).unwrap();
        fill(&remote, 9);
        let result = finish(&transfer);
        assert_eq!(result.state, State::Failed);
        assert!(matches!(result.status, Status::Refused | Status::PeerLost), "{result:?}");
        let refused = a.connect(b.address(), Some(BOUND)).unwrap_err();
        assert_eq!(refused.status, Status::Refused, "{refused}");
        assert_pattern(&remote, 9, 0, BYTES);
        // A connect by the side that fenced lifts the fence, for both.
        let back = connect(&b, a.address());
        b.write(back, &[request(&remote, &local, 0, MIB)], &options).unwrap();
        assert_pattern(&local, 9, 0, MIB);
        let again = connect(&a, b.address());
        local.write(0, &pattern(6, 0, MIB));
        a.write(again, &[request(&local, &remote, 0, MIB)], &options).unwrap();
        assert_pattern(&remote, 6, 0, MIB);
    }
}

/// Each side's own `connect` lifts its own fence, in either order, also if the other side still refuses.
#[test]
fn engines_that_fenced_each_other_meet_again() {
    let _turn = alone();
    let (a, b, peer) = pair(&[]);
    let back = b.peers().unwrap()[0];
    a.fence(peer, Some(BOUND)).unwrap();
    b.fence(back, Some(BOUND)).unwrap();
    let refused = a.connect(b.address(), Some(BOUND)).unwrap_err();
    assert_eq!(refused.status, Status::Refused, "{refused}");
    let back = connect(&b, a.address());
    let peer = connect(&a, b.address());
    let (local, remote) = (alloc(&a, MIB), alloc(&b, MIB));
    fill(&local, 5);
    a.write(peer, &[request(&local, &remote, 0, MIB)], &options()).unwrap();
    assert_pattern(&remote, 5, 0, MIB);
    b.read(back, &[request(&remote, &local, 0, MIB)], &options()).unwrap();
}

/// Fences a peer that is stopped: the fence needs no answer, and frames that the peer still sends are refused.
#[test]
fn peer_fence_of_a_stopped_initiator_returns_and_holds() {
    let _turn = alone();
    let b = engine(&[]);
    let target = alloc(&b, BYTES);
    let mut child = Child::flooding("", &b, &target, BYTES);
    wait_until("the flood flows", || b.stats().unwrap().counts.bytes_applied > BYTES as u64);
    child.stop();
    let peer = b.peers().unwrap()[0];
    b.fence(peer, Some(Duration::from_secs(2))).unwrap();
    fill(&target, 9);
    child.resume();
    assert!(child.ask("event").starts_with("PEER_UP"));
    assert!(child.ask("event").starts_with("PEER_LOST"));
    assert!(child.ask(&format!("connect {}", b.address())).starts_with("REFUSED"));
    assert_pattern(&target, 9, 0, BYTES);
}

/// Closes an engine with transfers in flight: the transfers end, their waiters return, the other side learns of the
/// end.
#[test]
fn closing_with_transfers_in_flight_ends_them_all() {
    let _turn = alone();
    let (a, b, peer) = pair(&[]);
    let (local, remote) = (alloc(&a, BYTES), alloc(&b, BYTES));
    let requests = rounds(local.address(), remote.address(), remote.region(), BYTES, 64);
    let options = TransferOptions { deadline: Deadline::Never, ..options() };
    let writes: Vec<_> = (0..4).map(|_| a.submit(peer, Op::Write, &requests, &options).unwrap()).collect();
    let back = b.peers().unwrap()[0];
    let requests = rounds(remote.address(), local.address(), local.region(), BYTES, 64);
    let theirs = b.submit(back, Op::Write, &requests, &options).unwrap();
    wait_until("all is in motion", || b.stats().unwrap().counts.bytes_applied > BYTES as u64);
    std::thread::scope(|scope| {
        let waiters: Vec<_> = writes.iter().map(|transfer| scope.spawn(move || finish(transfer))).collect();
        a.close(Some(BOUND)).unwrap();
        for waiter in waiters {
            let result = waiter.join().unwrap();
            assert!(matches!(result.status, Status::Closed | Status::Ok), "{result:?}");
        }
    });
    let result = finish(&theirs);
    assert_eq!((result.state, result.status), (State::Failed, Status::PeerLost));
    assert_eq!(
        a.submit(peer, Op::Write, &requests, &options).map(|_| ()).unwrap_err().status,
        Status::Closed
    );
    a.close(None).unwrap();
    drop(writes);
    local.free(Some(Duration::ZERO)).map_err(|(_, error)| error).unwrap();
}

/// The other end is stopped and does not answer: close still ends, when the lease is over.
#[test]
fn closing_while_the_peer_is_stopped_ends_behind_the_lease() {
    let _turn = alone();
    let (mut child, address) = Child::engine("");
    let (region, remote) = child.alloc(BYTES, 0);
    let a = engine(&[]);
    let local = alloc(&a, BYTES);
    fill(&local, 5);
    let peer = connect(&a, &address);
    let requests = rounds(local.address(), remote, region, BYTES, 64);
    let options = TransferOptions { deadline: Deadline::Never, ..options() };
    let transfer = a.submit(peer, Op::Write, &requests, &options).unwrap();
    wait_until("bytes land", || child.peek(remote, 8) != [0; 8]);
    child.stop();
    let started = std::time::Instant::now();
    a.close(Some(BOUND)).unwrap();
    assert!(started.elapsed() < Duration::from_millis(LEASE_MS + 50) + SLACK, "{:?}", started.elapsed());
    assert_eq!(finish(&transfer).status, Status::Closed);
}
