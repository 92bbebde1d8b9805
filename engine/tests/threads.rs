//! Many threads at once: to one peer, to several, in both directions, with every kind of transfer; each
//! byte is checked.

mod common;

use common::data::{check, contents, fill, pattern, Random};
use common::{engine, peer_of, request, transport, Pair, PATIENCE};
use ferry::types::{Op, PeerId, Request, Transport};
use ferry::{Engine, Memory, RegionOptions, State, Transfer, TransferOptions};
use std::sync::Barrier;

const MIB: usize = 1 << 20;
/// The bytes that one thread may move into, and as many that it moves from.
const SHARE: usize = 3 * MIB;

fn memory(engine: &Engine, length: usize) -> Memory {
    engine.alloc(length, &RegionOptions::default()).unwrap()
}

/// Moves one thread's share in random pieces, with WRITEs from `source` into `target` or READs in the other direction,
/// several in flight, never two into the same bytes. Ends when all of the share has moved.
fn move_share(
    engine: &Engine,
    peer: PeerId,
    local: &Memory,
    remote: &Memory,
    at: usize,
    op: Op,
    random: &mut Random,
) {
    let mut waiting: Vec<Transfer> = Vec::new();
    let mut next = at;
    while next < at + SHARE {
        let mut requests: Vec<Request> = Vec::new();
        for _ in 0..1 + random.below(8) {
            let most = [64, 4096, 20_000, 400_000][random.below(4)];
            let length = (1 + random.below(most)).min(at + SHARE - next);
            if length > 0 {
                requests.push(request(local, next, remote, next, length));
                next += length;
            }
        }
        let options = TransferOptions {
            no_coalesce: random.below(2) == 0,
            checksum: transport() == Transport::Tcp && random.below(4) == 0,
            ordered: random.below(8) == 0,
            priority: random.below(3) as u32,
            ..TransferOptions::default()
        };
        waiting.push(engine.submit(peer, op, &requests, &options).unwrap());
        if waiting.len() > 12 {
            let transfer = waiting.swap_remove(random.below(12));
            assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
        }
    }
    for transfer in waiting {
        assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
    }
}

/// Runs `threads` on each side, half of them writing, half reading.
fn both_ways(pair: &Pair, threads: usize) {
    let total = 2 * threads * SHARE;
    let (ours, theirs) = pair.memories(total, total);
    common::wait_for_region(&pair.b, pair.a_at_b, ours.region());
    fill(&ours, 1);
    fill(&theirs, 2);
    let seed = Random::new("both ways").next();
    let start = Barrier::new(2 * threads);
    std::thread::scope(|scope| {
        for thread in 0..2 * threads {
            let (start, ours, theirs) = (&start, &ours, &theirs);
            scope.spawn(move || {
                let mut random = Random::seeded(seed ^ thread as u64);
                let op = if thread % 2 == 0 { Op::Write } else { Op::Read };
                let at = thread * SHARE;
                start.wait();
                if thread < threads {
                    move_share(&pair.a, pair.b_at_a, ours, theirs, at, op, &mut random);
                } else {
                    move_share(&pair.b, pair.a_at_b, theirs, ours, at, op, &mut random);
                }
            });
        }
    });
    // The threads' directions determine which pattern each share has now, on both sides.
    let (mine, other) = (pattern(1, total), pattern(2, total));
    let mut expected = (mine.clone(), other.clone());
    for thread in 0..2 * threads {
        let share = thread * SHARE..(thread + 1) * SHARE;
        if (thread % 2 == 0) == (thread < threads) {
            expected.1[share.clone()].copy_from_slice(&mine[share]);
        } else {
            expected.0[share.clone()].copy_from_slice(&other[share]);
        }
    }
    check("a", &contents(&ours), &expected.0);
    check("b", &contents(&theirs), &expected.1);
}

#[test]
fn four_threads_on_each_side() {
    both_ways(&Pair::new(&[]), 4);
}

#[test]
fn eight_threads_on_each_side_with_one_worker() {
    both_ways(&Pair::new(&[("workers", "1"), ("lanes", "1"), ("tcp_poller", "epoll")]), 8);
}

#[test]
fn eight_threads_on_each_side_with_four_lanes() {
    both_ways(
        &Pair::new(&[("workers", "2"), ("lanes", "4"), ("tcp_poller", "io_uring"), ("spin_us", "0")]),
        8,
    );
}

/// READ and WRITE saturate the lanes from both ends, with buffers so small that every send blocks: neither side may
/// wait for the other to read first.
#[test]
fn saturated_ends_do_not_wait_for_each_other() {
    let settings =
        [("socket_buffer_bytes", "65536"), ("frame_bytes_max", "65536"), ("lanes", "1"), ("workers", "1")];
    let pair = Pair::new(&settings);
    const PART: usize = 16 * MIB;
    let (ours, theirs) = pair.memories(4 * PART, 4 * PART);
    common::wait_for_region(&pair.b, pair.a_at_b, ours.region());
    for _ in 0..3 {
        fill(&ours, 1);
        fill(&theirs, 2);
        let plain = TransferOptions::default();
        let submit = |engine: &Engine, peer, op, from: &Memory, into: &Memory, part: usize| {
            let one = [request(from, part * PART, into, part * PART, PART)];
            engine.submit(peer, op, &one, &plain).unwrap()
        };
        let all = [
            submit(&pair.a, pair.b_at_a, Op::Write, &ours, &theirs, 0),
            submit(&pair.b, pair.a_at_b, Op::Read, &theirs, &ours, 1),
            submit(&pair.a, pair.b_at_a, Op::Read, &ours, &theirs, 2),
            submit(&pair.b, pair.a_at_b, Op::Write, &theirs, &ours, 3),
        ];
        for transfer in all {
            assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
        }
        let (mut mine, mut other) = (pattern(1, 4 * PART), pattern(2, 4 * PART));
        other[..2 * PART].copy_from_slice(&pattern(1, 4 * PART)[..2 * PART]);
        mine[2 * PART..].copy_from_slice(&pattern(2, 4 * PART)[2 * PART..]);
        check("a", &contents(&ours), &mine);
        check("b", &contents(&theirs), &other);
    }
}

/// Several threads and several peers; each thread visits all peers in turn.
#[test]
fn several_threads_to_several_peers() {
    const PEERS: usize = 4;
    const THREADS: usize = 4;
    let hub = engine(&[]);
    let others: Vec<Engine> = (0..PEERS).map(|_| engine(&[("workers", "1")])).collect();
    let local = memory(&hub, PEERS * THREADS * SHARE);
    fill(&local, 1);
    let remotes: Vec<Memory> = others.iter().map(|other| memory(other, THREADS * SHARE)).collect();
    // Half of the peers are dialed, the other half dial.
    let peers: Vec<PeerId> = others
        .iter()
        .enumerate()
        .map(|(number, other)| {
            if number % 2 == 0 {
                return hub.connect(other.address(), Some(PATIENCE)).unwrap();
            }
            other.connect(hub.address(), Some(PATIENCE)).unwrap();
            peer_of(&hub, other)
        })
        .collect();
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (hub, local, remotes, peers, start) = (&hub, &local, &remotes, &peers, &start);
            scope.spawn(move || {
                start.wait();
                let mut waiting = Vec::new();
                for step in 0..SHARE / 8192 {
                    for (number, peer) in peers.iter().enumerate() {
                        let to = thread * SHARE + step * 8192;
                        let at = number * THREADS * SHARE + to;
                        let one = [request(local, at, &remotes[number], to, 8192)];
                        waiting
                            .push(hub.submit(*peer, Op::Write, &one, &TransferOptions::default()).unwrap());
                    }
                    if waiting.len() > 60 {
                        waiting.drain(..30).for_each(|transfer| {
                            transfer.wait(Some(PATIENCE)).unwrap();
                        });
                    }
                }
                for transfer in waiting {
                    assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
                }
            });
        }
    });
    let image = pattern(1, local.length());
    for (number, remote) in remotes.iter().enumerate() {
        let part = number * THREADS * SHARE..(number + 1) * THREADS * SHARE;
        check(&format!("peer {number}"), &contents(remote), &image[part]);
    }
    assert_eq!(hub.stats().unwrap().transfers, 0);
}

/// Bulk leaves room for small transfers to the same peer, and still progresses.
#[test]
fn a_conversation_does_not_stop_bulk() {
    const BULK: usize = 16 * MIB;
    const SMALL: usize = 4 << 10;
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(BULK + SMALL, BULK + SMALL);
    let options = TransferOptions::default();
    for op in [Op::Write, Op::Read] {
        fill(&local, 1);
        fill(&remote, 2);
        let one = [request(&local, 0, &remote, 0, BULK)];
        let bulk = pair.a.submit(pair.b_at_a, op, &one, &options).unwrap();
        let small = [request(&local, BULK, &remote, BULK, SMALL)];
        // Never 5 ms without a small transfer, until the bulk transfer is done: bulk must not wait for their end.
        while bulk.result().is_none() {
            pair.a.write(pair.b_at_a, &small, &options).unwrap();
        }
        assert_eq!(bulk.wait(Some(PATIENCE)).unwrap().state, State::Done);
        let (found, source) = if op == Op::Write { (&remote, 1) } else { (&local, 2) };
        check("bulk", &contents(found)[..BULK], &pattern(source, BULK));
    }
}
