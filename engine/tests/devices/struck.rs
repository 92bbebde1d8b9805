//! Deadlines and cancels while a device copies: when the transfer is final, the memory is the caller's.

use crate::common::eventually;
use crate::ends::{library, list, whole, Ends, Memory, BOTH, KIB, MIB};
use ferry::types::Op;

const PLACES: [(&str, &str); 6] = [
    ("host", "cuda0"),
    ("cuda0", "host"),
    ("host", "ascend0"),
    ("ascend0", "host"),
    ("cuda0", "ascend0"),
    ("ascend0", "cuda0"),
];

/// Makes all devices of both ends this slow.
fn slow(ends: &mut Ends, places: (&str, &str), us: &str) {
    for (end, place) in [(&mut ends.a, places.0), (&mut ends.b, places.1)] {
        if let Some(library) = library(place) {
            end.knob(library, "COPY_US", us);
        }
    }
}

/// Returns how many copies the devices of both ends have begun.
fn begun(ends: &mut Ends, places: (&str, &str)) -> u64 {
    let each = [(&mut ends.a, places.0), (&mut ends.b, places.1)];
    each.map(|(end, place)| library(place).map_or(0, |library| end.calls(library, "task"))).iter().sum()
}

/// Writes other bytes to both memories, and makes each device do one more copy, as slow as any late copy. A late copy
/// would have changed the memories by then.
fn assert_quiet(ends: &mut Ends, what: &str, (local, remote): (Memory, Memory), others: (Memory, Memory)) {
    ends.a.fill(local, 1);
    ends.b.fill(remote, 2);
    for op in BOTH {
        let ended = ends.run(op, "-", &list(others.0, others.1, &[(0, 0, 8)]));
        assert_eq!(ended.state, "Done", "{what}: {}", ended.status);
    }
    ends.assert_moved(what, Op::Write, local, remote, &[]);
}

/// Strikes transfers of 8 MiB. Each copy takes `copy_us`, longer than the deadline, so that a copy is under way. The
/// slots are fewer than the copies, so that some copies have not begun.
fn strike(
    places: &[(&str, &str)],
    copy_us: &str,
    settings: &str,
    (flags, state): (&str, &str),
    act: impl Fn(&mut Ends, u64, (&str, &str), u64),
) {
    for places in places.iter().copied() {
        let mut ends = Ends::new(&format!("transports=auto staging_slots=2 {settings}"));
        let memories = ends.places(places, 8 * MIB);
        let others = ends.places(places, 4 * KIB);
        for op in BOTH {
            let what = format!("{places:?} {op:?} {flags}");
            ends.a.fill(memories.0, 5);
            ends.b.fill(memories.1, 6);
            slow(&mut ends, places, copy_us);
            let before = begun(&mut ends, places);
            let transfer = ends.submit(op, flags, &list(memories.0, memories.1, &whole(memories.0)));
            act(&mut ends, transfer, places, before);
            let ended = ends.wait(transfer);
            assert_eq!((&*ended.state, &*ended.fence), (state, "Confirmed"), "{what}: {}", ended.status);
            assert_quiet(&mut ends, &what, memories, others);
            slow(&mut ends, places, "0");
            ends.case(&what, op, "-", memories.0, memories.1, &whole(memories.0));
        }
        ends.end();
    }
}

#[test]
fn a_deadline_ends_a_transfer_whose_device_is_slow() {
    strike(&PLACES, "250000", "", ("deadline=60", "TimedOut"), |_, _, _, _| {});
}

#[test]
fn a_cancel_ends_a_transfer_whose_device_is_slow() {
    strike(&PLACES, "250000", "", ("-", "Cancelled"), |ends, transfer, places, before| {
        eventually("a copy begins", || begun(ends, places) > before);
        ends.a.ok(&format!("cancel {transfer}"));
    });
}

/// The initiator's lease ends before the target's device does: the transfer still waits for the device. The lease
/// leaves the target time to answer BUSY after the deadline.
#[test]
fn a_device_that_copies_beyond_the_lease_is_waited_for() {
    let places = [("host", "cuda0"), ("host", "ascend0"), ("cuda0", "host")];
    strike(&places, "900000", "lease_ms=800 drain_ms=20", ("deadline=60", "TimedOut"), |_, _, _, _| {});
}
