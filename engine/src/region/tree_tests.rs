//! Checks the tree against `BTreeMap`, step by step, and that earlier copies do not change.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// (key, end).
struct Pairs;

impl Order for Pairs {
    type Item = (u64, u64);
    type Key = u64;
    fn key(item: &(u64, u64)) -> u64 {
        item.0
    }
    fn end(item: &(u64, u64)) -> u64 {
        item.1
    }
}

/// Checks every node. Returns the numbers of items and levels below it.
fn check(node: &Node<Pairs>, is_root: bool) -> (usize, usize) {
    let count = node.count;
    assert!(count <= WIDTH && count >= if is_root { 1 } else { HALF }, "{count} entries");
    assert!(node.keys().is_sorted_by(|a, b| a < b));
    match &node.below {
        Below::Items(items) => {
            assert!(items[count..].iter().all(Option::is_none));
            for (at, item) in items[..count].iter().enumerate() {
                assert_eq!(*item, Some((node.keys[at], node.ends[at])));
            }
            (count, 1)
        }
        Below::Nodes(nodes) => {
            assert!(count > 1 && nodes[count..].iter().all(Option::is_none));
            let children: Vec<&Node<Pairs>> =
                nodes[..count].iter().map(|node| &**node.as_ref().unwrap()).collect();
            let below: Vec<_> = children.iter().map(|child| check(child, false)).collect();
            for (at, child) in children.iter().enumerate() {
                assert_eq!((node.keys[at], node.ends[at]), (child.first().unwrap().0, last(child)));
            }
            assert!(below.iter().all(|(_, levels)| *levels == below[0].1), "leaves at several depths");
            (below.iter().map(|(items, _)| items).sum(), below[0].1 + 1)
        }
    }
}

fn last(node: &Node<Pairs>) -> u64 {
    match &node.below {
        Below::Items(items) => items.iter().flatten().map(|item| item.1).max().unwrap(),
        Below::Nodes(nodes) => nodes.iter().flatten().map(|node| last(node)).max().unwrap(),
    }
}

fn same(tree: &Tree<Pairs>, model: &BTreeMap<u64, u64>) {
    assert_eq!(tree.len(), model.len());
    assert!(tree.iter().copied().eq(model.iter().map(|(key, end)| (*key, *end))));
    match &tree.root {
        Some(root) => assert_eq!(check(root, true).0, model.len()),
        None => assert!(model.is_empty()),
    }
}

fn same_around(tree: &Tree<Pairs>, model: &BTreeMap<u64, u64>, key: u64) {
    let owned = |(key, end): (&u64, &u64)| (*key, *end);
    assert_eq!(tree.get(key).copied(), model.get(&key).map(|end| (key, *end)));
    let before = tree.at_or_before(key);
    assert_eq!(before.map(|(_, item)| *item), model.range(..=key).next_back().map(owned));
    assert_eq!(tree.after(key).copied(), model.range(key + 1..).next().map(owned));
    let rest: Vec<_> = tree.iter_from(key).take(40).copied().collect();
    assert_eq!(rest, model.range(key..).take(40).map(owned).collect::<Vec<_>>());
    let farthest = tree.farthest(key);
    assert_eq!(farthest.map(|(_, item)| item.1), model.range(..=key).map(|(_, end)| *end).max());
    if let Some((place, item)) = farthest {
        assert_eq!(tree.find(item.0).unwrap().0, place);
    }
}

proptest! {
    #![proptest_config(crate::cases::most(24))]

    /// Runs of keys come and go, so that there are three levels at times; each earlier copy stays as it was.
    #[test]
    fn it_is_a_sorted_map_and_copies_of_it_stay(
        runs in proptest::collection::vec((any::<bool>(), 0..6000u64, 1..700u64, 1..5u64, any::<u64>()), 1..16),
    ) {
        let (mut tree, mut model) = (Tree::<Pairs>::default(), BTreeMap::new());
        let mut copies = Vec::new();
        for (comes, first, count, step, salt) in runs {
            copies.push((tree.clone(), model.clone()));
            for key in (0..count).map(|nth| first + nth * step) {
                let end = (key ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                if comes { prop_assert_eq!(tree.insert((key, end)).map(|item| item.1), model.insert(key, end)) } else { prop_assert_eq!(tree.remove(key).map(|item| item.1), model.remove(&key)) }
            }
            same(&tree, &model);
            for key in [0, first, first + 1, first + count * step, 5000, u64::MAX - 1] {
                same_around(&tree, &model, key);
            }
        }
        copies.iter().for_each(|(tree, model)| same(tree, model));
    }
}

/// The highest place that a tree can have with as many items as there are handles.
#[test]
fn places_rise_with_the_keys_and_are_small() {
    let mut tree = Tree::<Pairs>::default();
    let count = 1 << 20;
    // Rising keys leave every node half full: more levels than any other order makes.
    (0..count).for_each(|key| assert!(tree.insert((key, key)).is_none()));
    assert_eq!(check(tree.root.as_ref().unwrap(), true), (count as usize, 5));
    let place = |key| tree.find(key).unwrap().0;
    assert!((1..count).step_by(97).all(|key| place(key - 1) < place(key)));
    assert!(place(count - 1) < 1 << (5 * WIDTH_BITS));
    (0..count).rev().for_each(|key| assert!(tree.remove(key).is_some()));
    assert!(tree.is_empty() && tree.root.is_none());
}
