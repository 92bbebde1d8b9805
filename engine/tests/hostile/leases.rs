//! Frames whose lease is over, or ends while they are received. The initiator states its leases, so a hostile peer
//! lets a test choose the exact moment. Contract 4.

use crate::hostile::PATIENCE;
use crate::support::{alloc, eventually, Attacked, Scene, MIB};
use ferry::internals::sys::clock;
use ferry::internals::transport::tcp::wire::{Header, Kind};
use ferry::notify::{EventBody, WHAT_PEERS};
use ferry::types::{Boottime, Op};
use ferry::{Fence, State};
use std::io::{Read, Write};
use std::time::Instant;

#[test]
fn a_frame_whose_lease_is_over_is_not_applied() {
    let mut scene = Scene::new(&[]);
    // In one piece with its head, and longer than one piece.
    for length in [8, MIB] {
        let place = scene.place(length);
        let lane = &mut scene.lanes[1];
        let header = Header {
            kind: Kind::Write,
            sequence: 1,
            not_after_ns: clock::boottime_ns() - 1,
            ..lane.header()
        };
        lane.send(header, &[place], b"", &vec![7; length]);
        assert!(lane.receive().is_none(), "{length} bytes were acknowledged");
        assert!(scene.is_zero(), "bytes landed after their lease");
        scene.lanes[1] = scene.peer.lane(1);
    }
}

#[test]
fn what_comes_of_a_frame_after_its_lease_is_not_applied() {
    let mut scene = Scene::new(&[]);
    let place = scene.place(MIB);
    let lane = &mut scene.lanes[1];
    let not_after_ns = clock::boottime_ns() + 100_000_000;
    let header = Header { kind: Kind::Write, sequence: 1, not_after_ns, ..lane.header() };
    let frame = lane.frame(header, &[place], b"", &vec![7; MIB]);
    let (first, rest) = frame.split_at(frame.len() - MIB / 2);
    lane.socket.write_all(first).unwrap();
    eventually("the lease is over", || clock::boottime_ns() > not_after_ns);
    let _ = lane.socket.write_all(rest);
    assert!(lane.receive().is_none(), "the frame was acknowledged");
    let mut last = vec![1; MIB / 2];
    scene.memory.read(MIB / 2, &mut last);
    assert!(last.iter().all(|byte| *byte == 0), "bytes landed after their lease");
}

/// A receive that begins within the lease and ends after it may have written late: the application is told. The test
/// moves the lease's end until it falls into a receive.
#[test]
fn a_receive_that_outlasts_its_lease_is_told() {
    let mut scene = Scene::new(&[]);
    let events = scene.engine.queue(WHAT_PEERS, 16).unwrap();
    let place = scene.place(MIB);
    let payload = vec![7; MIB];
    let (mut sequence, mut ahead_ns) = (0, 500_000u64);
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < PATIENCE, "no receive was late");
        let lane = &mut scene.lanes[1];
        sequence += 1;
        let not_after_ns = clock::boottime_ns() + ahead_ns;
        let header = Header { kind: Kind::Write, sequence, not_after_ns, ..lane.header() };
        lane.send(header, &[place], b"", &payload);
        if lane.receive().is_none() {
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
    assert_eq!(late, Some((place.region, place.address, MIB as u64)));
}

/// The reader holds up its answer until its lease is over: the reader was then told that nothing reads the memory any
/// more.
#[test]
fn an_answer_is_not_read_after_its_lease() {
    // The sockets hold less than the answer.
    let mut scene = Scene::new(&[("socket_buffer_bytes", "65536")]);
    let (place, lane) = (scene.place(MIB), &mut scene.lanes[1]);
    let not_after_ns = clock::boottime_ns() + 100_000_000;
    let header = Header { kind: Kind::Read, sequence: 1, not_after_ns, ..lane.header() };
    lane.send(header, &[place], b"", b"");
    assert_eq!(lane.socket.peek(&mut [0; 16]).unwrap(), 16, "the answer has begun");
    eventually("the lease is over", || clock::boottime_ns() > not_after_ns);
    let mut found = Vec::new();
    let _ = Read::take(&lane.socket, MIB as u64).read_to_end(&mut found);
    assert!(found.len() < MIB, "all of the answer was sent, after the lease too");
}

/// The target is silent: LEASE says that the target refuses all frames posted by now, so no frame has a later lease.
#[test]
fn lease_is_said_when_the_lease_of_each_frame_is_over() {
    let mut all = Attacked::new(&[("lease_ms", "400"), ("drain_ms", "20")]);
    let memory = alloc(&all.engine, 2 * MIB);
    for op in [Op::Write, Op::Read] {
        let transfer = all.submit(op, &memory, 2 * MIB);
        let mut not_after_ns = 0;
        for _ in 0..2 {
            not_after_ns =
                all.lanes[1].receive().unwrap().header.not_after_ns.max(Boottime::from_ns(not_after_ns)).ns();
        }
        transfer.cancel().unwrap();
        let result = transfer.wait(Some(PATIENCE)).unwrap();
        assert!(
            clock::boottime_ns() >= Boottime::from_ns(not_after_ns),
            "{op:?} was final while its target would have taken it"
        );
        assert_eq!((result.state, result.fence), (State::Cancelled, Fence::Lease));
        all.replace_lane(1);
    }
}
