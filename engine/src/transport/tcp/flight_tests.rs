use super::*;
use crate::complete::transfer::TransferSpec;
use crate::complete::Transfer;
use crate::complete::TransferFlags;
use crate::status::Status;
use crate::types::{PeerId, RegionId, Slice, SliceRange, TransferId, Transport};
use std::sync::Arc;

/// `count` slices of one transfer.
fn slices(op: Op, count: u32) -> What {
    let slice =
        Slice { local: 0, remote: 0, length: 8, region: RegionId::from_raw(1), first_offset: 0, first: 0 };
    let spec = TransferSpec {
        peer: PeerId::from_raw(1),
        op,
        requests: Box::default(),
        order: Vec::new(),
        slices: vec![slice; count as usize],
        regions: Vec::new(),
        bytes: 8 * u64::from(count),
        flags: TransferFlags::NONE,
        priority: 0,
        notify: None,
        channel: 0,
        submitted_ns: Monotonic::ZERO,
        deadline_ns: Monotonic::NEVER,
        user_data: 0,
        queue: None,
        transport: Transport::Tcp,
        allowed: Transport::Tcp.bit(),
    };
    let transfer = Arc::new(Transfer::new(TransferId::from_raw(1), spec));
    What::Slices { transfer, range: SliceRange { first: 0, end: count }, bytes: 8 * count, notified: false }
}

/// Returns a flight with WRITEs of two slices each. The kernel has the first `written` of them.
fn flight(launched: u64, written: u64) -> Flight {
    let mut flight = Flight::default();
    for _ in 0..launched {
        flight.launch(Op::Write, Monotonic::ZERO, slices(Op::Write, 2));
    }
    assert_eq!(flight.end_send([written, 0]).unwrap().len(), 0);
    flight
}

fn fault(sequence: u64, descriptor: u16) -> Fault {
    Fault { sequence, descriptor, status: Status::Stale }
}

fn settle(flight: &mut Flight, upto: u64) -> Vec<u64> {
    std::iter::from_fn(|| flight.take_acknowledged(upto)).map(|posted| posted.sequence).collect()
}

#[test]
fn what_is_not_wholly_written_cannot_be_acknowledged() {
    let mut flight = flight(4, 2);
    assert_eq!(flight.acknowledge(3, &[]), Err(Malformed::Sequence), "launched, not written");
    assert_eq!(flight.acknowledge(5, &[]), Err(Malformed::Sequence), "never launched");
    assert_eq!(flight.acknowledge(2, &[]), Ok(Acknowledged::Now));
    assert_eq!(settle(&mut flight, 2), [1, 2]);
    assert_eq!(flight.count(Op::Write), 2);
}

#[test]
fn what_is_acknowledged_while_it_is_sent_is_settled_afterwards() {
    let mut flight = flight(4, 2);
    flight.begin_send();
    assert_eq!(flight.acknowledge(3, &[fault(2, 1), fault(3, 0)]), Ok(Acknowledged::Later));
    assert_eq!(flight.acknowledge(4, &[]), Ok(Acknowledged::Later));
    assert_eq!(flight.count(Op::Write), 4, "nothing is settled before the call is over");
    let settled = flight.end_send([4, 0]).unwrap();
    let settled: Vec<_> = settled.into_iter().map(|(posted, faults)| (posted.sequence, faults)).collect();
    assert_eq!(settled, [(1, vec![]), (2, vec![fault(2, 1)]), (3, vec![fault(3, 0)]), (4, vec![])]);
}

#[test]
fn the_end_of_a_send_finds_acknowledgements_of_too_much() {
    let mut flight = flight(4, 2);
    flight.begin_send();
    assert_eq!(flight.acknowledge(4, &[]), Ok(Acknowledged::Later));
    assert!(matches!(flight.end_send([3, 0]), Err(Malformed::Sequence)));
    assert_eq!(flight.take_all().len(), 4, "nothing was confirmed");
}

/// Two acknowledgements arrive during a send, and the second names a frame that the kernel does not have whole. The
/// lane ends, and `take_all` also returns the frames of the first acknowledgement: their transfers must end.
#[test]
fn an_acknowledgement_of_too_much_loses_no_record_of_those_before_it() {
    let mut flight = flight(4, 1);
    flight.begin_send();
    assert_eq!(flight.acknowledge(2, &[]), Ok(Acknowledged::Later));
    assert_eq!(flight.acknowledge(4, &[]), Ok(Acknowledged::Later));
    assert!(flight.end_send([3, 0]).is_err());
    assert_eq!(flight.take_all().iter().map(|posted| posted.sequence).collect::<Vec<_>>(), [1, 2, 3, 4]);
}

#[test]
fn what_was_never_launched_is_not_acknowledged_while_others_are_sent() {
    let mut flight = flight(4, 2);
    flight.begin_send();
    assert_eq!(flight.acknowledge(5, &[]), Err(Malformed::Sequence));
    // If frame 5 is launched before the send ends, the early acknowledgement must not cover it.
    assert_eq!(flight.launch(Op::Write, Monotonic::ZERO, slices(Op::Write, 2)), 5);
    assert_eq!(flight.end_send([5, 0]).unwrap().len(), 0);
}

#[test]
fn acknowledgements_rise() {
    let mut flight = flight(4, 4);
    assert_eq!(flight.acknowledge(0, &[]), Err(Malformed::Sequence));
    assert_eq!(flight.acknowledge(2, &[]), Ok(Acknowledged::Now));
    assert_eq!(flight.acknowledge(2, &[]), Err(Malformed::Sequence), "said before");
    assert_eq!(flight.acknowledge(3, &[]), Ok(Acknowledged::Now));
}

#[test]
fn faults_are_sorted_and_of_frames_that_are_acknowledged_now() {
    for (faults, may) in [
        (vec![fault(2, 0), fault(2, 1), fault(3, 0)], true),
        (vec![fault(2, 1), fault(2, 0)], false),
        (vec![fault(3, 0), fault(2, 0)], false),
        (vec![fault(2, 1), fault(2, 1)], false),
        (vec![fault(1, 0)], false),
        (vec![fault(0, 0)], false),
        (vec![fault(4, 0)], false),
        (vec![fault(u64::MAX, 0)], false),
        (vec![fault(2, 2)], false),
        (vec![fault(2, u16::MAX)], false),
    ] {
        let mut flight = flight(4, 4);
        assert_eq!(flight.acknowledge(1, &[]), Ok(Acknowledged::Now));
        assert_eq!(settle(&mut flight, 1), [1]);
        assert_eq!(flight.acknowledge(3, &faults).is_ok(), may, "{faults:?}");
    }
    let mut flight = Flight::default();
    flight.launch(Op::Write, Monotonic::ZERO, What::Skip(7));
    flight.end_send([1, 0]).unwrap();
    assert_eq!(flight.acknowledge(1, &[fault(1, 0)]), Err(Malformed::Sequence), "a word has no slices");
}

#[test]
fn a_read_is_answered_in_its_turn_and_not_before_it_is_asked() {
    let mut flight = Flight::default();
    assert!(flight.answered(0).is_err() && flight.answered(1).is_err());
    for _ in 0..2 {
        flight.launch(Op::Read, Monotonic::ZERO, slices(Op::Read, 1));
    }
    flight.end_send([0, 1]).unwrap();
    assert!(flight.answered(1).is_ok());
    assert!(flight.answered(2).is_err() && flight.answered(0).is_err());
    assert_eq!(flight.take_answered().map(|posted| posted.sequence), Some(1));
    assert!(flight.answered(2).is_err(), "a part of it is still here");
    flight.begin_send();
    assert!(flight.answered(2).is_ok());
    flight.end_send([0, 2]).unwrap();
    assert!(flight.answered(2).is_ok());
}
