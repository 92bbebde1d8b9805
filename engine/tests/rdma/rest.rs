//! Idle endpoints are closed, and opened again on demand.

use crate::guest::{enter, leads_over, memories, pair, path, queue_pairs};
use crate::support::*;
use ferry::types::{Op, PeerId, Transport};
use ferry::{Engine, Status, TransferOptions};
use std::time::Duration;

/// Longer than it takes to count queue pairs on a busy machine.
const IDLE: (&str, &str) = ("rdma_idle_ms", "1500");

fn at_rest(engines: [(&Engine, u64); 2], before: [usize; 2]) {
    for (engine, peer) in engines {
        wait_until("the endpoints rest", || path(engine, PeerId::from_raw(peer)).1.contains("idle"));
    }
    wait_until("the queue pairs are gone", || ["rva0", "rvb1"].map(queue_pairs) == before);
}

#[test]
fn idle_endpoints_are_given_up_and_made_again_for_either_side() {
    let name = "rest::idle_endpoints_are_given_up_and_made_again_for_either_side";
    let Some(_guest) = enter(name) else { return };
    let before = ["rva0", "rvb1"].map(queue_pairs);
    let (a, b, at_a) = pair(&[IDLE]);
    let at_b = b.peers().unwrap()[0];
    let (local, remote) = memories(&a, &b, at_a, MIB, 5);
    crate::guest::knows(&b, at_b, local.region());
    for (round, forth) in [true, false, true, false].into_iter().enumerate() {
        println!("round {round}");
        at_rest([(&a, at_a.raw()), (&b, at_b.raw())], before);
        // RDMA alone: the transfer waits for the endpoints.
        let (engine, peer, from, into) =
            if forth { (&a, at_a, &local, &remote) } else { (&b, at_b, &remote, &local) };
        fill(from, 5 + round as u64);
        let one = [request(from, into, 0, MIB)];
        let result = finish(&engine.submit(peer, Op::Write, &one, &options()).unwrap());
        assert_eq!((result.status, result.transport), (Status::Ok, Transport::Rdma));
        assert_pattern(into, 5 + round as u64, 0, MIB);
        leads_over(&a, at_a, &["rva0", "rvb0"]);
        assert!(["rva0", "rvb1"].map(queue_pairs).iter().zip(before).all(|(now, before)| *now > before));
    }
}

#[test]
fn endpoints_in_use_stay_whichever_side_uses_them() {
    let Some(_guest) = enter("rest::endpoints_in_use_stay_whichever_side_uses_them") else { return };
    let (a, b, at_a) = pair(&[("rdma_idle_ms", "1000")]);
    let at_b = b.peers().unwrap()[0];
    let (local, remote) = memories(&a, &b, at_a, 4096, 5);
    crate::guest::knows(&b, at_b, local.region());
    leads_over(&a, at_a, &["rva0", "rvb0"]);
    for (engine, peer, from, into) in [(&a, at_a, &local, &remote), (&b, at_b, &remote, &local)] {
        for _ in 0..15 {
            let one = [request(from, into, 0, 4096)];
            engine.write(peer, &one, &options()).unwrap();
            // Less than the idle time.
            std::thread::sleep(Duration::from_millis(150));
        }
    }
    assert_eq!(a.stats().unwrap().counts.lanes_lost, 0);
}

#[test]
fn tcp_carries_what_comes_first_and_rdma_the_rest() {
    let Some(_guest) = enter("rest::tcp_carries_what_comes_first_and_rdma_the_rest") else { return };
    let before = ["rva0", "rvb1"].map(queue_pairs);
    let (a, b, at_a) = pair(&[IDLE, ("transports", "rdma,tcp")]);
    let at_b = b.peers().unwrap()[0];
    let (local, remote) = memories(&a, &b, at_a, 4096, 5);
    leads_over(&a, at_a, &["rva0", "rvb0"]);
    at_rest([(&a, at_a.raw()), (&b, at_b.raw())], before);
    let write = || {
        let one = [request(&local, &remote, 0, 4096)];
        a.write(at_a, &one, &TransferOptions::default()).unwrap().transport
    };
    assert_eq!(write(), Transport::Tcp);
    wait_until("RDMA is back", || write() == Transport::Rdma);
    assert_pattern(&remote, 5, 0, 4096);
}
