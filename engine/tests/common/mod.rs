//! Shared by the functional tests: pairs of engines, patterns whose every 8 bytes encode their place, permutations
//! from a printed seed. Waits are bounded: a test that would hang fails instead.
#![allow(dead_code)]

pub mod data;
pub mod inline;
pub mod process;
pub mod role;
pub mod standin;
pub mod suite;

use ferry::types::{Op, PeerId, RegionId, Request, Transport};
use ferry::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub type Settings<'a> = &'a [(&'a str, &'a str)];

/// Longer than anything here takes on a busy machine; a wait that lasts longer has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the transport for tests that don't choose: TCP, or the one named by FERRY_TEST_TRANSPORTS, so that one
/// suite serves each transport.
pub fn transport() -> Transport {
    let Ok(name) = std::env::var("FERRY_TEST_TRANSPORTS") else { return Transport::Tcp };
    let named = Transport::named().find(|transport| transport.name() == name);
    named.unwrap_or_else(|| panic!("FERRY_TEST_TRANSPORTS={name}: there is no such transport here"))
}

/// Returns the time in which unused memory must be free: peers that hold RDMA keys have to be asked first.
pub fn at_once() -> Duration {
    if transport() == Transport::Rdma {
        PATIENCE
    } else {
        Duration::ZERO
    }
}

pub fn config(settings: Settings) -> Config {
    let mut config = Config::new().unwrap();
    config.set("transports", transport().name()).unwrap();
    if transport() == Transport::Rdma {
        // The two hosts of the virtual machine, in turn.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let host = NEXT.fetch_add(1, Ordering::Relaxed) % 2;
        config.set("rdma_devices", ["rva0,rvb0", "rva1,rvb1"][host]).unwrap();
    }
    for (key, value) in settings {
        config.set(key, value).unwrap_or_else(|error| panic!("{key}={value}: {error}"));
    }
    config
}

pub fn engine(settings: Settings) -> Engine {
    Engine::open(config(settings)).unwrap()
}

/// Two engines of this process; `a` connected to `b`.
pub struct Pair {
    pub a: Engine,
    pub b: Engine,
    /// The handle of `b` at `a`, and of `a` at `b`.
    pub b_at_a: PeerId,
    pub a_at_b: PeerId,
}

impl Pair {
    pub fn new(settings: Settings) -> Pair {
        Pair::of(engine(settings), engine(settings))
    }

    pub fn of(a: Engine, b: Engine) -> Pair {
        let b_at_a = a.connect(b.address(), Some(PATIENCE)).unwrap();
        let a_at_b = peer_of(&b, &a);
        Pair { a, b, b_at_a, a_at_b }
    }

    /// One engine as both ends.
    pub fn own(a: Engine) -> Pair {
        let own = a.own_peer().unwrap();
        Pair { b: a.clone(), a, b_at_a: own, a_at_b: own }
    }

    /// Allocates memory of `a`, and memory of `b` that has been announced to `a`.
    pub fn memories(&self, local_bytes: usize, remote_bytes: usize) -> (Memory, Memory) {
        let options = RegionOptions::default();
        let (local, remote) = (self.a.alloc(local_bytes, &options), self.b.alloc(remote_bytes, &options));
        let remote = remote.unwrap();
        wait_for_region(&self.a, self.b_at_a, remote.region());
        (local.unwrap(), remote)
    }

    /// Sends notifications until `b`, whose application takes none, has room for no more.
    pub fn use_up_credits(&self) {
        for _ in 0..ferry::limits::NOTIFY_CREDITS {
            self.a.notify(self.b_at_a, b"fill", Deadline::Default).unwrap();
        }
    }

    /// Submits a WRITE that is certainly pending: its notification has no credit.
    pub fn held(&self, requests: &[Request]) -> Transfer {
        self.use_up_credits();
        let options = TransferOptions {
            notify: Some(b"held"),
            deadline: Deadline::Never,
            ..TransferOptions::default()
        };
        self.a.submit(self.b_at_a, Op::Write, requests, &options).unwrap()
    }
}

/// Returns the handle of `whom` at `at`, once `whom` has connected there.
pub fn peer_of(at: &Engine, whom: &Engine) -> PeerId {
    let described = whom.descriptor().ok().map(|descriptor| descriptor.incarnation);
    let live = |peer: &PeerInfo| peer.state != ferry::PeerState::Lost;
    let found: Vec<PeerId> = at
        .peers()
        .unwrap()
        .into_iter()
        .map(|peer| at.peer_info(peer).unwrap())
        // An engine that does not listen cannot be described; it is the peer without an address.
        .filter(|peer| live(peer) && described.map_or(peer.address.is_empty(), |it| it == peer.incarnation))
        .map(|peer| peer.handle)
        .collect();
    assert_eq!(found.len(), 1, "the other engine is known here, once");
    found[0]
}

/// Waits until `engine` knows this region of the peer.
pub fn wait_for_region(engine: &Engine, peer: PeerId, region: RegionId) {
    eventually("the region is announced", || {
        engine.peer_regions(peer).unwrap().iter().any(|known| known.region == region)
    });
}

pub fn request(local: &Memory, at: usize, remote: &Memory, to: usize, length: usize) -> Request {
    Request {
        local: local.address() + at as u64,
        remote: remote.address() + to as u64,
        length: length as u64,
        remote_region: remote.region(),
    }
}

/// Submits and waits, for a bounded time.
pub fn run(
    engine: &Engine,
    peer: PeerId,
    op: Op,
    requests: &[Request],
    options: &TransferOptions,
) -> TransferResult {
    engine.submit(peer, op, requests, options).unwrap().wait(Some(PATIENCE)).unwrap()
}

/// Polls until a condition holds. Only for state that another thread changes at its own pace without an event (a
/// peer's list of regions).
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::yield_now();
    }
}
