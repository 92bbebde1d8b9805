//! Nodes that are taken out while programs get and put, and copies that rot: nothing else disturbs these stories.

use ferry_pool::Outcome;

use crate::keys::{digest, value};
use crate::world::World;

const KEYS: std::ops::Range<u64> = 10..34;

/// Three nodes whose memory has room for all keys, and a client, which know one another. Some nodes have a file.
fn world(seed: u64, has_files: bool) -> World {
    let units = if has_files { [512, 0, 512, 0] } else { [0; 4] };
    let mut world = World::with_files(&[16_384, 16_384, 16_384, 0], &units, seed);
    (world.has_faults, world.had_faults, world.corrupts) = (false, false, true);
    rest(&mut world);
    let keys: Vec<u64> = KEYS.collect();
    for keys in keys.chunks(4) {
        let node = world.random.below(4);
        world.begin(node, keys, 1);
        rest(&mut world);
    }
    world
}

/// Goes on until nothing is under way.
fn rest(world: &mut World) {
    for _ in 0..100_000 {
        if !world.connect_some() && !world.advance() {
            match world.next_due() {
                Some(due) if due <= world.now + 2_000_000_000 => world.now = world.now.max(due),
                _ => return,
            }
        }
        world.note_greeted();
        let is_open = world.may_connect_some();
        if !is_open && world.is_quiet() && (0..4).all(|node| world.nodes[node].calls.open.is_empty()) {
            return;
        }
    }
    panic!("the world does not come to rest");
}

fn ended(world: &World, outcome: Outcome) -> usize {
    world.nodes.iter().map(|node| node.calls.ended.get(outcome.name()).copied().unwrap_or_default()).sum()
}

/// The nodes whose memory has the right bytes of a key.
fn good(world: &World, key: u64) -> Vec<usize> {
    let is_good = |node: &usize| {
        let (store, mut bytes) = (world.nodes[*node].machine.store(), Vec::new());
        let Some(slot) = store.find(&digest(key)) else { return false };
        for piece in store.pieces(slot) {
            bytes.extend_from_slice(
                &world.nodes[*node].memory[piece.offset as usize..][..piece.bytes as usize],
            );
        }
        bytes == value(key)
    };
    (0..4).filter(is_good).collect()
}

#[test]
fn no_get_misses_a_value_while_its_node_is_taken_out() {
    let (mut moved, mut found) = (0, 0);
    for seed in 0..300 {
        let mut world = world(seed, seed % 3 == 0);
        let (node, now) = (world.random.below(3), world.now);
        let before = world.nodes[node].machine.held().len();
        if seed % 5 == 0 {
            // Values that its file alone has are moved, too.
            world.forget_calls(node);
            world.kill(node);
            world.restart(node);
            rest(&mut world);
        }
        let there: Vec<u64> = KEYS
            .filter(|key| world.nodes.iter().any(|it| it.machine.held().contains(&digest(*key))))
            .collect();
        let stored = world.nodes[node].machine.stats().owner.stored;
        world.nodes[node].machine.drain(true, None, now).unwrap();
        world.settle(node);
        let mut next = 100;
        while world.nodes[node].machine.drained().is_none() {
            if world.random.one_in(8) {
                let caller = world.random.below(4);
                if world.nodes[caller].calls.open.len() < 3 && world.random.one_in(4) {
                    world.begin(caller, &[next], 1);
                    next += 1;
                } else if world.nodes[caller].calls.open.len() < 3 {
                    let keys: Vec<u64> = (0..3).map(|_| there[world.random.below(there.len())]).collect();
                    world.begin(caller, &keys, 0);
                }
            }
            if !world.advance() {
                world.now = world.now.max(world.next_due().expect("the drain goes on"));
            }
            world.note_greeted();
        }
        rest(&mut world);
        let drained = world.nodes[node].machine.drained().unwrap();
        assert_eq!((drained.left, world.nodes[node].machine.held().len()), (0, 0), "seed {seed} of {before}");
        for key in &there {
            let holders = (0..3).filter(|at| world.nodes[*at].machine.held().contains(&digest(*key))).count();
            assert!(holders > 0, "seed {seed}: key {key} is lost");
        }
        (0..4).for_each(|caller| {
            there.chunks(4).for_each(|keys| {
                world.begin(caller, keys, 0);
                rest(&mut world);
            })
        });
        for outcome in Outcome::ALL {
            let is_right = matches!(outcome, Outcome::Ok | Outcome::Here | Outcome::Length);
            assert!(is_right || ended(&world, outcome) == 0, "seed {seed}: {outcome}");
        }
        let machine = &world.nodes[node].machine;
        assert_eq!(machine.stats().owner.stored, stored, "seed {seed}: a put went to the node");
        moved += drained.moved;
        found += drained.here;
    }
    assert!(moved > 500 && found > 1_000, "{moved} were moved, {found} were there");
}

#[test]
fn a_removal_reaches_a_value_that_is_moved() {
    for seed in 0..300 {
        let mut world = world(seed, seed % 3 == 0);
        let (node, now) = (world.random.below(3), world.now);
        world.nodes[node].machine.drain(true, None, now).unwrap();
        world.settle(node);
        for _ in 0..world.random.below(600) {
            world.advance();
        }
        let remover = (node + 1 + world.random.below(3)) % 4;
        let keys: Vec<u64> = KEYS.collect();
        world.begin(remover, &keys, 3);
        rest(&mut world);
        assert!(world.nodes[node].machine.drained().is_some(), "seed {seed}");
        for at in 0..3 {
            let held = world.nodes[at].machine.held();
            assert!(held.is_empty(), "seed {seed}: {at} has {held:?}");
        }
    }
}

#[test]
fn two_nodes_that_are_taken_out_at_once_lose_nothing() {
    for seed in 0..300 {
        let mut world = world(seed, seed % 3 == 0);
        let (last, now) = (world.random.below(3), world.now);
        let there: Vec<u64> = KEYS.filter(|key| !good(&world, *key).is_empty()).collect();
        for node in [(last + 1) % 3, (last + 2) % 3] {
            world.nodes[node].machine.drain(true, None, now).unwrap();
            world.settle(node);
            for _ in 0..world.random.below(40) {
                world.advance();
            }
        }
        rest(&mut world);
        let held: Vec<usize> = (0..3).map(|node| world.nodes[node].machine.store().len()).collect();
        assert_eq!(held.iter().sum::<usize>(), held[last], "seed {seed}: {held:?}");
        for key in there {
            assert_eq!(good(&world, key), [last], "seed {seed}: key {key}");
        }
    }
}

#[test]
fn a_copy_that_rots_is_good_again_where_another_node_has_the_value() {
    for seed in 0..100 {
        let mut world = world(seed, false);
        let before: Vec<(u64, Vec<usize>)> = KEYS.map(|key| (key, good(&world, key))).collect();
        let mut rotten = [0; 4];
        for (key, nodes) in before.iter().filter(|(key, nodes)| nodes.len() > 1 && !value(*key).is_empty()) {
            let node = nodes[world.random.below(nodes.len())];
            world.rot(node, *key);
            rotten[node] += 1;
            assert_eq!(good(&world, *key).len() + 1, nodes.len());
            // The node's own program finds out.
            world.audit(node, &[*key], true);
            if world.nodes[node].calls.open.len() > 3 || world.random.one_in(2) {
                rest(&mut world);
            }
        }
        rest(&mut world);
        for (key, nodes) in &before {
            assert_eq!(good(&world, *key), *nodes, "seed {seed}: key {key}");
        }
        for (node, count) in rotten.into_iter().enumerate() {
            let owner = world.nodes[node].machine.stats().owner;
            assert_eq!(
                (owner.corrupt, owner.repaired, owner.repairs_failed),
                (count, count, 0),
                "seed {seed}"
            );
        }
    }
}

#[test]
fn what_nobody_else_has_or_is_removed_meanwhile_is_not_repaired() {
    for seed in 0..100 {
        let mut world = world(seed, false);
        let single =
            |world: &World| KEYS.clone().find(|key| good(world, *key).len() == 1 && !value(*key).is_empty());
        if let Some(key) = single(&world) {
            let node = good(&world, key)[0];
            world.rot(node, key);
            world.audit(node, &[key], true);
            rest(&mut world);
            let owner = world.nodes[node].machine.stats().owner;
            assert_eq!((owner.corrupt, owner.repaired, owner.repairs_failed), (1, 0, 0), "seed {seed}");
        }
        // Several of one node, so that some wait while others are brought.
        let node = world.random.below(3);
        let is_double = |key: &u64| {
            let holders = good(&world, *key);
            holders.len() > 1 && holders.contains(&node) && !value(*key).is_empty()
        };
        let keys: Vec<u64> = KEYS.filter(is_double).take(4).collect();
        for key in &keys {
            world.rot(node, *key);
            world.audit(node, &[*key], true);
        }
        // Somewhere between the gets and the end of the repairs.
        for _ in 0..world.random.below(120) {
            world.advance();
        }
        world.begin((node + 1) % 4, &keys, 3);
        rest(&mut world);
        for key in keys {
            assert_eq!(good(&world, key), [] as [usize; 0], "seed {seed}: key {key} is back");
        }
    }
}
