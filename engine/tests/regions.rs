//! Regions over a session: announced at connect and one by one, found by name, withdrawn; unregistered while in use;
//! memory that is never unmapped under a transfer.

mod common;

use common::data::{check, contents, fill, pattern};
use common::process::thread_cpu_time;
use common::{engine, eventually, request, run, transport, wait_for_region, Pair, PATIENCE};
use ferry::limits::REGION_NAME_BYTES_MAX;
use ferry::types::{Access, Op, PeerId, RegionId, Request, Transport};
use ferry::{Engine, RegionOptions, RegionSpec, State, Status, TransferOptions};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

const REGIONS: usize = 4096;
const PART: usize = 4096;
/// The number of regions in the tests with many.
const MANY: usize = 100_000;
const BYTES: usize = 64;

fn plain() -> TransferOptions<'static> {
    TransferOptions::default()
}

fn named(name: impl Into<String>) -> RegionOptions {
    RegionOptions { name: name.into(), ..RegionOptions::default() }
}

/// Memory of the test's own, at no particular alignment: 4,096 regions lie side by side in it.
struct Field {
    bytes: Vec<u8>,
}

impl Field {
    fn new(tag: u32) -> Field {
        Field { bytes: pattern(tag, REGIONS * PART) }
    }

    fn spec(&mut self, number: usize) -> RegionSpec {
        let address = self.bytes.as_mut_ptr() as u64 + (number * PART) as u64;
        RegionSpec { address, length: PART as u64, name: format!("block {number}"), ..RegionSpec::default() }
    }
}

fn register(engine: &Engine, specs: &[RegionSpec]) -> Vec<RegionId> {
    // SAFETY: the field outlives the engine in each test here, and is read only when nothing moves.
    unsafe { engine.register_batch(specs.to_vec(), None) }.unwrap()
}

fn count(engine: &Engine, peer: PeerId) -> usize {
    engine.peer_regions(peer).unwrap().len()
}

/// 4,096 regions at connect; then as many unregistered and registered one by one, learned by two peers, of which one
/// connected later; then transfers to every region by its handle.
#[test]
fn thousands_of_regions_are_known_and_found() {
    let mut field = Field::new(1);
    let (a, b, c) = (engine(&[]), engine(&[]), engine(&[]));
    let specs: Vec<_> = (0..REGIONS).map(|number| field.spec(number)).collect();
    let ids = register(&b, &specs);
    let before = Instant::now();
    let b_at_a = a.connect(b.address(), Some(PATIENCE)).unwrap();
    assert_eq!(count(&a, b_at_a), REGIONS, "known as soon as the peer is up");
    println!("connected to {REGIONS} regions in {:?}", before.elapsed());
    let listed = a.peer_regions(b_at_a).unwrap();
    assert!(listed.is_sorted_by_key(|region| region.address));
    for (number, region) in listed.iter().enumerate() {
        let expected = (ids[number], specs[number].address, PART as u64, specs[number].name.as_str());
        assert_eq!((region.region, region.address, region.length, region.name.as_str()), expected);
    }
    // All regions in one transfer, each by its own handle, backwards.
    let local = a.alloc(REGIONS * PART, &named("")).unwrap();
    let reads: Vec<Request> = (0..REGIONS)
        .map(|number| Request {
            local: local.address() + ((REGIONS - 1 - number) * PART) as u64,
            remote: specs[number].address + 1,
            length: PART as u64 - 1,
            remote_region: ids[number],
        })
        .collect();
    fill(&local, 9);
    let result = run(&a, b_at_a, Op::Read, &reads, &plain());
    assert_eq!((result.state, result.slices_out), (State::Done, REGIONS as u64));
    let mut expected = pattern(9, REGIONS * PART);
    let image = pattern(1, REGIONS * PART);
    for number in 0..REGIONS {
        let at = (REGIONS - 1 - number) * PART;
        expected[at..at + PART - 1].copy_from_slice(&image[number * PART + 1..][..PART - 1]);
    }
    check("every region", &contents(&local), &expected);
    // One by one: unregistered, and registered in a new generation; the old handles are stale.
    let before = Instant::now();
    for id in &ids {
        b.unregister(*id, Some(PATIENCE)).unwrap();
    }
    eventually("all are gone", || count(&a, b_at_a) == 0);
    let b_at_c = c.connect(b.address(), Some(PATIENCE)).unwrap();
    assert_eq!(count(&c, b_at_c), 0);
    let fresh: Vec<RegionId> = specs.iter().map(|spec| register(&b, std::slice::from_ref(spec))[0]).collect();
    for (engine, peer) in [(&a, b_at_a), (&c, b_at_c)] {
        eventually("each is announced", || count(engine, peer) == REGIONS);
        let known: HashSet<RegionId> =
            engine.peer_regions(peer).unwrap().iter().map(|region| region.region).collect();
        assert_eq!(known, fresh.iter().copied().collect());
    }
    println!("{REGIONS} gone and added one by one in {:?}", before.elapsed());
    let old = a.submit(b_at_a, Op::Read, &reads[7..8], &plain()).unwrap().wait(Some(PATIENCE)).unwrap();
    assert_eq!(old.status, Status::Stale);
    // Closed before the field is dropped.
    b.close(Some(PATIENCE)).unwrap();
}

/// Many small regions side by side.
struct Crowd(Vec<u64>);

impl Crowd {
    fn new() -> Crowd {
        Crowd(vec![0; MANY * BYTES / 8])
    }

    fn spec(&mut self, number: usize) -> RegionSpec {
        let address = self.0.as_mut_ptr() as u64 + (number * BYTES) as u64;
        RegionSpec { address, length: BYTES as u64, ..RegionSpec::default() }
    }
}

/// Probes from `engine` until the work is over; returns the work's result, its duration and the longest probe's.
fn probed<T>(engine: &Engine, peer: PeerId, work: impl FnOnce() -> T) -> (T, Duration, Duration) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let prober = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !over.load(Ordering::Relaxed) {
                let before = Instant::now();
                engine.probe(peer, Some(PATIENCE)).unwrap();
                longest = longest.max(before.elapsed());
            }
            longest
        });
        let before = Instant::now();
        let result = work();
        let took = before.elapsed();
        over.store(true, Ordering::Relaxed);
        (result, took, prober.join().unwrap())
    })
}

/// The control loop never serves one peer so long that another waits: a probe takes less than a tenth of the whole
/// work, however busy the machine is.
fn is_quick(longest: Duration, took: Duration) {
    assert!(longest < (took / 4).max(Duration::from_millis(100)), "{longest:?} of {took:?}");
}

/// With a peer that hears of each region, a peer that connects when all are there, and a peer that only probes.
#[test]
fn a_hundred_thousand_regions_come_and_go_one_by_one() {
    if transport() == Transport::Rdma {
        println!("SKIPPED: what devices take for a region is theirs, and peers that hold keys of it are asked first");
        return;
    }
    let mut crowd = Crowd::new();
    let (a, b, c, late) = (engine(&[]), engine(&[]), engine(&[]), engine(&[]));
    let b_at_a = a.connect(b.address(), Some(PATIENCE)).unwrap();
    let b_at_c = c.connect(b.address(), Some(PATIENCE)).unwrap();
    // From both ends to the middle, so that neither order is the order of addresses.
    let place = |nth: usize| if nth % 2 == 0 { nth / 2 } else { MANY - 1 - nth / 2 };
    let specs: Vec<RegionSpec> = (0..MANY).map(|nth| crowd.spec(place(nth))).collect();

    let ((ids, cpu), took, longest) = probed(&c, b_at_c, || {
        let before = thread_cpu_time();
        let ids: Vec<RegionId> =
            specs.iter().map(|spec| register(&b, std::slice::from_ref(spec))[0]).collect();
        (ids, thread_cpu_time() - before)
    });
    println!(
        "registered {MANY} in {took:?}, {:?} of CPU for each, probes up to {longest:?}",
        cpu / MANY as u32
    );
    assert!(cpu / (MANY as u32) < Duration::from_micros(20), "{cpu:?} for {MANY}");
    is_quick(longest, took);
    for (engine, peer) in [(&a, b_at_a), (&c, b_at_c)] {
        eventually("the connected peer knows all regions", || count(engine, peer) == MANY);
    }

    let (b_at_late, took, longest) =
        probed(&c, b_at_c, || late.connect(b.address(), Some(PATIENCE)).unwrap());
    println!("connected to {MANY} in {took:?}, probes up to {longest:?}");
    assert_eq!(count(&late, b_at_late), MANY, "known as soon as the peer is up");
    is_quick(longest, took);

    let (cpu, took, longest) = probed(&c, b_at_c, || {
        let before = thread_cpu_time();
        ids.iter().for_each(|id| b.unregister(*id, Some(Duration::ZERO)).unwrap());
        thread_cpu_time() - before
    });
    println!("gone in {took:?}, {:?} of CPU for each, probes up to {longest:?}", cpu / MANY as u32);
    assert!(cpu / (MANY as u32) < Duration::from_micros(20), "{cpu:?} for {MANY}");
    is_quick(longest, took);
    for (engine, peer) in [(&a, b_at_a), (&late, b_at_late), (&c, b_at_c)] {
        eventually("all are gone", || count(engine, peer) == 0);
    }

    let before = thread_cpu_time();
    register(&b, &specs);
    let cpu = thread_cpu_time() - before;
    println!("registered {MANY} at once in {cpu:?} of CPU");
    eventually("the first peer knows all again", || count(&a, b_at_a) == MANY);
    // Closed before the crowd is dropped.
    b.close(Some(PATIENCE)).unwrap();
}

/// Regions that are registered and unregistered while a peer connects: in the end the peer knows exactly the regions
/// that exist.
#[test]
fn what_comes_and_goes_while_a_peer_connects_is_known_in_the_end() {
    let mut crowd = Crowd::new();
    let b = engine(&[]);
    let count = if transport() == Transport::Rdma { REGIONS } else { MANY / 4 };
    let specs: Vec<RegionSpec> = (0..count).map(|nth| crowd.spec(nth)).collect();
    let mut ids = register(&b, &specs);
    let peers: Vec<(Engine, PeerId)> = std::thread::scope(|scope| {
        let connecting: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let engine = engine(&[]);
                    let peer = engine.connect(b.address(), Some(PATIENCE)).unwrap();
                    (engine, peer)
                })
            })
            .collect();
        // Over all regions, in strides without an order, until every peer is connected.
        let mut at = 0;
        while connecting.iter().any(|thread| !thread.is_finished()) {
            at = (at + 7919) % specs.len();
            b.unregister(ids[at], Some(common::at_once())).unwrap();
            ids[at] = register(&b, &specs[at..=at])[0];
        }
        connecting.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // Half of the regions stay unregistered.
    let gone = ids.split_off(ids.len() / 2);
    gone.iter().for_each(|id| b.unregister(*id, Some(common::at_once())).unwrap());
    let live: HashSet<RegionId> = ids.into_iter().collect();
    for (engine, peer) in &peers {
        eventually("exactly what there is is known", || {
            let known = engine.peer_regions(*peer).unwrap();
            known.iter().map(|region| region.region).collect::<HashSet<_>>() == live
        });
    }
    b.close(Some(PATIENCE)).unwrap();
}

#[test]
fn names_are_told_up_to_their_limit() {
    let pair = Pair::new(&[]);
    let longest = "n".repeat(REGION_NAME_BYTES_MAX);
    let region = pair.b.alloc(64, &named(longest.as_str())).unwrap();
    let umlaut = pair.b.alloc(64, &named("Schlüssel ✓")).unwrap();
    let too_long = pair.b.alloc(64, &named("n".repeat(REGION_NAME_BYTES_MAX + 1)));
    assert_eq!(too_long.err().unwrap().status, Status::Invalid);
    wait_for_region(&pair.a, pair.b_at_a, region.region());
    wait_for_region(&pair.a, pair.b_at_a, umlaut.region());
    let known = pair.a.peer_regions(pair.b_at_a).unwrap();
    let name = |id| known.iter().find(|region| region.region == id).unwrap().name.clone();
    assert_eq!((name(region.region()), name(umlaut.region())), (longest, "Schlüssel ✓".to_owned()));
}

/// A region without any right for peers: only its own engine's transfers may use it.
#[test]
fn a_region_that_grants_nothing_serves_its_own_engine_only() {
    let pair = Pair::new(&[]);
    let private = pair.a.alloc(PART, &RegionOptions { access: Access(0), ..named("") }).unwrap();
    let public = pair.b.alloc(PART, &named("")).unwrap();
    fill(&private, 1);
    let out = [request(&private, 0, &public, 0, PART)];
    assert_eq!(run(&pair.a, pair.b_at_a, Op::Write, &out, &plain()).state, State::Done);
    check("written", &contents(&public), &pattern(1, PART));
    fill(&private, 2);
    assert_eq!(run(&pair.a, pair.b_at_a, Op::Read, &out, &plain()).state, State::Done);
    check("read", &contents(&private), &pattern(1, PART));
    let a_at_b = common::peer_of(&pair.b, &pair.a);
    wait_for_region(&pair.b, a_at_b, private.region());
    fill(&public, 3);
    for op in [Op::Read, Op::Write] {
        let back = [request(&public, 0, &private, 0, PART)];
        assert_eq!(pair.b.submit(a_at_b, op, &back, &plain()).err().unwrap().status, Status::Access);
    }
    check("untouched", &contents(&private), &pattern(1, PART));
}

/// Registered while transfers of other regions run, and used at once: by handle, before the announcement has arrived,
/// and by address.
#[test]
fn regions_come_and_go_while_others_are_in_use() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(8 * MIB, 8 * MIB);
    fill(&local, 1);
    let whole = [request(&local, 0, &remote, 0, 8 * MIB)];
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(run(&pair.a, pair.b_at_a, Op::Write, &whole, &plain()).state, State::Done);
                rounds += 1;
            }
            rounds
        });
        for round in 0..200u32 {
            let region = pair.b.alloc(PART, &named(format!("round {round}"))).unwrap();
            let write = request(&local, 0, &region, 0, PART);
            if transport() == Transport::Rdma {
                // Without keys RDMA can't be used.
                wait_for_region(&pair.a, pair.b_at_a, region.region());
            }
            let by_handle = run(&pair.a, pair.b_at_a, Op::Write, &[write], &plain());
            let anonymous = Request { remote_region: RegionId::NONE, ..write };
            let by_address = run(&pair.a, pair.b_at_a, Op::Write, &[anonymous], &plain());
            assert_eq!((by_handle.state, by_address.state), (State::Done, State::Done), "round {round}");
            check("new region", &contents(&region), &pattern(1, PART));
            region.free(Some(PATIENCE)).map_err(|(_, error)| error).unwrap();
            let gone = run(&pair.a, pair.b_at_a, Op::Write, &[write], &plain());
            assert_eq!(gone.status, Status::Stale, "round {round}");
        }
        stop.store(true, Ordering::Relaxed);
        assert!(busy.join().unwrap() > 0);
    });
    check("busy region", &contents(&remote), &pattern(1, 8 * MIB));
}

/// The initiator's own memory is in use until the transfer is final, then free at once.
#[test]
fn memory_in_use_is_not_freed() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(64, 64);
    fill(&local, 78);
    let one = [request(&local, 0, &remote, 0, 64)];
    let transfer = pair.held(&one);
    let (local, error) = local.free(Some(Duration::ZERO)).err().unwrap();
    assert_eq!(error.status, Status::Busy);
    let (region, at) = (local.region(), local.address());
    let who = if common::transport() == Transport::Tcp { pair.b.address().to_owned() } else { String::new() };
    let says = format!("region {region:#x} is in use: at {at:#x} + 64 has 1 transfer with {who}");
    assert!(error.message.starts_with(&says), "{error}");
    // Nothing changed: the region may be used for more transfers.
    assert_eq!(run(&pair.a, pair.b_at_a, Op::Write, &one, &plain()).state, State::Done);
    let (local, error) = local.free(Some(Duration::from_millis(10))).err().unwrap();
    assert_eq!(error.status, Status::Busy);
    // Revoked now: new uses are refused, and the old use ends in its own time.
    let refused = pair.a.submit(pair.b_at_a, Op::Write, &one, &plain()).err().unwrap();
    assert_eq!(refused.status, Status::NotRegistered);
    let address = local.address();
    transfer.cancel().unwrap();
    let result = transfer.wait(Some(PATIENCE)).unwrap();
    assert_eq!((result.state, result.bytes_confirmed), (State::Cancelled, 64));
    assert!(holds(address, &pattern(78, 64)), "it stays until it is freed");
    local.free(Some(common::at_once())).map_err(|(_, error)| error).unwrap();
    assert!(!holds(address, &pattern(78, 64)), "freed memory goes back to the system");
}

/// Memory that is dropped while a transfer uses it stays mapped.
#[test]
fn memory_dropped_in_use_stays_mapped() {
    let pair = Pair::new(&[]);
    // Not the pattern of another test, whose memory may get the same address.
    let (local, remote) = pair.memories(64, 64);
    fill(&local, 77);
    let transfer = pair.held(&[request(&local, 0, &remote, 0, 64)]);
    let address = local.address();
    drop(local);
    assert!(holds(address, &pattern(77, 64)));
    transfer.cancel().unwrap();
    transfer.wait(Some(PATIENCE)).unwrap();
    check("dropped", &contents(&remote), &pattern(77, 64));
    assert!(holds(address, &pattern(77, 64)), "nobody is left to free it");
    // Memory that is not in use is freed at once, and the peer learns of it.
    let (address, region) = (remote.address(), remote.region());
    drop(remote);
    assert!(!holds(address, &pattern(77, 64)));
    eventually("its end is learned", || {
        pair.a.peer_regions(pair.b_at_a).unwrap().iter().all(|known| known.region != region)
    });
}

/// The target drops memory while a peer writes and reads it: the memory goes back to the system each time.
#[test]
fn memory_dropped_under_a_transfer_of_a_peer_is_freed() {
    // Longer than the memory of other tests, so that none of theirs fills the hole.
    const LENGTH: usize = 40 * MIB;
    let pair = Pair::new(&[]);
    let local = pair.a.alloc(LENGTH, &named("")).unwrap();
    for round in 0..12 {
        let remote = pair.b.alloc(LENGTH, &named("")).unwrap();
        wait_for_region(&pair.a, pair.b_at_a, remote.region());
        let op = if round % 2 == 0 { Op::Write } else { Op::Read };
        let whole = [request(&local, 0, &remote, 0, LENGTH)];
        let transfer = pair.a.submit(pair.b_at_a, op, &whole, &plain()).unwrap();
        let address = remote.address();
        drop(remote);
        transfer.wait(Some(PATIENCE)).unwrap();
        // The other engine, which is in this process, may have mapped the same memory into the hole meanwhile.
        eventually("its memory is unmapped", || !is_mapped(address, LENGTH));
    }
}

/// The target frees memory while peers write and read it: free returns, the transfer ends STALE, and memory that is
/// mapped there next is not touched.
#[test]
fn the_target_frees_memory_under_a_transfer() {
    let pair = Pair::new(&[]);
    let local = pair.a.alloc(32 * MIB, &named("")).unwrap();
    fill(&local, 1);
    let mut refused = 0;
    for round in 0..12 {
        let remote = pair.b.alloc(32 * MIB, &named("")).unwrap();
        wait_for_region(&pair.a, pair.b_at_a, remote.region());
        let op = if round % 2 == 0 { Op::Write } else { Op::Read };
        let checksum = round % 3 == 0 && transport() == Transport::Tcp;
        let options = TransferOptions { checksum, ..plain() };
        let whole = [request(&local, 0, &remote, 0, 32 * MIB)];
        let transfer = pair.a.submit(pair.b_at_a, op, &whole, &options).unwrap();
        remote.free(Some(PATIENCE)).map_err(|(_, error)| error).unwrap();
        // Most likely at the same address.
        let next = pair.b.alloc(32 * MIB, &named("")).unwrap();
        fill(&next, 3);
        let result = transfer.wait(Some(PATIENCE)).unwrap();
        match result.state {
            State::Done => {}
            State::Failed => {
                assert_eq!(result.status, Status::Stale, "{result:?}");
                refused += 1;
            }
            _ => panic!("{result:?}"),
        }
        check("what came after", &contents(&next), &pattern(3, 32 * MIB));
    }
    println!("{refused} of 12 transfers lost their target");
}

/// Returns whether the address still holds `bytes`. The kernel may map something else at a freed address, for example
/// a new thread's stack, so the test can't ask for "unmapped"; the old bytes are gone either way.
fn holds(address: u64, bytes: &[u8]) -> bool {
    let mut found = vec![0u8; bytes.len()];
    let into = libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: found.len() };
    let from = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: the kernel copies into `found`, or says EFAULT; no reference to the address is formed.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &into, 1, &from, 1, 0) };
    read == bytes.len() as isize && found == bytes
}

/// Returns whether each page of the range is mapped.
fn is_mapped(address: u64, length: usize) -> bool {
    let mut resident = vec![0u8; length.div_ceil(4096)];
    // SAFETY: the kernel writes a byte for each page into `resident`; no reference to the address is formed.
    unsafe { libc::mincore(address as *mut libc::c_void, length, resident.as_mut_ptr()) == 0 }
}

/// Memory that can't be read, like a device's, is refused when it is registered, not found by a thread later.
#[test]
fn what_is_not_mapped_is_refused() {
    let engine = engine(&[]);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping of two pages, of which the second loses its rights.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), 2 * PART, libc::PROT_READ, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    // SAFETY: the second page of it.
    assert_eq!(unsafe { libc::mprotect(memory.add(PART), PART, libc::PROT_NONE) }, 0);
    let spec = |page: usize, pages: usize| RegionSpec {
        address: memory as u64 + (page * PART) as u64,
        length: (pages * PART) as u64,
        ..RegionSpec::default()
    };
    for refused in [spec(0, 2), spec(1, 1)] {
        // SAFETY: registration refuses the memory.
        let error = unsafe { engine.register_batch(vec![refused], None) }.unwrap_err();
        assert_eq!((error.status, error.request_index), (Status::Invalid, Some(0)), "{error}");
        assert!(error.to_string().contains("not mapped"), "{error}");
    }
    register(&engine, &[spec(0, 1)]);
    engine.close(None).unwrap();
    // SAFETY: the engine is closed.
    assert_eq!(unsafe { libc::munmap(memory, 2 * PART) }, 0);
}
