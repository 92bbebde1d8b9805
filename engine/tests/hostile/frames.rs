//! Frames out of order, and more frames than the window allows.

use crate::hostile::{Hostile, HostileLane, Who, PATIENCE};
use crate::support::{alloc, engine, eventually, Attacked};
use ferry::internals::transport::tcp::wire::{flags, Descriptor, Fault, Header, Kind};
use ferry::limits::FRAME_BYTES_MAX;
use ferry::types::{Op, RegionId};
use ferry::{Engine, Memory, State};

const DESCRIPTORS: usize = 512;

/// Opens an engine with a page of zeros, and a peer that has dialed the engine.
fn scene(settings: &[(&str, &str)]) -> (Engine, Memory, Hostile, Vec<HostileLane>) {
    let engine = engine(settings);
    let memory = alloc(&engine, 4096);
    let mut peer = Hostile::dial(engine.address(), &Who::new());
    let lanes = peer.up();
    (engine, memory, peer, lanes)
}

/// Returns descriptors of unregistered memory: each is refused.
fn nowhere() -> Vec<Descriptor> {
    vec![Descriptor { address: 8, region: RegionId::NONE, length: 8 }; DESCRIPTORS]
}

#[test]
fn a_sequence_that_does_not_follow_the_last_one_ends_the_lane() {
    let (engine, memory, mut peer, mut lanes) = scene(&[]);
    let place = Descriptor { address: memory.address(), region: memory.region(), length: 8 };
    for kind in [Kind::Write, Kind::Read] {
        for (good, bad) in [(0, 0), (0, 2), (0, u64::MAX), (1, 1), (1, 0), (1, 3)] {
            let lane = &mut lanes[1];
            for sequence in 1..=good {
                let header = Header { kind, sequence, ..lane.header() };
                let payload: &[u8] = if kind == Kind::Write { &[0; 8] } else { &[] };
                assert!(lane.send(header, &[place], b"", payload));
                assert_eq!(lane.receive().unwrap().header.sequence, sequence);
            }
            let header = Header { kind, sequence: bad, ..lane.header() };
            let payload: &[u8] = if kind == Kind::Write { &[0xff; 8] } else { &[] };
            lane.send(header, &[place], b"", payload);
            assert!(lane.receive().is_none(), "{kind:?} {bad} after {good} was answered");
            lanes[1] = peer.lane(1);
        }
    }
    let mut found = [7; 8];
    memory.read(0, &mut found);
    assert_eq!(found, [0; 8], "a frame out of order was applied");
    drop(engine);
}

/// More faults than one acknowledgement holds, all of one sequence: no acknowledgement could ever cover them.
#[test]
fn frames_without_a_sequence_leave_the_engine_serving_others() {
    let (engine, memory, _peer, mut lanes) = scene(&[("workers", "1")]);
    let header = Header { kind: Kind::Write, sequence: 0, ..lanes[1].header() };
    let payload = [0; DESCRIPTORS * 8];
    let frames: Vec<u8> = (0..3).flat_map(|_| lanes[1].frame(header, &nowhere(), b"", &payload)).collect();
    let _ = std::io::Write::write_all(&mut lanes[1].socket, &frames);
    lanes[1].receive_end();
    let mut other = Hostile::dial(engine.address(), &Who::new());
    let mut lanes = other.up();
    let place = Descriptor { address: memory.address(), region: memory.region(), length: 8 };
    let header = Header { kind: Kind::Write, sequence: 1, ..lanes[1].header() };
    assert!(lanes[1].send(header, &[place], b"", &[1; 8]));
    assert_eq!(lanes[1].receive().unwrap().header.sequence, 1, "the lanes' thread is gone");
}

#[test]
fn a_peer_that_reads_no_acknowledgements_is_stopped_at_the_window() {
    // The sockets hold acknowledgements beyond the window.
    let (engine, _memory, _peer, mut lanes) = scene(&[("socket_buffer_bytes", "65536")]);
    let lost = || engine.stats().unwrap().counts.lanes_lost;
    let payload = [0; DESCRIPTORS * 8];
    let enough = (1..=4096).find(|sequence| {
        let header = Header { kind: Kind::Write, sequence: *sequence, ..lanes[1].header() };
        !lanes[1].send(header, &nowhere(), b"", &payload) || lost() > 0
    });
    assert!(enough.is_some(), "{} faults wait for an acknowledgement", 4096 * DESCRIPTORS);
    eventually("the lane ends", || lost() > 0);
}

/// With more or less payload than the descriptors say, bytes would land in unintended places.
#[test]
fn a_write_whose_payload_is_not_what_it_says_ends_the_lane() {
    let (_engine, memory, mut peer, mut lanes) = scene(&[]);
    let place = |length| Descriptor { address: memory.address(), region: memory.region(), length };
    for bytes in [7, 9, 0] {
        let header = Header { kind: Kind::Write, sequence: 1, ..lanes[1].header() };
        lanes[1].send(header, &[place(8)], b"", &[0xff; 9][..bytes]);
        // Looks like the rest of the frame.
        let header = Header { kind: Kind::Write, sequence: 2, ..lanes[1].header() };
        lanes[1].send(header, &[place(8)], b"", &[0xff; 8]);
        lanes[1].receive_end();
        lanes[1] = peer.lane(1);
    }
    let mut found = [7; 16];
    memory.read(0, &mut found);
    assert_eq!(found, [0; 16]);
}

/// The answer to a READ is one frame, so a READ may not ask for more than a frame holds.
#[test]
fn a_read_of_more_than_a_frame_ends_the_lane() {
    let engine = engine(&[]);
    let memory = alloc(&engine, 2 * FRAME_BYTES_MAX as usize);
    let mut peer = Hostile::dial(engine.address(), &Who::new());
    let mut lanes = peer.up();
    let place = |length| Descriptor { address: memory.address(), region: memory.region(), length };
    let half = FRAME_BYTES_MAX / 2;
    for places in [vec![place(FRAME_BYTES_MAX + 1)], vec![place(half), place(half), place(1)]] {
        let header = Header { kind: Kind::Read, sequence: 1, ..lanes[1].header() };
        lanes[1].send(header, &places, b"", b"");
        assert!(lanes[1].receive().is_none(), "{} bytes were answered in one frame", FRAME_BYTES_MAX + 1);
        lanes[1] = peer.lane(1);
    }
    let header = Header { kind: Kind::Read, sequence: 1, ..lanes[1].header() };
    assert!(lanes[1].send(header, &[place(half), place(half)], b"", b""));
    assert_eq!(lanes[1].receive().unwrap().header.payload_bytes, FRAME_BYTES_MAX);
}

/// An answer to a READ must have exactly the length that was asked for.
#[test]
fn an_answer_of_another_length_ends_the_lane() {
    let mut all = Attacked::new(&[]);
    let memory = alloc(&all.engine, 4096);
    for bytes in [0, 4095, 4097] {
        let transfer = all.submit(Op::Read, &memory, 4096);
        let asked = all.lanes[0].receive().unwrap().header;
        let header = Header { kind: Kind::Data, sequence: asked.sequence, ..all.lanes[0].header() };
        all.lanes[0].send(header, &[], b"", &[0xff; 4097][..bytes]);
        all.lanes[0].receive_end();
        assert!(!transfer.state().is_final(), "{bytes} bytes for 4096");
        all.replace_lane(0);
        // The engine asks again, and gets the data.
        let asked = all.lanes[0].receive().unwrap().header;
        assert!(all.lanes[0].answer(asked.sequence, &[1; 4096]));
        assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
        let mut found = [0; 4096];
        memory.read(0, &mut found);
        assert_eq!(found, [1; 4096]);
    }
}

#[test]
fn answers_that_bring_what_no_answer_has_end_the_lane() {
    let (_engine, _memory, mut peer, mut lanes) = scene(&[]);
    for (descriptors, extra, payload) in
        [(&nowhere()[..1], &b""[..], &b""[..]), (&[], b"", b"payload"), (&[], b"no fault", b"")]
    {
        let header = lanes[1].header();
        lanes[1].send(header, descriptors, extra, payload);
        lanes[1].receive_end();
        lanes[1] = peer.lane(1);
    }
}

/// The sum is of all the frame's bytes, and what is refused is not kept: the rest cannot be compared.
#[test]
fn nothing_of_a_frame_with_a_checksum_is_confirmed_if_a_part_is_refused() {
    let (_engine, memory, _peer, mut lanes) = scene(&[]);
    let good = Descriptor { address: memory.address(), region: memory.region(), length: 8 };
    let nowhere = Descriptor { address: 8, region: RegionId::NONE, length: 8 };
    let payload = [7; 16];
    let checksum = crc32fast::hash(&payload);
    let header =
        Header { kind: Kind::Write, sequence: 1, flags: flags::CHECKSUM, checksum, ..lanes[1].header() };
    assert!(lanes[1].send(header, &[good, nowhere], b"", &payload));
    let answer = lanes[1].receive().unwrap();
    let faults = Fault::decode_all(&answer.extra).unwrap();
    let refused: Vec<u16> = faults.iter().map(|fault| fault.descriptor).collect();
    assert_eq!(refused, [0, 1]);
    // Without a part that is refused, or without a checksum, the good one is confirmed.
    for (flags, descriptors, refused) in [(flags::CHECKSUM, [good, good], 0), (0, [good, nowhere], 1)] {
        let sequence = if flags == 0 { 3 } else { 2 };
        let header = Header { kind: Kind::Write, sequence, flags, checksum, ..lanes[1].header() };
        assert!(lanes[1].send(header, &descriptors, b"", &payload));
        let answer = lanes[1].receive().unwrap();
        assert_eq!(Fault::decode_all(&answer.extra).unwrap().len(), refused);
    }
}
