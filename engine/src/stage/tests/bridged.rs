//! Devices that reach devices of another host: their transfers, and the slots of runs whose end is unknown.

use super::forgotten::receive;
use super::*;
use crate::complete::Fence;
use crate::device::{Batch, Direction, Limits, Piece, Queue, Worker};
use crate::peer::TransportService;
use crate::region::RemoteRegion;
use crate::stage::wire::{Block, Blocks, Message};
use crate::types::{Boottime, BridgeId, Location, OperationId};
use crate::Error;
use std::sync::atomic::AtomicU32;

/// Two engines whose devices reach each other, and that do not know that they share a host.
fn crossing(settings: &[(&str, &str)]) -> Two {
    let two = Two::new(&[&[("transports", "tcp,cuda")], settings].concat());
    two.fake.crosses.store(true, Ordering::SeqCst);
    two.fake.attachments.store(0, Ordering::SeqCst);
    two.fake.exposures.store(0, Ordering::SeqCst);
    two
}

fn attachments(two: &Two) -> u64 {
    two.fake.attachments.load(Ordering::SeqCst)
}

/// (memory exposed, memory attached) at this moment.
fn kept(two: &Two) -> (i32, i32) {
    (two.fake.shown.load(Ordering::SeqCst), two.fake.attached.load(Ordering::SeqCst))
}

impl Two {
    /// One transfer between the devices, which builds a bridge.
    fn cross(&self, op: Op, local: &Place, remote: &Place) {
        local.write(0, &pattern(op as u64, MIB));
        remote.write(0, &pattern(op as u64 + 7, MIB));
        let requests = [request(local, remote, (0, 0), MIB)];
        assert_eq!(self.done(op, &requests).transport, Transport::Cuda);
        check(&requests, op, local, remote);
    }
}

#[test]
fn between_devices_of_two_hosts_no_host_memory_is_touched() {
    let two = crossing(&[]);
    let copied = || (two.fake.copies.load(Ordering::SeqCst), two.fake.crossings.load(Ordering::SeqCst));
    let before = copied();
    every_pair(&two, &[(Some(0), Some(1)), (Some(1), Some(0)), (Some(0), Some(0))], Transport::Cuda);
    let after = copied();
    assert!(after.0 > before.0 && after.0 - before.0 == after.1 - before.1, "{before:?} {after:?}");
    // One bridge for each pair of devices, until the end.
    assert_eq!((attachments(&two), kept(&two)), (3, (3, 3)));
    two.a.close(Some(BOUND)).unwrap();
    two.b.close(Some(BOUND)).unwrap();
    assert_eq!(kept(&two), (0, 0));
}

#[test]
fn a_struck_transfer_leaves_the_program_s_memory_alone() {
    struck::strike(&crossing(&[]), &[(Some(0), Some(1))]);
}

/// Data that moves between the slots when the transfer is struck touches no memory of the program's.
#[test]
fn a_struck_transfer_does_not_wait_for_what_is_on_its_way() {
    let two = crossing(&[("staging_slots", "2")]);
    let (local, remote) = (two.place(&two.a, Some(0), MIB), two.place(&two.b, Some(1), MIB));
    two.cross(Op::Write, &local, &remote);
    for op in [Op::Write, Op::Read] {
        two.fake.crossing_hangs.store(true, Ordering::SeqCst);
        // Twice as many as there are slots.
        for nth in 0..4 {
            let requests = [request(&local, &remote, (0, 0), 4096)];
            let transfer = two.a.submit(two.peer, op, &requests, &options()).unwrap();
            if nth < 2 {
                until("it is on its method", || two.fake.crossing.load(Ordering::SeqCst) > nth);
            }
            transfer.cancel().unwrap();
            let result = transfer.wait(Some(Duration::from_secs(5))).unwrap();
            assert_eq!((result.state, result.fence), (State::Cancelled, Fence::Confirmed));
        }
        two.fake.crossing_hangs.store(false, Ordering::SeqCst);
        two.cross(op, &local, &remote);
    }
    assert_eq!(attachments(&two), 1);
}

#[test]
fn a_bridge_outlasts_the_connection() {
    let two = crossing(&[]);
    struck::break_and_take_up(&two);
    assert_eq!(attachments(&two), 1);
}

/// A target that stops after it was asked: a copy there may still read the slot, so the slot is not used again.
#[test]
fn a_slot_without_a_reported_end_is_not_used_again() {
    for op in [Op::Write, Op::Read] {
        let two = crossing(&[("deadline_ms", "0")]);
        let (local, remote) = (two.place(&two.a, Some(0), MIB), two.place(&two.b, Some(1), MIB));
        two.cross(op, &local, &remote);
        // The target's thread blocks while it pins a slot for a transfer of another kind.
        let other = Engine::open(Config::default()).unwrap();
        let memory = other.alloc(4096, &RegionOptions::default()).unwrap();
        let peer = other.connect(two.b.address(), Some(BOUND)).unwrap();
        two.fake.lock_waits.store(true, Ordering::SeqCst);
        let (address, to) = (memory.address(), remote.address);
        let stuck = Request { local: address, remote: to, length: 64, remote_region: remote.region };
        until("the region is announced", || !other.peer_regions(peer).unwrap().is_empty());
        let stuck = other.submit(peer, Op::Write, &[stuck], &options()).unwrap();
        until("the target stands still", || two.fake.waiting.load(Ordering::SeqCst) > 0);
        let late = TransferOptions { deadline: Deadline::After(Duration::from_millis(100)), ..options() };
        let (result, _) = two.run(op, &[request(&local, &remote, (4096, 4096), 4096)], &late);
        assert_eq!((result.state, result.fence), (State::TimedOut, Fence::Lease));
        until("the bridge is given up", || kept(&two).1 == 0);
        two.fake.lock_waits.store(false, Ordering::SeqCst);
        stuck.wait(Some(BOUND)).unwrap();
        until("its memory is taken back", || kept(&two).0 == 0);
        two.cross(op, &local, &remote);
        assert_eq!(attachments(&two), 2);
    }
}

/// The target gives up a copy, or the whole bridge: the run begins again, over another bridge.
#[test]
fn what_the_target_forgot_goes_over_another_bridge() {
    for op in [Op::Write, Op::Read] {
        let two = crossing(&[("lease_ms", "600")]);
        let (local, remote) = (two.place(&two.a, Some(0), MIB), two.place(&two.b, Some(1), MIB));
        let initiator = two.b.peers().unwrap()[0];
        two.cross(op, &local, &remote);
        assert_eq!(attachments(&two), 1);
        receive(&two.b, initiator, Message::Conceal { bridge: BridgeId::from_raw(1) });
        until("it is taken back", || kept(&two).0 == 0);
        two.cross(op, &local, &remote);
        assert_eq!(attachments(&two), 2);
        until("the first one is over", || kept(&two) == (1, 1));
    }
}

/// Messages that come too late, and messages that no engine should send.
#[test]
fn messages_about_unknown_bridges_change_nothing() {
    let two = crossing(&[]);
    let (local, remote) = (two.place(&two.a, Some(0), MIB), two.place(&two.b, Some(1), MIB));
    let initiator = two.b.peers().unwrap()[0];
    let at = Location { kind: MemoryKind::Cuda, device: 1 };
    receive(
        &two.a,
        two.peer,
        Message::Exposed { bridge: BridgeId::from_raw(9), slots: 8, offer: vec![1; 8] },
    );
    receive(
        &two.a,
        two.peer,
        Message::Hidden { bridge: BridgeId::from_raw(9), status: Status::Unsupported, why: String::new() },
    );
    receive(&two.b, initiator, Message::Conceal { bridge: BridgeId::from_raw(9) });
    // A message with no slots, and a message with a device that has no region.
    for (at, slots) in [(at, 0), (Location { device: 0, ..at }, 1)] {
        receive(&two.b, initiator, Message::Expose { bridge: BridgeId::from_raw(77), at, slots });
    }
    two.cross(Op::Write, &local, &remote);
    receive(
        &two.a,
        two.peer,
        Message::Exposed { bridge: BridgeId::from_raw(1), slots: 8, offer: vec![1; 8] },
    );
    two.cross(Op::Read, &local, &remote);
    assert_eq!((attachments(&two), kept(&two)), (1, (1, 1)));
}

/// The number of a peer's bridges is limited.
#[test]
fn bridges_are_bounded() {
    let two = crossing(&[]);
    let _remote = two.place(&two.b, Some(1), MIB);
    let initiator = two.b.peers().unwrap()[0];
    let at = Location { kind: MemoryKind::Cuda, device: 1 };
    let most = crate::limits::BRIDGES_MAX as u64;
    let mut body = Vec::new();
    (101..=101 + most)
        .map(BridgeId::from_raw)
        .for_each(|bridge| Message::Expose { bridge, at, slots: 1 }.encode(&mut body));
    two.b.stage().message(initiator, &body);
    // The real initiator has not asked for them, and has them concealed.
    let exposures = || two.fake.exposures.load(Ordering::SeqCst);
    until("all that may be were shown", || exposures() >= most && kept(&two).0 == 0);
    assert_eq!(exposures(), most);
}

/// A limited number of pairs of devices is tried; transfers between other pairs are staged without a message.
#[test]
fn pairs_of_devices_are_bounded() {
    let two = crossing(&[]);
    let most = crate::limits::BRIDGES_MAX as i32;
    let (local, remote) = (two.place(&two.a, Some(0), 64), two.place(&two.b, Some(1), 64));
    let told = || {
        let paths = two.a.peer_paths(two.peer).unwrap();
        paths.into_iter().find(|path| path.transport == Transport::Cuda).unwrap().why
    };
    let bound = format!("{most} pairs of devices are in use");
    let announced = &two.a.whole().peers.get(two.peer).unwrap().remote;
    let known = announced.snapshot().get(remote.region).unwrap().clone();
    for device in 2..2 + most {
        // As if the peer had announced memory of a device that it does not have.
        let region = RegionId::from_raw(known.id.raw() ^ (device as u64) << 40);
        let address = known.address + ((device as u64) << 40);
        let location = Location { device, ..known.location };
        announced.add(vec![RemoteRegion { id: region, address, location, ..known.clone() }]);
        let nowhere = Place { address, region, host: None, fake: two.fake.clone() };
        let (result, _) = two.run(Op::Write, &[request(&local, &nowhere, (0, 0), 64)], &options());
        assert_eq!(result.status, Status::Stale);
        assert!(!told().contains(&bound), "{}", told());
    }
    let done = two.done(Op::Write, &[request(&local, &remote, (0, 0), 64)]);
    assert!(done.transport == Transport::Tcp && told().contains(&bound), "{done:?} {}", told());
    assert_eq!(attachments(&two), 0);
}

/// On a new connection the initiator names the bridges that it still has.
#[test]
fn what_does_not_live_is_taken_back() {
    let two = crossing(&[]);
    let (local, remote) = (two.place(&two.a, Some(0), MIB), two.place(&two.b, Some(1), MIB));
    let initiator = two.b.peers().unwrap()[0];
    two.cross(Op::Write, &local, &remote);
    receive(
        &two.b,
        initiator,
        Message::Live { ops: Vec::new(), bridges: [1, 7].map(BridgeId::from_raw).into() },
    );
    two.cross(Op::Read, &local, &remote);
    assert_eq!((attachments(&two), kept(&two)), (1, (1, 1)));
    receive(&two.b, initiator, Message::Live { ops: Vec::new(), bridges: vec![BridgeId::from_raw(7)] });
    until("it is taken back", || kept(&two).0 == 0);
}

/// A second run in a slot that is in use does not begin: the target does not trust the peer's choice of slots.
#[test]
fn a_taken_slot_is_not_given_again() {
    let two = crossing(&[]);
    let (local, remote) = (two.place(&two.a, Some(0), MIB), two.place(&two.b, Some(1), MIB));
    let initiator = two.b.peers().unwrap()[0];
    two.cross(Op::Write, &local, &remote);
    let begun = || two.fake.begun.load(Ordering::SeqCst);
    let before = begun();
    let block = Block { region: remote.region, address: remote.address, length: 64 };
    let bridge_slot = Some(crate::stage::wire::BridgeSlotId { bridge: BridgeId::from_raw(1), slot: 3 });
    let mut body = Vec::new();
    for op in (1001..1100).map(OperationId::from_raw) {
        let blocks = Blocks { not_after_ns: Boottime::NEVER, bridge_slot, durable: false, list: vec![block] };
        Message::Commit { op, blocks }.encode(&mut body);
    }
    two.b.stage().message(initiator, &body);
    two.cross(Op::Read, &local, &remote);
    // One copy for the commits, and three for the READ: a copy there, a copy across and a copy here.
    assert_eq!(begun() - before, 4);
}

/// A put that fails makes the other puts under way fail too, hung ones included, and all runs go through the hosts.
#[test]
fn what_fails_fails_all_that_is_on_its_way() {
    let two = crossing(&[("device_timeout_ms", "300")]);
    let (local, remote) = (two.place(&two.a, Some(0), 8 * MIB), two.place(&two.b, Some(1), 8 * MIB));
    two.cross(Op::Write, &local, &remote);
    two.fake.crossing_hangs.store(true, Ordering::SeqCst);
    local.write(0, &pattern(5, 8 * MIB));
    let requests = [request(&local, &remote, (0, 0), 8 * MIB)];
    assert_eq!(two.done(Op::Write, &requests).transport, Transport::Tcp);
    check(&requests, Op::Write, &local, &remote);
    two.fake.crossing_hangs.store(false, Ordering::SeqCst);
    // Not tried again: memory was kept for late writes.
    assert_eq!(two.done(Op::Write, &requests).transport, Transport::Tcp);
    until("the memory here is released", || kept(&two) == (1, 0));
    assert_eq!(attachments(&two), 1);
}

/// Closing waits neither for hung operations nor for attaching.
#[test]
fn closing_waits_for_no_bridge() {
    for attaching in [false, true] {
        let two = crossing(&[]);
        let (local, remote) = (two.place(&two.a, Some(0), MIB), two.place(&two.b, Some(1), MIB));
        let (hangs, count) = if attaching {
            (&two.fake.attach_waits, &two.fake.waiting_to_attach)
        } else {
            (&two.fake.crossing_hangs, &two.fake.crossing)
        };
        if !attaching {
            two.cross(Op::Write, &local, &remote);
        }
        hangs.store(true, Ordering::SeqCst);
        let requests = [request(&local, &remote, (0, 0), 4096)];
        let transfer = two.a.submit(two.peer, Op::Write, &requests, &options()).unwrap();
        until("it hangs", || count.load(Ordering::SeqCst) > 0);
        transfer.cancel().unwrap();
        assert_eq!(transfer.wait(Some(BOUND)).unwrap().state, State::Cancelled);
        let started = Instant::now();
        two.a.close(Some(BOUND)).unwrap();
        assert!(started.elapsed() < Duration::from_secs(5), "the device's timeout is 10 s");
        hangs.store(false, Ordering::SeqCst);
        let waiting = || two.fake.waiting_to_attach.load(Ordering::SeqCst);
        until("nothing is left", || waiting() == 0 && kept(&two).1 == 0);
    }
}

/// A fenced peer: the memory that it was shown is taken back.
#[test]
fn a_lost_peer_s_bridges_are_taken_back() {
    let two = crossing(&[]);
    let (local, remote) = (two.place(&two.a, Some(0), MIB), two.place(&two.b, Some(1), MIB));
    two.cross(Op::Write, &local, &remote);
    let initiator = two.b.peers().unwrap()[0];
    two.b.fence(initiator, Some(BOUND)).unwrap();
    until("nothing of it is left", || kept(&two) == (0, 0));
}

/// Memory that other devices are still attached to, by the number of tries.
struct Left(Arc<AtomicU32>);

impl Queue for Left {
    fn copy(&mut self, _direction: Direction, _pieces: &[Piece]) -> Result<Batch, Error> {
        unreachable!("nothing is copied")
    }

    fn poll_done(&mut self, _batch: Batch) -> Result<bool, Error> {
        Ok(true)
    }

    fn abort(&mut self) -> bool {
        true
    }

    fn tidy(&mut self) -> bool {
        let before = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        before.is_ok_and(|left| left > 1)
    }
}

#[test]
fn what_can_t_be_freed_yet_is_tried_again_without_being_asked() {
    let left = Arc::new(AtomicU32::new(3));
    let (queue, at) = (left.clone(), Location { kind: MemoryKind::Cuda, device: 0 });
    let limits = Limits { batch_bytes: MIB, depth: 1, timeout: BOUND };
    let open = move || Some(Box::new(Left(queue)) as Box<dyn Queue>);
    let worker = Worker::start_with(at, limits, open, || ()).unwrap();
    until("all is freed", || left.load(Ordering::SeqCst) == 0);
    worker.stop();
}
