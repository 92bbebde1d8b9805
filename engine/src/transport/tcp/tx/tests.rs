//! How much one call sends, and when reading for a checksum stops.

use super::*;
use crate::complete::State;
use crate::limits::{CALL_BYTES_MAX, GENTLE_CALL_BYTES_MAX};
use crate::loss::Cause;
use crate::transport::tcp::answer::{clock_is_past, ReadJob};
use crate::transport::tcp::drain_tests::{engine, BOUND};
use crate::transport::tcp::filler::checksum_of_answer;
use crate::types::Request;
use crate::{RegionOptions, TransferOptions};
use std::time::Duration;

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

/// While a call runs, a kernel without preemption lets no other thread run. `beside`: small transfers go on meanwhile.
#[test]
fn one_call_moves_a_bounded_part() {
    for (beside, bytes_max) in [(false, CALL_BYTES_MAX), (true, GENTLE_CALL_BYTES_MAX)] {
        let (a, b) = (engine(), engine());
        if beside {
            // Small transfers of other peers go on, however seldom this test gets a processor.
            let until = clock::monotonic_ns() + Duration::from_secs(3600);
            [&a, &b].into_iter().for_each(|engine| engine.whole().conversation.extend_to(until));
        }
        assert_calls_are_bounded(&a, &b, bytes_max);
    }
}

fn assert_calls_are_bounded(a: &crate::Engine, b: &crate::Engine, bytes_max: usize) {
    const BYTES: usize = 64 << 20;
    let peer = a.connect(b.address(), Some(BOUND)).unwrap();
    let alloc = |engine: &crate::Engine| engine.alloc(BYTES, &RegionOptions::default()).unwrap();
    let (here, there) = (alloc(a), alloc(b));
    let (local, remote, remote_region) = (here.address(), there.address(), there.region());
    let request = Request { local, remote, length: BYTES as u64, remote_region };
    for op in [Op::Write, Op::Read] {
        let (sender, receiver) = if op == Op::Write { (a, b) } else { (b, a) };
        let count =
            || (sender.stats().unwrap().counts.send_calls, receiver.stats().unwrap().counts.receive_calls);
        let before = count();
        let transfer = a.submit(peer, op, &[request], &TransferOptions::default()).unwrap();
        assert_eq!(transfer.wait(Some(BOUND)).unwrap().state, State::Done);
        let (sent, received) = count();
        let (sent, received) = (sent - before.0, received - before.1);
        let least = (BYTES / bytes_max) as u64;
        assert!(sent >= least && received >= least, "{op:?}: {sent} and {received} of {least}");
    }
}
