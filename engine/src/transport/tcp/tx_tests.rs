//! How much one call sends, and when reading for a checksum stops.

use super::*;
use crate::complete::State;
use crate::limits::CALL_BYTES_MAX;
use crate::loss::Cause;
use crate::transport::tcp::answer::{clock_is_past, ReadJob};
use crate::transport::tcp::drain_tests::{engine, BOUND};
use crate::transport::tcp::filler::checksum_of_answer;
use crate::types::Request;
use crate::{RegionOptions, TransferOptions};

#[test]
fn memory_is_not_read_for_a_checksum_after_the_lease() {
    let bytes = *b"123456789";
    let job = |not_after_ns| ReadJob {
        sequence: 1,
        not_after_ns,
        checksum: true,
        pieces: vec![(bytes.as_ptr() as u64, bytes.len() as u32)],
        regions: Vec::new(),
        faults: Vec::new(),
    };
    // The check value of CRC-32.
    assert_eq!(checksum_of_answer(&mut job(Boottime::NEVER)).unwrap(), 0xcbf4_3926);
    let mut over = job(clock::boottime_ns());
    while !clock_is_past(over.not_after_ns) {}
    assert_eq!(checksum_of_answer(&mut over).unwrap_err().cause, Cause::Lease);
}

#[test]
fn reading_for_a_checksum_stops_when_the_lease_ends() {
    let bytes = vec![0u8; 64 << 20];
    let mut job = ReadJob {
        sequence: 1,
        // Longer than the first part takes, and shorter than all.
        not_after_ns: clock::boottime_ns() + 500_000,
        checksum: true,
        pieces: vec![(bytes.as_ptr() as u64, bytes.len() as u32)],
        regions: Vec::new(),
        faults: Vec::new(),
    };
    assert_eq!(checksum_of_answer(&mut job).unwrap_err().cause, Cause::Lease);
}

/// While a call runs, a kernel without preemption lets no other thread run.
#[test]
fn one_call_moves_a_bounded_part() {
    const CALLS: usize = 16;
    let (a, b) = (engine(), engine());
    let peer = a.connect(b.address(), Some(BOUND)).unwrap();
    let alloc =
        |engine: &crate::Engine| engine.alloc(CALLS * CALL_BYTES_MAX, &RegionOptions::default()).unwrap();
    let (here, there) = (alloc(&a), alloc(&b));
    let request = Request {
        local: here.address(),
        remote: there.address(),
        length: (CALLS * CALL_BYTES_MAX) as u64,
        remote_region: there.region(),
    };
    for (op, sender, receiver) in [(Op::Write, &a, &b), (Op::Read, &b, &a)] {
        let calls =
            || (sender.stats().unwrap().counts.send_calls, receiver.stats().unwrap().counts.receive_calls);
        let before = calls();
        let transfer = a.submit(peer, op, &[request], &TransferOptions::default()).unwrap();
        assert_eq!(transfer.wait(Some(BOUND)).unwrap().state, State::Done);
        let (sent, received) = calls();
        assert!(sent - before.0 >= CALLS as u64, "{op:?}: {} calls sent", sent - before.0);
        assert!(received - before.1 >= CALLS as u64, "{op:?}: {} calls received", received - before.1);
    }
}
