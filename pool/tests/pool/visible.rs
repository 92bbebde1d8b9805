//! What a call has done is seen by the other nodes, and calls that nobody waits for have their numbers.

use std::time::Duration;

use ferry::Status;
use ferry_pool::{Call, Digest, NodeInfo, Outcome, Pool, PoolOptions, PutOptions, Value};

use crate::{cluster, engine, fill, key, values, Node, PATIENCE};

#[test]
fn a_node_finds_what_another_one_has_just_put() {
    let nodes = cluster(&[64 << 20, 64 << 20, 64 << 20, 0]);
    let memories: Vec<_> = nodes.iter().map(|node| node.buffer(4096)).collect();
    for number in 0..200 {
        let from = number as usize % nodes.len();
        fill(&memories[from], 0, 4096, number);
        assert_eq!(nodes[from].put(&values(&memories[from], 4096, number..number + 1)), [Outcome::Ok]);
        for (to, node) in nodes.iter().enumerate() {
            let ends = node.pool.exists(&[key(number)], false, PATIENCE).unwrap();
            assert_eq!(ends[0].outcome, Outcome::Ok, "{number}, from {from} to {to}");
        }
    }
    nodes.iter().for_each(|node| node.pool.close(PATIENCE).unwrap());
}

#[test]
fn a_call_that_passes_its_timeout_ends_later_with_its_number() {
    let nodes = cluster(&[1 << 20, 0]);
    let keys: Vec<Digest> = (0..50).map(key).collect();
    let mut late = Vec::new();
    for number in 1..=50 {
        let call = Call::Exists { keys: &keys, prefix: false };
        match nodes[1].pool.run(&call, number, Some(Duration::ZERO)) {
            Ok(ends) => assert_eq!(ends.len(), 50),
            Err(error) => {
                assert_eq!(error.status, Status::Timeout, "{error}");
                late.push(number);
            }
        }
    }
    let mut ended: Vec<u64> = late.iter().map(|_| nodes[1].pool.wait(PATIENCE).unwrap().user_data).collect();
    ended.sort_unstable();
    assert_eq!(ended, late);
    nodes.iter().for_each(|node| node.pool.close(PATIENCE).unwrap());
}

#[test]
fn nodes_are_listed_with_the_ids_of_results() {
    let nodes = cluster(&[1 << 20, 1 << 20]);
    let memory = nodes[0].buffer(64);
    fill(&memory, 0, 64, 1);
    let ends = nodes[0].pool.put(&values(&memory, 64, 1..2), &Default::default(), PATIENCE).unwrap();
    let listed = nodes[1].pool.nodes();
    assert_eq!(listed.len(), 2);
    assert_eq!((&*listed[0].name, &*listed[0].address), (nodes[1].pool.name(), nodes[1].engine.address()));
    assert_eq!((ends[0].node, &*listed[1].name), (listed[1].id, nodes[0].pool.name()));
    nodes.iter().for_each(|node| node.pool.close(PATIENCE).unwrap());
    let error = nodes[0].pool.wait_for_nodes(2, None).unwrap_err();
    assert_eq!(error.status, Status::Closed);
}

#[test]
fn a_thread_that_waits_learns_that_the_engine_was_closed() {
    let nodes = cluster(&[1 << 20, 0]);
    let Node { engine, pool } = &nodes[1];
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| pool.wait(None));
        assert_eq!(pool.exists(&[key(1)], false, PATIENCE).unwrap()[0].outcome, Outcome::Absent);
        engine.close(PATIENCE).unwrap();
        assert_eq!(waits.join().unwrap().unwrap_err().status, Status::Closed);
    });
    pool.close(PATIENCE).unwrap();
}

#[test]
fn a_put_that_prefers_a_node_that_is_not_there_goes_elsewhere() {
    let nodes = cluster(&[1 << 20, 0]);
    let memory = nodes[1].buffer(64);
    fill(&memory, 0, 64, 1);
    let options = PutOptions { preferred: Some("nobody".into()), ..PutOptions::default() };
    let ends = nodes[1].pool.put(&values(&memory, 64, 1..2), &options, PATIENCE).unwrap();
    assert_eq!(ends[0].outcome, Outcome::Ok);
}

#[test]
fn a_pool_that_was_closed_while_it_dialed_can_be_opened_again() {
    let engine = engine();
    // Nobody answers at this address, so a dial is under way nearly always.
    let options = PoolOptions { nodes: vec!["192.0.2.1:1".into()], ..PoolOptions::default() };
    for _ in 0..2 {
        let pool = Pool::open(&engine, options.clone()).unwrap();
        assert_eq!(
            pool.wait_for_nodes(2, Some(Duration::from_millis(20))).unwrap_err().status,
            Status::Timeout
        );
        pool.close(PATIENCE).unwrap();
    }
}

/// The node keeps the index alone, which is complete for whoever is there.
#[test]
fn what_a_missing_node_may_have_is_unknown() {
    let engine = engine();
    let nodes = vec!["127.0.0.1:1".into()];
    let pool =
        Pool::open(&engine, PoolOptions { nodes, memory_bytes: 1 << 20, ..PoolOptions::default() }).unwrap();
    let says = || pool.exists(&[key(1)], false, PATIENCE).unwrap()[0].outcome;
    assert_eq!(says(), Outcome::Unknown, "before the first dial has ended");
    let is_refused = |node: &NodeInfo| node.why.contains("refused");
    while !pool.nodes().iter().any(is_refused) {
        std::thread::yield_now();
    }
    assert_eq!(says(), Outcome::Unknown);
    pool.close(PATIENCE).unwrap();
}

#[test]
fn a_pool_that_is_opened_again_is_found_by_whoever_is_connected() {
    let mut nodes = cluster(&[1 << 20, 0]);
    let client = nodes.pop().unwrap();
    let Node { engine, pool } = nodes.pop().unwrap();
    pool.close(PATIENCE).unwrap();
    // It lists nobody: the client is there already.
    let options = PoolOptions { memory_bytes: 1 << 20, ..PoolOptions::default() };
    let pool = Pool::open(&engine, options).unwrap();
    client.pool.wait_for_nodes(2, PATIENCE).unwrap();
    let memory = client.buffer(64);
    fill(&memory, 0, 64, 1);
    assert_eq!(client.put(&values(&memory, 64, 1..2)), [Outcome::Ok]);
    client.pool.close(PATIENCE).unwrap();
    pool.close(PATIENCE).unwrap();
}

#[test]
fn a_long_value_takes_the_room_of_many_short_ones() {
    const LONG: usize = 10 << 20;
    let nodes = cluster(&[16 << 20]);
    let memory = nodes[0].buffer(LONG);
    fill(&memory, 0, LONG, 1);
    let short: Vec<Value> = values(&memory, 64, 10..1_000);
    assert!(nodes[0].put(&short).iter().all(|outcome| *outcome == Outcome::Ok));
    assert_eq!(nodes[0].put(&values(&memory, LONG, 1..2)), [Outcome::Ok]);
    nodes[0].pool.close(PATIENCE).unwrap();
}
