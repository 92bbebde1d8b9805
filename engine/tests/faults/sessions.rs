//! Sessions that both sides make, repeatedly, and load in both directions.

use crate::proxy::{Passing, Proxy, Verdict, Way};
use crate::support::*;
use ferry::types::{Op, PeerId};
use ferry::{Deadline, Engine, State, Status, TransferOptions};
use std::sync::Barrier;
use std::time::Duration;

#[test]
fn simultaneous_connects_give_both_sides_a_peer_that_works() {
    let _turn = alone();
    for round in 0..50 {
        let (a, b) = (engine(&[]), engine(&[]));
        let (ma, mb) = (alloc(&a, 4096), alloc(&b, 4096));
        fill(&ma, round + 1);
        let barrier = Barrier::new(2);
        let (to_b, to_a) = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                barrier.wait();
                b.connect(a.address(), Some(BOUND))
            });
            barrier.wait();
            (a.connect(b.address(), Some(BOUND)), other.join().unwrap())
        });
        let to_b = to_b.unwrap_or_else(|error| panic!("round {round}, a to b: {error}"));
        let to_a = to_a.unwrap_or_else(|error| panic!("round {round}, b to a: {error}"));
        a.write(to_b, &[request(&ma, &mb, 0, 4096)], &options())
            .unwrap_or_else(|error| panic!("round {round}, a to b: {error}"));
        assert_pattern(&mb, round + 1, 0, 4096);
        b.read(to_a, &[request(&mb, &ma, 0, 4096)], &options())
            .unwrap_or_else(|error| panic!("round {round}, b to a: {error}"));
        // A second connect returns the same peer, from either side.
        assert_eq!(connect(&a, b.address()), to_b);
        assert_eq!(connect(&b, a.address()), to_a);
    }
}

/// By names that engines give themselves, by names that others give them, and by numbers: the engine at the other end
/// identifies an existing session.
#[test]
fn simultaneous_connects_by_name_give_both_sides_the_same_session() {
    let _turn = alone();
    let named: &[(&str, &str)] = &[("advertise_address", "localhost:0")];
    for round in 0..40 {
        let settings = [named, &[]][round / 20];
        let (a, b) = (engine(settings), engine(settings));
        let call = |engine: &Engine| {
            let (_, port) = engine.address().rsplit_once(':').unwrap();
            format!("{}:{port}", ["localhost", "127.0.0.1"][round % 2])
        };
        let (at_a, at_b) = (call(&a), call(&b));
        let barrier = Barrier::new(2);
        let (to_b, to_a) = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                barrier.wait();
                b.connect(&at_a, Some(BOUND))
            });
            barrier.wait();
            (a.connect(&at_b, Some(BOUND)), other.join().unwrap())
        });
        let to_b = to_b.unwrap_or_else(|error| panic!("round {round}, a to b: {error}"));
        let to_a = to_a.unwrap_or_else(|error| panic!("round {round}, b to a: {error}"));
        assert_eq!((connect(&a, &at_b), connect(&b, &at_a)), (to_b, to_a));
        for (engine, peer) in [(&a, to_b), (&b, to_a)] {
            engine.probe(peer, Some(BOUND)).unwrap();
        }
    }
}

#[test]
fn an_advertised_port_of_0_is_told_as_the_one_that_is_bound() {
    let _turn = alone();
    for (listen, advertise, host) in [
        ("127.0.0.1:0", "localhost:0", "localhost"),
        ("0.0.0.0:0", "127.0.0.1:0", "127.0.0.1"),
        ("[::1]:0", "[::1]:0", "[::1]"),
    ] {
        if listen.starts_with('[') && std::net::TcpListener::bind(listen).is_err() {
            println!("SKIPPED {listen}: this machine has no IPv6");
            continue;
        }
        let b = engine(&[("listen_address", listen), ("advertise_address", advertise)]);
        let (told, port) = b.address().rsplit_once(':').unwrap();
        assert!(told == host && port != "0", "{}", b.address());
        let a = engine(&[]);
        let peer = connect(&a, b.address());
        assert_eq!(a.peer_info(peer).unwrap().address, b.address());
    }
}

#[test]
fn many_connects_at_once_are_one_peer() {
    let _turn = alone();
    let (a, b) = (engine(&[]), engine(&[]));
    let peers: Vec<PeerId> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..16).map(|_| scope.spawn(|| connect(&a, b.address()))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(peers.iter().all(|peer| *peer == peers[0]), "{peers:?}");
    assert_eq!(b.peers().unwrap().len(), 1);
}

/// READ and WRITE in both directions at once over the smallest sockets: neither end waits for the other's reader, so
/// all transfers end.
#[test]
fn both_ends_saturating_reads_and_writes_do_not_deadlock() {
    let _turn = alone();
    const BYTES: usize = 4 * MIB;
    for poller in ["epoll", "io_uring"] {
        let settings = [
            ("tcp_poller", poller),
            ("socket_buffer_bytes", "65536"),
            ("lease_ms", "5000"),
            ("progress_timeout_ms", "5000"),
        ];
        let (a, b, to_b) = pair(&settings);
        let to_a = b.peers().unwrap()[0];
        // Four quarters in each memory: written from, read into, written to, read from.
        let (ma, mb) = (alloc(&a, 4 * BYTES), alloc(&b, 4 * BYTES));
        ma.write(0, &pattern(1, 0, BYTES));
        ma.write(3 * BYTES, &pattern(2, 3 * BYTES, BYTES));
        mb.write(0, &pattern(3, 0, BYTES));
        mb.write(3 * BYTES, &pattern(4, 3 * BYTES, BYTES));
        let mut transfers = Vec::new();
        for size in [BYTES, 64 << 10, 4096] {
            for (engine, peer, mine, theirs) in [(&a, to_b, &ma, &mb), (&b, to_a, &mb, &ma)] {
                for (op, local, remote) in [(Op::Write, 0, 2 * BYTES), (Op::Read, BYTES, 3 * BYTES)] {
                    let requests = rounds(
                        mine.address() + local as u64,
                        theirs.address() + remote as u64,
                        theirs.region(),
                        size,
                        16 * MIB.max(size) / size.max(64 << 10),
                    );
                    let options = TransferOptions { deadline: Deadline::After(BOUND * 2), ..options() };
                    transfers.push(engine.submit(peer, op, &requests, &options).unwrap());
                }
            }
        }
        for (index, transfer) in transfers.iter().enumerate() {
            let result = transfer.wait(Some(BOUND * 3)).expect("final");
            assert_eq!(result.state, State::Done, "{poller}, transfer {index}: {result:?}");
        }
        let check = |memory, at: usize, seed, from: usize| {
            assert_eq!(misplaced(&read(memory, at, BYTES), seed, from), None, "{poller}");
        };
        check(&mb, 2 * BYTES, 1, 0);
        check(&ma, BYTES, 4, 3 * BYTES);
        check(&ma, 2 * BYTES, 3, 0);
        check(&mb, BYTES, 2, 3 * BYTES);
    }
}

/// Many threads on the express lane, in both directions: no wake-up may be lost.
#[test]
fn many_threads_of_small_transfers_both_ways_all_end() {
    let _turn = alone();
    let settings = [("socket_buffer_bytes", "65536"), ("lease_ms", "5000"), ("progress_timeout_ms", "5000")];
    let (a, b, to_b) = pair(&settings);
    let to_a = b.peers().unwrap()[0];
    let (ma, mb) = (alloc(&a, 16 * MIB), alloc(&b, 16 * MIB));
    fill(&ma, 1);
    fill(&mb, 1);
    std::thread::scope(|scope| {
        for thread in 0..8usize {
            let (engine, peer, mine, theirs) =
                if thread % 2 == 0 { (&a, to_b, &ma, &mb) } else { (&b, to_a, &mb, &ma) };
            scope.spawn(move || {
                for round in 0..200usize {
                    let op = if (round + thread / 2) % 2 == 0 { Op::Read } else { Op::Write };
                    let size = [8, 4096, 60 << 10][round % 3];
                    let at = thread * 2 * MIB + (round % 16) * (64 << 10);
                    // Every range already holds its final bytes, so that any order is right.
                    let transfers: Vec<_> = (0..8)
                        .map(|_| {
                            engine.submit(peer, op, &[request(mine, theirs, at, size)], &options()).unwrap()
                        })
                        .collect();
                    for transfer in transfers {
                        let result = finish(&transfer);
                        assert_eq!(result.state, State::Done, "thread {thread} round {round}: {result:?}");
                    }
                }
            });
        }
    });
    assert_pattern(&ma, 1, 0, 16 * MIB);
    assert_pattern(&mb, 1, 0, 16 * MIB);
}

/// A process between the two engines ends both connections when one of them takes no more bytes. The engine that leaves
/// must not cause that before its Bye has passed.
#[test]
fn a_farewell_arrives_while_the_other_side_keeps_sending() {
    let _turn = alone();
    for close_peer in [false, true] {
        let settings = [("reconnect_timeout_ms", "60000"), ("progress_timeout_ms", "60000")];
        let (a, b) = (engine(&settings), engine(&settings));
        let proxy = Proxy::new(b.address());
        let to_b = connect(&a, &proxy.address);
        wait_until("b knows its peer", || b.peers().unwrap().len() == 1);
        proxy.judge(|passing: &mut Passing| match passing.way {
            Way::Forth => Verdict::Pass,
            Way::Back => Verdict::Delay(Duration::from_millis(50)),
        });
        if close_peer {
            b.close_peer(b.peers().unwrap()[0], Some(BOUND)).unwrap()
        } else {
            b.close(Some(BOUND)).unwrap()
        }
        wait_until(
            "a is told",
            || matches!(a.probe(to_b, Some(Duration::from_millis(1))), Err(error) if error.status == Status::PeerLost),
        );
    }
}

/// A connection whose last bytes were held up by the network began before the one that the session has now: it ends
/// nothing, and its Ready says nothing of the lanes that were opened since.
#[test]
fn a_connection_that_was_held_up_ends_no_session_that_began_later() {
    let _turn = alone();
    let settings = [("progress_timeout_ms", "300"), ("handshake_timeout_ms", "20000"), ("transports", "tcp")];
    let (a, b) = (engine(&settings), engine(&settings));
    let proxy = Proxy::new(b.address());
    // Holds what the dialer says after the handshake on this connection: its Start and its Ready.
    let hold_up = |connection: usize| {
        let mut answers = 0;
        proxy.judge(move |passing: &mut Passing| {
            if passing.connection != connection {
                return Verdict::Pass;
            }
            answers += u32::from(passing.way == Way::Back);
            if passing.way == Way::Forth && answers >= 3 {
                Verdict::Hold
            } else {
                Verdict::Pass
            }
        });
    };
    let remote = alloc(&a, MIB);
    let local = alloc(&b, MIB);
    let mut back = None;
    // The session is new, and then it is taken up again.
    for resumes in [false, true] {
        let held = proxy.connections().len();
        hold_up(held);
        if resumes {
            proxy.cut(true);
        } else {
            connect(&a, &proxy.address);
        }
        proxy.wait_for("the held connection", |seen| seen.connection == held && seen.holds(Way::Forth));
        wait_until("both have the session", || !b.peers().unwrap().is_empty());
        let peer = *back.get_or_insert_with(|| b.peers().unwrap()[0]);
        wait_until("the region is announced", || !b.peer_regions(peer).unwrap().is_empty());
        let write = |seed| {
            fill(&local, seed);
            b.write(peer, &[request(&local, &remote, 0, MIB)], &options()).unwrap();
            assert_pattern(&remote, seed, 0, MIB);
        };
        write(1);
        let lost = b.stats().unwrap().counts.sessions_lost;
        proxy.judge(|_| Verdict::Pass);
        proxy.release(held, Way::Forth);
        wait_until("the held connection ends", || !proxy.connections()[held].is_open);
        write(2);
        assert_eq!(b.peers().unwrap(), [peer], "resumes: {resumes}");
        assert_eq!(b.stats().unwrap().counts.sessions_lost, lost, "resumes: {resumes}");
    }
}
