//! Engines and their peers: opening, connecting, closing; both sides of a session; errors found before anything moves.

mod common;

use common::data::{check, contents, fill, pattern, prepare};
use common::{config, engine, eventually, peer_of, request, run, Pair, PATIENCE};
use ferry::notify::{WHAT_NOTIFICATIONS, WHAT_PEERS, WHAT_TRANSFERS};
use ferry::types::{Op, Transport};
use ferry::{Deadline, Descriptor, Engine, PeerState, RegionOptions, State, Status, TransferOptions};
use std::net::TcpListener;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

fn plain() -> TransferOptions<'static> {
    TransferOptions::default()
}

#[test]
fn a_wrong_configuration_does_not_open() {
    let mut bad = config(&[("lease_ms", "100")]);
    bad.drain_ms = 100;
    assert_eq!(Engine::open(bad).err().unwrap().status, Status::Invalid);
    let mut bad = config(&[]);
    bad.lanes = 0;
    assert_eq!(Engine::open(bad).err().unwrap().status, Status::Invalid);
    let nobody = config(&[("same_user", "false")]);
    assert_eq!(Engine::open(nobody).err().unwrap().status, Status::Invalid);
    let unknown = config(&[("listen_address", "no.such.host.invalid:0")]);
    assert_eq!(Engine::open(unknown).err().unwrap().status, Status::Invalid);
}

#[test]
fn an_address_in_use_says_so() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error = Engine::open(config(&[("listen_address", &address)])).err().unwrap();
    assert_eq!((error.status, error.os_error), (Status::System, libc::EADDRINUSE), "{error}");
    assert!(error.message.contains(&address), "{error}");
    let first = engine(&[]);
    let error = Engine::open(config(&[("listen_address", first.address())])).err().unwrap();
    assert_eq!(error.os_error, libc::EADDRINUSE);
    // The address is free again once the engine is closed.
    let address = first.address().to_owned();
    first.close(Some(PATIENCE)).unwrap();
    assert_eq!(engine(&[("listen_address", &address)]).address(), address);
}

#[test]
fn connecting_twice_is_connecting_once() {
    let pair = Pair::new(&[]);
    let (a, b) = (&pair.a, &pair.b);
    assert_eq!(a.connect(b.address(), Some(PATIENCE)).unwrap(), pair.b_at_a);
    assert_eq!(b.connect(a.address(), Some(PATIENCE)).unwrap(), pair.a_at_b, "a came to us before");
    assert_eq!((a.peers().unwrap(), b.peers().unwrap()), (vec![pair.b_at_a], vec![pair.a_at_b]));
    assert_eq!((a.stats().unwrap().peers_up, b.stats().unwrap().peers_up), (1, 1));
    let info = a.peer_info(pair.b_at_a).unwrap();
    let described = b.descriptor().unwrap();
    assert_eq!((info.engine_id, info.incarnation), (described.engine_id, described.incarnation));
    assert_eq!((info.state, info.address.as_str(), info.same_host), (PeerState::Up, b.address(), true));
    assert_eq!((info.lanes, info.transfers_active), (1, 0), "the express lane");
    assert!(a.probe(pair.b_at_a, Some(PATIENCE)).unwrap() > Duration::ZERO);
    assert!(a.peer_info(pair.b_at_a).unwrap().round_trip_ns > 0);
    let paths = a.peer_paths(pair.b_at_a).unwrap();
    let chosen: Vec<_> = paths.iter().filter(|path| path.chosen).map(|path| path.transport).collect();
    assert_eq!(chosen, [Transport::Tcp]);
    assert!(paths.len() == 5 && paths.iter().all(|path| path.chosen || !path.why.is_empty()));
}

/// Connecting by another name for the same address returns the same peer, and does not disturb its traffic.
#[test]
fn another_name_is_no_other_peer() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(64 * MIB, 64 * MIB);
    let port = pair.b.address().rsplit_once(':').unwrap().1.to_owned();
    let own_port = pair.a.address().rsplit_once(':').unwrap().1.to_owned();
    let whole = [request(&local, 0, &remote, 0, 64 * MIB)];
    let transfer = pair.a.submit(pair.b_at_a, Op::Write, &whole, &plain()).unwrap();
    for _ in 0..5 {
        let named = pair.a.connect(&format!("localhost:{port}"), Some(PATIENCE)).unwrap();
        assert_eq!(named, pair.b_at_a);
        let back = pair.b.connect(&format!("localhost:{own_port}"), Some(PATIENCE)).unwrap();
        assert_eq!(back, pair.a_at_b);
    }
    assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
    for engine in [&pair.a, &pair.b] {
        let counts = engine.stats().unwrap().counts;
        assert_eq!((counts.sessions_up, counts.sessions_lost, counts.lanes_lost), (1, 0, 0));
    }
}

/// Both dial at the same moment, by either name: one session results, and both callers get it.
#[test]
fn two_engines_that_dial_each_other_meet() {
    for round in 0..60 {
        let (a, b) = (engine(&[("workers", "1")]), engine(&[("workers", "1")]));
        let name = |engine: &Engine| match round % 3 {
            0 => format!("localhost:{}", engine.address().rsplit_once(':').unwrap().1),
            _ => engine.address().to_owned(),
        };
        let start = Barrier::new(2);
        let dial = |from: &Engine, to: String| {
            start.wait();
            from.connect(&to, Some(PATIENCE)).unwrap_or_else(|error| panic!("round {round}: {error}"))
        };
        let (to_a, to_b) = (name(&a), name(&b));
        let (b_at_a, a_at_b) = std::thread::scope(|scope| {
            let there = scope.spawn(|| dial(&a, to_b));
            let back = dial(&b, to_a);
            (there.join().unwrap(), back)
        });
        // Whichever session was given up meanwhile, the returned peers carry transfers.
        let options = RegionOptions::default();
        let (ours, theirs) = (a.alloc(4096, &options).unwrap(), b.alloc(4096, &options).unwrap());
        fill(&ours, 1);
        let there = run(&a, b_at_a, Op::Write, &[request(&ours, 0, &theirs, 0, 2048)], &plain());
        let back = run(&b, a_at_b, Op::Read, &[request(&theirs, 2048, &ours, 2048, 2048)], &plain());
        assert_eq!((there.state, back.state), (State::Done, State::Done), "round {round}");
        check("both dialed", &contents(&theirs), &pattern(1, 4096));
        assert_eq!((a.stats().unwrap().peers_up, b.stats().unwrap().peers_up), (1, 1), "round {round}");
    }
}

#[test]
fn unreachable_peers_are_named() {
    let a = engine(&[("connect_timeout_ms", "2000"), ("handshake_timeout_ms", "2000")]);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let error = a.connect(&free, Some(PATIENCE)).unwrap_err();
    assert_eq!((error.status, error.os_error), (Status::Unreachable, libc::ECONNREFUSED), "{error}");
    assert!(error.message.contains(&free));
    for nonsense in ["", "nowhere", "127.0.0.1", "127.0.0.1:99999"] {
        assert_eq!(a.connect(nonsense, Some(PATIENCE)).unwrap_err().status, Status::Invalid, "{nonsense:?}");
    }
    // A listener that sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let before = Instant::now();
    let error = a.connect(&silent.local_addr().unwrap().to_string(), Some(Duration::from_millis(200)));
    assert_eq!(error.unwrap_err().status, Status::Timeout);
    assert!(before.elapsed() >= Duration::from_millis(200) && before.elapsed() < Duration::from_secs(2));
    // An engine is not its own peer.
    let own = a.connect(a.address(), Some(Duration::from_secs(5)));
    assert!(own.is_err(), "{own:?}");
    assert_eq!(a.stats().unwrap().peers_up, 0);
}

#[test]
fn a_descriptor_leads_to_its_engine_and_to_no_other() {
    let (a, b) = (engine(&[]), engine(&[]));
    let bytes = b.descriptor().unwrap().encode();
    let described = Descriptor::decode(&bytes).unwrap();
    assert_eq!(described.address, b.address());
    let peer = a.import(&described, Some(PATIENCE)).unwrap();
    assert_eq!(peer, a.connect(b.address(), Some(PATIENCE)).unwrap());
    // Another engine on the same port.
    let address = b.address().to_owned();
    b.close(Some(PATIENCE)).unwrap();
    let successor = engine(&[("listen_address", &address)]);
    eventually("the old one is gone", || a.peer_info(peer).unwrap().state == PeerState::Lost);
    assert_eq!(a.import(&described, Some(PATIENCE)).unwrap_err().status, Status::Stale);
    let fresh = a.import(&successor.descriptor().unwrap(), Some(PATIENCE)).unwrap();
    assert_ne!(fresh, peer);
    assert_eq!(Descriptor::decode(b"nonsense").unwrap_err().status, Status::Invalid);
}

#[test]
fn transports_that_are_not_allowed_are_not_used() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(64, 64);
    let one = [request(&local, 0, &remote, 0, 64)];
    let only = |transport: Transport| TransferOptions { transports_allowed: transport.bit(), ..plain() };
    let refused = pair.a.submit(pair.b_at_a, Op::Write, &one, &only(Transport::Rdma)).err().unwrap();
    assert_eq!(refused.status, Status::Unavailable);
    let result = run(&pair.a, pair.b_at_a, Op::Write, &one, &only(Transport::Tcp));
    assert_eq!((result.state, result.transport), (State::Done, Transport::Tcp));
}

#[test]
fn a_probe_that_was_begun_is_told_once() {
    let pair = Pair::new(&[]);
    let probe = pair.a.probe_begin(pair.b_at_a).unwrap();
    let mut told = None;
    eventually("the probe is told", || {
        told = probe.take();
        told.is_some()
    });
    assert!(probe.take().is_none(), "once");
    let round_trip = told.unwrap().unwrap();
    assert!(round_trip > Duration::ZERO);
    assert_eq!(u128::from(pair.a.peer_info(pair.b_at_a).unwrap().round_trip_ns), round_trip.as_nanos());
    pair.a.close_peer(pair.b_at_a, Some(PATIENCE)).unwrap();
    assert_eq!(pair.a.probe_begin(pair.b_at_a).err().unwrap().status, Status::Closed);
}

#[test]
fn a_closed_peer_is_closed_on_both_sides() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(4096, 4096);
    let one = [request(&local, 0, &remote, 0, 4096)];
    run(&pair.a, pair.b_at_a, Op::Write, &one, &plain());
    pair.a.close_peer(pair.b_at_a, Some(PATIENCE)).unwrap();
    pair.a.close_peer(pair.b_at_a, Some(PATIENCE)).unwrap();
    assert_eq!(pair.a.submit(pair.b_at_a, Op::Write, &one, &plain()).err().unwrap().status, Status::Closed);
    assert_eq!(pair.a.probe(pair.b_at_a, Some(PATIENCE)).unwrap_err().status, Status::Closed);
    assert_eq!(pair.a.peer_info(pair.b_at_a).unwrap().state, PeerState::Lost);
    eventually("the other side hears", || pair.b.peer_info(pair.a_at_b).unwrap().state == PeerState::Lost);
    // Both engines live, and connect again as new peers.
    let again = pair.a.connect(pair.b.address(), Some(PATIENCE)).unwrap();
    assert_ne!(again, pair.b_at_a);
    assert_eq!(run(&pair.a, again, Op::Write, &one, &plain()).state, State::Done);
    let back = peer_of(&pair.b, &pair.a);
    pair.b.notify(back, b"hello again", Deadline::Default).unwrap();
}

#[test]
fn a_closed_engine_says_closed() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(4096, 4096);
    let one = [request(&local, 0, &remote, 0, 4096)];
    let core = pair.a.submit_core(pair.b_at_a, Op::Write, &one, &plain()).unwrap();
    pair.a.wait(&core, Some(PATIENCE)).unwrap();
    let words = pair.a.queue(WHAT_PEERS, 1).unwrap();
    pair.a.close(Some(PATIENCE)).unwrap();
    pair.a.close(Some(PATIENCE)).unwrap();
    pair.a.close(Some(Duration::ZERO)).unwrap();
    let a = &pair.a;
    let statuses = [
        ("submit", a.submit(pair.b_at_a, Op::Write, &one, &plain()).err().map(|e| e.status)),
        ("notify", a.notify(pair.b_at_a, b"", Deadline::Default).err().map(|e| e.status)),
        ("connect", a.connect(pair.b.address(), Some(PATIENCE)).err().map(|e| e.status)),
        ("connect_async", a.connect_async(pair.b.address(), None, &words, 0).err().map(|e| e.status)),
        ("alloc", a.alloc(64, &RegionOptions::default()).err().map(|e| e.status)),
        ("queue", a.queue(WHAT_TRANSFERS, 1).err().map(|e| e.status)),
        ("peers", a.peers().err().map(|e| e.status)),
        ("peer_info", a.peer_info(pair.b_at_a).err().map(|e| e.status)),
        ("peer_regions", a.peer_regions(pair.b_at_a).err().map(|e| e.status)),
        ("peer_paths", a.peer_paths(pair.b_at_a).err().map(|e| e.status)),
        ("probe", a.probe(pair.b_at_a, None).err().map(|e| e.status)),
        ("fence", a.fence(pair.b_at_a, None).err().map(|e| e.status)),
        ("close_peer", a.close_peer(pair.b_at_a, None).err().map(|e| e.status)),
        ("cancel", a.cancel(&core).err().map(|e| e.status)),
        ("descriptor", a.descriptor().err().map(|e| e.status)),
    ];
    for (call, status) in statuses {
        assert_eq!(status, Some(Status::Closed), "{call}");
    }
    // Final results stay readable, and memory can be freed.
    assert_eq!(a.wait(&core, None).unwrap().state, State::Done);
    local.free(Some(PATIENCE)).map_err(|(_, error)| error).unwrap();
    // The other side learns of the end, and serves others.
    eventually("the end is known", || pair.b.peer_info(pair.a_at_b).unwrap().state == PeerState::Lost);
    let next = Pair::of(engine(&[]), pair.b.clone());
    next.a.notify(next.b_at_a, b"", Deadline::Default).unwrap();
}

/// Close while transfers of all sizes run, from several threads, and while others submit: every transfer becomes
/// final, every close returns OK.
#[test]
fn closing_makes_everything_final() {
    for round in 0..12 {
        let pair = Pair::new(&[("lease_ms", "500"), ("drain_ms", "20")]);
        let (local, remote) = pair.memories(32 * MIB, 32 * MIB);
        let start = Barrier::new(8);
        let words = pair.b.queue(WHAT_NOTIFICATIONS, 1).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                let (pair, local, remote, start) = (&pair, &local, &remote, &start);
                scope.spawn(move || {
                    start.wait();
                    let mut all = Vec::new();
                    for number in 0.. {
                        let length = [64, 4096, 100_000, 8 * MIB][(thread + number) % 4];
                        let one = [request(local, 0, remote, 0, length)];
                        let op = if number % 2 == 0 { Op::Write } else { Op::Read };
                        let options =
                            TransferOptions { notify: Some(b"word"), ordered: thread == 3, ..plain() };
                        match pair.a.submit(pair.b_at_a, op, &one, &options) {
                            Ok(transfer) => all.push(transfer),
                            Err(error) => {
                                assert!(matches!(error.status, Status::Closed | Status::Limit), "{error}");
                                if error.status == Status::Closed {
                                    break;
                                }
                            }
                        }
                    }
                    for transfer in all {
                        let result = transfer.wait(Some(PATIENCE)).unwrap();
                        assert!(
                            result.state == State::Done
                                || result.status == Status::Closed
                                || result.state == State::Cancelled,
                            "{result:?}"
                        );
                    }
                });
            }
            for thread in 0..4 {
                let (pair, start) = (&pair, &start);
                scope.spawn(move || {
                    start.wait();
                    // Some close at once, some during the transfers.
                    let end = Instant::now() + Duration::from_millis(round * thread);
                    while Instant::now() < end {
                        std::thread::yield_now();
                    }
                    pair.a.close(Some(PATIENCE)).unwrap();
                });
            }
        });
        assert_eq!(pair.a.stats().unwrap().counts.transfers_submitted, {
            let counts = pair.a.stats().unwrap().counts;
            counts.transfers_done
                + counts.transfers_failed
                + counts.transfers_cancelled
                + counts.transfers_timed_out
        });
        drop(words);
    }
}

/// Nothing is closed explicitly; the last drop is of an engine, a transfer or a memory.
#[test]
fn engines_may_just_be_dropped() {
    for last in 0..4 {
        let Pair { a, b, b_at_a, .. } = Pair::new(&[]);
        let options = RegionOptions::default();
        let (local, remote) = (a.alloc(16 * MIB, &options).unwrap(), b.alloc(16 * MIB, &options).unwrap());
        let whole = [request(&local, 0, &remote, 0, 16 * MIB)];
        let transfer = a.submit(b_at_a, Op::Write, &whole, &plain()).unwrap();
        match last {
            0 => drop((local, remote, transfer, a, b)),
            1 => drop((a, transfer, remote, b, local)),
            2 => drop((b, remote, local, a, transfer)),
            _ => drop((remote, b, transfer, a, local)),
        }
    }
}

/// The acceptor uses its handle of the dialer like any other, at the same time as the dialer uses its own.
#[test]
fn both_ends_transfer_in_both_directions_at_once() {
    let pair = Pair::new(&[]);
    let (ours, theirs) = pair.memories(48 * MIB, 48 * MIB);
    // Four quarters, each moved by another end in another direction.
    const PART: usize = 12 * MIB;
    fill(&ours, 1);
    fill(&theirs, 2);
    let mut expected = (pattern(1, 48 * MIB), pattern(2, 48 * MIB));
    let blocks = |from: &ferry::Memory, at: usize, into: &ferry::Memory, to: usize| -> Vec<_> {
        (0..PART / 65_536).map(|n| request(from, at + n * 65_536, into, to + n * 65_536, 65_536)).collect()
    };
    for round in 0..6 {
        let options = TransferOptions { no_coalesce: round % 2 == 0, checksum: round % 3 == 0, ..plain() };
        let (a, b) = (&pair.a, &pair.b);
        let all = [
            a.submit(pair.b_at_a, Op::Write, &blocks(&ours, 0, &theirs, 0), &options).unwrap(),
            a.submit(pair.b_at_a, Op::Read, &blocks(&ours, PART, &theirs, PART), &options).unwrap(),
            b.submit(pair.a_at_b, Op::Write, &blocks(&theirs, 2 * PART, &ours, 2 * PART), &options).unwrap(),
            b.submit(pair.a_at_b, Op::Read, &blocks(&theirs, 3 * PART, &ours, 3 * PART), &options).unwrap(),
        ];
        for transfer in all {
            assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
        }
    }
    expected.1[..PART].copy_from_slice(&pattern(1, PART));
    expected.0[PART..3 * PART].copy_from_slice(&pattern(2, 48 * MIB)[PART..3 * PART]);
    expected.1[3 * PART..].copy_from_slice(&pattern(1, 48 * MIB)[3 * PART..]);
    check("a", &contents(&ours), &expected.0);
    check("b", &contents(&theirs), &expected.1);
}

/// Counters state the bytes that are known to have moved, on both ends, as soon as the transfer is final.
#[test]
fn statistics_are_exact() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(4 * MIB, 4 * MIB);
    let before = (pair.a.stats().unwrap().counts, pair.b.stats().unwrap().counts);
    for round in 1..=20u64 {
        let spans: Vec<_> = (0..100).map(|n| (n * 2000, n * 3000, 1000)).collect();
        for op in [Op::Write, Op::Read] {
            let work = prepare(op, &local, &remote, &spans);
            run(&pair.a, pair.b_at_a, op, &work.requests, &plain());
        }
        pair.a.notify(pair.b_at_a, b"word", Deadline::Default).unwrap();
        let (a, b) = (pair.a.stats().unwrap(), pair.b.stats().unwrap());
        assert_eq!(a.counts.transfers_submitted - before.0.transfers_submitted, 3 * round);
        assert_eq!(a.counts.transfers_done - before.0.transfers_done, 3 * round);
        assert_eq!(a.counts.requests_in - before.0.requests_in, 200 * round);
        assert_eq!(a.counts.slices_out - before.0.slices_out, 200 * round);
        assert_eq!((a.counts.bytes_written, a.counts.bytes_read), (100_000 * round, 100_000 * round));
        assert_eq!((b.counts.bytes_applied, b.counts.bytes_served), (100_000 * round, 100_000 * round));
        assert_eq!((b.counts.notifications_received, b.counts.transfers_submitted), (round, 0));
        assert_eq!((a.peers_up, a.regions, b.regions, a.transfers), (1, 1, 1, 0));
    }
    let whole = pair.b.metrics().unwrap();
    // Metrics with labels have several values: the first stands for them.
    let labelled = |line: &&str| line.contains('{') && !line.contains("{cause=\"closed\"}");
    let lines: Vec<&str> = whole.lines().filter(|line| !labelled(line)).collect();
    let text = lines.join("\n").replace("{cause=\"closed\"}", "");
    let mut values = std::collections::HashMap::new();
    let mut lines = text.lines();
    while let Some(help) = lines.next() {
        let name = help.strip_prefix("# HELP ").unwrap().split_once(' ').unwrap().0;
        let kind = lines.next().unwrap().strip_prefix(&format!("# TYPE {name} ")).unwrap();
        let value = lines.next().unwrap().strip_prefix(&format!("{name} ")).unwrap().parse::<u64>().unwrap();
        assert!(name.starts_with("ferry_"), "{name}");
        assert_eq!(kind, if name.ends_with("_total") { "counter" } else { "gauge" }, "{name}");
        assert!(values.insert(name.to_owned(), value).is_none(), "{name} comes twice");
    }
    assert_eq!(values["ferry_bytes_applied_total"], 2_000_000);
    assert_eq!(values["ferry_notifications_received_total"], 20);
    assert_eq!((values["ferry_peers_up"], values["ferry_regions"]), (1, 1));
    assert!(values["ferry_receive_calls_total"] > 0 && values["ferry_send_calls_total"] > 0);
}
