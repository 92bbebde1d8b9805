//! Many peers at one time, all of them idle.

use crate::common::process::cpu_time_idle;
use crate::guest::{engine, enter, knows, leads_over, memories, pair};
use crate::support::*;
use ferry::types::{Op, PeerId};
use ferry::Engine;
use std::time::{Duration, Instant};

/// Each peer has two endpoints: one on each network.
const PEERS: usize = 32;
const PIECE: usize = 64 << 10;

#[test]
fn sixty_four_endpoints_are_made_at_once_and_each_one_carries() {
    let Some(_guest) = enter("many::sixty_four_endpoints_are_made_at_once_and_each_one_carries") else {
        return;
    };
    // A small queue pair for each of the others, so that the machine's memory suffices.
    let small = [("rdma_qps", "1"), ("lanes", "1")];
    let hub = engine(1, &small);
    let target = alloc(&hub, PEERS * PIECE);
    let peers: Vec<Engine> = (0..PEERS).map(|_| engine(0, &small)).collect();
    let started = Instant::now();
    let handles: Vec<PeerId> = std::thread::scope(|scope| {
        let address = hub.address();
        let dialing: Vec<_> = peers
            .iter()
            .map(|peer| scope.spawn(move || peer.connect(address, Some(BOUND)).unwrap()))
            .collect();
        dialing.into_iter().map(|it| it.join().unwrap()).collect()
    });
    println!("{PEERS} peers connected after {:?}", started.elapsed());
    for (peer, handle) in peers.iter().zip(&handles) {
        leads_over(peer, *handle, &["rva0", "rvb0"]);
    }
    println!("{} endpoints after {:?}", 2 * PEERS, started.elapsed());
    std::thread::scope(|scope| {
        for (at, (peer, handle)) in peers.iter().zip(&handles).enumerate() {
            let (hub, target) = (&hub, &target);
            scope.spawn(move || {
                knows(peer, *handle, target.region());
                let local = alloc(peer, PIECE);
                local.write(0, &pattern(5, at * PIECE, PIECE));
                let (remote, length) = (target.address() + (at * PIECE) as u64, PIECE as u64);
                let one = ferry::types::Request {
                    local: local.address(),
                    remote,
                    length,
                    remote_region: target.region(),
                };
                let result = finish(&peer.submit(*handle, Op::Write, &[one], &options()).unwrap());
                assert_eq!(result.status, ferry::Status::Ok, "peer {at}");
                local.write(0, &vec![0; PIECE]);
                let result = finish(&peer.submit(*handle, Op::Read, &[one], &options()).unwrap());
                assert_eq!(result.status, ferry::Status::Ok, "peer {at}");
                assert_eq!(misplaced(&read(&local, 0, PIECE), 5, at * PIECE), None, "peer {at}");
                hub.stats().unwrap();
            });
        }
    });
    println!("each was used after {:?}", started.elapsed());
    assert_pattern(&target, 5, 0, PEERS * PIECE);
}

#[test]
fn idle_endpoints_take_no_cpu() {
    const PERIOD: Duration = Duration::from_secs(2);
    let Some(_guest) = enter("many::idle_endpoints_take_no_cpu") else { return };
    let (a, b, peer) = pair(&[]);
    leads_over(&a, peer, &["rva0", "rvb0"]);
    let (local, remote) = memories(&a, &b, peer, MIB, 5);
    for length in [8, 4096, MIB] {
        for op in [Op::Write, Op::Read] {
            finish(&a.submit(peer, op, &[request(&local, &remote, 0, length)], &options()).unwrap());
        }
    }
    // The lesser of two, in case the first still includes the end of the exchange.
    let least = cpu_time_idle(PERIOD).min(cpu_time_idle(PERIOD));
    println!("two idle engines took {least:?} of {PERIOD:?}");
    // The machine is emulated, and time during which the host did not run it counts, too.
    assert!(least < PERIOD / 25, "{least:?} of {PERIOD:?}");
}
