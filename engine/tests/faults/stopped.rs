//! A process that is stopped and continues later: data sent to it must not land once the sender was told that it
//! cannot.

use crate::child::Child;
use crate::support::*;
use ferry::types::{Op, Request, Transport};
use ferry::{limits, Deadline, Fence, PeerState, State, Status, TransferOptions};
use std::time::{Duration, Instant};

const BYTES: usize = 64 * MIB;

/// Submits far more than sockets hold, and stops the target once the first bytes are in place. The lease outlasts the
/// deadline here, so that draining takes a while.
const LEASE: Duration = Duration::from_millis(2500);

/// A notification names no memory: its caller waits for no lease.
#[test]
fn a_notification_to_a_stopped_process_ends_at_its_deadline() {
    let _turn = alone();
    for transports in ["tcp", "local,tcp"] {
        let settings = [("lease_ms", "4000"), ("transports", transports)];
        let (child, address) = Child::engine(&format!("lease_ms=4000 transports={transports}"));
        let a = engine(&settings);
        let peer = connect(&a, &address);
        a.notify(peer, b"before", Deadline::Default).unwrap();
        child.stop();
        for deadline in [Duration::from_millis(50), Duration::from_millis(500)] {
            let asked = Instant::now();
            let error = a.notify(peer, b"meanwhile", Deadline::After(deadline)).unwrap_err();
            assert_eq!(error.status, Status::Timeout, "{error}");
            let took = asked.elapsed();
            assert!(took >= deadline && took < deadline + SLACK, "{transports}: {took:?} for {deadline:?}");
        }
    }
}

fn stop_in_mid_transfer(settings: &[(&str, &str)], child_settings: &str) {
    let _turn = alone();
    let settings = &[&[("lease_ms", "2500"), ("progress_timeout_ms", "5000")], settings].concat()[..];
    let (mut child, address) =
        Child::engine(&format!("lease_ms=2500 progress_timeout_ms=5000 {child_settings}"));
    let (region, remote) = child.alloc(BYTES, 0);
    let a = engine(settings);
    let bystander = engine(settings);
    let memory = alloc(&a, BYTES);
    fill(&memory, 7);
    let peer = connect(&a, &address);

    open_lanes_to(&a, peer, (region, remote));
    let deadline = Duration::from_millis(1200);
    let requests = rounds(memory.address(), remote, region, BYTES, 1024);
    let submitted = Instant::now();
    let transfer = a
        .submit(
            peer,
            Op::Write,
            &requests,
            &TransferOptions { deadline: Deadline::After(deadline), ..options() },
        )
        .unwrap();
    wait_until("the first bytes land", || child.peek(remote, 8) != [0; 8]);
    child.stop();
    assert!(submitted.elapsed() < deadline, "this machine is too slow for the test's deadline");

    // The engine serves other peers meanwhile.
    let there = alloc(&bystander, MIB);
    let other = connect(&a, bystander.address());
    a.write(other, &[request(&memory, &there, 0, MIB)], &options()).unwrap();
    assert_pattern(&there, 7, 0, MIB);

    // The transfer is not final before the deadline, and the memory stays in use meanwhile.
    let busy = memory.unregister(Some(Duration::ZERO)).unwrap_err();
    assert_eq!(busy.status, Status::Busy);
    wait_until("the transfer drains", || transfer.state() != State::Pending);
    let struck = submitted.elapsed();
    assert!(struck >= deadline && struck < deadline + SLACK, "struck after {struck:?}");
    assert_eq!(transfer.state(), State::Draining);
    let result = finish(&transfer);
    let ended = submitted.elapsed();
    assert_eq!((result.state, result.status, result.fence), (State::TimedOut, Status::Timeout, Fence::Lease));
    assert!(ended < deadline + LEASE + SLACK, "final {ended:?} after submission");
    assert!(result.bytes_confirmed < BYTES as u64 * 1024);
    let confirmed: u64 = transfer.results().iter().map(|request| request.bytes_confirmed).sum();
    assert_eq!(confirmed, result.bytes_confirmed, "requests and total disagree");

    // Final: our memory is ours, and nothing of the transfer lands there when the target continues. Late bytes equal
    // those that have landed and would not show, so the test empties the destination first.
    child.empty(remote, BYTES);
    memory.write(0, &pattern(9, 0, BYTES));
    child.resume();
    // Two lanes, each with a socket full of expired frames or its end.
    wait_until("the target has dealt with its old lanes", || child.number("stat lanes_lost") >= 2);
    let landed = child.peek(remote, BYTES).iter().filter(|byte| **byte != 0).count();
    let late = child.number("stat late_applies");
    // At most the frame that each bulk lane was receiving when the process was stopped; the application is then told.
    let most = late.min(2) as usize * limits::FRAME_BYTES_MAX as usize;
    assert!(landed <= most, "{landed} bytes landed after the final state, and LATE_APPLY came {late} times");
    assert!(late <= 2, "{late} receives were late, of one in each of two lanes");

    // The resumed peer takes transfers again.
    let peer = connect(&a, &address);
    let again = Request { local: memory.address(), remote, length: MIB as u64, remote_region: region };
    a.write(peer, &[again], &options()).unwrap();
    assert_eq!(misplaced(&child.peek(remote, MIB), 9, 0), None);
    drop(transfer);
    memory.free(Some(Duration::ZERO)).map_err(|(_, error)| error).unwrap();
}

#[test]
fn stopped_target_ends_in_time_and_applies_nothing_late() {
    stop_in_mid_transfer(&[], "");
}

#[test]
fn stopped_target_of_the_same_user_ends_in_time_and_applies_nothing_late() {
    stop_in_mid_transfer(&[SAME_USER], "secret=");
}

#[test]
fn stopped_target_over_io_uring_ends_in_time_and_applies_nothing_late() {
    stop_in_mid_transfer(&[("tcp_poller", "io_uring")], "tcp_poller=io_uring");
}

#[test]
fn read_from_a_stopped_target_gives_the_memory_back() {
    let _turn = alone();
    let (mut child, address) = Child::engine("");
    let (region, remote) = child.alloc(BYTES, 5);
    let a = engine(&[]);
    let memory = alloc(&a, BYTES);
    let peer = connect(&a, &address);
    open_lanes_to(&a, peer, (region, remote));
    let transfer = a
        .submit(
            peer,
            Op::Read,
            &rounds(memory.address(), remote, region, BYTES, 64),
            &TransferOptions { deadline: Deadline::After(Duration::from_millis(500)), ..options() },
        )
        .unwrap();
    wait_until("the first bytes arrive", || read(&memory, 0, 8) != [0; 8]);
    child.stop();
    let result = finish(&transfer);
    assert_eq!(result.state, State::TimedOut);
    memory.write(0, &vec![0; BYTES]);
    child.resume();
    wait_until("the target has dealt with its old lanes", || child.number("stat lanes_lost") >= 2);
    assert_zero(&memory, 0, BYTES);
    let peer = connect(&a, &address);
    a.read(peer, &rounds(memory.address(), remote, region, BYTES, 1), &options()).unwrap();
    assert_pattern(&memory, 5, 0, BYTES);
}

/// The initiator sleeps past its lease: the frames in its sockets have expired, are refused unread, and are replayed
/// when it wakes.
#[test]
fn stopped_initiator_resumes_and_replays() {
    let _turn = alone();
    let b = engine(&[]);
    let target = alloc(&b, BYTES);
    let mut child = Child::flooding("", &b, &target, BYTES);
    for round in 0..3 {
        let before = child.number("rounds");
        wait_until("the flood flows", || child.number("rounds") > before);
        child.stop();
        // The clock has to pass the lease; no event reports that.
        let past = Instant::now() + Duration::from_millis(LEASE_MS + 100);
        wait_until("the lease is over", || Instant::now() > past);
        child.resume();
        let before = child.number("rounds");
        wait_until(&format!("it flows again after stop {round}"), || child.number("rounds") > before + 1);
    }
    assert_pattern(&target, 3, 0, BYTES);
}

/// An engine that closes waits until its peers have taken the end of their sessions, but not for a stopped peer.
#[test]
fn a_stopped_peer_delays_a_close_by_a_moment() {
    let _turn = alone();
    let (child, address) = Child::engine("");
    let a = engine(&[]);
    connect(&a, &address);
    child.stop();
    let began = Instant::now();
    a.close(Some(BOUND)).unwrap();
    let (took, most) = (began.elapsed(), Duration::from_nanos(limits::FAREWELL_NS) + SLACK);
    assert!(took < most, "the engine took {took:?} to close");
    child.resume();
}

/// An application that transfers nothing and connects again and again must not get, for ever, the session of a peer
/// that is not there any more.
#[test]
fn a_connect_to_a_silent_peer_asks_whether_it_is_there() {
    let _turn = alone();
    let (child, address) = Child::engine("");
    let a = engine(&[]);
    let peer = connect(&a, &address);
    child.stop();
    wait_until("the peer is not up", || {
        let _ = a.connect(&address, Some(Duration::ZERO));
        a.peer_info(peer).is_ok_and(|info| info.state != PeerState::Up)
    });
    child.resume();
    wait_until("the peer is there again", || a.connect(&address, Some(Duration::from_secs(1))).is_ok());
}

/// A transfer that finds no path posts nothing, so nothing else would show that the peer's host has crashed.
#[test]
fn a_silent_peer_to_which_no_path_is_left_is_lost_in_time() {
    let _turn = alone();
    let (mut child, address) = Child::engine("");
    let (region, remote) = child.alloc(4096, 0);
    let a = engine(&[]);
    let memory = alloc(&a, 4096);
    let peer = connect(&a, &address);
    let options = TransferOptions { transports_allowed: Transport::Rdma.bit(), ..options() };
    let request = [Request { local: memory.address(), remote, length: 4096, remote_region: region }];
    let submit = || a.submit(peer, Op::Write, &request, &options).map(drop).unwrap_err().status;
    assert_eq!(submit(), Status::Unavailable);
    child.stop();
    wait_until("the peer is lost", || submit() == Status::PeerLost);
    child.resume();
}
