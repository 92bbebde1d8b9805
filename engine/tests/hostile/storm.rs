//! A storm: an authenticated peer that speaks well-formed frames and messages of every kind, with hostile contents, in
//! every order. The engine survives, memory that no peer may write keeps its canaries, and the transfers of a
//! well-behaved peer beside it end DONE with the right bytes. A failure names its seed.
//!
//! FERRY_HOSTILE_ROUNDS is the number of rounds (`scripts/fuzz.sh hostile` runs many, under AddressSanitizer), and
//! FERRY_HOSTILE_SEED the seed of the first; the next rounds count on.

use crate::hostile::{open_lanes, Hostile, HostileLane, Who, PATIENCE};
use crate::support::{alloc, engine};
use ferry::internals::region::RemoteRegion;
use ferry::internals::session::message::Message;
use ferry::internals::sys::{clock, random_u64};
use ferry::internals::transport::tcp::wire::{flags, Descriptor, Fault, Header, Kind};
use ferry::types::{Access, Boottime, LaneId, Location, MemoryKind, Op, RegionId, Request};
use ferry::{Engine, Memory, RegionOptions, State, Status, TransferOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

const STEPS: u64 = 40;
const PAGE: usize = 4096;

/// Random numbers that a seed repeats (SplitMix64).
struct Dice(u64);

impl Dice {
    fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.any() % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// Returns a number that is at, near or beyond a bound, or anything.
    fn number(&mut self) -> u64 {
        match self.below(6) {
            0 => self.below(4),
            1 => self.below(2000),
            2 => u64::MAX - self.below(3),
            3 => 1 << self.below(64),
            4 => (1 << self.below(63)) - 1,
            _ => self.any(),
        }
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        (0..self.below(most + 1)).map(|_| self.any() as u8).collect()
    }
}

/// The attacked engine, its memory, and the well-behaved peer.
struct Scene {
    engine: Engine,
    /// The hostile peer may write here.
    open: Memory,
    /// It may only read here, and nothing here.
    canaries: [Memory; 2],
    good: Engine,
    source: Memory,
    target: Memory,
}

fn canary(at: usize) -> u8 {
    (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]
}

impl Scene {
    fn new() -> Scene {
        let engine = engine(&[("handshake_timeout_ms", "60000")]);
        let good = crate::support::engine(&[]);
        let with = |access| RegionOptions { access, ..RegionOptions::default() };
        let canaries = [
            engine.alloc(PAGE, &with(Access::REMOTE_READ)).unwrap(),
            engine.alloc(PAGE, &with(Access(0))).unwrap(),
        ];
        let pattern: Vec<u8> = (0..PAGE).map(canary).collect();
        canaries.iter().for_each(|memory| memory.write(0, &pattern));
        let (open, target) = (alloc(&engine, PAGE), alloc(&engine, PAGE));
        let source = alloc(&good, PAGE);
        Scene { engine, open, canaries, good, source, target }
    }

    /// The well-behaved peer writes and reads back; nothing that must not change has changed.
    fn check(&self, round: u64) {
        let pattern: Vec<u8> = (0..PAGE).map(|at| canary(at) ^ round as u8).collect();
        self.source.write(0, &pattern);
        let peer = self.good.connect(self.engine.address(), Some(PATIENCE)).unwrap();
        let request = Request {
            local: self.source.address(),
            remote: self.target.address(),
            length: PAGE as u64,
            remote_region: self.target.region(),
        };
        for op in [Op::Write, Op::Read] {
            let transfer = self.good.submit(peer, op, &[request], &TransferOptions::default()).unwrap();
            let result = transfer.wait(Some(PATIENCE)).unwrap();
            assert_eq!(result.state, State::Done, "the good peer's {op:?}: {}", result.status);
        }
        let mut found = vec![0; PAGE];
        self.target.read(0, &mut found);
        assert!(found == pattern, "the good peer's bytes are wrong");
        for memory in &self.canaries {
            memory.read(0, &mut found);
            assert!(found.iter().enumerate().all(|(at, byte)| *byte == canary(at)), "a canary has changed");
        }
        self.engine.check_health().unwrap();
    }
}

/// One session of the hostile peer.
struct Storm<'a> {
    dice: Dice,
    scene: &'a Scene,
    peer: Hostile,
    lanes: Vec<HostileLane>,
    sequences: Vec<[u64; 2]>,
}

impl Storm<'_> {
    fn region(&mut self) -> (RegionId, u64) {
        let memory = match self.dice.below(5) {
            0 => &self.scene.canaries[0],
            1 => &self.scene.canaries[1],
            _ => &self.scene.open,
        };
        let named = match self.dice.below(6) {
            0 => RegionId::NONE,
            1 => RegionId::from_raw(memory.region().raw() ^ 1 << self.dice.below(64)),
            2 => self.scene.canaries[0].region(),
            _ => memory.region(),
        };
        (named, memory.address())
    }

    /// A range of the engine's memory, or of any address. Never the good peer's target.
    fn descriptor(&mut self) -> Descriptor {
        let (region, start) = self.region();
        let address = match self.dice.below(8) {
            0 => u64::MAX - self.dice.below(64),
            1 => self.dice.below(PAGE as u64),
            2 => start + PAGE as u64 - self.dice.below(64),
            _ => start + self.dice.below(PAGE as u64),
        };
        let room = self.scene.open.address() + PAGE as u64;
        let most = if address < room { (room - address).min(700) } else { 700 };
        Descriptor { address, region, length: self.dice.below(most + 1) as u32 }
    }

    fn frame(&mut self) {
        if self.lanes.is_empty() {
            return;
        }
        let at = self.dice.below(self.lanes.len() as u64) as usize;
        let kinds = [Kind::Write, Kind::Write, Kind::Read, Kind::Data, Kind::DataEnd, Kind::Ack];
        let kind = kinds[self.dice.below(6) as usize];
        let nth = usize::from(kind == Kind::Read);
        let sequence = match self.dice.below(12) {
            0 => self.dice.number(),
            _ => self.sequences[at][nth].wrapping_add(1),
        };
        self.sequences[at][nth] = sequence;
        let places: Vec<Descriptor> = match kind {
            Kind::Write | Kind::Read => (0..self.dice.below(6) + 1).map(|_| self.descriptor()).collect(),
            _ => Vec::new(),
        };
        let said: u64 = places.iter().map(|one| u64::from(one.length)).sum();
        let extra = match self.dice.below(5) {
            0 => self.dice.number().to_le_bytes().to_vec(),
            1 => [&self.dice.below(64).to_le_bytes()[..], &self.dice.bytes(40)].concat(),
            2 if kind != Kind::Write => {
                let mut out = Vec::new();
                let descriptor = self.dice.below(9) as u16;
                Fault { sequence, descriptor, status: Status::Stale }.encode(&mut out);
                out
            }
            _ => Vec::new(),
        };
        let length = match (kind, self.dice.below(20)) {
            (_, 0) => self.dice.below(3000),
            (Kind::Write, _) => said,
            _ => 0,
        };
        let asked = if extra.is_empty() { flags::CHECKSUM } else { flags::ALL };
        let header = Header {
            kind,
            flags: self.dice.any() as u8 & asked,
            sequence,
            not_after_ns: match self.dice.below(10) {
                0 => Boottime::from_ns(self.dice.number()),
                _ => clock::boottime_ns() + 60_000_000_000,
            },
            clock_ns: match self.dice.below(10) {
                0 => Boottime::from_ns(self.dice.number()),
                _ => clock::boottime_ns(),
            },
            ..self.lanes[at].header()
        };
        let payload = vec![0xee; length as usize];
        if !self.lanes[at].send(header, &places, &extra, &payload) {
            self.lanes.swap_remove(at);
            self.sequences.swap_remove(at);
        }
    }

    fn remote(&mut self) -> RemoteRegion {
        let kinds = [MemoryKind::Host, MemoryKind::Cuda, MemoryKind::Ascend];
        RemoteRegion {
            id: RegionId::from_raw(self.dice.number()),
            order: self.dice.number(),
            address: self.dice.number(),
            length: self.dice.number(),
            access: Access(self.dice.below(4) as u32),
            name: "x".repeat(self.dice.below(64) as usize),
            location: Location { kind: kinds[self.dice.below(3) as usize], device: self.dice.any() as i32 },
            staging: self.dice.one_in(2),
        }
    }

    fn message(&mut self) -> Message {
        let dice = &mut self.dice;
        match dice.below(14) {
            0 => Message::Start { association: dice.number(), known: dice.number(), fresh: dice.number() },
            1 => {
                let count = dice.below(257);
                Message::RegionsAdd((0..count).map(|_| self.remote()).collect())
            }
            2 => Message::RegionsRemove(
                (0..dice.below(257)).map(|_| RegionId::from_raw(dice.number())).collect(),
            ),
            3 => Message::Ready { notify_limit: dice.number() },
            4 => Message::Ping { nonce: dice.number() },
            5 => Message::Pong { nonce: dice.number(), clock_ns: Boottime::from_ns(dice.number()) },
            6 => Message::Fence { lane: LaneId::from_raw(dice.number() as u32) },
            7 => Message::FenceAck { lane: LaneId::from_raw(dice.number() as u32) },
            8 => Message::Grant { limit: dice.number() },
            9 if dice.one_in(4) => Message::Bye { status: dice.number() as i32 },
            10 => Message::HasEnded { pid: dice.number() as u32, started: dice.number() },
            11 => Message::Ended { pid: dice.number() as u32, started: dice.number() },
            12 => open_lanes(dice.number() as u32),
            _ => {
                let why = if dice.one_in(4) { "no path".into() } else { String::new() };
                // The first byte of a body is mostly a kind of the transports' services.
                let mut body = dice.bytes(120);
                body.insert(0, dice.below(21) as u8);
                Message::Transport { transport: dice.below(9) as u8, why, body }
            }
        }
    }

    fn blow(&mut self) {
        for _ in 0..STEPS {
            match self.dice.below(10) {
                0 => {
                    let message = self.message();
                    let mut bytes = message.encode();
                    if self.dice.one_in(6) {
                        let at = self.dice.below(bytes.len() as u64) as usize;
                        bytes[at] = self.dice.any() as u8;
                    }
                    self.peer.send_bytes(&bytes);
                }
                1 | 2 => {
                    let message = self.message();
                    self.peer.send(&message);
                }
                3 if !self.lanes.is_empty() => empty(&mut self.lanes[0].socket),
                _ => self.frame(),
            }
        }
        empty(&mut self.peer.raw());
        self.lanes.iter_mut().for_each(|lane| empty(&mut lane.socket));
    }
}

/// Reads what has arrived, without waiting.
fn empty(socket: &mut TcpStream) {
    let mut buffer = [0; 32 << 10];
    socket.set_nonblocking(true).unwrap();
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    let _ = socket.flush();
    socket.set_nonblocking(false).unwrap();
}

#[test]
fn a_storm_of_well_formed_frames_harms_nobody_else() {
    let set = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let rounds = set("FERRY_HOSTILE_ROUNDS").unwrap_or(20);
    let first = set("FERRY_HOSTILE_SEED").unwrap_or_else(random_u64);
    let scene = Scene::new();
    for round in 0..rounds {
        let seed = first.wrapping_add(round);
        // Shown when the test fails.
        println!("FERRY_HOSTILE_SEED={seed} FERRY_HOSTILE_ROUNDS=1");
        let mut peer = Hostile::dial(scene.engine.address(), &Who::new());
        let mut dice = Dice(seed);
        // Mostly a session with lanes; sometimes messages come in place of the beginning.
        let lanes = if dice.one_in(8) { Vec::new() } else { peer.up() };
        let sequences = vec![[0; 2]; lanes.len()];
        let mut storm = Storm { dice, scene: &scene, peer, lanes, sequences };
        storm.blow();
        if storm.dice.one_in(2) {
            let _ = storm.peer.raw().shutdown(Shutdown::Both);
        }
        drop(storm);
        scene.check(round);
    }
}
