//! Ascend devices of two hosts that reach each other directly (HIXL). The two processes are on one host, which they
//! can't know: without the same-host path nothing tells them.

use crate::common::data::{Random, Span};
use crate::common::eventually;
use crate::ends::{list, scattered, whole, End, Ends, Memory, BOTH, KIB, MIB, NEW};
use ferry::types::{Op, PeerId};

const ACROSS: &str = "transports=tcp,ascend ascend_fabric=hccs";
const NPUS: (&str, &str) = ("ascend0", "ascend0");

/// Moves the whole of both memories, and checks which path carried the transfer.
#[track_caller]
fn moves(ends: &mut Ends, what: &str, (local, remote): (Memory, Memory), transport: &str) {
    for op in BOTH {
        let ended = ends.attempt(op, "-", local, remote, &whole(local));
        let found = (ended.state.as_str(), ended.requests.as_str(), ended.transport.as_str());
        assert_eq!(found, ("Done", "OK/0", transport), "{what} {op:?}");
        ends.assert_moved(what, op, local, remote, &whole(local));
    }
}

fn why(ends: &mut Ends) -> String {
    ends.a.ask(&format!("way {} ascend", ends.peer))
}

#[test]
fn every_shape_goes_from_device_to_device() {
    let mut random = Random::new("across hosts");
    let mut ends = Ends::new(ACROSS);
    let (local, remote) = ends.places(NPUS, 5 * MIB);
    let shapes: [Vec<Span>; 7] = [
        vec![(0, 0, 1)],
        vec![(129, 8, 64 * KIB + 1)],
        vec![(1, 3, 4 * MIB + 13)],
        whole(local),
        scattered(&mut random, 3, 7),
        scattered(&mut random, 600, 1000),
        scattered(&mut random, 20, 70_001),
    ];
    for spans in &shapes {
        for op in BOTH {
            ends.case("across", op, "-", local, remote, spans);
        }
    }
    moves(&mut ends, "across", (local, remote), "ascend");
    assert!(why(&mut ends).starts_with("taken where the memory on both sides is of ascend devices"));
    // One bridge serves every transfer.
    assert_eq!(ends.a.calls("hixl", "HixlCSClientConnect"), 1);
    assert!(ends.a.calls("hixl", "HixlCSClientBatchPutAsync") >= 15);
    assert!(ends.a.calls("hixl", "HixlCSClientBatchGetAsync") >= 15);
    ends.end();
}

/// More requests than slots, several times over, in both directions at once.
#[test]
fn many_at_once_share_the_slots() {
    const LARGE: usize = 6 * MIB;
    let mut ends = Ends::new(&format!("{ACROSS} staging_slots=2"));
    let (local, remote) = ends.places(NPUS, 4 * LARGE);
    ends.fill(local, remote);
    let spans: Vec<Span> = (0..4).map(|at| (at * LARGE, at * LARGE, LARGE)).collect();
    // Two quarters are written and two are read.
    let op = |at: usize| [Op::Write, Op::Read][at % 2];
    let begun: Vec<_> = spans
        .iter()
        .enumerate()
        .flat_map(|(at, span)| [(at, *span); 3])
        .map(|(at, span)| ends.submit(op(at), "-", &list(local, remote, &[span])))
        .collect();
    for transfer in begun {
        let ended = ends.wait(transfer);
        assert_eq!((ended.state.as_str(), ended.transport.as_str()), ("Done", "ascend"), "{ended:?}");
    }
    let (here, there) = (ends.a.contents(local), ends.b.contents(remote));
    assert!(here == there, "both are the same where something went");
    moves(&mut ends, "after it", (local, remote), "ascend");
    ends.end();
}

/// One transfer of all kinds of memory: each pair takes its own path.
#[test]
fn host_memory_goes_its_own_way() {
    let mut ends = Ends::new(ACROSS);
    let pairs = [NPUS, ("host", "ascend0"), ("ascend0", "host"), ("host", "host")];
    let places: Vec<_> = pairs.iter().map(|pair| ends.places(*pair, 64 * KIB)).collect();
    for op in BOTH {
        places.iter().for_each(|(local, remote)| ends.fill(*local, *remote));
        let spans = [(5, 0, 3001), (8192, 40_000, 9000)];
        let all: Vec<_> = places.iter().map(|(local, remote)| list(*local, *remote, &spans)).collect();
        let ended = ends.run(op, "-", &all.join(" "));
        assert_eq!((ended.state.as_str(), ended.bytes), ("Done", 4 * 12_001), "{ended:?}");
        for (pair, (local, remote)) in pairs.iter().zip(&places) {
            ends.assert_moved(&format!("{pair:?}"), op, *local, *remote, &spans);
        }
    }
    // Transfers with checksums are sent by the hosts.
    let (local, remote) = places[0];
    let ended = ends.attempt(Op::Write, "checksum", local, remote, &whole(local));
    assert_eq!((ended.state.as_str(), ended.transport.as_str()), ("Done", "tcp"), "{ended:?}");
    ends.end();
}

/// With no other transport allowed, a transfer uses HIXL or fails.
#[test]
fn it_may_be_all_that_is_allowed() {
    let mut ends = Ends::new("transports=ascend ascend_fabric=hccs");
    let places = ends.places(NPUS, MIB);
    moves(&mut ends, "alone", places, "ascend");
    ends.end();
    let mut ends = Ends::new("transports=ascend");
    let (local, remote) = ends.places(NPUS, MIB);
    let ended = ends.run(Op::Write, "-", &list(local, remote, &whole(local)));
    assert_eq!((ended.state.as_str(), ended.status.as_str()), ("Failed", "UNAVAILABLE"), "{ended:?}");
    ends.end();
}

/// If an end does not want or does not support HIXL, memory goes through the hosts, and the reason is reported.
#[test]
fn without_it_memory_is_staged_and_the_reason_told() {
    let hccs = "ascend_fabric=hccs";
    for (at_a, at_b, versions, reason) in [
        ("", hccs, (NEW, NEW), "only between processes of one host"),
        (hccs, "", (NEW, NEW), "the setting ascend_fabric is off"),
        (hccs, "ascend_fabric=roce", (NEW, NEW), "/etc/hccn.conf"),
        (hccs, hccs, (("12.8", "9.0"), NEW), "has no HixlCSClientBatchPutSync"),
        (hccs, hccs, (NEW, ("12.8", "9.0")), "has no HixlCSClientBatchPutSync"),
        (hccs, hccs, (NEW, ("12.8", "8.3")), "libcann_hixl.so"),
    ] {
        let what = format!("{at_a:?} {at_b:?} {versions:?}");
        let mut ends = Ends::apart((versions.0, versions.1), |end| {
            format!("transports=tcp,ascend {}", if end == 0 { at_a } else { at_b })
        });
        let places = ends.places(NPUS, MIB);
        moves(&mut ends, &what, places, "tcp");
        let told = why(&mut ends);
        assert!(told.contains(reason), "{what}: {told}");
        ends.end();
    }
}

/// The n-th call fails: transfers under way and later ones go through the hosts.
#[test]
fn each_call_may_fail() {
    for (at_target, function, nth) in [
        (true, "HixlCSServerCreate", "*"),
        (true, "HixlCSServerRegMem", "*"),
        (true, "HixlCSServerListen", "*"),
        (false, "HixlCSClientCreate", "1"),
        (false, "HixlCSClientRegMem", "1"),
        (false, "HixlCSClientConnect", "1"),
        (false, "HixlCSClientGetRemoteMem", "1"),
        (false, "HixlCSClientBatchPutAsync", "2"),
        (false, "HixlCSClientBatchGetAsync", "1"),
        (false, "HixlCSClientQueryCompleteStatus", "3"),
    ] {
        println!("{function}:{nth}");
        let mut ends = Ends::new(&format!("{ACROSS} staging_slots=2"));
        let (local, remote) = ends.places(NPUS, 9 * MIB);
        let end = if at_target { &mut ends.b } else { &mut ends.a };
        end.knob("hixl", "FAULT", &format!("{function}:{nth}:503900"));
        for op in [Op::Write, Op::Read] {
            ends.case(function, op, "-", local, remote, &whole(local));
        }
        let end = if at_target { &mut ends.b } else { &mut ends.a };
        end.knob("hixl", "FAULT", "");
        moves(&mut ends, function, (local, remote), "tcp");
        let told = why(&mut ends);
        assert!(told.contains("503900"), "{function}: {told}");
        // The audits check that nothing was left; memory that may still be written, at either end, is kept for good.
        if function.contains("Batch") || function.contains("Query") {
            ends.close()
        } else {
            ends.end()
        }
    }
}

/// If another process has taken the first port, the next port is tried.
#[test]
fn a_port_that_is_taken_is_not_the_last() {
    let mut ends = Ends::new(ACROSS);
    let places = ends.places(NPUS, MIB);
    ends.b.knob("hixl", "FAULT", "HixlCSServerListen:1:503900,HixlCSServerListen:2:503900");
    moves(&mut ends, "at the third", places, "ascend");
    ends.end();
}

/// A put that hangs is given up in time, and its data goes through the hosts.
#[test]
fn what_hangs_is_given_up() {
    for op in BOTH {
        let mut ends = Ends::new(&format!("{ACROSS} device_timeout_ms=300"));
        let (local, remote) = ends.places(NPUS, MIB);
        moves(&mut ends, "before", (local, remote), "ascend");
        ends.a.knob("hixl", "HANG", "1");
        let ended = ends.attempt(op, "-", local, remote, &whole(local));
        assert_eq!((ended.state.as_str(), ended.transport.as_str()), ("Done", "tcp"), "{op:?} {ended:?}");
        ends.assert_moved("hung", op, local, remote, &whole(local));
        assert!(why(&mut ends).contains("took longer than 0.3 s"));
        ends.a.knob("hixl", "HANG", "");
        ends.a.ok("release hixl");
        moves(&mut ends, "after it", (local, remote), "tcp");
        ends.close();
    }
}

/// A transfer is final when its deadline is over, even while devices copy: they copy ferry's own memory.
#[test]
fn a_transfer_does_not_wait_for_what_hangs() {
    for op in BOTH {
        let mut ends = Ends::new(ACROSS);
        let (local, remote) = ends.places(NPUS, MIB);
        moves(&mut ends, "before", (local, remote), "ascend");
        ends.fill(local, remote);
        let function =
            if op == Op::Write { "HixlCSClientBatchPutAsync" } else { "HixlCSClientBatchGetAsync" };
        let before = ends.a.calls("hixl", function);
        ends.a.knob("hixl", "HANG", "1");
        let transfer = ends.submit(op, "-", &list(local, remote, &whole(local)));
        eventually("the devices are at it", || ends.a.calls("hixl", function) > before);
        ends.a.ok(&format!("cancel {transfer}"));
        let ended = ends.wait(transfer);
        assert_eq!((ended.state.as_str(), ended.bytes), ("Cancelled", 0), "{op:?} {ended:?}");
        // Both memories are the program's, and late data is lost.
        ends.a.fill(local, 7);
        ends.b.fill(remote, 8);
        ends.a.knob("hixl", "HANG", "");
        ends.a.ok("release hixl");
        moves(&mut ends, "after it", (local, remote), "ascend");
        ends.end();
    }
}

/// The bridge outlasts the region and serves later regions.
#[test]
fn regions_come_and_go() {
    let mut ends = Ends::new(ACROSS);
    let first = ends.places(NPUS, MIB);
    moves(&mut ends, "the first", first, "ascend");
    ends.a.ok(&format!("unregister {}", first.0.index()));
    ends.b.ok(&format!("unregister {}", first.1.index()));
    ends.a.free(first.0);
    ends.b.free(first.1);
    let second = ends.places(NPUS, 3 * MIB);
    moves(&mut ends, "the second", second, "ascend");
    let ended = ends.run(Op::Write, "-", &list(second.0, first.1, &[(0, 0, 4096)]));
    assert_eq!((ended.state.as_str(), ended.status.as_str()), ("Failed", "STALE"), "{ended:?}");
    assert_eq!(ends.a.calls("hixl", "HixlCSClientConnect"), 1);
    ends.end();
}

const SHORT: &str = "lease_ms=400 drain_ms=50 reconnect_timeout_ms=1500 staging_slots=2";

#[test]
fn a_target_that_is_killed_fails_the_transfer() {
    for op in BOTH {
        let settings = format!("{ACROSS} {SHORT} device_timeout_ms=500");
        let mut ends = Ends::new(&settings);
        let places = ends.places(NPUS, 16 * MIB);
        ends.fill(places.0, places.1);
        ends.a.knob("hixl", "COPY_US", "50000");
        let transfer = ends.submit(op, "-", &list(places.0, places.1, &whole(places.0)));
        let begun = ["HixlCSClientBatchPutAsync", "HixlCSClientBatchGetAsync"][usize::from(op == Op::Read)];
        eventually("the devices are at it", || ends.a.calls("hixl", begun) > 0);
        ends.b.kill();
        let ended = ends.wait(transfer);
        assert_eq!((ended.state.as_str(), ended.status.as_str()), ("Failed", "PEER_LOST"), "{op:?}");
        ends.a.knob("hixl", "COPY_US", "0");
        ends.b = End::new(&ends.folder.0, NEW, &settings);
        ends.peer = PeerId::from_raw(ends.a.number(&format!("connect {}", ends.b.address)));
        let remote = ends.b.place("ascend0", 16 * MIB);
        ends.a.ok(&format!("knows {} {}", ends.peer, remote.region));
        moves(&mut ends, "with another target", (places.0, remote), "ascend");
    }
}

/// The target frees the slots of the killed initiator, and touches no other initiator's.
#[test]
fn an_initiator_that_is_killed_leaves_nothing_behind() {
    for op in BOTH {
        let settings = format!("{ACROSS} {SHORT}");
        let mut ends = Ends::new(&settings);
        let (local, remote) = ends.places(NPUS, 16 * MIB);
        ends.fill(local, remote);
        ends.a.knob("hixl", "COPY_US", "50000");
        ends.submit(op, "-", &list(local, remote, &whole(local)));
        let begun = ["HixlCSClientBatchPutAsync", "HixlCSClientBatchGetAsync"][usize::from(op == Op::Read)];
        eventually("the devices are at it", || ends.a.calls("hixl", begun) > 0);
        ends.a.kill();
        ends.a = End::new(&ends.folder.0, NEW, &settings);
        ends.peer = PeerId::from_raw(ends.a.number(&format!("connect {}", ends.b.address)));
        let local = ends.a.place("ascend0", 16 * MIB);
        ends.a.ok(&format!("knows {} {}", ends.peer, remote.region));
        moves(&mut ends, "by another initiator", (local, remote), "ascend");
        eventually("the first one's memory is taken back", || {
            ends.b.calls("hixl", "HixlCSServerUnregMem") >= 1
        });
        ends.end();
    }
}
