//! Faults that the public interface can't cause: queue pairs that break, and keys that are wrong. Runs over
//! Soft-RoCE's devices in the virtual machine of `make test-rdma`; elsewhere each test reports that it was skipped.

#[path = "late_tests.rs"]
mod late;

use super::path::RdmaPath;
use super::wire::{KeysOffer, Message, Side};
use crate::complete::{State, TransferResult};
use crate::limits::RDMA_ENDPOINTS_MAX;
use crate::peer::TransportService;
use crate::types::{LaneId, Op, PeerId, RegionId, Request, Transport};
use crate::{Config, Deadline, Engine, Memory, RegionOptions, Status, TransferOptions};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const BOUND: Duration = Duration::from_secs(30);

fn is_here(test: &str) -> bool {
    let is_here = std::env::var("FERRY_TEST_RDMA").is_ok_and(|value| value == "1");
    if !is_here {
        let reason = "make test-rdma runs this in its virtual machine";
        let _ = writeln!(std::io::stderr(), "SKIPPED: rdma::fault_tests::{test} ({reason})");
    }
    is_here
}

/// Two connected engines on the machine's two hosts.
struct Two {
    a: Engine,
    b: Engine,
    peer: PeerId,
    here: Arc<RdmaPath>,
    there: Arc<RdmaPath>,
}

impl Two {
    fn new() -> Two {
        Two::with_lease("1500")
    }

    fn with_lease(lease_ms: &str) -> Two {
        let open = |devices: &str| {
            let mut config = Config::default();
            for (key, value) in [("transports", "rdma"), ("rdma_devices", devices), ("lease_ms", lease_ms)] {
                config.set(key, value).unwrap();
            }
            Engine::open(config).unwrap()
        };
        let (a, b) = (open("rva0,rvb0"), open("rva1,rvb1"));
        let peer = a.connect(b.address(), Some(BOUND)).unwrap();
        let path = |engine: &Engine| engine.rdma().unwrap().paths().remove(0);
        let (here, there) = (path(&a), path(&b));
        let two = Two { a, b, peer, here, there };
        two.lanes_without(&[]);
        two
    }

    fn memories(&self, bytes: usize) -> (Memory, Memory) {
        let options = RegionOptions::default();
        let (local, remote) =
            (self.a.alloc(bytes, &options).unwrap(), self.b.alloc(bytes, &options).unwrap());
        local.write(0, &pattern(7, bytes));
        until("the region is announced", || {
            let known = self.a.peer_regions(self.peer).unwrap();
            known.iter().any(|known| known.region == remote.region())
        });
        (local, remote)
    }

    /// Returns the lanes of both pairs of devices, once both are open at both ends and none is in `old`.
    fn lanes_without(&self, old: &[LaneId]) -> Vec<LaneId> {
        let lanes = |path: &RdmaPath| -> Vec<LaneId> { path.endpoints().iter().map(|it| it.lane).collect() };
        until("both endpoints stand", || {
            let (here, there) = (lanes(&self.here), lanes(&self.there));
            here.len() == 2 && here == there && !here.iter().any(|lane| old.contains(lane))
        });
        lanes(&self.here)
    }

    fn run(&self, op: Op, requests: &[Request]) -> (TransferResult, Vec<Status>) {
        let options = TransferOptions {
            no_coalesce: true,
            deadline: Deadline::After(BOUND),
            ..TransferOptions::default()
        };
        let transfer = self.a.submit(self.peer, op, requests, &options).unwrap();
        let result = transfer.wait(Some(2 * BOUND)).unwrap();
        (result, transfer.results().iter().map(|request| request.status).collect())
    }
}

/// Sets the flag however the test ends, so that the threads that wait for it stop.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < BOUND, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Makes data in which each 8 bytes name their position.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64 / 8).flat_map(|at| (seed << 48 | at | 1 << 47).to_le_bytes()).collect()
}

fn contents(memory: &Memory, at: usize, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    memory.read(at, &mut out);
    out
}

fn request(local: &Memory, remote: &Memory, at: usize, bytes: usize) -> Request {
    Request {
        local: local.address() + at as u64,
        remote: remote.address() + at as u64,
        length: bytes as u64,
        remote_region: remote.region(),
    }
}

/// Transfers of all sizes run while queue pairs break, at either end and one after the other. Each transfer must end
/// done with the right bytes, and the pairs of devices get new endpoints.
#[test]
fn queue_pairs_that_break_lose_nothing_and_are_made_anew() {
    const KILLS: usize = 6;
    if !is_here("queue_pairs_that_break_lose_nothing_and_are_made_anew") {
        return;
    }
    let two = Two::new();
    let over = AtomicBool::new(false);
    let done: Vec<usize> = std::thread::scope(|scope| {
        let run = |op: Op, length: usize| {
            let (two, over) = (&two, &over);
            scope.spawn(move || {
                let (local, remote) = two.memories(4 * MIB);
                if op == Op::Read {
                    remote.write(0, &pattern(8, 4 * MIB));
                }
                let count = (4 * MIB / length).min(200);
                let requests: Vec<Request> =
                    (0..count).map(|n| request(&local, &remote, n * length, length)).collect();
                let (to, seed) = if op == Op::Read { (&local, 8) } else { (&remote, 7) };
                let mut rounds = 0;
                while !over.load(Ordering::SeqCst) {
                    to.write(0, &vec![0; count * length]);
                    let (result, _) = two.run(op, &requests);
                    assert_eq!((result.state, result.status), (State::Done, Status::Ok), "{op:?} {length}");
                    let right = contents(to, 0, count * length) == pattern(seed, 4 * MIB)[..count * length];
                    assert!(right, "{op:?} {length}: wrong bytes");
                    rounds += 1;
                }
                rounds
            })
        };
        let running = [
            run(Op::Write, MIB),
            run(Op::Read, MIB),
            run(Op::Write, 4096),
            run(Op::Read, 64),
            run(Op::Write, 8),
        ];
        let ending = Over(&over);
        let mut old = Vec::new();
        for kill in 0..KILLS {
            let lanes = two.lanes_without(&old);
            let path = if kill % 2 == 0 { &two.here } else { &two.there };
            // The express queue pair, or the first bulk one, which is always in use. The next bulk one carries only
            // overflow, and a queue pair that carries nothing breaks unnoticed.
            path.endpoints()[kill / 2 % 2].kill(kill.min(1));
            old.push(lanes[kill / 2 % 2]);
        }
        let lanes = two.lanes_without(&old);
        println!("lanes {old:?} broke, {lanes:?} stand");
        drop(ending);
        running.into_iter().map(|it| it.join().unwrap()).collect()
    });
    println!("transfers done: {done:?}");
}

/// The service's thread and a device's poller panic during a WRITE.
#[test]
fn threads_that_panic_end_the_engine_and_nothing_before_the_fabric_is_still() {
    if !is_here("threads_that_panic_end_the_engine_and_nothing_before_the_fabric_is_still") {
        return;
    }
    for thread in ["ferry-rdma", "ferry-rdma-poll"] {
        crate::api::burial_tests::initiator("rdma", thread);
    }
}

/// A device refuses one request because of its wrong key. Only that request ends with ACCESS; the others in the chain
/// are sent again behind the fence, on a new endpoint.
#[test]
fn a_wrong_key_costs_its_request_alone() {
    const EACH: usize = 4096;
    const COUNT: usize = 64;
    if !is_here("a_wrong_key_costs_its_request_alone") {
        return;
    }
    let two = Two::new();
    let (local, remote) = two.memories(COUNT * EACH);
    let (_, other) = two.memories(COUNT * EACH);
    let right = spoil(&two.here, other.region());
    for op in [Op::Write, Op::Read] {
        remote.write(0, &pattern(7, COUNT * EACH));
        let (to, bad) = if op == Op::Write { (&remote, 20) } else { (&local, 40) };
        to.write(0, &vec![0; COUNT * EACH]);
        let requests: Vec<Request> = (0..COUNT)
            .map(|n| request(&local, if n == bad { &other } else { &remote }, n * EACH, EACH))
            .collect();
        let lanes = two.lanes_without(&[]);
        let started = Instant::now();
        let (result, statuses) = two.run(op, &requests);
        println!("{op:?}: {:?} {} after {:?}", result.state, result.status, started.elapsed());
        assert_eq!((result.status, result.requests_failed), (Status::Partial, 1), "{op:?}: {result:?}");
        for (n, status) in statuses.iter().enumerate() {
            let expected = if n == bad { Status::Access } else { Status::Ok };
            assert_eq!(*status, expected, "{op:?} {n}");
            let whole =
                if n == bad { vec![0; EACH] } else { pattern(7, COUNT * EACH)[n * EACH..][..EACH].to_vec() };
            assert!(contents(to, n * EACH, EACH) == whole, "{op:?}: request {n} has wrong bytes");
        }
        until("the endpoint is made anew", || {
            let now: Vec<LaneId> = two.here.endpoints().iter().map(|it| it.lane).collect();
            now.len() == 2 && now != lanes
        });
        local.write(0, &pattern(7, COUNT * EACH));
    }
    assert!(contents(&other, 0, COUNT * EACH).iter().all(|byte| *byte == 0), "the refused one was touched");
    // With the right key the region works as before.
    right.into_iter().for_each(|offer| two.here.keys.add(offer));
    let (result, _) = two.run(Op::Write, &[request(&local, &other, 0, COUNT * EACH)]);
    assert_eq!((result.state, result.transport), (State::Done, Transport::Rdma));
    assert!(contents(&other, 0, COUNT * EACH) == pattern(7, COUNT * EACH));
}

/// This engine refuses a READ before it enters the chain, so the completion of the READs before it does not report its
/// end.
#[test]
fn a_refused_read_at_the_end_of_a_chain_ends_by_itself() {
    const EACH: usize = 64;
    const THREADS: usize = 4;
    if !is_here("a_refused_read_at_the_end_of_a_chain_ends_by_itself") {
        return;
    }
    let two = Two::new();
    let (local, remote) = two.memories(THREADS * EACH);
    let (_, gone) = two.memories(THREADS * EACH);
    let stale = request(&local, &gone, 0, EACH);
    assert!(gone.free(Some(BOUND)).is_ok());
    until("the region is taken back", || {
        let known = two.a.peer_regions(two.peer).unwrap();
        !known.iter().any(|known| known.region == stale.remote_region)
    });
    // Threads that submit at one time: while one posts, the others' transfers gather for its next chain.
    let (together, failed) = (Barrier::new(THREADS), AtomicUsize::new(usize::MAX));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (two, together, failed) = (&two, &together, &failed);
            let good = request(&local, &remote, thread * EACH, EACH);
            scope.spawn(move || {
                let options = TransferOptions { deadline: Deadline::Never, ..TransferOptions::default() };
                for round in 0..2_000 {
                    together.wait();
                    if failed.load(Ordering::SeqCst) < round {
                        return;
                    }
                    let submit = |one| two.a.submit(two.peer, Op::Read, &[one], &options).unwrap();
                    let transfers = [(submit(good), Status::Ok), (submit(stale), Status::Stale)];
                    for (transfer, expected) in transfers {
                        let status = transfer.wait(Some(BOUND)).map(|result| result.status);
                        if status.ok() != Some(expected) {
                            failed.store(round, Ordering::SeqCst);
                        }
                    }
                }
            });
        }
    });
    assert_eq!(
        failed.load(Ordering::SeqCst),
        usize::MAX,
        "a transfer of this round did not end, or ended wrong"
    );
}

/// Replaces a region's keys by wrong ones, on both devices of the peer. Returns the right ones.
fn spoil(path: &RdmaPath, region: RegionId) -> Vec<KeysOffer> {
    let keys = path.keys.snapshot().get(region).unwrap().clone();
    let offers = (0..2u8).map(|device| KeysOffer {
        region,
        address: keys.address,
        length: keys.length,
        readable: keys.readable,
        device,
        detour: 0,
        piece_bytes: 1 << 30,
        first: 0,
        rkeys: vec![keys.find(device as usize, keys.address).unwrap().0],
    });
    let right: Vec<KeysOffer> = offers.collect();
    for offer in &right {
        path.keys.add(KeysOffer { rkeys: vec![offer.rkeys[0] ^ 0xa5], ..offer.clone() });
    }
    right
}

/// Each endpoint costs queue pairs: a peer gets no more endpoints than there can be pairs of devices.
#[test]
fn a_peer_gets_no_more_endpoints_than_there_can_be() {
    if !is_here("a_peer_gets_no_more_endpoints_than_there_can_be") {
        return;
    }
    let two = Two::new();
    let (service, peer) = (two.b.rdma().unwrap(), two.b.peers().unwrap()[0]);
    let count = || service.lock().all.get(&peer).map_or(0, |session| session.entries.len());
    let stood = count();
    let ask = |lane: LaneId| {
        let side = Side { mtu: 1024, reads_max: 1, qps: vec![(1, 1), (2, 2)] };
        assert!(service.message(peer, &Message::Connect { lane, own: 0, other: 0, side }.encode()));
    };
    (0..RDMA_ENDPOINTS_MAX as u32 + 4).for_each(|lane| ask(LaneId::from_raw(1000 + lane)));
    let is_heard = || service.lock().all.get(&peer).is_none_or(|session| session.inbox.is_empty());
    // The service makes endpoints one after the other, and the last words of a turn are still being worked off.
    until("each is answered", || is_heard() && (count() > stood));
    ask(LaneId::from_raw(5000));
    until("the last is answered", is_heard);
    assert!(count() <= RDMA_ENDPOINTS_MAX, "{} endpoints", count());
}

/// The slots are the device's: other peers may hold all of them, and give the last one back.
#[test]
fn a_notification_that_found_no_slot_goes_when_there_is_one() {
    if !is_here("a_notification_that_found_no_slot_goes_when_there_is_one") {
        return;
    }
    let two = Two::new();
    let endpoints = two.here.endpoints();
    let mut taken = Vec::new();
    for endpoint in endpoints.iter() {
        while let Some(slot) = endpoint.device.notifications.take() {
            taken.push((endpoint, slot));
        }
    }
    let options = TransferOptions {
        notify: Some(b"later"),
        deadline: Deadline::After(BOUND),
        ..TransferOptions::default()
    };
    let transfer = two.a.submit(two.peer, Op::Write, &[], &options).unwrap();
    let waiting = transfer.wait(Some(Duration::from_millis(50)));
    assert_eq!(waiting.unwrap_err().status, Status::Timeout);
    taken.into_iter().for_each(|(endpoint, slot)| endpoint.device.notifications.give_back(slot));
    assert_eq!(transfer.wait(Some(Duration::from_secs(2))).unwrap().state, State::Done);
}
