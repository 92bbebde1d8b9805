//! Answers that arrive after the READ was asked again: each byte arrives, and stays as it is.

use crate::guest::{calm, connect, disturb, engine, enter, memories};
use crate::support::*;
use ferry::types::Op;
use ferry::Status;

const BYTES: usize = 4 * MIB;
const ROUNDS: usize = 12;

fn moves_all(extra: &[(&'static str, &'static str)], delay: &str) {
    let with = |device| [&[("rdma_devices", device)], extra].concat();
    let (a, b) = (engine(0, &with("rva0")), engine(1, &with("rva1")));
    let peer = connect(&a, b.address());
    let (source, remote) = memories(&a, &b, peer, BYTES, 5);
    let (sink, other) = memories(&a, &b, peer, BYTES, 5);
    fill(&other, 6);
    disturb("va1", delay);
    for round in 0..ROUNDS {
        remote.write(0, &vec![0; BYTES]);
        sink.write(0, &vec![0; BYTES]);
        let write = a.submit(peer, Op::Write, &[request(&source, &remote, 0, BYTES)], &options()).unwrap();
        let read = a.submit(peer, Op::Read, &[request(&sink, &other, 0, BYTES)], &options()).unwrap();
        for (what, transfer) in [("WRITE", write), ("READ", read)] {
            let status = finish(&transfer).status;
            assert_eq!(status, Status::Ok, "round {round}, {what}: {:?}", transfer.results());
        }
        assert_pattern(&remote, 5, 0, BYTES);
        assert_pattern(&sink, 6, 0, BYTES);
    }
    println!("{} endpoints lost", a.stats().unwrap().counts.lanes_lost);
    calm("va1");
}

#[test]
fn what_is_asked_for_again_arrives_once() {
    let Some(_guest) = enter("late::what_is_asked_for_again_arrives_once") else { return };
    moves_all(&[("rdma_ack_timeout_ms", "16"), ("rdma_retries", "6")], "delay 25ms limit 100000");
}

#[test]
fn what_arrives_out_of_order_is_put_right() {
    let Some(_guest) = enter("late::what_arrives_out_of_order_is_put_right") else { return };
    moves_all(
        &[("rdma_ack_timeout_ms", "8"), ("rdma_retries", "6")],
        "delay 40ms reorder 99.7% limit 100000",
    );
}
