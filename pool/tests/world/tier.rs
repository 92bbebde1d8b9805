//! Crashes of a node with a file, at the moments that matter.

use crate::keys::{key_of, value};
use crate::world::World;

/// A node that lends 4 KiB, with a file of so many units, whose program has put some keys. All of them were copied there.
fn node_with_values(seed: u64, units: u32, keys: &[u64]) -> World {
    let mut world = World::with_files(&[4096], &[units], seed);
    (world.has_faults, world.had_faults) = (false, false);
    keys.chunks(4).for_each(|keys| {
        world.begin(0, keys, 1);
        while world.advance() {}
    });
    assert_eq!(world.nodes[0].machine.stats().owner.saved, keys.len() as u64);
    world
}

fn keys() -> Vec<u64> {
    (10..24).filter(|key| !value(*key).is_empty()).collect()
}

fn holds(world: &World) -> Vec<u64> {
    let mut held: Vec<u64> = world.nodes[0].machine.held().iter().map(key_of).collect();
    held.sort_unstable();
    held.dedup();
    held
}

fn crash(world: &mut World) {
    world.forget_calls(0);
    world.kill(0);
    world.restart(0);
}

#[test]
fn a_removal_that_was_answered_stays_after_a_crash() {
    for seed in 0..100 {
        let keys = keys();
        let mut world = node_with_values(seed, 128, &keys);
        world.begin(0, &keys[..3], 3);
        while !world.nodes[0].calls.open.is_empty() {
            assert!(world.advance(), "the removal has no end");
        }
        crash(&mut world);
        assert_eq!(holds(&world), &keys[3..], "seed {seed}");
    }
}

#[test]
fn a_crash_in_the_midst_of_anything_leaves_whole_values() {
    let mut found = 0;
    for seed in 0..300 {
        let mut world = node_with_values(seed, 64, &keys());
        for _ in 0..8 {
            // Copies and writes of the table fail, too.
            (world.has_faults, world.had_faults) = (world.random.one_in(2), true);
            for _ in 0..1 + world.random.below(6) {
                let others: Vec<u64> = (0..4).map(|_| 30 + world.random.below(40) as u64).collect();
                world.begin(0, &others, 1);
                for _ in 0..world.random.below(100) {
                    world.advance();
                }
            }
            world.has_faults = false;
            crash(&mut world);
            while world.advance() {}
            let held = holds(&world);
            found += held.len();
            // Each is its own bytes, or the get says so.
            held.chunks(4).for_each(|keys| {
                world.begin(0, keys, 0);
                while world.advance() {}
            });
            assert_eq!(world.nodes[0].machine.stats().owner.corrupt, 0, "seed {seed}");
        }
    }
    assert!(found > 5_000, "{found} values were there after crashes");
}
