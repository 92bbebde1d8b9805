//! Nodes that are taken out, and what nodes say of themselves.

use std::time::Duration;

use ferry::Status;
use ferry_pool::{Cursor, Digest, Drained, Outcome, PutOptions, Value};

use crate::{check, cluster, fill, key, values, Node, PATIENCE};

const BYTES: usize = 100_000;
const MIB: u64 = 1 << 20;

fn put(node: &Node, bytes: usize, numbers: std::ops::Range<u64>) {
    let memory = node.buffer(bytes);
    for number in numbers {
        fill(&memory, 0, bytes, number);
        assert_eq!(node.put(&values(&memory, bytes, number..number + 1)), [Outcome::Ok], "{number}");
    }
}

fn get(node: &Node, bytes: usize, numbers: std::ops::Range<u64>) {
    let memory = node.buffer(bytes);
    for number in numbers {
        assert_eq!(node.get(&values(&memory, bytes, number..number + 1)), [Outcome::Ok], "{number}");
        check(&memory, 0, bytes, number);
    }
}

fn close(nodes: Vec<Node>) {
    nodes.iter().for_each(|node| node.pool.close(PATIENCE).unwrap());
}

fn drained(moved: u64, here: u64, left: u64) -> Drained {
    Drained { moved, here, left, copies: true }
}

#[test]
fn what_a_node_held_is_with_others_when_it_closes() {
    let mut nodes = cluster(&[64 * MIB, 64 * MIB, 64 * MIB, 0]);
    put(&nodes[0], BYTES, 0..40);
    assert_eq!(nodes[0].put(&[Value { key: key(40), memory: vec![] }]), [Outcome::Ok]);
    let preferred = PutOptions { preferred: Some(nodes[1].pool.name().to_owned()), replicas: 1 };
    let memory = nodes[1].buffer(BYTES);
    fill(&memory, 0, BYTES, 0);
    nodes[1].pool.put(&values(&memory, BYTES, 0..1), &preferred, PATIENCE).unwrap();
    drop(memory);
    let results = std::thread::scope(|scope| {
        let both = [0, 1].map(|_| scope.spawn(|| nodes[0].pool.drain(PATIENCE).unwrap()));
        both.map(|one| one.join().unwrap())
    });
    assert_eq!(results[0], results[1], "the second drain joins the first");
    let Drained { moved, here, left, .. } = results[0];
    // The value that another node has went there, or to the third.
    assert_eq!((moved + here, left), (41, 0), "{results:?}");
    let stats = nodes[0].pool.stats();
    assert_eq!((stats.objects, stats.free, stats.is_draining), (0, 64 * MIB, true));
    get(&nodes[0], BYTES, 0..40);
    // No put goes there, whoever prefers it.
    let preferred = PutOptions { preferred: Some(nodes[0].pool.name().to_owned()), replicas: 3 };
    for (node, number) in [(0, 100), (1, 101), (3, 102)] {
        let memory = nodes[node].buffer(BYTES);
        fill(&memory, 0, BYTES, number);
        let ends =
            nodes[node].pool.put(&values(&memory, BYTES, number..number + 1), &preferred, PATIENCE).unwrap();
        assert_eq!(ends[0].outcome, Outcome::Ok, "{node}");
    }
    assert_eq!(nodes[0].pool.stats().objects, 0);
    let gone = nodes.remove(0);
    gone.pool.close(PATIENCE).unwrap();
    for node in &nodes {
        get(node, BYTES, 0..40);
        get(node, BYTES, 100..103);
    }
    close(nodes);
}

#[test]
fn two_nodes_that_are_taken_out_at_once_lose_nothing() {
    for round in 0..5 {
        let nodes = cluster(&[32 * MIB, 32 * MIB, 64 * MIB]);
        put(&nodes[0], BYTES, 0..50);
        put(&nodes[1], BYTES, 50..100);
        // Each holds what the other one holds.
        let (keys, both): (Vec<Digest>, _) = ((0..100).map(key).collect(), [0, 1]);
        both.iter().for_each(|node| drop(nodes[*node].pool.prefetch(&keys, false, PATIENCE).unwrap()));
        let results = std::thread::scope(|scope| {
            let threads = both.map(|node| {
                let pool = &nodes[node].pool;
                scope.spawn(|| pool.drain(PATIENCE))
            });
            threads.map(|one| one.join().unwrap())
        });
        for result in &results {
            assert!(result.as_ref().is_ok_and(|drained| drained.left == 0), "round {round}: {results:?}");
        }
        assert_eq!(nodes[2].pool.stats().objects, 100, "round {round}");
        nodes[0].pool.close(PATIENCE).unwrap();
        get(&nodes[2], BYTES, 0..100);
        nodes[1..].iter().for_each(|node| node.pool.close(PATIENCE).unwrap());
    }
}

#[test]
fn values_that_fit_nowhere_are_left_and_served_on() {
    const LONG: usize = 2 << 20;
    let nodes = cluster(&[16 * MIB, MIB, 0]);
    put(&nodes[0], LONG, 0..2);
    put(&nodes[0], BYTES, 2..5);
    assert_eq!(nodes[0].pool.drain(PATIENCE).unwrap(), drained(3, 0, 2));
    get(&nodes[2], LONG, 0..2);
    get(&nodes[2], BYTES, 2..5);
    // Another drain tries them again.
    assert_eq!(nodes[0].pool.drain(PATIENCE).unwrap(), drained(3, 0, 2));
    assert_eq!(nodes[0].pool.stats().objects, 2);
    close(nodes);
}

#[test]
fn a_drain_that_cannot_be_or_takes_long_is_told() {
    const LONG: usize = 8 << 20;
    let nodes = cluster(&[64 * MIB, 64 * MIB, 0]);
    put(&nodes[0], LONG, 0..6);
    let error = nodes[2].pool.drain(PATIENCE).unwrap_err();
    assert!(error.status == Status::Invalid && error.message.contains("lends no memory"), "{error}");
    let error = nodes[0].pool.drain(Some(Duration::ZERO)).unwrap_err();
    assert_eq!(error.status, Status::Timeout, "{error}");
    assert_eq!(nodes[0].pool.drain(PATIENCE).unwrap(), drained(6, 0, 0));
    let error = nodes[1].pool.drain(PATIENCE).unwrap_err();
    let names = error.message.contains(nodes[1].pool.name()) && error.message.contains("the only node");
    assert!(error.status == Status::Invalid && names, "{error}");
    // Asked by another node.
    let error = nodes[2].pool.drain_node(nodes[1].pool.name(), true, PATIENCE).unwrap_err();
    assert!(error.message.contains("the only node"), "{error}");
    get(&nodes[2], LONG, 0..6);
    nodes[0].pool.close(PATIENCE).unwrap();
    let error = nodes[0].pool.drain(PATIENCE).unwrap_err();
    assert_eq!(error.status, Status::Closed, "{error}");
    nodes[1..].iter().for_each(|node| node.pool.close(PATIENCE).unwrap());
}

#[test]
fn a_pool_that_is_closed_or_alone_meanwhile_ends_its_drain() {
    const LONG: usize = 8 << 20;
    let mut nodes = cluster(&[64 * MIB, 64 * MIB]);
    put(&nodes[0], LONG, 0..6);
    assert_eq!(nodes[0].pool.drain(Some(Duration::ZERO)).unwrap_err().status, Status::Timeout);
    let other = nodes.remove(1);
    other.pool.close(PATIENCE).unwrap();
    let drained = nodes[0].pool.drain(PATIENCE);
    // It was over before the other node had gone, or had nobody to go on with.
    let is_told =
        drained.as_ref().map_or_else(|error| error.status == Status::Invalid, |done| done.left == 0);
    assert!(is_told, "{drained:?}");
    nodes[0].pool.close(PATIENCE).unwrap();
    let nodes = cluster(&[64 * MIB, 64 * MIB]);
    put(&nodes[0], LONG, 0..6);
    assert_eq!(nodes[0].pool.drain(Some(Duration::ZERO)).unwrap_err().status, Status::Timeout);
    close(nodes);
}

#[test]
fn a_node_lists_its_values_by_their_last_use_and_tells_its_counts() {
    let nodes = cluster(&[16 * MIB, 0]);
    put(&nodes[0], 64, 0..5_000);
    get(&nodes[1], 64, 4_990..4_991);
    let list = |from, most| nodes[1].pool.list_of(nodes[0].pool.name(), from, most, PATIENCE).unwrap();
    let (mut listed, mut from) = (Vec::new(), Some(Cursor::default()));
    while let Some(cursor) = from {
        let (values, next) = list(cursor, u32::MAX);
        assert!(
            values.len() <= 2_000 && values.iter().all(|it| it.bytes == 64 && it.in_memory && !it.in_file)
        );
        listed.extend(values.into_iter().map(|it| it.fingerprint));
        from = next;
    }
    let held = nodes[0].pool.stats().objects;
    let expected = [4_990, 4_999, 4_998].map(|number| key(number).fingerprint());
    assert_eq!((listed.len() as u64, &listed[..3]), (held, &expected[..]));
    let (values, next) = list(Cursor::default(), 2);
    assert_eq!((values[1].fingerprint, next.and_then(|next| next.after)), (expected[1], Some(expected[1])));
    let gone = Cursor { in_file: false, after: Some(key(77_777).fingerprint()) };
    let error = nodes[1].pool.list_of(nodes[0].engine.address(), gone, 2, PATIENCE).unwrap_err();
    assert!(error.message.contains("list again"), "{error}");
    let counts = nodes[1].pool.counts_of(nodes[0].engine.address(), PATIENCE).unwrap();
    assert!(counts.contains(&format!("\nferry_pool_values {held}\n")), "{counts}");
    let error = nodes[1].pool.counts_of("nobody", PATIENCE).unwrap_err();
    assert!(error.status == Status::Invalid && error.message.contains("\"nobody\""), "{error}");
    // A node that does not answer in time is asked nothing more.
    drop(nodes[1].pool.counts_of(nodes[0].pool.name(), Some(Duration::ZERO)));
    close(nodes);
}
