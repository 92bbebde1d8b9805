//! Late promises: a target that forgot a request, answers and copies that come too late, and a failed device that
//! still has work waiting.

use super::*;
use crate::complete::Fence;
use crate::device::{Direction, Job, Limits, Piece, Worker};
use crate::notify::{EventBody, Queue, WHAT_PEERS};
use crate::peer::TransportService;
use crate::stage::wire::Message;
use crate::sys::clock;
use crate::sys::health::Health;
use crate::types::{Boottime, Location, OperationId, PeerId};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::channel;

/// Handles a message as if the peer had sent it.
pub fn receive(engine: &Engine, peer: PeerId, message: Message) {
    let mut body = Vec::new();
    message.encode(&mut body);
    engine.stage().message(peer, &body);
}

/// The target forgets a WRITE in the middle of its copy, and answers UNKNOWN when it is asked again. A second copy
/// does the WRITE; an answer to the first number has no effect.
#[test]
fn what_the_target_forgot_begins_again_with_a_new_number() {
    let two = Two::new(&[("transports", "tcp"), ("lease_ms", "600")]);
    let (local, remote) = (two.place(&two.a, None, MIB), two.place(&two.b, Some(0), MIB));
    let initiator = two.b.peers().unwrap()[0];
    local.write(0, &pattern(4, MIB));
    two.fake.delay_us.store(200_000, Ordering::SeqCst);
    let count = |what: &AtomicU64| what.load(Ordering::SeqCst);
    let before = (count(&two.fake.begun), count(&two.fake.copies));
    let (begun, ended) = (|| count(&two.fake.begun) - before.0, || count(&two.fake.copies) - before.1);
    let requests = [request(&local, &remote, (0, 0), 4096)];
    let transfer = two.a.submit(two.peer, Op::Write, &requests, &options()).unwrap();
    until("the first copy has begun", || begun() == 1);
    // The first operation of an engine has the number 1.
    receive(&two.b, initiator, Message::Release { op: OperationId::from_raw(1) });
    until("the first copy has ended", || ended() == 1);
    two.fake.hangs.store(true, Ordering::SeqCst);
    until("the second copy has begun", || begun() == 2);
    receive(&two.a, two.peer, Message::Done { op: OperationId::from_raw(1), faults: Vec::new() });
    let early = transfer.wait(Some(Duration::from_millis(300)));
    assert!(early.is_err(), "the first number's answer ended it");
    two.fake.hangs.store(false, Ordering::SeqCst);
    let result = transfer.wait(Some(BOUND)).unwrap();
    assert_eq!((result.state, result.bytes_confirmed), (State::Done, 4096));
    assert_eq!((begun(), ended()), (2, 2));
    check(&requests, Op::Write, &local, &remote);
}

#[test]
fn a_target_that_forgets_every_time_is_given_up() {
    let two = Two::new(&[("transports", "tcp")]);
    let (local, remote) = (two.place(&two.a, None, MIB), two.place(&two.b, Some(0), MIB));
    two.fake.hangs.store(true, Ordering::SeqCst);
    let requests = [request(&local, &remote, (0, 0), 4096)];
    let transfer = two.a.submit(two.peer, Op::Write, &requests, &options()).unwrap();
    // The run begins again three times, each time with the next number. Only a run that waits for an answer takes
    // UNKNOWN.
    until("it is given up", || {
        (1..=4).map(OperationId::from_raw).for_each(|op| receive(&two.a, two.peer, Message::Unknown { op }));
        transfer.state().is_final()
    });
    let result = transfer.wait(Some(BOUND)).unwrap();
    assert_eq!((result.state, result.status), (State::Failed, Status::PeerLost));
    two.fake.hangs.store(false, Ordering::SeqCst);
}

/// Waits until LATE_APPLY was told so often at least; returns the ranges that were told.
fn late_applies(events: &Queue, count: usize) -> Vec<(RegionId, u64, u64)> {
    let (mut seen, mut all) = (Vec::new(), Vec::new());
    until("LATE_APPLY comes", || {
        events.drain(&mut all, 8);
        let found = all.drain(..).filter_map(|event| match event.body {
            EventBody::LateApply { region, address, length } => Some((region, address, length)),
            _ => None,
        });
        seen.extend(found);
        seen.len() >= count
    });
    seen
}

/// The device took longer than the initiator's lease: the target counts that, and reports the range that was written.
#[test]
fn a_copy_that_ends_after_its_lease_is_a_late_apply() {
    let two = Two::new(&[("transports", "tcp"), ("lease_ms", "300"), ("drain_ms", "50")]);
    let events = two.b.queue(WHAT_PEERS, 8).unwrap();
    let (local, remote) = (two.place(&two.a, None, MIB), two.place(&two.b, Some(0), MIB));
    let late = || two.b.stats().unwrap().counts.late_applies;
    two.done(Op::Write, &[request(&local, &remote, (0, 0), 4096)]);
    assert_eq!(late(), 0, "in time");
    two.fake.delay_us.store(900_000, Ordering::SeqCst);
    let options = TransferOptions { deadline: Deadline::After(Duration::from_millis(100)), ..options() };
    let (result, _) = two.run(Op::Write, &[request(&local, &remote, (0, 64), 4096)], &options);
    // All copies had begun before the deadline, and their data is there.
    assert_eq!((result.state, result.fence), (State::Done, Fence::Confirmed));
    assert_eq!(late_applies(&events, 1), [(remote.region, remote.address + 64, 4096)]);
    assert_eq!(late(), 1);
}

/// All that the device may have written is told.
#[test]
fn a_late_copy_to_several_regions_is_told_whole() {
    let two = Two::new(&[("transports", "tcp"), ("lease_ms", "300"), ("drain_ms", "50")]);
    let events = two.b.queue(WHAT_PEERS, 8).unwrap();
    let local = two.place(&two.a, None, MIB);
    let remotes = [0, 1].map(|_| two.place(&two.b, Some(0), MIB));
    let requests = |at: usize| [0, 1].map(|nth| request(&local, &remotes[nth], (0, at * (nth + 1)), 4096));
    two.done(Op::Write, &requests(0));
    two.fake.delay_us.store(600_000, Ordering::SeqCst);
    let options = TransferOptions { deadline: Deadline::After(Duration::from_millis(100)), ..options() };
    let (result, _) = two.run(Op::Write, &requests(64), &options);
    assert_eq!((result.state, result.fence), (State::Done, Fence::Confirmed));
    let mut seen = late_applies(&events, 2);
    let told = [0, 1].map(|nth| (remotes[nth].region, remotes[nth].address + 64 * (nth as u64 + 1), 4096));
    seen.sort_unstable();
    assert!(seen == told || seen == [told[1], told[0]], "{seen:?}");
}

/// As many copies as the device takes hang and cannot be stopped: copies that wait behind them fail nevertheless.
#[test]
fn what_waits_for_a_device_of_no_use_fails_at_once() {
    let two = Two::new(&[("transports", "tcp")]);
    two.fake.aborts.store(false, Ordering::SeqCst);
    two.fake.hangs.store(true, Ordering::SeqCst);
    let (from, to) = (two.fake.alloc(0, 4096, 1), two.fake.alloc(0, 4096, 2));
    let limits = Limits { batch_bytes: MIB, depth: 2, timeout: Duration::from_millis(50) };
    let worker =
        Worker::start(two.fake.clone(), Location { kind: MemoryKind::Cuda, device: 0 }, limits).unwrap();
    let (tell, told) = channel();
    for number in 0..6 {
        let tell = tell.clone();
        worker.copy(Job {
            direction: Direction::DeviceToDevice,
            pieces: vec![Piece { to, from, length: 4096 }],
            not_after_ns: Boottime::NEVER,
            durable: false,
            done: Box::new(move |result| {
                tell.send((number, result.map(drop).map_err(|it| it.status))).unwrap()
            }),
        });
    }
    let waiting: Vec<_> = (2..6).map(|_| told.recv_timeout(BOUND).expect("it fails at once")).collect();
    assert_eq!(waiting, (2..6).map(|number| (number, Err(Status::Unavailable))).collect::<Vec<_>>());
    assert!(told.try_recv().is_err(), "the device may still write what the first two named");
    two.fake.hangs.store(false, Ordering::SeqCst);
    for number in 0..2 {
        assert_eq!(told.recv_timeout(BOUND).expect("it has ended"), (number, Ok(())));
    }
    worker.stop();
}

/// The device's thread begins a turn within the lease of a copy, and comes to the copy after the lease.
#[test]
fn a_turn_that_outlasts_a_lease_begins_no_copy() {
    let two = Two::new(&[("transports", "tcp")]);
    let (from, to) = (two.fake.alloc(0, 4096, 1), two.fake.alloc(0, 4096, 2));
    let (health, limits) = (Health::new(), Limits { batch_bytes: MIB, depth: 2, timeout: BOUND });
    let at = Location { kind: MemoryKind::Cuda, device: 0 };
    let worker = health.within(|| Worker::start(two.fake.clone(), at, limits)).unwrap();
    let (tell, told) = channel();
    let copy = |length: Duration| {
        let begun = two.fake.begun.load(Ordering::SeqCst);
        let tell = tell.clone();
        worker.copy(Job {
            direction: Direction::DeviceToDevice,
            pieces: vec![Piece { to, from, length: 4096 }],
            not_after_ns: clock::boottime_ns() + length.as_nanos() as u64,
            durable: false,
            done: Box::new(move |result| tell.send(result.map(drop).map_err(|it| it.status)).unwrap()),
        });
        (told.recv_timeout(BOUND).unwrap(), two.fake.begun.load(Ordering::SeqCst) - begun)
    };
    assert_eq!(copy(BOUND), (Ok(()), 1));
    let has_begun = health.hook.prolong("ferry-cuda", Duration::from_millis(400));
    assert_eq!(copy(Duration::from_millis(200)), (Err(Status::Timeout), 0));
    assert!(has_begun.load(Ordering::SeqCst));
    worker.stop();
}

/// The stage's thread begins a turn within the lease of a copy, and learns of the copy's end after the lease.
#[test]
fn a_turn_that_outlasts_a_lease_tells_of_the_late_apply() {
    let two = Two::new(&[("transports", "tcp"), ("lease_ms", "600"), ("drain_ms", "50")]);
    let (local, remote) = (two.place(&two.a, None, MIB), two.place(&two.b, Some(0), MIB));
    let late = || two.b.stats().unwrap().counts.late_applies;
    two.done(Op::Write, &[request(&local, &remote, (0, 0), 4096)]);
    let begun = two.fake.begun.load(Ordering::SeqCst);
    two.fake.delay_us.store(200_000, Ordering::SeqCst);
    let transfer = two.a.submit(two.peer, Op::Write, &[request(&local, &remote, (0, 64), 4096)], &options());
    until("the copy has begun", || two.fake.begun.load(Ordering::SeqCst) > begun);
    let has_begun = two.b.whole().health().hook.prolong("ferry-stage", Duration::from_millis(900));
    let result = transfer.unwrap().wait(Some(BOUND)).unwrap();
    assert_eq!(result.state, State::Done);
    assert!(has_begun.load(Ordering::SeqCst));
    assert_eq!(late(), 1);
}

/// What was sent again behind a lease may land once more after the transfer's end, which names that fence.
#[test]
fn the_fence_of_a_part_is_the_transfer_s() {
    let two = Two::new(&[("transports", "tcp")]);
    let bytes = 64 * MIB;
    let (local, remote) = (two.place(&two.a, Some(0), bytes), two.place(&two.b, None, bytes));
    let requests = [request(&local, &remote, (0, 0), bytes)];
    let whole = two.a.submit_core(two.peer, Op::Write, &requests, &options()).unwrap();
    let mut marked = 0;
    while !whole.is_final() {
        let parts = two.a.whole().transfers.list().into_iter();
        for part in parts.filter(|it| it.handle != whole.handle && !it.is_final()) {
            part.fenced(Fence::Lease);
            marked += 1;
        }
    }
    assert!(marked > 0, "no part was seen");
    let result = two.a.wait(&whole, Some(BOUND)).unwrap();
    assert_eq!((result.state, result.fence), (State::Done, Fence::Lease));
}
