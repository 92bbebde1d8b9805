//! Values of other nodes are brought into a node's memory, and what a get of them would cost. tier.rs has the file.

use std::time::Duration;

use ferry::Status;
use ferry_pool::{CostOptions, Digest, Outcome, Value};

use crate::{check, cluster, fill, key, values, Node, PATIENCE};

const BYTES: usize = 100_000;
const MIB: u64 = 1 << 20;

fn keys(numbers: std::ops::Range<u64>) -> Vec<Digest> {
    numbers.map(key).collect()
}

/// Puts values through the node, and returns them with their memory.
fn put(node: &Node, bytes: usize, numbers: std::ops::Range<u64>) {
    let memory = node.buffer(bytes * numbers.clone().count());
    (0..).zip(numbers.clone()).for_each(|(nth, number)| fill(&memory, nth * bytes, bytes, number));
    let outcomes = node.put(&values(&memory, bytes, numbers));
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Ok), "{outcomes:?}");
}

fn get(node: &Node, bytes: usize, numbers: std::ops::Range<u64>) {
    let memory = node.buffer(bytes * numbers.clone().count());
    let outcomes = node.get(&values(&memory, bytes, numbers.clone()));
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Ok), "{outcomes:?}");
    (0..).zip(numbers).for_each(|(nth, number)| check(&memory, nth * bytes, bytes, number));
}

fn prefetch(node: &Node, keys: &[Digest], prefix: bool) -> Vec<Outcome> {
    let ends = node.pool.prefetch(keys, prefix, PATIENCE).unwrap();
    ends.into_iter().map(|end| end.outcome).collect()
}

fn close(nodes: Vec<Node>) {
    nodes.iter().for_each(|node| node.pool.close(PATIENCE).unwrap());
}

#[test]
fn values_of_another_node_are_in_this_one_afterwards() {
    let mut nodes = cluster(&[64 * MIB, 64 * MIB]);
    put(&nodes[0], BYTES, 0..10);
    let memory = nodes[0].buffer(8);
    assert_eq!(nodes[0].put(&[Value { key: key(10), memory: vec![] }]), [Outcome::Ok]);
    drop(memory);
    let other = nodes[1].pool.nodes()[1].id;
    let ends = nodes[1].pool.prefetch(&keys(0..12), false, PATIENCE).unwrap();
    for end in &ends[..10] {
        assert_eq!((end.outcome, end.bytes, end.node), (Outcome::Ok, BYTES as u64, other));
    }
    assert_eq!((ends[10].outcome, ends[10].bytes), (Outcome::Ok, 0));
    assert_eq!((ends[11].outcome, ends[11].bytes, ends[11].node), (Outcome::Absent, 0, None));
    let stats = nodes[1].pool.stats();
    assert_eq!(
        (stats.objects, stats.calls.gets, stats.calls.puts),
        (11, 0, 0),
        "these are not the program's"
    );
    assert_eq!(prefetch(&nodes[1], &keys(0..11), false), [Outcome::Here; 11]);
    // The owner leaves, and its values stay.
    let owner = nodes.remove(0);
    owner.pool.close(PATIENCE).unwrap();
    get(&nodes[0], BYTES, 0..10);
    assert_eq!(nodes[0].pool.stats().calls.hits_here, 10);
    close(nodes);
}

#[test]
fn a_prefix_is_brought_up_to_its_first_miss() {
    let nodes = cluster(&[64 * MIB, 64 * MIB]);
    put(&nodes[0], BYTES, 0..2);
    put(&nodes[0], BYTES, 3..5);
    put(&nodes[1], BYTES, 5..6);
    let expected =
        [Outcome::Ok, Outcome::Ok, Outcome::Absent, Outcome::Absent, Outcome::Absent, Outcome::Absent];
    assert_eq!(prefetch(&nodes[1], &keys(0..6), true), expected);
    assert_eq!(nodes[1].pool.stats().objects, 3);
    assert_eq!(prefetch(&nodes[1], &keys(3..6), true), [Outcome::Ok, Outcome::Ok, Outcome::Here]);
    assert_eq!(prefetch(&nodes[1], &[], true), []);
    close(nodes);
}

#[test]
fn a_full_node_keeps_the_head_of_the_prefix() {
    const LONG: usize = 2 << 20;
    let nodes = cluster(&[64 * MIB, MIB]);
    put(&nodes[1], BYTES, 100..104);
    put(&nodes[0], BYTES, 0..20);
    put(&nodes[0], LONG, 20..21);
    let mut wanted = keys(0..20);
    wanted.insert(0, key(20));
    let outcomes = prefetch(&nodes[1], &wanted, false);
    assert_eq!(outcomes[0], Outcome::TooLong);
    let brought = outcomes[1..].iter().take_while(|outcome| **outcome == Outcome::Ok).count();
    assert!((7..=9).contains(&brought), "1 MiB has room for nine: {outcomes:?}");
    assert!(outcomes[1 + brought..].iter().all(|outcome| *outcome == Outcome::Full), "{outcomes:?}");
    let stats = nodes[1].pool.stats();
    assert_eq!((stats.objects, stats.owner.evicted), (brought as u64, 4), "the values of before made room");
    assert_eq!(prefetch(&nodes[1], &wanted[1..=brought], false), vec![Outcome::Here; brought]);
    // Later values take the room of the tail.
    put(&nodes[1], BYTES, 104..106);
    nodes[0].pool.close(PATIENCE).unwrap();
    let ends = nodes[1].pool.exists(&wanted[1..=brought], false, PATIENCE).unwrap();
    let kept = ends.iter().take_while(|end| end.outcome == Outcome::Ok).count();
    assert!(kept > 0 && kept < brought, "{ends:?}");
    assert!(ends[kept..].iter().all(|end| end.outcome != Outcome::Ok), "{ends:?}");
    get(&nodes[1], BYTES, 0..kept as u64);
    close(nodes);
}

/// More keys than one request has.
#[test]
fn the_tail_goes_before_the_head_of_a_long_prefix() {
    const MANY: u64 = 2_500;
    let nodes = cluster(&[64 * MIB, 48 * MIB]);
    put(&nodes[0], 64, 0..MANY);
    assert_eq!(prefetch(&nodes[1], &keys(0..MANY), true), vec![Outcome::Ok; MANY as usize]);
    get(&nodes[1], 64, 0..1);
    put(&nodes[1], 64, MANY..MANY + 1_500);
    nodes[0].pool.close(PATIENCE).unwrap();
    let ends = nodes[1].pool.exists(&keys(0..MANY), false, PATIENCE).unwrap();
    let kept = ends.iter().take_while(|end| end.outcome == Outcome::Ok).count();
    assert!(kept > 1_000 && kept < MANY as usize, "{kept}");
    assert!(ends[kept..].iter().all(|end| end.outcome != Outcome::Ok), "{kept} are the head");
    close(nodes);
}

#[test]
fn values_that_do_not_fit_into_one_turn_come_one_after_the_other() {
    const LONG: usize = 20 << 20;
    let nodes = cluster(&[160 * MIB, 160 * MIB]);
    put(&nodes[0], LONG, 0..3);
    put(&nodes[0], 40 << 20, 3..4);
    let wanted = keys(0..4);
    std::thread::scope(|scope| {
        let both = [0, 1].map(|_| scope.spawn(|| prefetch(&nodes[1], &wanted, false)));
        let both = both.map(|one| one.join().unwrap());
        let here = [Outcome::Here; 4];
        assert!(both.contains(&vec![Outcome::Ok; 4]) && both.contains(&here.to_vec()), "{both:?}");
    });
    nodes[0].pool.close(PATIENCE).unwrap();
    get(&nodes[1], LONG, 0..3);
    close(nodes);
}

#[test]
fn a_node_that_dies_meanwhile_costs_its_values_alone() {
    const LONG: usize = 4 << 20;
    let mut nodes = cluster(&[64 * MIB, 64 * MIB, 64 * MIB]);
    put(&nodes[0], LONG, 0..12);
    put(&nodes[2], LONG, 12..14);
    nodes[1].pool.submit_prefetch(&keys(0..14), false, 5).unwrap();
    let Node { engine, pool } = nodes.remove(0);
    engine.close(PATIENCE).unwrap();
    let ended = nodes[0].pool.wait(PATIENCE).unwrap();
    assert_eq!((ended.user_data, ended.keys.len()), (5, 14));
    for (number, end) in (0..).zip(&ended.keys) {
        match end.outcome {
            Outcome::Ok => get(&nodes[0], LONG, number..number + 1),
            Outcome::OwnerLost | Outcome::Unknown => assert!(number < 12, "{end:?}"),
            outcome => panic!("{number}: {outcome}"),
        }
    }
    assert_eq!(prefetch(&nodes[0], &keys(12..14), false), [Outcome::Here; 2]);
    pool.close(PATIENCE).unwrap();
    close(nodes);
}

#[test]
fn a_pool_that_is_closed_ends_its_prefetches() {
    const LONG: usize = 20 << 20;
    let mut nodes = cluster(&[160 * MIB, 160 * MIB]);
    put(&nodes[0], LONG, 0..6);
    let node = nodes.remove(1);
    (0..3).for_each(|nth| node.pool.submit_prefetch(&keys(0..6), false, nth).unwrap());
    node.pool.close(PATIENCE).unwrap();
    for nth in 0..3 {
        let ended = node.pool.poll().unwrap();
        assert_eq!((ended.user_data, ended.keys.len()), (nth, 6));
        let is_known = |outcome| matches!(outcome, Outcome::Ok | Outcome::Here | Outcome::Closed);
        assert!(ended.keys.iter().all(|end| is_known(end.outcome)), "{ended:?}");
    }
    assert_eq!(node.pool.prefetch(&keys(0..1), false, PATIENCE).unwrap_err().status, Status::Closed);
    // The memory is given back.
    node.engine.close(PATIENCE).unwrap();
    close(nodes);
}

#[test]
fn an_engine_that_is_closed_ends_its_prefetches() {
    const LONG: usize = 20 << 20;
    let mut nodes = cluster(&[160 * MIB, 160 * MIB]);
    put(&nodes[0], LONG, 0..6);
    let Node { engine, pool } = nodes.remove(1);
    (0..3).for_each(|nth| pool.submit_prefetch(&keys(0..6), false, nth).unwrap());
    engine.close(PATIENCE).unwrap();
    let ended: Vec<_> = (0..3).map(|_| pool.wait(PATIENCE).unwrap()).collect();
    assert_eq!(
        ended.iter().map(|ended| (ended.user_data, ended.keys.len())).collect::<Vec<_>>(),
        [(0, 6), (1, 6), (2, 6)]
    );
    assert_eq!(pool.wait(PATIENCE).unwrap_err().status, Status::Closed);
    pool.close(PATIENCE).unwrap();
    close(nodes);
}

#[test]
fn a_client_has_nowhere_to_bring_values_to() {
    let nodes = cluster(&[MIB, 0]);
    let error = nodes[1].pool.prefetch(&keys(0..1), false, PATIENCE).unwrap_err();
    assert!(error.status == Status::Invalid && error.message.contains("memory_bytes"), "{error}");
    close(nodes);
}

#[test]
fn the_cost_of_a_prefix_is_known_when_a_get_was_measured() {
    let nodes = cluster(&[64 * MIB, 0]);
    put(&nodes[0], BYTES, 0..8);
    let wanted = keys(0..10);
    let ends = nodes[1].pool.exists(&wanted, true, PATIENCE).unwrap();
    let estimate = |options: &CostOptions| nodes[1].pool.estimate(&wanted, &ends, options).unwrap();
    let slow = CostOptions { prefill_tokens_per_s: 1, ..CostOptions::default() };
    let cost = estimate(&slow);
    assert_eq!((cost.keys, cost.bytes, cost.get, cost.load_keys, cost.best), (8, 0, None, 8, None));
    get(&nodes[1], BYTES, 0..8);
    // The length is what the values have that went through this node.
    let cost = estimate(&slow);
    assert_eq!((cost.keys, cost.bytes, cost.load_keys), (8, 8 * BYTES as u64, 8));
    let get = cost.get.unwrap();
    assert!(get > Duration::ZERO && get < PATIENCE.unwrap(), "{get:?}");
    // Two chunks of 256 tokens are computed, a token a second.
    assert_eq!(cost.best.unwrap().as_secs(), 512 + get.as_secs());
    let chunk = CostOptions { chunk_tokens: 16, ..slow };
    assert_eq!(estimate(&chunk).best.unwrap().as_secs(), 32 + get.as_secs());
    let fast = CostOptions { prefill_tokens_per_s: u64::MAX, value_bytes: 1 << 20, ..CostOptions::default() };
    let cost = estimate(&fast);
    assert_eq!((cost.bytes, cost.load_keys), (8 << 20, 0));
    assert!(cost.get.unwrap() > get);
    let error = nodes[1].pool.estimate(&wanted, &ends[1..], &slow).unwrap_err();
    assert!(error.status == Status::Invalid && error.message.starts_with("ends: 9 for 10 keys"), "{error}");
    close(nodes);
}
