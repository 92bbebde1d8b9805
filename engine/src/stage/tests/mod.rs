//! Two engines and a device whose memory only its own copies reach: what staging moves, and its behaviour when
//! devices, transfers and sessions fail.

mod alone;
mod asked;
mod bridged;
mod direct;
mod due;
mod events;
pub mod fake;
mod forgotten;
mod messages;
mod own;
mod panics;
mod struck;
mod unannounced;

use crate::complete::{State, TransferResult};
use crate::device::Start;
use crate::types::{MemoryKind, Op, PeerId, RegionId, Request, Transport};
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
pub struct Two {
    pub fake: Arc<Fake>,
    pub a: Engine,
    pub b: Engine,
    pub peer: PeerId,
    _turn: MutexGuard<'static, ()>,
}

/// Memory of one of the two, of the host or of the device, and its region.
pub struct Place {
    pub address: u64,
    pub region: RegionId,
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

/// A test that fails leaves nothing waiting, so that its engines can close.
impl Drop for Two {
    fn drop(&mut self) {
        let fake = &self.fake;
        let waits = [&fake.hangs, &fake.crossing_hangs, &fake.lock_waits, &fake.attach_waits];
        for waits in waits.into_iter().chain([&fake.withdraw_waits, &fake.look_waits]) {
            waits.store(false, Ordering::SeqCst);
        }
    }
}

impl Two {
    pub fn new(settings: &[(&str, &str)]) -> Two {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let fake = Fake::get();
        fake.delay_us.store(0, Ordering::SeqCst);
        fake.fail_in.store(-1, Ordering::SeqCst);
        fake.hangs.store(false, Ordering::SeqCst);
        fake.aborts.store(true, Ordering::SeqCst);
        fake.shares.store(false, Ordering::SeqCst);
        fake.crosses.store(false, Ordering::SeqCst);
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

    pub fn place(&self, engine: &Engine, device: Option<i32>, bytes: usize) -> Place {
        let (fake, options) = (self.fake.clone(), RegionOptions::default());
        let place = match device {
            None => {
                let memory = engine.alloc(bytes, &options).unwrap();
                let (address, region) = (memory.address(), memory.region());
                Place { address, region, host: Some(memory), fake }
            }
            Some(device) => {
                let address = fake.alloc(device, bytes, 0xee);
                // SAFETY: only the device's copies can touch the memory, and it is never freed.
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

pub fn options() -> TransferOptions<'static> {
    TransferOptions { deadline: Deadline::After(BOUND), ..TransferOptions::default() }
}

pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < BOUND, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Each 8 bytes encode their place.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes.div_ceil(8) as u64).flat_map(|at| (seed << 48 | at).to_le_bytes()).take(bytes).collect()
}

pub fn request(local: &Place, remote: &Place, at: (usize, usize), bytes: usize) -> Request {
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

const PAIRS: [(Option<i32>, Option<i32>); 4] =
    [(Some(0), None), (None, Some(1)), (Some(0), Some(1)), (Some(1), Some(0))];

fn every_pair(two: &Two, pairs: &[(Option<i32>, Option<i32>)], carrier: Transport) {
    let bytes = 8 * MIB;
    for (here, there) in pairs.iter().copied() {
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
    every_pair(&Two::new(&[("transports", "tcp")]), &PAIRS, Transport::Tcp);
}

#[test]
fn every_pair_of_memories_over_the_local_path() {
    every_pair(&Two::new(&[("transports", "local")]), &PAIRS, Transport::Local);
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

/// More than the slots hold, by both engines at once, in both directions: no engine waits for the other for ever.
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
    // The target refuses, or, if the unregistration was already announced, this engine does.
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
