//! A target's own checks. A correct initiator checks its list of the other's regions before it asks, so only a peer
//! that does not check shows that the target checks too.

use crate::hostile::{Hostile, HostileLane, Who};
use crate::support::{alloc, engine, eventually};
use ferry::internals::transport::tcp::wire::{Descriptor, Fault, Header, Kind};
use ferry::types::{Access, Op, RegionId};
use ferry::{Engine, RegionOptions, Status};
use std::io::Write;
use std::time::Duration;

const PAGE: usize = 4096;

/// Memory of the test's own, which stays mapped.
struct Ground {
    at: *mut u8,
    length: usize,
}

impl Ground {
    fn new(length: usize) -> Ground {
        Ground { at: Box::leak(vec![0u8; length].into_boxed_slice()).as_mut_ptr(), length }
    }

    fn address(&self, offset: usize) -> u64 {
        self.at as u64 + offset as u64
    }

    fn register(&self, engine: &Engine, offset: usize, length: usize, access: Access) -> RegionId {
        let options = RegionOptions { access, ..RegionOptions::default() };
        // SAFETY: it is mapped for ever, and read and written by raw pointers alone.
        unsafe { engine.register(self.at.add(offset), length, &options) }.unwrap()
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: each byte is within the allocation; what peers write meanwhile is old or new.
        (0..self.length).map(|offset| unsafe { self.at.add(offset).read_volatile() }).collect()
    }

    fn fill(&self, byte: u8) {
        // SAFETY: as in `bytes`.
        (0..self.length).for_each(|offset| unsafe { self.at.add(offset).write_volatile(byte) });
    }
}

struct Asker {
    lane: HostileLane,
    sequences: [u64; 2],
}

impl Asker {
    /// Returns the engine's answer to one descriptor: OK, or the fault's status.
    fn ask(&mut self, op: Op, place: Descriptor) -> Status {
        let kind = if op == Op::Write { Kind::Write } else { Kind::Read };
        let sequence = &mut self.sequences[(op == Op::Write) as usize];
        *sequence += 1;
        let header = Header { kind, sequence: *sequence, ..self.lane.header() };
        let payload = vec![0xff; if op == Op::Write { place.length as usize } else { 0 }];
        assert!(self.lane.send(header, &[place], b"", &payload));
        let answer = self.lane.receive().expect("the lane stands");
        let faults = Fault::decode_all(&answer.extra).unwrap();
        let status = faults.first().map_or(Status::Ok, |fault| fault.status);
        let expected = if op == Op::Read && status == Status::Ok { place.length as usize } else { 0 };
        assert_eq!(answer.payload.len(), expected, "{op:?} {place:?}");
        status
    }
}

#[test]
fn a_target_reaches_what_is_granted_and_nothing_else() {
    let engine = engine(&[]);
    // [guard][read-only][guard][write-only][guard]
    let ground = Ground::new(8 * PAGE);
    let page = |number: usize| ground.address(number * PAGE);
    let readable = ground.register(&engine, PAGE, PAGE, Access::REMOTE_READ);
    let writable = ground.register(&engine, 3 * PAGE, PAGE, Access::REMOTE_WRITE);
    let gone = ground.register(&engine, 5 * PAGE, PAGE, Access::BOTH);
    engine.unregister(gone, None).unwrap();
    let other = crate::support::engine(&[]);
    let foreign = alloc(&other, PAGE);
    let mut peer = Hostile::dial(engine.address(), &Who::new());
    let mut asker = Asker { lane: peer.up().remove(1), sequences: [0, 0] };
    let whole = PAGE as u32;
    for (op, address, length, region, expected) in [
        (Op::Write, page(1), whole, readable, Status::Access),
        (Op::Write, page(1), whole, RegionId::NONE, Status::Access),
        (Op::Read, page(3), whole, writable, Status::Access),
        (Op::Read, page(3), whole, RegionId::NONE, Status::Access),
        // One byte beyond either end, of a named region and of whichever region is there.
        (Op::Write, page(4) - 8, 9, writable, Status::Invalid),
        (Op::Write, page(3) - 1, 8, writable, Status::Invalid),
        (Op::Write, page(4) - 8, 9, RegionId::NONE, Status::NotRegistered),
        (Op::Write, page(3) - 1, 8, RegionId::NONE, Status::NotRegistered),
        (Op::Read, page(2) - 8, 9, readable, Status::Invalid),
        (Op::Read, page(1) - 1, 8, readable, Status::Invalid),
        (Op::Read, page(2) - 8, 9, RegionId::NONE, Status::NotRegistered),
        (Op::Read, page(1) - 1, 8, RegionId::NONE, Status::NotRegistered),
        // At another region than the named one.
        (Op::Write, page(3), 8, readable, Status::Invalid),
        (Op::Read, page(1), 8, writable, Status::Invalid),
        (Op::Write, page(6), 8, RegionId::NONE, Status::NotRegistered),
        (Op::Write, u64::MAX - 7, 9, writable, Status::Invalid),
        (Op::Write, u64::MAX - 7, 9, RegionId::NONE, Status::Invalid),
        (Op::Write, page(3), 0, writable, Status::Invalid),
        // Unregistered, of another engine, of a future generation.
        (Op::Write, page(5), 8, gone, Status::Stale),
        (Op::Read, page(5), 8, gone, Status::Stale),
        (Op::Write, page(3), 8, foreign.region(), Status::Stale),
        (Op::Write, page(3), 8, RegionId::from_raw(writable.raw() + (1 << 20)), Status::Stale),
    ] {
        let place = Descriptor { address, region, length };
        assert_eq!(asker.ask(op, place), expected, "{op:?} {place:?}");
    }
    assert!(ground.bytes().iter().all(|byte| *byte == 0), "something was touched");
    assert_eq!(
        asker.ask(Op::Write, Descriptor { address: page(4) - 8, region: RegionId::NONE, length: 8 }),
        Status::Ok
    );
    let all = Descriptor { address: page(1), region: readable, length: whole };
    assert_eq!(asker.ask(Op::Read, all), Status::Ok);
    let bytes = ground.bytes();
    let touched: Vec<usize> = (0..8 * PAGE).filter(|offset| bytes[*offset] != 0).collect();
    assert_eq!(touched, (4 * PAGE - 8..4 * PAGE).collect::<Vec<_>>());
}

/// Unregistered in the middle of a frame, of which a part is in place.
#[test]
fn what_comes_for_memory_that_is_unregistered_meanwhile_is_thrown_away() {
    const MIB: usize = 1 << 20;
    let engine = engine(&[]);
    let ground = Ground::new(MIB);
    let region = ground.register(&engine, 0, MIB, Access::BOTH);
    let mut peer = Hostile::dial(engine.address(), &Who::new());
    let mut lane = peer.up().remove(1);
    let place = Descriptor { address: ground.address(0), region, length: MIB as u32 };
    let header = Header { kind: Kind::Write, sequence: 1, ..lane.header() };
    let frame = lane.frame(header, &[place], b"", &vec![7; MIB]);
    let (first, rest) = frame.split_at(frame.len() - MIB / 2);
    lane.socket.write_all(first).unwrap();
    eventually("the first half is in place", || ground.bytes()[MIB / 2 - 1] == 7);
    engine.unregister(region, Some(Duration::from_secs(20))).unwrap();
    ground.fill(3);
    lane.socket.write_all(rest).unwrap();
    let answer = lane.receive().expect("the lane stands");
    let faults = Fault::decode_all(&answer.extra).unwrap();
    assert_eq!(faults.iter().map(|fault| fault.status).collect::<Vec<_>>(), [Status::Stale]);
    assert!(ground.bytes().iter().all(|byte| *byte == 3), "bytes landed after unregister's OK");
}
