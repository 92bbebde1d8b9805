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

#[test]
fn a_removal_that_the_file_may_not_have_has_failed_and_is_made_later() {
    for seed in 0..20 {
        let keys = keys();
        let mut world = node_with_values(seed, 128, &keys);
        (world.tables_fail, world.had_faults) = (true, true);
        let failed = |world: &World| world.nodes[0].calls.ended.get("FAILED").copied().unwrap_or_default();
        for part in [&keys[..3], &keys[3..5]] {
            let before = failed(&world);
            world.begin(0, part, 3);
            while !world.nodes[0].calls.open.is_empty() {
                world.now = world.now.max(world.next_due().unwrap_or_default());
                world.advance();
            }
            assert_eq!(failed(&world) - before, part.len(), "seed {seed}");
        }
        // The disk works again: what was removed goes from the file, and its units are free.
        world.tables_fail = false;
        for _ in 0..3 {
            world.now += 1_000_000_000;
            while world.advance() {}
        }
        world.check_space(0);
        crash(&mut world);
        assert_eq!(holds(&world), &keys[5..], "seed {seed}");
    }
}

#[test]
fn what_a_get_brings_back_goes_from_its_tail_on() {
    let keys = keys();
    let mut world = node_with_values(1, 128, &keys);
    crash(&mut world);
    world.begin(0, &keys[..4], 0);
    while world.advance() {}
    let machine = &world.nodes[0].machine;
    assert_eq!(machine.store().oldest().as_ref().map(key_of), Some(keys[3]));
    // In the file, what was not used goes before all of these.
    let oldest = machine.tier().and_then(|tier| tier.oldest()).as_ref().map(key_of);
    assert!(oldest.is_some_and(|oldest| !keys[..4].contains(&oldest)), "{oldest:?}");
}
