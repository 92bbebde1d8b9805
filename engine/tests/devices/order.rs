//! ORDERED, and notifications after the data, with slow devices.

use crate::common::data::{check, pattern};
use crate::ends::{list, Ends, KIB};
use ferry::types::Op;

const ROUNDS: usize = 12;
const BLOCK: usize = 16 * KIB;

/// When a notification arrives, the device's owner reads the bytes of its transfer and of all earlier ones.
#[test]
fn a_notification_comes_after_its_data_and_in_order() {
    for (here, there) in [("host", "cuda0"), ("cuda0", "ascend0"), ("ascend0", "cuda1"), ("cuda0", "host")] {
        let mut ends = Ends::new("transports=auto");
        let (local, remote) = ends.places((here, there), ROUNDS * BLOCK);
        ends.a.fill(local, 1);
        ends.b.fill(remote, 2);
        if let Some(library) = crate::ends::library(there) {
            ends.b.knob(library, "COPY_US", "3000");
        }
        let mut transfers = Vec::new();
        for round in 0..ROUNDS {
            let flags = format!("ordered,notify=round-{round}");
            let span = (round * BLOCK, round * BLOCK, BLOCK - round);
            transfers.push(ends.submit(Op::Write, &flags, &list(local, remote, &[span])));
        }
        let source = pattern(1, ROUNDS * BLOCK);
        for round in 0..ROUNDS {
            let (text, contents) = ends.b.notified(remote);
            assert_eq!(text, format!("round-{round}"), "{here} to {there}");
            for at in 0..=round {
                let range = at * BLOCK..at * BLOCK + BLOCK - at;
                let what = format!("{here} to {there}: block {at} when notification {round} had come");
                check(&what, &contents[range.clone()], &source[range]);
            }
        }
        for transfer in transfers {
            assert_eq!(ends.wait(transfer).state, "Done");
        }
        ends.end();
    }
}

/// Each transfer writes all of the same memory: the last transfer's bytes stay.
#[test]
fn ordered_transfers_are_applied_in_their_order() {
    for places in [("host", "cuda0"), ("ascend0", "cuda0"), ("cuda0", "ascend0")] {
        let mut ends = Ends::new("transports=auto");
        let sources: Vec<_> = (0..ROUNDS).map(|_| ends.a.place(places.0, BLOCK)).collect();
        let (_, remote) = ends.places(places, BLOCK);
        for (round, source) in sources.iter().enumerate() {
            ends.a.fill(*source, round as u32 + 10);
        }
        let library = crate::ends::library(places.1).unwrap();
        for _ in 0..3 {
            // The first transfer takes longest: transfers that do not wait for the first are final before it.
            ends.b.knob(library, "COPY_US", "20000");
            let mut transfers = Vec::new();
            for source in &sources {
                transfers.push(ends.submit(Op::Write, "ordered", &list(*source, remote, &[(0, 0, BLOCK)])));
                ends.b.knob(library, "COPY_US", "0");
            }
            for transfer in transfers {
                assert_eq!(ends.wait(transfer).state, "Done");
            }
            let last = pattern(ROUNDS as u32 + 9, BLOCK);
            check(&format!("{places:?}"), &ends.b.contents(remote), &last);
        }
        ends.end();
    }
}
