//! Whether a path still trusts the peer's process when work that had to wait is copied at last.

use super::*;
use crate::complete::transfer::{Strike, TransferSpec};
use crate::complete::State;
use crate::complete::TransferFlags;
use crate::handle::Tag;
use crate::peer::PathStatus;
use crate::region::grants::Grants;
use crate::region::{RegionSpec, Registry};
use crate::status::Status;
use crate::sys::mapping::Mapping;
use crate::types::{Access, Request, TransferId};
use crate::{Config, Engine};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const BOUND: Duration = Duration::from_secs(20);
const BYTES: usize = 64;

fn engine() -> Engine {
    let mut config = Config::default();
    config.set("transports", "tcp").unwrap();
    Engine::open(config).unwrap()
}

/// A WRITE that only the local path may carry.
fn write(peer: &Peer, (local, remote, region): (u64, u64, RegionId), flags: TransferFlags) -> Arc<Transfer> {
    let length = BYTES as u32;
    let spec = TransferSpec {
        peer: peer.handle,
        op: Op::Write,
        requests: Box::new([Request { local, remote, length: u64::from(length), remote_region: region }]),
        order: vec![0],
        slices: vec![Slice { local, remote, region, first_offset: 0, length, first: 0 }],
        regions: Vec::new(),
        bytes: u64::from(length),
        flags,
        priority: 0,
        notify: None,
        channel: 0,
        submitted_ns: clock::monotonic_ns(),
        deadline_ns: Monotonic::NEVER,
        user_data: 0,
        queue: None,
        transport: Transport::Local,
        allowed: Transport::Local.bit(),
    };
    Arc::new(Transfer::new(TransferId::from_raw(1), spec))
}

/// A connected peer, and memory of this process at both ends of a WRITE.
struct Scene {
    peer: Arc<Peer>,
    grants: Arc<Grants>,
    there: Mapping,
    /// Where the WRITE takes its bytes, where it puts them, and the region there.
    places: (u64, u64, RegionId),
    _here: Mapping,
    _registry: Registry,
    _engines: [Engine; 2],
}

impl Scene {
    fn new() -> Scene {
        let (a, b) = (engine(), engine());
        let handle = a.connect(b.address(), Some(BOUND)).unwrap();
        let peer = a.whole().peers.get(handle).unwrap();
        let [here, there] = [1, 0].map(|byte| {
            let memory = Mapping::private(BYTES).unwrap();
            memory.write(0, &[byte; BYTES]);
            memory
        });
        let grants = Arc::new(Grants::new().unwrap());
        let registry = Registry::new(Tag::from_random(9), Some(grants.clone()));
        let (address, length) = (there.address() as u64, BYTES as u64);
        let spec = RegionSpec { address, length, access: Access::BOTH, ..RegionSpec::default() };
        let region = registry.register(&[spec]).unwrap()[0].id;
        let places = (here.address() as u64, address, region);
        Scene { peer, grants, there, places, _here: here, _registry: registry, _engines: [a, b] }
    }
}

/// A thread that serves other peers must not wait for this peer's pages.
#[test]
fn a_thread_that_serves_other_peers_leaves_the_copy_to_a_copy_thread() {
    let scene = Scene::new();
    let (peer, places) = (&scene.peer, scene.places);
    // Staging submits parts, for all peers.
    for (flags, threads) in [(TransferFlags::NONE, 0), (TransferFlags::PART, 1)] {
        let (_tally, copier) = Copier::own(&scene.grants, std::process::id());
        let path = LocalPath::new(peer.clone(), copier, 1, 0, Box::new(|| ()));
        peer.set_path(Transport::Local, PathStatus::Open(path.clone(), String::new()));
        let transfer = write(peer, places, flags);
        peer.submit(transfer.clone()).unwrap();
        let end = clock::monotonic_ns() + BOUND;
        while !transfer.is_final() && clock::monotonic_ns() < end {
            std::hint::spin_loop();
        }
        assert_eq!(transfer.state(), State::Done);
        assert_eq!(path.close().len(), threads, "copy threads");
    }
}

/// The process ends while a transfer waits, and another process gets its pid: this test's own, so that a wrong write
/// would show. That the process lived at submit is no reason to write.
#[test]
fn what_has_waited_is_not_written_to_a_process_that_has_ended_since() {
    let scene = Scene::new();
    let (peer, places) = (&scene.peer, scene.places);
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let (_tally, copier) = Copier::own(&scene.grants, child.id());
    static BROKEN: AtomicU32 = AtomicU32::new(0);
    let on_broken = || {
        BROKEN.fetch_add(1, Ordering::SeqCst);
    };
    let path = LocalPath::new(peer.clone(), copier, 1, 0, Box::new(on_broken));
    // No copy thread takes the piece: the posting thread copies it.
    assert!(path.copy_threads.close().is_empty());
    peer.set_path(Transport::Local, PathStatus::Pending("it broke, and is being made again".into()));
    assert!(!path.copier.process.has_ended(clock::monotonic_ns()), "seen alive when it is submitted");
    let transfer = write(peer, places, TransferFlags::NONE);
    peer.submit(transfer.clone()).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    while clock::monotonic_ns() < transfer.spec.submitted_ns + 2_000_000 {
        std::hint::spin_loop();
    }
    peer.set_path(Transport::Local, PathStatus::Open(path.clone(), String::new()));
    path.post(Class::Express, None, &mut peer.after());
    assert_eq!((BROKEN.load(Ordering::SeqCst), transfer.state()), (1, State::Pending));
    let mut found = [0; BYTES];
    scene.there.read(0, &mut found);
    assert_eq!(found, [0; BYTES], "it was written to whoever has the number now");
    // No other thread takes the piece.
    peer.strike(&transfer, Strike { status: Status::Cancelled, os_error: 0 });
    assert!(transfer.is_final());
}
