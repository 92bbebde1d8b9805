//! Frames whose lease is over, or ends while they are received. Leases are words of the peer's: a hostile one is how a
//! test says exactly when.

use crate::hostile::{Hostile, HostileLane, Who, PATIENCE};
use crate::support::{alloc, engine, eventually};
use ferry::notify::{EventBody, WHAT_PEERS};
use ferry::sys::clock;
use ferry::transport::tcp::wire::{Descriptor, Header, Kind};
use ferry::{Engine, Memory};
use std::io::Write;
use std::time::Instant;

const BYTES: usize = 1 << 20;

struct Scene {
    engine: Engine,
    memory: Memory,
    peer: Hostile,
    lanes: Vec<HostileLane>,
}

impl Scene {
    fn new() -> Scene {
        let engine = engine(&[]);
        let memory = alloc(&engine, BYTES);
        let mut peer = Hostile::dial(engine.address(), &Who::new());
        let lanes = peer.up();
        Scene { engine, memory, peer, lanes }
    }

    fn place(&self, length: usize) -> Descriptor {
        Descriptor { address: self.memory.address(), region: self.memory.region(), length: length as u32 }
    }

    fn is_zero(&self) -> bool {
        let mut found = vec![1; BYTES];
        self.memory.read(0, &mut found);
        found.iter().all(|byte| *byte == 0)
    }
}

#[test]
fn a_frame_whose_lease_is_over_is_not_applied() {
    let mut scene = Scene::new();
    // In one piece with its head, and more than that.
    for length in [8, BYTES] {
        let place = scene.place(length);
        let lane = &mut scene.lanes[1];
        let header = Header {
            kind: Kind::Write,
            sequence: 1,
            not_after_ns: clock::boottime_ns() - 1,
            ..lane.header()
        };
        lane.send(header, &[place], b"", &vec![7; length]);
        assert!(lane.hear().is_none(), "{length} bytes were acknowledged");
        assert!(scene.is_zero(), "bytes landed after their lease");
        scene.lanes[1] = scene.peer.lane(1);
    }
}

#[test]
fn what_comes_of_a_frame_after_its_lease_is_not_applied() {
    let mut scene = Scene::new();
    let place = scene.place(BYTES);
    let lane = &mut scene.lanes[1];
    let not_after_ns = clock::boottime_ns() + 100_000_000;
    let header = Header { kind: Kind::Write, sequence: 1, not_after_ns, ..lane.header() };
    let frame = lane.frame(header, &[place], b"", &vec![7; BYTES]);
    let (first, rest) = frame.split_at(frame.len() - BYTES / 2);
    lane.socket.write_all(first).unwrap();
    eventually("the lease is over", || clock::boottime_ns() > not_after_ns);
    let _ = lane.socket.write_all(rest);
    assert!(lane.hear().is_none(), "the frame was acknowledged");
    let mut last = vec![1; BYTES / 2];
    scene.memory.read(BYTES / 2, &mut last);
    assert!(last.iter().all(|byte| *byte == 0), "bytes landed after their lease");
}

/// A receive that begins within the lease and ends after it may have written late: the application is told. The
/// lease's end is moved until it falls into a receive.
#[test]
fn a_receive_that_outlasts_its_lease_is_told() {
    let mut scene = Scene::new();
    let events = scene.engine.queue(WHAT_PEERS, 16).unwrap();
    let place = scene.place(BYTES);
    let payload = vec![7; BYTES];
    let (mut sequence, mut ahead_ns) = (0, 500_000u64);
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < PATIENCE, "no receive was late");
        let lane = &mut scene.lanes[1];
        sequence += 1;
        let not_after_ns = clock::boottime_ns() + ahead_ns;
        let header = Header { kind: Kind::Write, sequence, not_after_ns, ..lane.header() };
        lane.send(header, &[place], b"", &payload);
        if lane.hear().is_none() {
            ahead_ns += ahead_ns / 8;
            (sequence, scene.lanes[1]) = (0, scene.peer.lane(1));
        } else {
            ahead_ns -= ahead_ns / 16;
        }
        let late = scene.engine.stats().unwrap().counts.late_applies;
        if late > 0 {
            println!("{late} of {} frames", scene.engine.stats().unwrap().counts.receive_calls);
            break;
        }
    }
    let mut seen = Vec::new();
    eventually("LATE_APPLY comes", || {
        events.drain(&mut seen, 16);
        seen.iter().any(|event| matches!(event.body, EventBody::LateApply { .. }))
    });
    let late = seen.iter().find_map(|event| match event.body {
        EventBody::LateApply { region, address, length } => Some((region, address, length)),
        _ => None,
    });
    assert_eq!(late, Some((place.region, place.address, BYTES as u64)));
}
