//! Transfers whose devices fail or hang, transfers that are struck, and transfers whose peer or connection is lost.

use super::*;
use crate::command::Command;
use crate::peer::PeerState;
use crate::types::PeerId;
use crate::Transfer;

#[test]
fn a_copy_that_fails_says_so_and_spoils_nothing_else() {
    let two = Two::new(&[("transports", "tcp")]);
    for (here, there) in [(Some(0), None), (None, Some(1))] {
        let (local, remote) = (two.place(&two.a, here, MIB), two.place(&two.b, there, MIB));
        for op in [Op::Write, Op::Read] {
            two.fake.fail_in.store(0, Ordering::SeqCst);
            let requests = scattered(&local, &remote, 4, 1000);
            let transfer = two.a.submit(two.peer, op, &requests, &options()).unwrap();
            let result = transfer.wait(Some(BOUND)).unwrap();
            assert_eq!(
                (result.state, result.status, result.bytes_confirmed),
                (State::Failed, Status::System, 0)
            );
            let results = transfer.results();
            assert!(results.iter().all(|it| (it.status, it.vendor_error) == (Status::System, fake::CODE)));
            two.done(op, &requests);
            check(&requests, op, &local, &remote);
        }
    }
}

/// The parts of a transfer that was accepted have room in a table that is full.
#[test]
fn a_full_table_of_transfers_has_room_for_parts() {
    let two = Two::new(&[("transports", "tcp"), ("transfers_max", "1")]);
    let (local, remote) = (two.place(&two.a, Some(0), 9 * MIB), two.place(&two.b, Some(1), 9 * MIB));
    let requests = scattered(&local, &remote, 4, 2 * MIB);
    for op in [Op::Write, Op::Read] {
        two.done(op, &requests);
        check(&requests, op, &local, &remote);
    }
}

/// Deadline and cancel while devices copy: once the transfer is final nothing of it happens any more.
#[test]
fn a_struck_transfer_is_final_when_the_devices_are_through_with_it() {
    let two = Two::new(&[("transports", "tcp")]);
    strike(&two, &[(Some(0), None), (None, Some(1)), (Some(0), Some(1))]);
}

pub fn strike(two: &Two, pairs: &[(Option<i32>, Option<i32>)]) {
    two.fake.delay_us.store(3000, Ordering::SeqCst);
    let bytes = 64 * MIB;
    for (here, there) in pairs.iter().copied() {
        let (local, remote) = (two.place(&two.a, here, bytes), two.place(&two.b, there, bytes));
        for op in [Op::Write, Op::Read] {
            for cancel in [false, true] {
                let deadline =
                    if cancel { Deadline::Never } else { Deadline::After(Duration::from_millis(20)) };
                let options = TransferOptions { deadline, ..options() };
                let requests = [request(&local, &remote, (0, 0), bytes)];
                let transfer = two.a.submit(two.peer, op, &requests, &options).unwrap();
                std::thread::sleep(Duration::from_millis(15));
                if cancel {
                    transfer.cancel().unwrap();
                }
                let result = transfer.wait(Some(BOUND)).unwrap();
                let expected = if cancel { State::Cancelled } else { State::TimedOut };
                assert_eq!(result.state, expected);
                let copies = two.fake.copies.load(Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(30));
                assert_eq!(two.fake.copies.load(Ordering::SeqCst), copies, "a copy after the final state");
            }
        }
    }
}

/// The connection is lost while the whole transfer is under way; the initiator asks again.
#[test]
fn a_broken_session_is_taken_up_again() {
    break_and_take_up(&Two::new(&[("transports", "tcp")]));
}

pub fn break_and_take_up(two: &Two) {
    two.fake.delay_us.store(2000, Ordering::SeqCst);
    let bytes = 48 * MIB;
    let (local, remote) = (two.place(&two.a, Some(0), bytes), two.place(&two.b, Some(1), bytes));
    for op in [Op::Write, Op::Read] {
        local.write(0, &pattern(op as u64, bytes));
        remote.write(0, &pattern(op as u64 + 9, bytes));
        let requests = [request(&local, &remote, (0, 0), bytes)];
        let transfer = two.a.submit(two.peer, op, &requests, &options()).unwrap();
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(8));
            let broken = Command::PathBroken { peer: two.peer, transport: Transport::Local };
            two.a.whole().commands.push(broken);
        }
        let result = transfer.wait(Some(BOUND)).unwrap();
        assert_eq!(result.state, State::Done, "{result:?}");
        check(&requests, op, &local, &remote);
    }
}

/// A device that hangs fails the transfers that need it, and no others wait for it.
#[test]
fn a_device_that_hangs_is_given_up() {
    let two = Two::new(&[("transports", "tcp"), ("device_timeout_ms", "100")]);
    let (local, remote) = (two.place(&two.a, Some(0), MIB), two.place(&two.b, None, MIB));
    two.fake.hangs.store(true, Ordering::SeqCst);
    let requests = [request(&local, &remote, (0, 0), 4096)];
    for _ in 0..2 {
        let (result, _) = two.run(Op::Write, &requests, &options());
        assert_eq!((result.state, result.status), (State::Failed, Status::Unavailable));
    }
    two.fake.hangs.store(false, Ordering::SeqCst);
    let (here, there) = (two.place(&two.a, None, MIB), two.place(&two.b, None, MIB));
    two.done(Op::Write, &[request(&here, &there, (0, 0), MIB)]);
}

/// A copy that cannot be stopped keeps its memory: the transfer drains until the copy is over.
#[test]
fn a_hang_that_cannot_be_stopped_keeps_the_transfer() {
    let two = Two::new(&[("transports", "tcp"), ("device_timeout_ms", "50")]);
    let (local, remote) = (two.place(&two.a, Some(0), MIB), two.place(&two.b, None, MIB));
    two.fake.aborts.store(false, Ordering::SeqCst);
    two.fake.hangs.store(true, Ordering::SeqCst);
    let options = TransferOptions { deadline: Deadline::After(Duration::from_millis(100)), ..options() };
    let transfer =
        two.a.submit(two.peer, Op::Write, &[request(&local, &remote, (0, 0), 4096)], &options).unwrap();
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(transfer.state(), State::Draining);
    two.fake.hangs.store(false, Ordering::SeqCst);
    assert_eq!(transfer.wait(Some(BOUND)).unwrap().state, State::TimedOut);
}

/// A fenced peer frees its slots for others, and none of its copies begins any more.
#[test]
fn slots_of_a_lost_peer_come_back() {
    let two = Two::new(&[("transports", "tcp"), ("staging_slots", "2")]);
    let remote = two.place(&two.b, Some(0), 64 * MIB);
    two.fake.delay_us.store(5000, Ordering::SeqCst);
    for round in 0..3 {
        let mut config = Config::default();
        config.set("transports", "tcp").unwrap();
        let other = Engine::open(config).unwrap();
        let peer = other.connect(two.b.address(), Some(BOUND)).unwrap();
        let memory = other.alloc(64 * MIB, &RegionOptions::default()).unwrap();
        let wanted = Request {
            local: memory.address(),
            remote: remote.address,
            length: 64 << 20,
            remote_region: remote.region,
        };
        let transfer = other.submit(peer, Op::Write, &[wanted], &options()).unwrap();
        let known = |handle: &PeerId| two.b.peer_info(*handle).is_ok_and(|it| it.address == other.address());
        let initiator = two.b.peers().unwrap().into_iter().find(known).unwrap();
        std::thread::sleep(Duration::from_millis(10 + round * 7));
        two.b.fence(initiator, Some(BOUND)).unwrap();
        let copies = two.fake.copies.load(Ordering::SeqCst);
        let started = Instant::now();
        let result = transfer.wait(Some(BOUND)).unwrap();
        assert_eq!((result.state, result.status), (State::Failed, Status::PeerLost));
        assert!(started.elapsed() < Duration::from_secs(5));
        assert_eq!(two.fake.copies.load(Ordering::SeqCst), copies, "a copy of a peer that is fenced off");
    }
    two.fake.delay_us.store(0, Ordering::SeqCst);
    let local = two.place(&two.a, None, 64 * MIB);
    local.write(0, &pattern(3, 64 * MIB));
    let requests = [request(&local, &remote, (0, 0), 64 * MIB)];
    two.done(Op::Write, &requests);
    check(&requests, Op::Write, &local, &remote);
}

/// A peer closes its session while a device here copies for it, and connects again: a fence by the new session's handle
/// waits for the copy, which is the same engine's.
#[test]
fn a_fence_waits_for_copies_of_an_earlier_session() {
    let settings =
        [("transports", "tcp"), ("lease_ms", "100"), ("drain_ms", "20"), ("device_timeout_ms", "50")];
    let two = Two::new(&settings);
    let (local, remote) = (two.place(&two.a, None, MIB), two.place(&two.b, Some(0), MIB));
    let before = two.fake.hung.load(Ordering::SeqCst);
    two.fake.aborts.store(false, Ordering::SeqCst);
    two.fake.hangs.store(true, Ordering::SeqCst);
    let requests = [request(&local, &remote, (0, 0), 4096)];
    two.a.submit(two.peer, Op::Write, &requests, &options()).unwrap();
    until("the device hangs", || two.fake.hung.load(Ordering::SeqCst) > before);
    two.a.close_peer(two.peer, Some(BOUND)).unwrap();
    two.a.connect(two.b.address(), Some(BOUND)).unwrap();
    let is_up = |peer: &PeerId| {
        two.b.peer_info(*peer).is_ok_and(|it| it.address == two.a.address() && it.state == PeerState::Up)
    };
    let find = || two.b.peers().unwrap().into_iter().find(is_up);
    until("the peer is there again", || find().is_some());
    let again = find().unwrap();
    let error = two.b.fence(again, Some(Duration::from_millis(300))).unwrap_err();
    assert_eq!(error.status, Status::Timeout, "{error}");
    two.fake.hangs.store(false, Ordering::SeqCst);
    two.b.fence(again, Some(BOUND)).unwrap();
}

/// A target that stands still after it was asked: the initiator is final when its lease is over, and nothing of
/// it is copied when the target goes on.
#[test]
fn a_silent_target_copies_nothing_after_its_lease() {
    let two = Two::new(&[("transports", "tcp"), ("deadline_ms", "0")]);
    let (local, remote) = (two.place(&two.a, None, MIB), two.place(&two.b, Some(0), MIB));
    let late = TransferOptions { deadline: Deadline::After(Duration::from_millis(100)), ..options() };
    two.fake.lock_waits.store(true, Ordering::SeqCst);
    let started = Instant::now();
    let (result, _) = two.run(Op::Write, &[request(&local, &remote, (0, 0), 4096)], &late);
    assert_eq!((result.state, result.fence), (State::TimedOut, crate::complete::Fence::Lease));
    assert!(started.elapsed() < Duration::from_millis(2500), "the lease is 1500 ms");
    let copies = two.fake.copies.load(Ordering::SeqCst);
    two.fake.lock_waits.store(false, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(two.fake.copies.load(Ordering::SeqCst), copies, "a copy after the final state");
    assert!(remote.read(0, MIB).iter().all(|byte| *byte == 0xee));
}

/// A device that still copies when the lease is over keeps the transfer: the target says that it is busy.
#[test]
fn a_busy_target_is_waited_for_beyond_the_lease() {
    let two = Two::new(&[("transports", "tcp"), ("lease_ms", "300"), ("drain_ms", "50")]);
    let (local, remote) = (two.place(&two.a, None, MIB), two.place(&two.b, Some(0), MIB));
    two.fake.delay_us.store(1_500_000, Ordering::SeqCst);
    let late = TransferOptions { deadline: Deadline::After(Duration::from_millis(100)), ..options() };
    let started = Instant::now();
    let (result, _) = two.run(Op::Write, &[request(&local, &remote, (0, 0), 4096)], &late);
    assert!(started.elapsed() >= Duration::from_millis(1500), "{result:?} while the device copies");
    assert_eq!(result.fence, crate::complete::Fence::Confirmed);
}

/// Strikes a WRITE whose target copies on a device that hangs, and returns it when the target has said so.
fn struck_while_the_device_hangs(two: &Two, request: Request) -> Transfer {
    let before = two.fake.hung.load(Ordering::SeqCst);
    two.fake.aborts.store(false, Ordering::SeqCst);
    two.fake.hangs.store(true, Ordering::SeqCst);
    let transfer = two.a.submit(two.peer, Op::Write, &[request], &options()).unwrap();
    until("the device hangs", || two.fake.hung.load(Ordering::SeqCst) > before);
    transfer.cancel().unwrap();
    std::thread::sleep(Duration::from_millis(500)); // no event tells that BUSY has been received
    transfer
}

const SILENT: [(&str, &str); 3] = [("transports", "tcp"), ("lease_ms", "3000"), ("drain_ms", "50")];

/// A target that says that it copies, and then stands still, is waited for as long as the copy may last.
#[test]
fn a_target_that_falls_silent_while_its_device_copies_is_waited_for() {
    let two = Two::new(&SILENT);
    let (local, remote) = (two.place(&two.a, None, MIB), two.place(&two.b, Some(0), MIB));
    let requests = [0, 4096].map(|at| request(&local, &remote, (at, at), 4096));
    let transfer = struck_while_the_device_hangs(&two, requests[0]);
    two.fake.lock_waits.store(true, Ordering::SeqCst);
    let other = two.a.submit(two.peer, Op::Write, &requests[1..], &options()).unwrap();
    until("the target stands still", || two.fake.waiting.load(Ordering::SeqCst) > 0);
    assert_eq!(transfer.wait(Some(Duration::from_millis(4000))).unwrap_err().status, Status::Timeout);
    two.fake.lock_waits.store(false, Ordering::SeqCst);
    two.fake.hangs.store(false, Ordering::SeqCst);
    assert_eq!(transfer.wait(Some(BOUND)).unwrap().fence, crate::complete::Fence::Confirmed);
    assert_eq!(other.wait(Some(BOUND)).unwrap().state, State::Done);
}

/// A peer that is lost cannot answer: its devices have a lease from then on, and not their whole timeout.
#[test]
fn a_lost_peer_is_waited_for_no_longer_than_a_lease() {
    let two = Two::new(&SILENT);
    let (local, remote) = (two.place(&two.a, None, MIB), two.place(&two.b, Some(0), MIB));
    let transfer = struck_while_the_device_hangs(&two, request(&local, &remote, (0, 0), 4096));
    let _ = two.a.close_peer(two.peer, Some(Duration::ZERO));
    let result = transfer.wait(Some(Duration::from_millis(8000))).expect("the device's timeout is 10 s");
    assert_eq!(result.fence, crate::complete::Fence::Lease);
    two.fake.hangs.store(false, Ordering::SeqCst);
}

/// A device of the target hangs for good. A struck transfer waits until the device counts as broken, and no longer,
/// however often the target reports BUSY. The memory stays in use as long as the device may still access it.
#[test]
fn a_target_whose_device_hangs_for_good_holds_a_struck_transfer_for_its_timeout() {
    const LEASE: Duration = Duration::from_millis(300);
    const TIMEOUT: Duration = Duration::from_millis(700);
    let settings =
        [("transports", "tcp"), ("lease_ms", "300"), ("drain_ms", "50"), ("device_timeout_ms", "700")];
    for op in [Op::Write, Op::Read] {
        let two = Two::new(&settings);
        let (local, remote) = (two.place(&two.a, None, MIB), two.place(&two.b, Some(0), MIB));
        let before = two.fake.copies.load(Ordering::SeqCst);
        two.fake.aborts.store(false, Ordering::SeqCst);
        two.fake.hangs.store(true, Ordering::SeqCst);
        let late = TransferOptions { deadline: Deadline::After(Duration::from_millis(100)), ..options() };
        let started = Instant::now();
        let (result, _) = two.run(op, &[request(&local, &remote, (0, 0), 4096)], &late);
        assert_eq!((result.state, result.fence), (State::TimedOut, crate::complete::Fence::Lease), "{op:?}");
        assert!(started.elapsed() >= LEASE + TIMEOUT, "{op:?}: a slow device is waited for");
        let busy = two.b.unregister(remote.region, Some(Duration::ZERO)).unwrap_err();
        assert_eq!(busy.status, Status::Busy, "{op:?}");
        two.fake.hangs.store(false, Ordering::SeqCst);
        two.b.unregister(remote.region, Some(BOUND)).unwrap();
        assert_eq!(
            two.fake.copies.load(Ordering::SeqCst) - before,
            1,
            "{op:?}: it was the device's to the end"
        );
    }
}

/// A copy that waits for its turn on a device past the lease begins again with more time, and is correct.
#[test]
fn copies_that_queue_beyond_the_lease_are_done_all_the_same() {
    let two = Two::new(&[("transports", "tcp"), ("lease_ms", "300"), ("drain_ms", "50")]);
    two.fake.delay_us.store(150_000, Ordering::SeqCst);
    let bytes = 16 * MIB;
    let (local, remote) = (two.place(&two.a, None, bytes), two.place(&two.b, Some(0), bytes));
    for op in [Op::Write, Op::Read] {
        local.write(0, &pattern(op as u64, bytes));
        remote.write(0, &pattern(op as u64 + 5, bytes));
        let requests = [request(&local, &remote, (0, 0), bytes)];
        two.done(op, &requests);
        check(&requests, op, &local, &remote);
    }
}
