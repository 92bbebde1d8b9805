//! Which late bytes are reported, when reading for a checksum stops, and when a region is left.

use super::*;
use crate::complete::State;
use crate::handle::Tag;
use crate::limits::CALL_BYTES_MAX;
use crate::region::{RegionSpec, Registry};
use crate::transport::tcp::drain_tests::{engine, BOUND};
use crate::types::{Op, Request};
use crate::{RegionOptions, TransferOptions};
use std::time::{Duration, Instant};

#[test]
fn late_bytes_are_told_region_by_region_and_refused_ones_are_not() {
    let registry = Registry::new(Tag::from_random(3), None);
    let spec = |address| RegionSpec { address, length: 4096, ..RegionSpec::default() };
    let regions = registry.register(&[spec(4096), spec(65_536)]).unwrap();
    let [one, other] = [regions[0].id, regions[1].id];
    let mut landing = Landing::default();
    let [at_one, at_other] = [0, 1].map(|nth| landing.region_index(&regions[nth]));
    let places = [(0, SINK), (4096, at_one), (65_536, at_other), (5000, at_one), (6000, at_one)];
    for (address, region) in places {
        landing.push(Piece { address, length: 100, region, descriptor: 0 });
    }
    let spans = |landing: &Landing, bytes| landing.spans(bytes).collect::<Vec<_>>();
    assert_eq!(spans(&landing, 100), []);
    assert_eq!(spans(&landing, 101), [(one, 4096, 4196)]);
    assert_eq!(spans(&landing, 400), [(one, 4096, 5100), (other, 65_536, 65_636)]);
    landing.advance(350);
    assert_eq!(spans(&landing, 50), [(one, 5000, 5100)]);
    assert_eq!(spans(&landing, 51), [(one, 5000, 6100)]);
}

#[test]
fn reading_for_a_checksum_stops_when_the_lease_ends() {
    let bytes = vec![0u8; 64 << 20];
    let mut landing = Landing::default();
    let piece =
        Piece { address: bytes.as_ptr() as u64, length: bytes.len() as u32, region: OWN, descriptor: 0 };
    // Longer than the first part takes, and shorter than all.
    landing.reset(1, clock::boottime_ns() + 500_000);
    landing.push(piece);
    assert!(matches!(landing.checksum(), Err(LeaseOver)));
    // A READ's answer has no lease.
    landing.reset(1, Boottime::ZERO);
    landing.push(Piece { length: 9, ..piece });
    assert!(matches!(landing.checksum(), Ok(Some(sum)) if sum == crc32fast::hash(&[0; 9])));
}

/// The peer names an address at the end of the address space, and its payload comes in two receives.
#[test]
fn a_refused_piece_may_have_any_address() {
    let mut landing = Landing::default();
    landing.reset(1, Boottime::ZERO);
    landing.push(Piece { address: u64::MAX, length: 100, region: SINK, descriptor: 0 });
    landing.advance(60);
    let mut vectors = Vec::new();
    assert_eq!(landing.vectors(&mut vectors, CALL_BYTES_MAX), 40);
}

#[test]
fn one_call_receives_a_bounded_part() {
    let mut landing = Landing::default();
    landing.reset(1, Boottime::ZERO);
    let length = CALL_BYTES_MAX as u32 / 2 + 100;
    for region in [OWN, SINK, OWN] {
        landing.push(Piece { address: 4096, length, region, descriptor: 0 });
    }
    let mut left = 3 * length as usize;
    while left > 0 {
        let mut vectors = Vec::new();
        let bytes = landing.vectors(&mut vectors, CALL_BYTES_MAX);
        assert_eq!((bytes, landing.left()), (left.min(CALL_BYTES_MAX), left));
        landing.advance(bytes);
        left -= bytes;
    }
}

/// A lane that kept the regions of its last frame would enter them with each later receive, for whatever frame. The
/// owner that then frees its memory would find a user.
#[test]
fn a_lane_keeps_no_region_of_a_frame_that_it_has_answered() {
    let (a, b) = (engine(), engine());
    let peer = a.connect(b.address(), Some(BOUND)).unwrap();
    for (op, length) in [(Op::Write, 64), (Op::Read, 64), (Op::Write, 512 << 10)] {
        let (here, there) =
            (a.alloc(length, &RegionOptions::default()), b.alloc(length, &RegionOptions::default()));
        let (here, there) = (here.unwrap(), there.unwrap());
        let request = Request {
            local: here.address(),
            remote: there.address(),
            length: length as u64,
            remote_region: there.region(),
        };
        let transfer = a.submit(peer, op, &[request], &TransferOptions::default()).unwrap();
        assert_eq!(transfer.wait(Some(BOUND)).unwrap().state, State::Done);
        let region = Arc::downgrade(&b.whole().registry.get(there.region()).unwrap());
        // The thread that sent a READ's bytes may still be about to leave.
        let patience = if op == Op::Read { BOUND } else { Duration::ZERO };
        there.free(Some(patience)).map_err(|(_, error)| error).unwrap();
        let until = Instant::now() + BOUND;
        while region.strong_count() > 0 {
            assert!(Instant::now() < until, "{op:?} of {length}: the lane has it");
            std::thread::yield_now();
        }
        here.free(Some(Duration::ZERO)).map_err(|(_, error)| error).unwrap();
    }
}
