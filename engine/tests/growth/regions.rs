//! The cost of a region: memory, register, announcement to a connected peer, look-up in a submit at both ends,
//! unregister.

use crate::process::{cpu_time, status, thread_cpu_time};
use crate::tell;
use ferry::types::{Access, Op, PeerId, RegionId, Request};
use ferry::{Config, Engine, RegionSpec, State, TransferOptions};
use std::time::{Duration, Instant};

/// Bytes of a region, and of its place.
const BYTES: usize = 64;
/// Regions that one transfer names.
const REQUESTS: usize = 64;
/// Regions that an application with more of them uses at a time.
const IN_USE: usize = 1000;
/// Transfers that are measured, each way.
const TRANSFERS: usize = 400;
const PATIENCE: Duration = Duration::from_secs(120);

fn engine() -> Engine {
    let mut config = Config::default();
    config.set("transports", "tcp").unwrap();
    config.set("allow_unauthenticated", "true").unwrap();
    Engine::open(config).unwrap()
}

/// Memory whose pieces are registered, without one in use by Rust.
struct Ground(Vec<u8>);

impl Ground {
    fn new(pieces: usize) -> Ground {
        Ground(vec![1; pieces * BYTES])
    }

    fn at(&self, piece: usize) -> u64 {
        self.0.as_ptr() as u64 + (piece * BYTES) as u64
    }

    fn register(&self, engine: &Engine, piece: usize) -> RegionId {
        let (address, length) = (self.at(piece), BYTES as u64);
        let spec = RegionSpec { address, length, access: Access::BOTH, ..RegionSpec::default() };
        // SAFETY: the memory outlives the engines, and Rust does not look at it meanwhile.
        unsafe { engine.register_batch(vec![spec], None) }.unwrap()[0]
    }
}

/// Returns pieces in an order without pattern.
fn scattered(size: usize) -> impl Iterator<Item = usize> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % size
    })
}

/// Submits transfers that `requests` makes, and returns the CPU time of the submits for each request, in nanoseconds.
fn submits(engine: &Engine, peer: PeerId, mut requests: impl FnMut() -> Vec<Request>) -> f64 {
    let mut spent = Duration::ZERO;
    for _ in 0..TRANSFERS {
        let requests = requests();
        let before = thread_cpu_time();
        let transfer = engine.submit(peer, Op::Write, &requests, &TransferOptions::default()).unwrap();
        spent += thread_cpu_time() - before;
        assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
    }
    spent.as_nanos() as f64 / (TRANSFERS * REQUESTS) as f64
}

pub fn measure(size: usize) {
    let (a, b) = (engine(), engine());
    let a_at_b = b.connect(a.address(), Some(PATIENCE)).unwrap();
    let b_at_a = a.peers().unwrap()[0];
    let (many, one) = (Ground::new(size), Ground::new(REQUESTS));
    let single = one.register(&b, 0);
    let each = |total: f64| total / size as f64;
    // Warms the engine and the allocator up.
    a.unregister(many.register(&a, 0), Some(PATIENCE)).unwrap();
    a.probe(b_at_a, Some(PATIENCE)).unwrap();

    let (memory_kib, all_before, own_before) = (status("VmRSS"), cpu_time(), thread_cpu_time());
    let regions: Vec<RegionId> = (0..size).map(|piece| many.register(&a, piece)).collect();
    let own = thread_cpu_time() - own_before;
    // Contract: a probe is answered after the regions that existed before it were announced.
    b.probe(a_at_b, Some(PATIENCE)).unwrap();
    let announced = (cpu_time() - all_before).saturating_sub(thread_cpu_time() - own_before);
    assert_eq!(b.peer_regions(a_at_b).unwrap().len(), size);
    tell(size, "memory at both ends, KiB", each(status("VmRSS").saturating_sub(memory_kib) as f64));
    tell(size, "register, us", each(own.as_secs_f64() * 1e6));
    tell(size, "announce, both ends, us of CPU", each(announced.as_secs_f64() * 1e6));

    let local =
        |piece: usize| Request { local: many.at(piece), remote: one.at(0), length: 8, remote_region: single };
    let remote = |piece: usize| Request {
        local: one.at(0),
        remote: many.at(piece),
        length: 8,
        remote_region: regions[piece],
    };
    // Of all regions, each most likely not in a cache; and of a thousand in use that lie far apart.
    for (of, in_use) in [("any", size), ("a used", IN_USE)] {
        let mut pieces = scattered(in_use).map(|nth| nth * (size / in_use));
        let mut all = |make: &dyn Fn(usize) -> Request| pieces.by_ref().take(REQUESTS).map(make).collect();
        tell(size, &format!("look up {of} local region, ns"), submits(&a, b_at_a, || all(&local)));
        tell(size, &format!("look up {of} region of the peer, ns"), submits(&b, a_at_b, || all(&remote)));
    }

    let began = Instant::now();
    let own_before = thread_cpu_time();
    for region in &regions {
        a.unregister(*region, Some(PATIENCE)).unwrap();
    }
    let own = thread_cpu_time() - own_before;
    assert!(began.elapsed() < PATIENCE);
    tell(size, "unregister, us", each(own.as_secs_f64() * 1e6));
}
