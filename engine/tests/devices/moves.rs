//! Checks the bytes that arrive: every pair of memories, in every shape, on every path and with every version of the
//! libraries.

use crate::common::data::{Random, Span};
use crate::ends::{list, scattered, whole, Ends, BOTH, KIB, MIB, NEW, OLD};

/// One end or both have device memory: of one kind, of two kinds, of two devices.
const PAIRS: [(&str, &str); 9] = [
    ("cuda0", "host"),
    ("host", "cuda1"),
    ("cuda0", "cuda0"),
    ("cuda0", "cuda1"),
    ("ascend0", "host"),
    ("host", "ascend0"),
    ("ascend0", "ascend0"),
    ("cuda0", "ascend0"),
    ("ascend0", "cuda1"),
];

fn every_shape(ends: &mut Ends, places: (&str, &str), random: &mut Random) {
    let (local, remote) = ends.places(places, 5 * MIB);
    let what = format!("{places:?}");
    let shapes: [Vec<Span>; 8] = [
        vec![(0, 0, 1)],
        vec![(3, 77, 4095)],
        vec![(129, 8, 64 * KIB + 1)],
        // More than a slot, at odd places.
        vec![(1, 3, 4 * MIB + 13)],
        whole(local),
        scattered(random, 3, 7),
        scattered(random, 600, 1000),
        scattered(random, 20, 70_001),
    ];
    for op in BOTH {
        for spans in &shapes {
            ends.case(&what, op, "-", local, remote, spans);
        }
        // Each request as given, and with a checksum.
        ends.case(&what, op, "apart", local, remote, &scattered(random, 40, 513));
        ends.case(&what, op, "checksum", local, remote, &scattered(random, 40, 9001));
    }
}

fn every_pair(what: &str, at_a: (&str, &str), at_b: (&str, &str), settings: &str) {
    let mut random = Random::new(what);
    let mut ends = Ends::of(at_a, at_b, settings);
    for places in PAIRS {
        every_shape(&mut ends, places, &mut random);
    }
    ends.end();
}

#[test]
fn every_pair_of_memories_over_tcp() {
    every_pair("over TCP", NEW, NEW, "transports=tcp,cuda,ascend");
}

#[test]
fn every_pair_of_memories_by_whatever_there_is() {
    every_pair("auto", NEW, NEW, "transports=auto");
}

#[test]
fn old_libraries_move_the_same() {
    every_pair("old and old", OLD, OLD, "transports=auto");
}

#[test]
fn an_old_library_and_a_new_one_move_the_same() {
    every_pair("old and new", OLD, NEW, "transports=auto staging_slots=2");
}

/// Several large transfers under way at once, so that all of them reuse every slot many times.
fn many_at_once(settings: &str) {
    const LARGE: usize = 8 * MIB;
    const COUNT: usize = 4;
    let mut ends = Ends::new(settings);
    for places in [
        ("ascend0", "shared"),
        ("cuda0", "shared"),
        ("shared", "ascend0"),
        ("cuda0", "host"),
        ("host", "cuda0"),
        ("ascend0", "cuda0"),
    ] {
        let (local, remote) = ends.places(places, COUNT * LARGE);
        let spans: Vec<Span> = (0..COUNT).map(|at| (at * LARGE, at * LARGE, LARGE)).collect();
        for round in 0..3 {
            for op in BOTH {
                ends.a.fill(local, 1);
                ends.b.fill(remote, 2);
                // The same bytes to the same places, twice.
                let spans = spans.iter().chain(&spans);
                let begun: Vec<_> =
                    spans.map(|span| ends.submit(op, "-", &list(local, remote, &[*span]))).collect();
                for transfer in begun {
                    assert_eq!(ends.wait(transfer).state, "Done");
                }
                ends.assert_moved(
                    &format!("{places:?} {op:?} round {round}"),
                    op,
                    local,
                    remote,
                    &whole(local),
                );
            }
        }
    }
    ends.end();
}

#[test]
fn many_at_once_over_tcp() {
    many_at_once("transports=tcp,cuda,ascend");
}

#[test]
fn many_at_once_by_whatever_there_is() {
    many_at_once("transports=auto");
}

/// One transfer with all kinds of memory on both sides.
#[test]
fn one_transfer_may_have_every_kind_of_memory() {
    let mut ends = Ends::new("transports=auto");
    let kinds = ["host", "cuda0", "ascend0"];
    let pairs: Vec<_> = kinds.iter().flat_map(|here| kinds.map(|there| (*here, there))).collect();
    let places: Vec<_> = pairs.iter().map(|pair| ends.places(*pair, 64 * KIB)).collect();
    for op in BOTH {
        for (local, remote) in &places {
            ends.a.fill(*local, 1);
            ends.b.fill(*remote, 2);
        }
        let spans = [(5, 0, 3001), (8192, 40_000, 9000)];
        let all: Vec<_> =
            places.iter().map(|(local, remote)| crate::ends::list(*local, *remote, &spans)).collect();
        let ended = ends.run(op, "-", &all.join(" "));
        assert_eq!((ended.state.as_str(), ended.bytes), ("Done", 9 * 12_001), "{ended:?}");
        for (pair, (local, remote)) in pairs.iter().zip(&places) {
            ends.assert_moved(&format!("{pair:?}"), op, *local, *remote, &spans);
        }
    }
    ends.end();
}

/// An unregistered region is STALE, and its memory is not touched.
#[test]
fn a_region_that_has_gone_is_stale() {
    let mut ends = Ends::new("transports=auto");
    for place in ["cuda0", "ascend0"] {
        let (local, remote) = ends.places(("host", place), 64 * KIB);
        ends.case(place, BOTH[0], "-", local, remote, &whole(local));
        let last = ends.b.place(place, 64 * KIB);
        ends.b.ok(&format!("unregister {}", remote.index()));
        for op in BOTH {
            ends.a.fill(local, 1);
            ends.b.fill(remote, 2);
            let list = crate::ends::list(local, remote, &whole(local));
            let answer = ends.a.ask(&format!("submit {op:?} {} - {list}", ends.peer));
            // The initiator knows that already, or the target finds out.
            let refused = match answer.parse() {
                Ok(transfer) => ends.wait(transfer).status,
                Err(_) => answer,
            };
            assert!(refused.starts_with("STALE"), "{place} {op:?}: {refused}");
            ends.assert_moved(place, op, local, remote, &[]);
        }
        ends.a.ok(&format!("knows {} {}", ends.peer, last.region));
        ends.case(place, BOTH[0], "-", local, last, &whole(local));
    }
    ends.end();
}
