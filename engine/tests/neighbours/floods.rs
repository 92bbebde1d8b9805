//! The peer that floods: through its engine as far as that goes, and with the hostile peer's sockets for what an engine
//! does not do. A flood runs on a thread of its own from `start` to `stop`.

use crate::hostile::{Hostile, HostileLane, Who, PATIENCE};
use crate::processors::prioritise;
use crate::{engine, Hub, GROUND_BYTES, HONEST_BYTES};
use ferry::internals::transport::tcp::wire::{Descriptor, Header, Kind};
use ferry::types::{Op, PeerId, RegionId, Request};
use ferry::{Deadline, Engine, Memory, RegionOptions, Transfer, TransferOptions};
use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Each flood, and its units of work a second.
pub const ALL: &[(&str, u64)] = &[
    // Strangers that say nothing, or nonsense.
    ("connections", CONNECTIONS_PER_SECOND),
    // An engine that connects and closes without end.
    ("sessions", SESSIONS_PER_SECOND),
    // Thousands of WRITEs of 64 bytes at a time.
    ("small", CALLS_PER_SECOND),
    // WRITEs of 1 MiB, 64 at a time.
    ("bulk", BYTES_PER_SECOND / PIECE as u64),
    ("notifications", CALLS_PER_SECOND),
    // READs of 1 MiB, 64 at a time.
    ("reads", BYTES_PER_SECOND / PIECE as u64),
    // READs whose answers nobody receives. The work is to look on.
    ("slow reads", LOOKS_PER_SECOND),
];

/// A 10 Gbit/s NIC.
const BYTES_PER_SECOND: u64 = 1_250_000_000;
/// Packets that such a NIC may send at most for small work: more than an application's.
const CALLS_PER_SECOND: u64 = 50_000;
/// Connections and sessions.
const CONNECTIONS_PER_SECOND: u64 = 2_000;
const SESSIONS_PER_SECOND: u64 = 100;
const LOOKS_PER_SECOND: u64 = 1000;
const PIECE: usize = 1 << 20;
const PIECES_IN_FLIGHT: usize = 64;
const SMALL_IN_FLIGHT: usize = 4096;
/// Units of work after which a flood counts as begun.
const BEGUN: u64 = 50;
/// Sessions that read slowly, each with an express lane and a bulk lane.
const SLOW_SESSIONS: usize = 8;

/// Lets work through at a rate.
struct Pace {
    begun: Instant,
    per_second: u64,
    done: u64,
}

impl Pace {
    fn new(per_second: u64) -> Pace {
        Pace { begun: Instant::now(), per_second, done: 0 }
    }

    /// Counts `units`, and returns when they are due. What was missed is not made up for beyond some milliseconds.
    fn pass(&mut self, units: u64) {
        self.done += units;
        let due = Duration::from_nanos((self.done as u128 * 1_000_000_000 / self.per_second as u128) as u64);
        match due.checked_sub(self.begun.elapsed()) {
            // The rate of a flood, not a wait for anything.
            Some(early) if early > Duration::from_micros(100) => std::thread::sleep(early),
            Some(_) => {}
            None => {
                let late = self.begun.elapsed() - due;
                if late > Duration::from_millis(5) {
                    self.begun += late;
                }
            }
        }
    }
}

/// One running flood.
struct Run<'a> {
    hub: &'a Hub,
    stop: Arc<AtomicBool>,
    begun: Sender<Instant>,
    done: u64,
}

impl Run<'_> {
    /// Counts a unit of work, and returns whether to go on.
    fn goes_on(&mut self) -> bool {
        self.done += 1;
        if self.done == BEGUN {
            let _ = self.begun.send(Instant::now());
        }
        !self.stop.load(Ordering::Relaxed)
    }
}

/// The flooding engine. The first peers that the hub meets go to different threads of the hub: two engines flood, so
/// that one of them shares the thread of the well-behaved peer's express lane.
struct Flooder {
    engine: Engine,
    peer: PeerId,
    memory: Memory,
}

impl Flooder {
    fn new(hub: &Hub) -> Flooder {
        let engine = engine(&[("listen_address", ""), ("workers", "1")]);
        let peer = engine.connect(&hub.address, Some(PATIENCE)).unwrap();
        let memory = engine.alloc(GROUND_BYTES, &RegionOptions::default()).unwrap();
        Flooder { engine, peer, memory }
    }

    fn submit(&self, hub: &Hub, op: Op, nth: u64, length: usize) -> Transfer {
        let at = HONEST_BYTES + nth as usize % ((GROUND_BYTES - HONEST_BYTES) / PIECE) * PIECE;
        let request = Request {
            local: self.memory.address() + at as u64,
            remote: hub.memory + at as u64,
            length: length as u64,
            remote_region: RegionId::from_raw(hub.region),
        };
        self.engine.submit(self.peer, op, &[request], &TransferOptions::default()).unwrap()
    }
}

/// Keeps `in_flight` transfers of `length` bytes under way.
fn transfers(run: &mut Run, flooders: &[Flooder], op: Op, length: usize, in_flight: usize) {
    let rate = if length < PIECE { CALLS_PER_SECOND } else { BYTES_PER_SECOND / length as u64 };
    let (mut pace, mut under_way) = (Pace::new(rate), VecDeque::<Transfer>::new());
    while run.goes_on() {
        if under_way.len() >= in_flight {
            under_way.pop_front().unwrap().wait(Some(PATIENCE)).unwrap();
        }
        let by = &flooders[run.done as usize % flooders.len()];
        under_way.push_back(by.submit(run.hub, op, run.done / 2, length));
        pace.pass(1);
    }
    for transfer in under_way {
        transfer.wait(Some(PATIENCE)).unwrap();
    }
}

fn notifications(run: &mut Run, flooders: &[Flooder]) {
    let (mut pace, bytes) = (Pace::new(CALLS_PER_SECOND), [7; 256]);
    while run.goes_on() {
        let by = &flooders[run.done as usize % flooders.len()];
        // The engine refuses more than `transfers_max` that wait.
        let _ = by.engine.notify(by.peer, &bytes, Deadline::After(PATIENCE));
        pace.pass(1);
    }
}

fn connections(run: &mut Run) {
    let (mut pace, mut open) = (Pace::new(CONNECTIONS_PER_SECOND), VecDeque::new());
    while run.goes_on() {
        // A full backlog refuses.
        if let Ok(mut socket) = TcpStream::connect(&run.hub.address) {
            if run.done % 2 == 0 {
                let _ = std::io::Write::write_all(&mut socket, &[0x16; 100]);
            }
            open.push_back(socket);
        }
        if open.len() > 256 {
            open.pop_front();
        }
        pace.pass(1);
    }
}

fn sessions(run: &mut Run) {
    let engine = engine(&[("listen_address", ""), ("workers", "1")]);
    let mut pace = Pace::new(SESSIONS_PER_SECOND);
    while run.goes_on() {
        let peer = engine.connect(&run.hub.address, Some(PATIENCE)).unwrap();
        engine.close_peer(peer, Some(PATIENCE)).unwrap();
        pace.pass(1);
    }
}

/// Asks for all that the hub accepts, and receives nothing.
fn slow_reads(run: &mut Run) {
    let place = Descriptor {
        address: run.hub.memory + HONEST_BYTES as u64,
        region: RegionId::from_raw(run.hub.region),
        length: PIECE as u32,
    };
    let ask = |lane: &mut HostileLane| {
        for sequence in 1..=8 {
            let header = Header { kind: Kind::Read, sequence, ..lane.header() };
            lane.send(header, &[place], b"", b"");
        }
    };
    let sessions: Vec<_> = (0..SLOW_SESSIONS)
        .map(|_| {
            let mut peer = Hostile::dial(&run.hub.address, &Who::new());
            let mut lanes = peer.up();
            lanes.iter_mut().for_each(ask);
            peer.sync();
            (peer, lanes)
        })
        .collect();
    let mut pace = Pace::new(LOOKS_PER_SECOND);
    while run.goes_on() {
        pace.pass(1);
    }
    drop(sessions);
}

fn flood(name: &str, run: &mut Run, flooders: &[Flooder]) {
    match name {
        "connections" => connections(run),
        "sessions" => sessions(run),
        "small" => transfers(run, flooders, Op::Write, 64, SMALL_IN_FLIGHT),
        "bulk" => transfers(run, flooders, Op::Write, PIECE, PIECES_IN_FLIGHT),
        "notifications" => notifications(run, flooders),
        "reads" => transfers(run, flooders, Op::Read, PIECE, PIECES_IN_FLIGHT),
        "slow reads" => slow_reads(run),
        other => panic!("{other}"),
    }
}

#[test]
#[ignore = "a role of a_flood_slows_no_other_peer_down"]
fn flood_role() {
    let Some(hub) = Hub::of_parent() else { return };
    assert!(prioritise(19), "a lower priority is always allowed");
    let flooders = [Flooder::new(&hub), Flooder::new(&hub)];
    println!("@@ ready");
    let mut commands = std::io::stdin().lines().map_while(Result::ok);
    while let Some(command) = commands.next() {
        let name = command.strip_prefix("start ").unwrap();
        let (stop, (begun, has_begun)) = (Arc::new(AtomicBool::new(false)), channel());
        let mut run = Run { hub: &hub, stop: stop.clone(), begun, done: 0 };
        std::thread::scope(|scope| {
            let flooding = scope.spawn(|| {
                flood(name, &mut run, &flooders);
                run.done
            });
            let begun = has_begun.recv_timeout(PATIENCE).unwrap();
            println!("@@ started");
            let next = commands.next();
            stop.store(true, Ordering::Relaxed);
            let took = begun.elapsed().as_secs_f64();
            let done = flooding.join().unwrap() - BEGUN;
            if next.is_some() {
                println!("@@ {:.0}", done as f64 / took);
            }
        });
    }
}
