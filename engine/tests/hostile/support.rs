//! Shared by the tests of hostile peers: engines that such a peer can talk to.

use crate::hostile::{Hostile, HostileLane, HostileListener, Who, PATIENCE, SECRET};
use ferry::internals::region::RemoteRegion;
use ferry::internals::session::message::Message;
use ferry::internals::transport::tcp::wire::Descriptor;
use ferry::types::{Access, Location, Op, PeerId, RegionId, Request};
use ferry::{Config, Engine, Memory, RegionOptions, Transfer, TransferOptions};
use std::time::Instant;

/// Opens an engine over TCP, with the hostile peer's secret and times that a slow machine keeps; `extra` overrides.
pub fn engine(extra: &[(&str, &str)]) -> Engine {
    let mut config = Config::default();
    let own = [
        ("transports", "tcp"),
        ("secret", SECRET),
        ("progress_timeout_ms", "20000"),
        ("lease_ms", "20000"),
        // An engine that has nothing to say is silent, which ends a test that waits for its word.
        ("keepalive_ms", "0"),
    ];
    for (key, value) in own.iter().chain(extra) {
        config.set(key, value).unwrap();
    }
    Engine::open(config).unwrap()
}

pub fn alloc(engine: &Engine, bytes: usize) -> Memory {
    engine.alloc(bytes, &RegionOptions::default()).unwrap()
}

/// Returns an announcement of regions of host memory: (handle, address, length).
pub fn regions(all: &[(RegionId, u64, u64)]) -> Message {
    let region = |&(id, address, length): &(RegionId, u64, u64)| RemoteRegion {
        id,
        order: id.raw(),
        address,
        length,
        access: Access::BOTH,
        name: String::new(),
        location: Location::HOST,
        staging: false,
    };
    Message::RegionsAdd(all.iter().map(region).collect())
}

/// The length of a `Scene`'s memory, and of the answers to large READs.
pub const MIB: usize = 1 << 20;

/// An engine with memory, and a hostile peer that has dialed it.
pub struct Scene {
    pub engine: Engine,
    pub memory: Memory,
    pub who: Who,
    pub peer: Hostile,
    pub lanes: Vec<HostileLane>,
}

impl Scene {
    pub fn new(settings: &[(&str, &str)]) -> Scene {
        let engine = engine(settings);
        let (memory, who) = (alloc(&engine, MIB), Who::new());
        let mut peer = Hostile::dial(engine.address(), &who);
        let lanes = peer.up();
        Scene { engine, memory, who, peer, lanes }
    }

    /// Returns the first `length` bytes of the memory.
    pub fn place(&self, length: usize) -> Descriptor {
        Descriptor { address: self.memory.address(), region: self.memory.region(), length: length as u32 }
    }

    pub fn is_zero(&self) -> bool {
        let mut found = vec![1; MIB];
        self.memory.read(0, &mut found);
        found.iter().all(|byte| *byte == 0)
    }
}

/// Connects an engine to a hostile peer, which brings the session up.
pub fn connect(engine: &Engine, listener: &HostileListener) -> (Hostile, Vec<HostileLane>, PeerId) {
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| engine.connect(&listener.address, Some(PATIENCE)));
        let mut peer = listener.accept();
        let lanes = peer.up();
        (peer, lanes, connecting.join().unwrap().unwrap())
    })
}

/// As `connect`; the engine knows `bytes` of memory at `REMOTE` then, and has taken in all lanes.
pub fn connect_with_memory(
    engine: &Engine,
    listener: &HostileListener,
    bytes: u64,
) -> (Hostile, Vec<HostileLane>, PeerId) {
    let (mut peer, lanes, handle) = connect(engine, listener);
    peer.send(&regions(&[(REMOTE_REGION, REMOTE, bytes)]));
    peer.sync();
    wait_for_lanes(engine, handle, lanes.len());
    (peer, lanes, handle)
}

/// The express lane carries everything until the engine has taken in a bulk lane.
fn wait_for_lanes(engine: &Engine, handle: PeerId, count: usize) {
    eventually("all lanes stand", || engine.peer_info(handle).unwrap().lanes == count);
}

/// An engine that has connected to a hostile peer, and may WRITE and READ 64 MiB at `REMOTE` there.
pub struct Attacked {
    pub engine: Engine,
    /// The hostile peer's handle at the engine.
    pub handle: u64,
    #[allow(dead_code)]
    listener: HostileListener,
    pub peer: Hostile,
    pub lanes: Vec<HostileLane>,
}

pub const REMOTE: u64 = 1 << 32;
pub const REMOTE_REGION: RegionId = RegionId::from_raw(7 << 48 | 1 << 20);

impl Attacked {
    pub fn new(extra: &[(&str, &str)]) -> Attacked {
        Attacked::by(Who::new(), extra)
    }

    pub fn by(who: Who, extra: &[(&str, &str)]) -> Attacked {
        let engine = engine(extra);
        let listener = HostileListener::open(who);
        let (peer, lanes, handle) = connect_with_memory(&engine, &listener, 64 << 20);
        Attacked { engine, handle: handle.raw(), listener, peer, lanes }
    }

    /// Submits a transfer of the first `length` bytes of the memory, from or to the peer's memory.
    pub fn submit(&self, op: Op, memory: &Memory, length: usize) -> Transfer {
        let request = Request {
            local: memory.address(),
            remote: REMOTE,
            length: length as u64,
            remote_region: REMOTE_REGION,
        };
        self.engine
            .submit(PeerId::from_raw(self.handle), op, &[request], &TransferOptions::default())
            .unwrap()
    }

    /// The engine has given up the lane in this slot: fences it as a correct peer does, and takes the next lane.
    pub fn replace_lane(&mut self, slot: usize) {
        let lost = self.lanes[slot].id;
        self.peer.receive_until(|message| (*message == Message::Fence { lane: lost }).then_some(()));
        self.lanes[slot] = self.peer.lane(slot as u32);
        assert_eq!(self.lanes[slot].slot, slot as u32);
        wait_for_lanes(&self.engine, PeerId::from_raw(self.handle), self.lanes.len());
        self.peer.send(&Message::FenceAck { lane: lost });
    }
}

/// Polls for a state that another thread reaches at its own pace without an event.
#[track_caller]
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::yield_now();
    }
}
