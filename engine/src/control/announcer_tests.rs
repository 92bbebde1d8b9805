//! Tests of announcements: a peer to which everything is announced knows exactly the regions that exist, however
//! regions were added and removed meanwhile. A peer that does not read is disconnected.

use super::*;
use crate::command::Command;
use crate::control::announce::{described, transport_message};
use crate::handle::Tag;
use crate::peer::PeerState;
use crate::region::remote::RemoteRegions;
use crate::region::{RegionSpec, Registry};
use crate::sys::map::HashSet;
use crate::types::{RegionId, Transport};
use crate::{Config, Engine, RegionOptions};
use proptest::prelude::*;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Mutex};
use std::time::{Duration, Instant};

const PEER: PeerId = PeerId::from_raw(1);
const BOUND: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
enum Step {
    /// Registers so many regions in one batch.
    Register(u64),
    /// Unregisters regions: the position of the first in the list, and their number.
    Unregister(usize, usize),
    /// Delivers so many commands to the loop.
    Command(usize),
    /// Begins a connection, the first or a later one.
    Begin,
    /// Sends so many messages.
    Take(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..700u64).prop_map(Step::Register),
        4 => (any::<usize>(), 1..300usize).prop_map(|(at, count)| Step::Unregister(at, count)),
        4 => (1..6usize).prop_map(Step::Command),
        1 => Just(Step::Begin),
        6 => (1..4usize).prop_map(Step::Take),
    ]
}

struct World {
    registry: Registry,
    live: Vec<RegionId>,
    next_address: u64,
    /// Commands that the loop has not handled: (regions, gone).
    commands: VecDeque<(Vec<RegionId>, bool)>,
    announcer: Announcer,
    /// The peer's view, and the regions that were announced on this connection.
    remote: RemoteRegions,
    announced_now: HashSet<RegionId>,
}

impl World {
    fn new() -> World {
        let mut world = World {
            registry: Registry::new(Tag::from_random(5), None),
            live: Vec::new(),
            next_address: 1 << 20,
            commands: VecDeque::new(),
            announcer: Announcer::default(),
            remote: RemoteRegions::new(),
            announced_now: HashSet::default(),
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        self.remote.renew();
        self.announced_now.clear();
        self.announcer.begin(PEER, self.registry.snapshot());
    }

    fn register(&mut self, count: u64) {
        // Addresses are not in order, and lie between older regions.
        let address = |nth: u64| self.next_address + (nth * 7919 % count) * 64;
        let specs: Vec<_> = (0..count)
            .map(|nth| RegionSpec { address: address(nth), length: 8, ..RegionSpec::default() })
            .collect();
        self.next_address = match self.next_address % 64 {
            // The next batch fills the gaps of this batch.
            0 => self.next_address + 16,
            16 => self.next_address + 16,
            _ => (self.next_address / 64 + 1000) * 64,
        };
        let Ok(regions) = self.registry.register(&specs) else { return };
        let ids: Vec<RegionId> = regions.iter().map(|region| region.id).collect();
        self.live.extend(&ids);
        self.commands.push_back((ids, false));
    }

    fn unregister(&mut self, at: usize, count: usize) {
        for _ in 0..count.min(self.live.len()) {
            let id = self.live.swap_remove(at % self.live.len());
            self.registry.unregister(id, Some(Duration::ZERO)).unwrap();
            self.commands.push_back((vec![id], true));
        }
    }

    fn command(&mut self) {
        if let Some((ids, gone)) = self.commands.pop_front() {
            self.announcer.note(&ids, gone);
        }
    }

    fn take(&mut self) {
        let Some(piece) = self.announcer.take(PEER, &self.registry.snapshot()) else { return };
        assert!(piece.came.len() <= REGIONS_PER_MESSAGE && piece.gone.len() <= REGIONS_PER_MESSAGE);
        for region in &piece.came {
            assert!(!region.is_revoked(), "announced after its end");
            assert!(self.announced_now.insert(region.id), "told twice on one connection");
        }
        self.remote.add(piece.came.iter().map(|region| described(region)).collect());
        self.remote.remove(&piece.gone);
        if piece.is_all {
            self.remote.settle();
        }
    }

    fn receive_everything(&mut self) {
        while !self.commands.is_empty() {
            self.command();
        }
        while !self.announcer.is_up_to_date(PEER) {
            self.take();
        }
        let known: HashSet<RegionId> = self.remote.snapshot().iter().map(|region| region.id).collect();
        assert_eq!(known, self.live.iter().copied().collect());
    }
}

proptest! {
    #![proptest_config(crate::cases::most(64))]

    #[test]
    fn a_peer_that_has_every_announcement_knows_all_regions(steps in proptest::collection::vec(any_step(), 1..60)) {
        let mut world = World::new();
        for step in steps {
            match step {
                Step::Register(count) => world.register(count),
                Step::Unregister(at, count) => world.unregister(at, count),
                Step::Command(count) => (0..count).for_each(|_| world.command()),
                Step::Begin => world.begin(),
                Step::Take(count) => (0..count).for_each(|_| world.take()),
            }
        }
        world.receive_everything();
    }
}

#[test]
fn a_message_waits_for_the_regions_registered_before_it() {
    let mut world = World::new();
    world.register(600);
    world.command();
    let say = |world: &mut World, nth| {
        let message = transport_message(Transport::Rdma, vec![nth], String::new());
        assert!(!world.announcer.hold(PEER, message, 1));
    };
    say(&mut world, 1);
    world.register(1);
    world.command();
    say(&mut world, 2);
    let mut received = Vec::new();
    while let Some(piece) = world.announcer.take(PEER, &world.registry.snapshot()) {
        received.extend(piece.came.iter().map(|_| 0));
        received.extend(piece.messages.iter().map(|waiting| match waiting {
            Message::Transport { body, .. } => body[0],
            _ => unreachable!(),
        }));
    }
    let first = received.iter().position(|it| *it == 1).unwrap();
    assert!(first >= 600, "after {first} regions");
    assert_eq!((received.len(), received[602]), (603, 2));
}

/// An engine with a small socket buffer, and a peer that has stopped reading.
struct Deaf {
    engine: Engine,
    peer: PeerId,
    _other: Engine,
    /// Another peer, which reads.
    witness: Engine,
    _silence: mpsc::Sender<()>,
}

impl Deaf {
    fn new() -> Deaf {
        let engine = |settings: &[(&str, &str)]| {
            let mut config = Config::default();
            let own = [("transports", "tcp"), ("progress_timeout_ms", "600000")];
            own.iter().chain(settings).for_each(|(key, value)| config.set(key, value).unwrap());
            Engine::open(config).unwrap()
        };
        let (speaker, other) = (engine(&[("socket_buffer_bytes", "65536")]), engine(&[]));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, goal) = (listener.local_addr().unwrap().to_string(), speaker.address().to_owned());
        let is_deaf = Arc::new(AtomicBool::new(false));
        let (silence, silent) = mpsc::channel::<()>();
        let (deaf, silent) = (is_deaf.clone(), Arc::new(Mutex::new(silent)));
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(io::Result::ok) {
                let Ok(far) = TcpStream::connect(&goal) else { return };
                let (mut from, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                std::thread::spawn(move || io::copy(&mut from, &mut to));
                let (deaf, silent) = (deaf.clone(), silent.clone());
                std::thread::spawn(move || {
                    let (mut far, mut near, mut bytes) = (far, near, [0; 4096]);
                    while let Ok(count @ 1..) = far.read(&mut bytes) {
                        if deaf.load(Ordering::SeqCst) {
                            // Blocks until the test ends.
                            let _ = silent.lock().unwrap().recv();
                        }
                        let _ = near.write_all(&bytes[..count]);
                    }
                    // The speaker may refuse a lane that comes before the session stands; another follows.
                    let _ = near.shutdown(Shutdown::Both);
                });
            }
        });
        other.connect(&address, Some(BOUND)).unwrap();
        let peer = speaker.peers().unwrap()[0];
        speaker.probe(peer, Some(BOUND)).unwrap();
        let witness = engine(&[]);
        witness.connect(speaker.address(), Some(BOUND)).unwrap();
        is_deaf.store(true, Ordering::SeqCst);
        Deaf { engine: speaker, peer, witness, _other: other, _silence: silence }
    }

    /// Announces the removal of so many regions that no peer knows. Returns when the witness has heard everything.
    fn change_regions(&self, count: u64) {
        let ids = (1..=count).map(RegionId::from_raw).collect();
        self.engine.whole().commands.push(Command::RegionsRemoved(ids));
        let last = self.engine.alloc(8, &RegionOptions::default()).unwrap();
        let known = || self.witness.peer_regions(self.witness.peers().unwrap()[0]).unwrap();
        wait_until("the news are heard", || known().iter().any(|it| it.region == last.region()));
    }

    #[track_caller]
    fn is_cut_off(&self) {
        let state = || self.engine.peer_info(self.peer).unwrap().state;
        wait_until("it is cut off", || state() != PeerState::Up);
    }
}

#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + BOUND;
    while !is_so() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_peer_that_does_not_read_announcements_is_disconnected() {
    let deaf = Deaf::new();
    // Messages that wait to be written are bounded. The rest stays in the log, which is bounded too.
    deaf.change_regions(ANNOUNCE_LOG_MAX / 3 * 2);
    assert_eq!(deaf.engine.peer_info(deaf.peer).unwrap().state, PeerState::Up);
    // The log is now too long for a peer that has not heard the first part, but not for the witness: a message, or
    // the changes that the loop has not handled, are less than the difference.
    deaf.change_regions(ANNOUNCE_LOG_MAX - 2 * REGIONS_PER_MESSAGE as u64);
    deaf.is_cut_off();
}
