//! Device memory in transfers of an engine to itself: every pair of memories, in one process.

use crate::common::data::{check, pattern, Random, Span};
use crate::ends::{library, list, scattered, whole, End, Folder, Memory, BOTH, KIB, MIB, NEW, OLD};
use ferry::types::Op;

const PAIRS: [[&str; 2]; 8] = [
    ["cuda0", "host"],
    ["host", "cuda1"],
    ["cuda0", "shared"],
    ["cuda0", "cuda0"],
    ["cuda0", "cuda1"],
    ["ascend0", "host"],
    ["ascend0", "ascend0"],
    ["cuda0", "ascend0"],
];

const BYTES: usize = 3 * MIB;

/// Moves `spans` and checks every byte of both memories.
fn moves(
    (end, own): (&mut End, u64),
    what: &str,
    op: Op,
    (local, remote): (Memory, Memory),
    spans: &[Span],
    by: &str,
) {
    end.fill(local, 1);
    end.fill(remote, 2);
    let transfer = end.number(&format!("submit {op:?} {own} - {}", list(local, remote, spans)));
    let outcome = end.ask(&format!("wait {transfer}"));
    assert!(outcome.starts_with("Done OK") && outcome.ends_with(by), "{what} {op:?}: {outcome}");
    let (mut here, mut there) = (pattern(1, local.bytes), pattern(2, remote.bytes));
    for &(at, to, length) in spans {
        match op {
            Op::Write => there[to..to + length].copy_from_slice(&here[at..at + length]),
            Op::Read => here[at..at + length].copy_from_slice(&there[to..to + length]),
        }
    }
    check(&format!("{what} {op:?}, local"), &end.contents(local), &here);
    check(&format!("{what} {op:?}, remote"), &end.contents(remote), &there);
}

fn every_pair(what: &str, versions: (&str, &str), settings: &str) {
    let (mut random, folder) = (Random::new(what), Folder::new());
    let mut end = End::new(&folder.0, versions, settings);
    let own = end.number("own");
    for places in PAIRS {
        let pair = (end.place(places[0], BYTES), end.place(places[1], BYTES));
        // CUDA's devices copy directly. AscendCL maps memory of other processes alone, so within one it is staged.
        let by = if places.iter().all(|place| library(place) == Some("cuda")) { "cuda" } else { "local" };
        let shapes: [Vec<Span>; 4] = [
            vec![(3, 77, 4095)],
            whole(pair.0),
            scattered(&mut random, 600, 1000),
            vec![(1, 3, 2 * MIB + 64 * KIB + 13)],
        ];
        for op in BOTH {
            for spans in &shapes {
                moves((&mut end, own), &format!("{what} {places:?}"), op, pair, spans, by);
            }
        }
        // Memory that a device has mapped is recalled. ferry's own goes with the engine.
        for (memory, _) in
            [(pair.0, places[0]), (pair.1, places[1])].into_iter().filter(|it| it.1 != "shared")
        {
            end.ok(&format!("unregister {}", memory.index()));
        }
    }
    end.end();
}

#[test]
fn every_pair_of_memories_within_one_engine() {
    every_pair("own", NEW, "transports=auto");
}

/// Settings that name transports speak of peers.
#[test]
fn every_pair_of_memories_within_one_engine_of_old_libraries() {
    every_pair("own, old", OLD, "transports=tcp staging_slots=2");
}

#[test]
fn a_notification_follows_the_device_copies() {
    let folder = Folder::new();
    let mut end = End::new(&folder.0, NEW, "transports=auto");
    let own = end.number("own");
    let (local, remote) = (end.place("cuda0", MIB), end.place("cuda1", MIB));
    for tag in 1..20 {
        end.fill(local, tag);
        let transfer =
            end.number(&format!("submit Write {own} notify=n{tag} {}", list(local, remote, &whole(local))));
        let (text, bytes) = end.notified(remote);
        assert_eq!(text, format!("n{tag}"));
        check("when the notification came", &bytes, &pattern(tag, MIB));
        assert!(end.ask(&format!("wait {transfer}")).starts_with("Done OK"));
    }
    end.end();
}
