//! Data with a notification's number that arrives twice.

use crate::hostile::{Hostile, Who, PATIENCE};
use crate::support::{alloc, engine};
use ferry::internals::transport::tcp::wire::{flags, Descriptor, Header, Kind, FAULT_BYTES};
use ferry::limits::CHANNELS_MAX;
use ferry::notify::WHAT_NOTIFICATIONS;
use ferry::types::{LaneId, RegionId};
use ferry::Memory;
use std::io::Write;
use std::time::Instant;

const BYTES: usize = 256 << 10;

fn bytes_of(memory: &Memory, count: usize) -> Vec<u8> {
    let mut out = vec![0; count];
    memory.read(0, &mut out);
    out
}

/// A peer may repeat on one lane data that another lane still takes in, if that lane's thread stood still for longer
/// than the lease. If both were applied, one would be applied after the other's notification.
#[test]
fn what_one_lane_still_takes_in_no_other_takes_in_beside_it() {
    let engine = engine(&[]);
    let memory = alloc(&engine, BYTES);
    let queue = engine.queue(WHAT_NOTIFICATIONS, 16).unwrap();
    let mut who = Who::new();
    who.0.lanes_max = 2;
    let mut peer = Hostile::dial(engine.address(), &who);
    let mut lanes = peer.up();
    let target = Descriptor { address: memory.address(), region: memory.region(), length: BYTES as u32 };
    let notice = [&0u64.to_le_bytes()[..], b"word"].concat();
    let mut frame = |lane: usize, byte: u8| {
        let header = Header { kind: Kind::Write, flags: flags::NOTIFY, sequence: 1, ..lanes[lane].header() };
        lanes[lane].frame(header, &[target], &notice, &vec![byte; BYTES])
    };
    let (first, second) = (frame(1, 1), frame(2, 2));
    let (half, rest) = first.split_at(first.len() - BYTES / 2);
    lanes[1].socket.write_all(half).unwrap();
    let started = Instant::now();
    while bytes_of(&memory, 1) != [1] {
        assert!(started.elapsed() < PATIENCE, "the first half does not come");
        std::thread::yield_now();
    }
    let _ = lanes[2].socket.write_all(&second);
    assert!(lanes[2].receive().is_none(), "a second lane takes in the same");
    assert_eq!(queue.pending(), 0);
    lanes[1].socket.write_all(rest).unwrap();
    assert_eq!(lanes[1].receive().unwrap().header.kind, Kind::Ack);
    assert_eq!(queue.pending(), 1);
    assert_eq!(bytes_of(&memory, BYTES), vec![1; BYTES]);
    // With the lane gone, or the data taken in, the number is known.
    let mut lane = peer.open_lane(LaneId::from_raw(99), 2).unwrap();
    let header = Header { kind: Kind::Write, flags: flags::NOTIFY, sequence: 1, ..lane.header() };
    assert!(lane.send(header, &[target], &notice, &vec![3; BYTES]));
    assert_eq!(lane.receive().unwrap().header.kind, Kind::Ack);
    assert_eq!(bytes_of(&memory, BYTES), vec![1; BYTES]);
}

/// Data that was refused in part delivers no notification, and does not decide its number: later notifications wait
/// until the sender skips the number or sends all of the data again.
#[test]
fn the_number_of_data_that_was_refused_in_part_is_open() {
    for skips in [true, false] {
        let engine = engine(&[]);
        let memory = alloc(&engine, 4096);
        let queue = engine.queue(WHAT_NOTIFICATIONS, 16).unwrap();
        let mut peer = Hostile::dial(engine.address(), &Who::new());
        let mut lane = peer.up().remove(1);
        let notice = |number: u64| [&number.to_le_bytes()[..], b"word"].concat();
        let mut say = |sequence, flags, region, extra: &[u8], payload: &[u8]| {
            let header = Header { kind: Kind::Write, flags, sequence, ..lane.header() };
            let piece = |at, region| Descriptor { address: memory.address() + at, region, length: 4 };
            let targets = [piece(0, memory.region()), piece(4, region)];
            let targets = if payload.is_empty() { &[][..] } else { &targets[..] };
            assert!(lane.send(header, targets, extra, payload));
            let ack = lane.receive().unwrap();
            assert_eq!((ack.header.kind, ack.header.sequence), (Kind::Ack, sequence));
            ack.extra.len() / FAULT_BYTES
        };
        let unknown = RegionId::from_raw(memory.region().raw() ^ 1 << 20);
        assert_eq!(say(1, flags::NOTIFY, unknown, &notice(0), b"one ----"), 1);
        assert_eq!(say(2, flags::NOTIFY, RegionId::NONE, &notice(1), b""), 0);
        assert_eq!(queue.pending(), 0);
        if skips {
            assert_eq!(say(3, flags::SKIP, RegionId::NONE, &0u64.to_le_bytes(), b""), 0)
        } else {
            assert_eq!(say(3, flags::NOTIFY, memory.region(), &notice(0), b"two two "), 0)
        }
        assert_eq!(queue.pending(), if skips { 1 } else { 2 });
        // From here on the number is known, whichever data it belongs to.
        assert_eq!(say(4, flags::NOTIFY, memory.region(), &notice(0), b"late lat"), 0);
        let expected = if skips { b"one \0\0\0\0" } else { b"two two " };
        assert_eq!(bytes_of(&memory, 8), expected);
    }
}

/// A number of a channel that does not exist ends its lane, alone or with data, and the data is not applied.
#[test]
fn a_number_of_a_channel_that_does_not_exist_ends_its_lane() {
    let number = |channel: u16| u64::from(channel) << 48;
    for (channel, with_data, is_taken) in [
        (CHANNELS_MAX - 1, true, true),
        (CHANNELS_MAX - 1, false, true),
        (CHANNELS_MAX, true, false),
        (CHANNELS_MAX, false, false),
        (u16::MAX, true, false),
    ] {
        let engine = engine(&[]);
        let memory = alloc(&engine, 4096);
        let queue = engine.channel_queue(WHAT_NOTIFICATIONS, 16, CHANNELS_MAX - 1).unwrap();
        let before = bytes_of(&memory, 4);
        let mut peer = Hostile::dial(engine.address(), &Who::new());
        let mut lane = peer.up().remove(1);
        let header = Header { kind: Kind::Write, flags: flags::NOTIFY, sequence: 1, ..lane.header() };
        let target = Descriptor { address: memory.address(), region: memory.region(), length: 4 };
        let targets = if with_data { &[target][..] } else { &[] };
        let notice = [&number(channel).to_le_bytes()[..], b"word"].concat();
        let _ = lane.send(header, targets, &notice, if with_data { b"data" } else { b"" });
        let answer = lane.receive().map(|frame| frame.header.kind);
        assert_eq!(answer, is_taken.then_some(Kind::Ack), "channel {channel}, data: {with_data}");
        assert_eq!(queue.pending(), usize::from(is_taken));
        let expected = if is_taken && with_data { b"data".to_vec() } else { before };
        assert_eq!(bytes_of(&memory, 4), expected);
    }
}
