//! Two engines and a device whose memory only its own copies reach: what staging moves, and what becomes of
//! it when devices, transfers and sessions fail.

pub mod fake;

use crate::command::Command;
use crate::complete::{State, TransferResult};
use crate::device::Start;
use crate::types::{MemoryKind, Op, Request, Transport};
use crate::{Config, Deadline, Engine, Memory, RegionOptions, Status, TransferOptions};
use fake::Fake;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_secs(20);
const MIB: usize = 1 << 20;

/// The device is one for the process, so one test at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Two connected engines.
struct Two {
    fake: Arc<Fake>,
    a: Engine,
    b: Engine,
    peer: u64,
    _turn: MutexGuard<'static, ()>,
}

/// Memory of one of the two, of the host or of the device, and its region.
struct Place {
    address: u64,
    region: u64,
    host: Option<Memory>,
    fake: Arc<Fake>,
}

impl Place {
    fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        match &self.host {
            Some(memory) => {
                let mut out = vec![0; bytes];
                memory.read(at, &mut out);
                out
            }
            None => self.fake.read(self.address + at as u64, bytes),
        }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        match &self.host {
            Some(memory) => memory.write(at, bytes),
            None => self.fake.write(self.address + at as u64, bytes),
        }
    }
}

impl Two {
    fn new(settings: &[(&str, &str)]) -> Two {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let fake = Fake::get();
        fake.delay_us.store(0, Ordering::SeqCst);
        fake.fail_in.store(-1, Ordering::SeqCst);
        fake.hangs.store(false, Ordering::SeqCst);
        fake.aborts.store(true, Ordering::SeqCst);
        let open = || {
            let mut config = Config::default();
            for (key, value) in [("lease_ms", "1500")].iter().chain(settings) {
                config.set(key, value).unwrap();
            }
            Engine::open(config).unwrap()
        };
        let (a, b) = (open(), open());
        let peer = a.connect(b.address(), Some(BOUND)).unwrap();
        Two { fake, a, b, peer, _turn: turn }
    }

    fn place(&self, engine: &Engine, device: Option<i32>, bytes: usize) -> Place {
        let (fake, options) = (self.fake.clone(), RegionOptions::default());
        let place = match device {
            None => {
                let memory = engine.alloc(bytes, &options).unwrap();
                let (address, region) = (memory.address(), memory.region());
                Place { address, region, host: Some(memory), fake }
            }
            Some(device) => {
                let address = fake.alloc(device, bytes, 0xee);
                // SAFETY: nobody but the device's copies can touch it, and it is never freed.
                let region = unsafe { engine.register(address as *mut u8, bytes, &options) }.unwrap();
                Place { address, region, host: None, fake }
            }
        };
        let known = || self.a.peer_regions(self.peer).unwrap().iter().any(|it| it.region == place.region);
        if engine.address() == self.b.address() {
            until("the region is announced", known);
        }
        place
    }

    fn run(&self, op: Op, requests: &[Request], options: &TransferOptions) -> (TransferResult, Vec<Status>) {
        let transfer = self.a.submit(self.peer, op, requests, options).unwrap();
        let result = transfer.wait(Some(BOUND)).unwrap();
        (result, transfer.results().iter().map(|request| request.status).collect())
    }

    fn done(&self, op: Op, requests: &[Request]) -> TransferResult {
        let (result, _) = self.run(op, requests, &options());
        assert_eq!((result.state, result.status), (State::Done, Status::Ok));
        result
    }
}

fn options() -> TransferOptions<'static> {
    TransferOptions { deadline: Deadline::After(BOUND), ..TransferOptions::default() }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < BOUND, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Each 8 bytes say where they belong.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes.div_ceil(8) as u64).flat_map(|at| (seed << 48 | at).to_le_bytes()).take(bytes).collect()
}

fn request(local: &Place, remote: &Place, at: (usize, usize), bytes: usize) -> Request {
    Request {
        local: local.address + at.0 as u64,
        remote: remote.address + at.1 as u64,
        length: bytes as u64,
        remote_region: remote.region,
    }
}

/// Blocks of odd lengths, scattered on both sides and in another order there.
fn scattered(local: &Place, remote: &Place, count: usize, bytes: usize) -> Vec<Request> {
    let at = |nth: usize| nth * (bytes + 64);
    (0..count)
        .map(|nth| request(local, remote, (at(nth), at((nth * 7 + 3) % count)), bytes - nth % 5))
        .collect()
}

fn check(requests: &[Request], op: Op, local: &Place, remote: &Place) {
    for request in requests {
        let (here, there) = (request.local - local.address, request.remote - remote.address);
        let length = request.length as usize;
        assert_eq!(
            local.read(here as usize, length),
            remote.read(there as usize, length),
            "{op:?} {request:?}"
        );
    }
}

fn every_pair(settings: &[(&str, &str)], carrier: Transport) {
    let two = Two::new(settings);
    let bytes = 8 * MIB;
    for (here, there) in [(Some(0), None), (None, Some(1)), (Some(0), Some(1)), (Some(1), Some(0))] {
        let (local, remote) = (two.place(&two.a, here, bytes), two.place(&two.b, there, bytes));
        let sizes = [(1, 1), (1, 4096), (1, 7 * MIB), (3, 100), (600, 8 << 10), (5, MIB + 12_345)];
        for (round, (count, block)) in sizes.into_iter().enumerate() {
            for op in [Op::Write, Op::Read] {
                let seed = round as u64 * 2 + op as u64;
                local.write(0, &pattern(seed | 0x100, bytes));
                remote.write(0, &pattern(seed | 0x200, bytes));
                let before = (local.read(0, bytes), remote.read(0, bytes));
                let requests = scattered(&local, &remote, count, block);
                let result = two.done(op, &requests);
                assert_eq!(result.transport, carrier);
                let all: u64 = requests.iter().map(|request| request.length).sum();
                assert_eq!(result.bytes_confirmed, all);
                check(&requests, op, &local, &remote);
                // The source and everything between the blocks is what it was.
                let (source, target) = (local.read(0, bytes), remote.read(0, bytes));
                match op {
                    Op::Write => assert!(source == before.0),
                    Op::Read => assert!(target == before.1),
                }
                let (mut was, now) = if op == Op::Write { (before.1, target) } else { (before.0, source) };
                for it in &requests {
                    let at =
                        if op == Op::Write { it.remote - remote.address } else { it.local - local.address };
                    let range = at as usize..(at + it.length) as usize;
                    was[range.clone()].copy_from_slice(&now[range]);
                }
                assert!(was == now, "{op:?} wrote outside its blocks");
            }
        }
    }
}

#[test]
fn every_pair_of_memories_over_tcp() {
    every_pair(&[("transports", "tcp")], Transport::Tcp);
}

#[test]
fn every_pair_of_memories_over_the_local_path() {
    every_pair(&[("transports", "local")], Transport::Local);
}

#[test]
fn one_batch_has_every_kind_of_memory_on_both_sides() {
    let two = Two::new(&[("transports", "tcp")]);
    let kinds = [None, Some(0), Some(1)];
    let places = |engine: &Engine| kinds.map(|device| two.place(engine, device, MIB));
    let (here, there) = (places(&two.a), places(&two.b));
    for op in [Op::Write, Op::Read] {
        here.iter().for_each(|place| place.write(0, &pattern(op as u64, MIB)));
        there.iter().for_each(|place| place.write(0, &pattern(op as u64 + 7, MIB)));
        let mut requests = Vec::new();
        for nth in 0..90 {
            let (local, remote) = (&here[nth % 3], &there[nth / 3 % 3]);
            requests.push(request(local, remote, (nth * 8192, (89 - nth) * 8192), 5000 + nth));
        }
        two.done(op, &requests);
        for (nth, request) in requests.iter().enumerate() {
            check(std::slice::from_ref(request), op, &here[nth % 3], &there[nth / 3 % 3]);
        }
    }
}

/// More than the slots hold, by both at once, in both directions: nobody waits for the other for ever.
#[test]
fn both_ends_with_two_slots_each_do_not_wait_for_each_other() {
    let two = Two::new(&[("transports", "tcp"), ("staging_slots", "2")]);
    two.fake.delay_us.store(200, Ordering::SeqCst);
    let bytes = 24 * MIB;
    let (here, there) = (two.place(&two.a, Some(0), 2 * bytes), two.place(&two.b, Some(1), 2 * bytes));
    here.write(0, &pattern(1, bytes));
    there.write(bytes, &pattern(2, bytes));
    let back = two.b.peers().unwrap()[0];
    std::thread::scope(|scope| {
        scope.spawn(|| two.done(Op::Write, &[request(&here, &there, (0, 0), bytes)]));
        scope.spawn(|| {
            let mut request = request(&there, &here, (bytes, bytes), bytes);
            until("the region is announced", || {
                two.b.peer_regions(back).unwrap().iter().any(|it| it.region == here.region)
            });
            request.remote_region = here.region;
            let done = two.b.write(back, &[request], &options());
            assert_eq!(done.unwrap().state, State::Done);
        });
    });
    assert!(here.read(0, bytes) == there.read(0, bytes));
    assert!(here.read(bytes, bytes) == there.read(bytes, bytes));
}

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

/// Deadline and cancel while devices copy: once the transfer is final nothing of it happens any more.
#[test]
fn a_struck_transfer_is_final_when_the_devices_are_through_with_it() {
    let two = Two::new(&[("transports", "tcp")]);
    two.fake.delay_us.store(3000, Ordering::SeqCst);
    let bytes = 64 * MIB;
    for (here, there) in [(Some(0), None), (None, Some(1)), (Some(0), Some(1))] {
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

#[test]
fn unregister_waits_for_the_device_and_what_comes_later_is_stale() {
    let two = Two::new(&[("transports", "tcp")]);
    let (local, remote) = (two.place(&two.a, None, 8 * MIB), two.place(&two.b, Some(0), 8 * MIB));
    two.fake.delay_us.store(100_000, Ordering::SeqCst);
    let requests = [request(&local, &remote, (0, 0), MIB)];
    let transfer = two.a.submit(two.peer, Op::Write, &requests, &options()).unwrap();
    let registry = &two.b.whole().registry;
    until("the device copies", || !registry.get(remote.region).unwrap().is_idle());
    let busy = two.b.unregister(remote.region, Some(Duration::ZERO)).unwrap_err();
    assert_eq!(busy.status, Status::Busy);
    two.b.unregister(remote.region, Some(BOUND)).unwrap();
    let copies = two.fake.copies.load(Ordering::SeqCst);
    assert!(copies > 0 && transfer.wait(Some(BOUND)).unwrap().state == State::Done);
    let (result, _) = two.run(Op::Write, &requests, &options());
    assert_eq!(result.status, Status::Stale);
    assert_eq!(two.fake.copies.load(Ordering::SeqCst), copies);
}

#[test]
fn rights_and_bounds_hold_for_memory_of_devices() {
    let two = Two::new(&[("transports", "tcp")]);
    let local = two.place(&two.a, None, MIB);
    let address = two.fake.alloc(0, MIB, 1);
    let options_read =
        RegionOptions { access: crate::types::Access::REMOTE_READ, ..RegionOptions::default() };
    // SAFETY: as in `place`.
    let region = unsafe { two.b.register(address as *mut u8, MIB, &options_read) }.unwrap();
    let wanted = Request { local: local.address, remote: address, length: 64, remote_region: region };
    // Not told yet or told: the target refuses, or we do.
    let refused = match two.a.submit(two.peer, Op::Write, &[wanted], &options()) {
        Err(error) => error.status,
        Ok(transfer) => transfer.wait(Some(BOUND)).unwrap().status,
    };
    assert!(matches!(refused, Status::Access | Status::Unsupported), "{refused:?}");
    // SAFETY: as in `place`; registering fails.
    let beyond = unsafe { two.b.register((address + 1) as *mut u8, 2 * MIB, &RegionOptions::default()) };
    assert_eq!(beyond.unwrap_err().status, Status::Invalid);
    assert!(two.fake.read(address, MIB).iter().all(|byte| *byte == 1));
}

/// The connection goes while all of it is under way; what was asked is asked again.
#[test]
fn a_broken_session_is_taken_up_again() {
    let two = Two::new(&[("transports", "tcp")]);
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
            let broken = Command::CompanionBroken { peer: two.peer, transport: Transport::Local };
            two.a.whole().commands.push(broken);
        }
        let result = transfer.wait(Some(BOUND)).unwrap();
        assert_eq!(result.state, State::Done, "{result:?}");
        check(&requests, op, &local, &remote);
    }
}

/// A device that hangs fails what needs it, and nothing else waits for it.
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

/// What can't be stopped keeps its memory: the transfer drains until it is over.
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

/// A peer that is fenced off leaves its slots to others, and nothing of what it had begun happens any more.
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
        let known = |handle: &u64| two.b.peer_info(*handle).is_ok_and(|it| it.address == other.address());
        let guest = two.b.peers().unwrap().into_iter().find(known).unwrap();
        std::thread::sleep(Duration::from_millis(10 + round * 7));
        two.b.fence(guest, Some(BOUND)).unwrap();
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

fn after(event: u64) -> TransferOptions<'static> {
    TransferOptions { start: Some((MemoryKind::Cuda, Start::Event(event))), ..options() }
}

/// Nothing moves before the event: of what is small or large, of host memory or a device's; and what is
/// ORDERED behind it waits too.
#[test]
fn a_transfer_starts_after_its_event() {
    for transports in ["tcp", "local"] {
        let two = Two::new(&[("transports", transports)]);
        for (round, (device, bytes)) in [(None, 8), (None, 4 * MIB), (Some(0), MIB)].into_iter().enumerate() {
            let (local, remote) = (two.place(&two.a, device, bytes), two.place(&two.b, device, bytes));
            let untouched = remote.read(0, bytes);
            local.write(0, &pattern(5, bytes));
            let event = (round + 100) as u64 + two.peer;
            let requests = [request(&local, &remote, (0, 0), bytes)];
            let first = TransferOptions { ordered: true, ..after(event) };
            let second = TransferOptions { ordered: true, ..options() };
            let first = two.a.submit(two.peer, Op::Write, &requests, &first).unwrap();
            let second = two.a.submit(two.peer, Op::Write, &requests, &second).unwrap();
            let free = two.place(&two.b, None, 8);
            let own = two.place(&two.a, None, 8);
            two.done(Op::Write, &[request(&own, &free, (0, 0), 8)]);
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!((first.state(), second.state()), (State::Pending, State::Pending));
            assert!(remote.read(0, bytes) == untouched);
            two.fake.events.lock().unwrap().push(event);
            assert_eq!(first.wait(Some(BOUND)).unwrap().state, State::Done);
            assert_eq!(second.wait(Some(BOUND)).unwrap().state, State::Done);
            check(&requests, Op::Write, &local, &remote);
        }
    }
}

#[test]
fn an_event_that_does_not_come_or_fails_ends_the_transfer() {
    let two = Two::new(&[("transports", "tcp")]);
    let (local, remote) = (two.place(&two.a, None, MIB), two.place(&two.b, None, MIB));
    remote.write(0, &pattern(1, MIB));
    let requests = [request(&local, &remote, (0, 0), MIB)];
    let late = TransferOptions { deadline: Deadline::After(Duration::from_millis(30)), ..after(9) };
    let started = Instant::now();
    assert_eq!(two.run(Op::Write, &requests, &late).0.state, State::TimedOut);
    assert!(started.elapsed() < Duration::from_secs(1));
    let cancelled = two.a.submit(two.peer, Op::Write, &requests, &after(9)).unwrap();
    cancelled.cancel().unwrap();
    assert_eq!(cancelled.wait(Some(BOUND)).unwrap().state, State::Cancelled);
    let (failed, _) = two.run(Op::Write, &requests, &after(fake::FAILED));
    assert_eq!((failed.state, failed.status), (State::Failed, Status::System));
    // It comes too late for those.
    two.fake.events.lock().unwrap().push(9);
    std::thread::sleep(Duration::from_millis(20));
    assert!(remote.read(0, MIB) == pattern(1, MIB));
}

#[test]
fn a_stream_waits_until_the_transfer_is_final_however_it_ends() {
    let two = Two::new(&[("transports", "tcp")]);
    let (local, remote) = (two.place(&two.a, None, MIB), two.place(&two.b, None, MIB));
    let requests = [request(&local, &remote, (0, 0), MIB)];
    let waits = |stream: u64| two.fake.streams.lock().unwrap().contains(&stream);
    let held = |stream: u64, event: u64| {
        let transfer = two.a.submit_core(two.peer, Op::Write, &requests, &after(event)).unwrap();
        two.a.hold_stream(&transfer, MemoryKind::Cuda, stream).unwrap();
        assert!(waits(stream));
        transfer
    };
    let done = held(1, 21);
    two.fake.events.lock().unwrap().push(21);
    until("the stream goes on", || !waits(1));
    assert_eq!(done.state(), State::Done);
    let cancelled = held(2, 22);
    two.a.cancel(&cancelled).unwrap();
    until("the stream goes on", || !waits(2));
    two.a.hold_stream(&done, MemoryKind::Cuda, 3).unwrap();
    assert!(!waits(3), "of a transfer that is final already");
    let _closed = held(4, 24);
    two.a.close(Some(BOUND)).unwrap();
    assert!(!waits(4));
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

/// What waits for its turn on a device past the lease begins again with more time, and is right.
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
