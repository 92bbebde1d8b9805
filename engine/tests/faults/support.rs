//! Shared by all fault tests: quick configurations, positional data, bounded waiting.

use ferry::notify::{EventBody, Queue};
use ferry::types::{Op, PeerId, RegionId, Request};
use ferry::{Config, Deadline, Engine, Memory, RegionOptions, State, Status, Transfer, TransferOptions};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub const MIB: usize = 1 << 20;
pub const LEASE_MS: u64 = 400;
/// Scheduling delays on a busy machine may add this to a bound.
pub const SLACK: Duration = Duration::from_millis(1500);
/// Nothing here takes this long unless it hangs.
pub const BOUND: Duration = Duration::from_secs(30);
pub const SECRET: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// The tests bound times and count threads, so they run one at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Short times and the shared secret.
pub const QUICK: [(&str, &str); 7] = [
    ("lease_ms", "400"),
    ("drain_ms", "50"),
    ("progress_timeout_ms", "500"),
    ("connect_timeout_ms", "2000"),
    ("reconnect_timeout_ms", "1500"),
    ("handshake_timeout_ms", "1000"),
    ("secret", SECRET),
];

/// Returns a configuration with the settings of `QUICK`; `extra` overrides.
pub fn config(extra: &[(&str, &str)]) -> Config {
    let mut config = Config::default();
    // These tests are about the network between two engines; `faults/local.rs` has the same-host path's faults.
    config.set("transports", "tcp").unwrap();
    for (key, value) in QUICK.iter().chain(extra) {
        config.set(key, value).unwrap();
    }
    config
}

/// A setting without a secret: peers prove to be the same user.
pub const SAME_USER: (&str, &str) = ("secret", "");

pub fn engine(extra: &[(&str, &str)]) -> Engine {
    Engine::open(config(extra)).unwrap()
}

pub fn alloc(engine: &Engine, bytes: usize) -> Memory {
    engine.alloc(bytes, &RegionOptions::default()).unwrap()
}

pub fn connect(from: &Engine, to: &str) -> PeerId {
    from.connect(to, Some(Duration::from_secs(5))).unwrap()
}

/// Opens every lane to a peer, with a transfer that is not small.
pub fn open_lanes(from: &Engine, to: &Engine, peer: PeerId) {
    let remote = alloc(to, MIB);
    open_lanes_to(from, peer, (remote.region(), remote.address()));
}

/// Opens every lane to a peer by reading a region of the peer.
pub fn open_lanes_to(from: &Engine, peer: PeerId, (region, remote): (RegionId, u64)) {
    let local = alloc(from, MIB);
    from.read(peer, &rounds(local.address(), remote, region, MIB, 1), &options()).unwrap();
    wait_until("every lane is open", || from.peer_info(peer).unwrap().lanes == 3);
}

/// Returns two connected engines: (initiator, target, the target's handle at the initiator).
pub fn pair(extra: &[(&str, &str)]) -> (Engine, Engine, PeerId) {
    let (a, b) = (engine(extra), engine(extra));
    let peer = connect(&a, b.address());
    (a, b, peer)
}

/// Returns the 8 bytes at `offset` (a multiple of 8) of the pattern `seed`; never 0.
pub fn word(seed: u64, offset: usize) -> u64 {
    let mut x = (seed << 40 ^ offset as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 29;
    x.wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1
}

pub fn pattern(seed: u64, offset: usize, bytes: usize) -> Vec<u8> {
    assert!(offset % 8 == 0 && bytes % 8 == 0);
    (0..bytes / 8).flat_map(|i| word(seed, offset + i * 8).to_le_bytes()).collect()
}

pub fn fill(memory: &Memory, seed: u64) {
    memory.write(0, &pattern(seed, 0, memory.length()));
}

pub fn read(memory: &Memory, offset: usize, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    memory.read(offset, &mut out);
    out
}

/// Returns the offset of the first byte that differs from the pattern; `bytes` lie at `offset` of the pattern.
pub fn misplaced(bytes: &[u8], seed: u64, offset: usize) -> Option<usize> {
    bytes
        .chunks_exact(8)
        .enumerate()
        .find(|(i, chunk)| **chunk != word(seed, offset + i * 8).to_le_bytes())
        .map(|(i, _)| offset + i * 8)
}

#[track_caller]
pub fn assert_pattern(memory: &Memory, seed: u64, offset: usize, bytes: usize) {
    let wrong = misplaced(&read(memory, offset, bytes), seed, offset);
    assert_eq!(wrong, None, "pattern {seed} is broken");
}

#[track_caller]
pub fn assert_zero(memory: &Memory, offset: usize, bytes: usize) {
    let wrong = read(memory, offset, bytes).iter().position(|byte| *byte != 0);
    assert_eq!(wrong, None, "guard bytes at {offset} were touched");
}

/// Returns a request for the same range of two memories.
pub fn request(local: &Memory, remote: &Memory, offset: usize, bytes: usize) -> Request {
    Request {
        local: local.address() + offset as u64,
        remote: remote.address() + offset as u64,
        length: bytes as u64,
        remote_region: remote.region(),
    }
}

/// Returns requests for the whole memory in `rounds` rounds: long enough to be met in the middle.
pub fn rounds(local: u64, remote: u64, remote_region: RegionId, bytes: usize, rounds: usize) -> Vec<Request> {
    let one = Request { local, remote, length: bytes as u64, remote_region };
    vec![one; rounds]
}

pub fn options() -> TransferOptions<'static> {
    TransferOptions { no_coalesce: true, ..TransferOptions::default() }
}

/// Polls a condition that another thread or process makes true.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < BOUND, "waited in vain until {what}");
        std::thread::yield_now();
    }
}

/// Waits until the queue tells that a peer is lost; returns why.
#[track_caller]
pub fn wait_for_loss(queue: &Queue, peer: PeerId) -> Status {
    let (mut events, mut lost) = (Vec::new(), None);
    wait_until("PEER_LOST comes", || {
        queue.drain(&mut events, 16);
        lost = events.iter().find_map(|event| match event.body {
            EventBody::PeerLost { status, .. } if event.peer == peer => Some(status),
            _ => None,
        });
        lost.is_some()
    });
    lost.unwrap()
}

/// False, and says so, for a test that needs root `to` do something.
pub fn is_root(test: &str, to: &str) -> bool {
    // SAFETY: no arguments, no memory.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        println!("SKIPPED {test}: only root can {to}");
    }
    is_root
}

/// Waits for a final state of any kind.
#[track_caller]
pub fn finish(transfer: &Transfer) -> ferry::TransferResult {
    transfer.wait(Some(BOUND)).expect("a transfer must become final")
}

/// Cancels one of four transfers in mid-transfer. They share a memory of each side, of which each has a quarter, filled
/// with seed 5 where it reads; `times` says how often it moves its quarter, the third one by READs. The others are done
/// with the right bytes, and the cancelled one no longer uses its memory. Returns the first one, the cancelled one, and
/// the time that the cancel took.
pub fn cancel_between(
    engine: &Engine,
    peer: PeerId,
    local: &Memory,
    remote: &Memory,
    times: [usize; 4],
) -> (Transfer, Transfer, Duration) {
    let bytes = remote.length() / 4;
    remote.write(0, &vec![0; 4 * bytes]);
    remote.write(2 * bytes, &pattern(5, 2 * bytes, bytes));
    let mut all = std::array::from_fn(|n| {
        let (offset, region) = ((n * bytes) as u64, remote.region());
        let requests = rounds(local.address() + offset, remote.address() + offset, region, bytes, times[n]);
        let options = TransferOptions { deadline: Deadline::After(BOUND), ..options() };
        engine.submit(peer, if n == 2 { Op::Read } else { Op::Write }, &requests, &options).unwrap()
    });
    let [before, victim, reader, after] = &mut all;
    wait_until("the victim is under way", || read(remote, bytes, 8) != [0; 8]);
    let started = Instant::now();
    victim.cancel().unwrap();
    let result = finish(victim);
    let took = started.elapsed();
    assert_eq!((result.state, result.status), (State::Cancelled, Status::Cancelled));
    // Final: the victim's range is the target's own again.
    remote.write(bytes, &pattern(9, bytes, bytes));
    for (n, neighbour) in [(0, before), (2, reader), (3, after)] {
        let result = finish(neighbour);
        assert_eq!(result.state, State::Done, "neighbour {n}: {result:?}");
        assert_pattern(if n == 2 { local } else { remote }, 5, n * bytes, bytes);
    }
    assert_pattern(remote, 9, bytes, bytes);
    let [before, victim, ..] = all;
    (before, victim, took)
}

/// Random numbers: the seed is printed, and `FAULTS_SEED` repeats it.
pub struct Dice(u64);

impl Dice {
    pub fn new(name: &str) -> Dice {
        let seed = match std::env::var("FAULTS_SEED") {
            Ok(text) => text.parse().expect("FAULTS_SEED is a number"),
            Err(_) => ferry::internals::sys::random_u64(),
        };
        println!("{name}: FAULTS_SEED={seed}");
        Dice(seed)
    }

    pub fn of(seed: u64) -> Dice {
        Dice(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
