//! Homes and places: stable, even, and in proportion.

use super::*;

fn cluster(count: usize) -> Vec<(String, u64)> {
    (0..count).map(|at| (format!("node-{at}"), 1)).collect()
}

fn members(nodes: &[(String, u64)]) -> Members {
    Members::new(nodes.iter().cloned()).unwrap()
}

fn fingerprints(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(|at| mix(at.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// The numbers are the same on every machine and in every version: nodes of a cluster must agree.
#[test]
fn draws_never_change() {
    assert_eq!(NodeId::of("node-0"), NodeId(0xf07e_d32f_026a_29f4));
    let members = members(&cluster(9));
    assert_eq!(members.index().stamp(), 0xc258_d3c7_ea2d_4d37);
    assert_eq!(members.index().homes(7).ids(), [NodeId::of("node-2"), NodeId::of("node-5")]);
}

#[test]
fn small_clusters_have_fewer_homes() {
    let empty = members(&[]);
    assert!(empty.index().homes(5).ids().is_empty());
    assert!(!empty.index().is_home(NodeId(0), 5));
    let one = members(&cluster(1));
    assert_eq!(one.index().homes(5).ids(), [NodeId::of("node-0")]);
    let eight = members(&cluster(8));
    assert_eq!(eight.index().ids().len(), 8);
    assert_eq!(members(&cluster(9)).index().ids().len(), 8);
    for fingerprint in fingerprints(1000) {
        let homes = eight.index().homes(fingerprint);
        assert!(homes.ids().len() == 2 && homes.ids()[0] != homes.ids()[1]);
    }
}

#[test]
fn order_does_not_matter_and_names_must_differ() {
    let mut nodes = cluster(20);
    let sorted = members(&nodes);
    nodes.reverse();
    assert_eq!(members(&nodes), sorted);
    let fails = |nodes: Vec<(String, u64)>| Members::new(nodes).unwrap_err().message;
    assert_eq!(fails([cluster(3), cluster(1)].concat()), "node: one identity for node-0, node-0");
    assert!(fails(vec![("".into(), 1)]).starts_with("node: a name of 0 bytes"));
    assert!(fails(vec![("n".repeat(256), 1)]).starts_with("node: a name of 256 bytes"));
    assert!(Members::new(vec![("n".repeat(255), 1)]).is_ok());
    assert!(Members::new(cluster(4096)).is_ok());
    assert!(fails(cluster(4097)).starts_with("nodes: 4097"));
}

/// A node more changes at most one index member, and a key's homes only where that node becomes or ends one of them.
#[test]
fn a_node_more_moves_little() {
    for count in 1..60 {
        let (before, after) = (members(&cluster(count)), members(&cluster(count + 1)));
        let new: Vec<_> =
            after.index().ids().iter().filter(|id| !before.index().ids().contains(id)).collect();
        let gone: Vec<_> =
            before.index().ids().iter().filter(|id| !after.index().ids().contains(id)).collect();
        assert!(new.len() <= 1 && gone.len() <= 1, "{count}: {new:?} {gone:?}");
        assert_eq!(new.len(), if count < 8 { 1 } else { gone.len() });
        for fingerprint in fingerprints(300) {
            let (was, is) = (before.index().homes(fingerprint), after.index().homes(fingerprint));
            let has_moved = was.ids().iter().any(|id| !is.ids().contains(id));
            let is_concerned =
                |homes: &Homes, ids: &[&NodeId]| homes.ids().iter().any(|id| ids.contains(&id));
            assert!(!has_moved || is_concerned(&was, &gone) || is_concerned(&is, &new));
        }
    }
}

#[test]
fn homes_are_even() {
    let members = members(&cluster(30));
    let mut counts = std::collections::BTreeMap::new();
    let mut firsts = counts.clone();
    for fingerprint in fingerprints(80_000) {
        let homes = members.index().homes(fingerprint);
        homes.ids().iter().for_each(|id| *counts.entry(*id).or_insert(0) += 1);
        *firsts.entry(homes.ids()[0]).or_insert(0) += 1;
    }
    assert!(counts.len() == 8 && counts.values().all(|count| (19_000..21_000).contains(count)), "{counts:?}");
    assert!(firsts.values().all(|count| (9_500..10_500).contains(count)), "{firsts:?}");
}

#[test]
fn places_follow_weights() {
    let weights = [0, 1 << 40, 2 << 40, 5 << 40];
    let mut candidates: Vec<Candidate> =
        weights.iter().zip(1..).map(|(&weight, id)| Candidate { id: NodeId(id), weight }).collect();
    let mut counts = [0; 4];
    for fingerprint in fingerprints(80_000) {
        counts[place(fingerprint, &candidates, 1)[0].0 as usize - 1] += 1;
    }
    let near = |count: i32, expected: i32| (count - expected).abs() < expected / 20;
    assert!(counts[0] == 0 && near(counts[1], 10_000) && near(counts[2], 20_000) && near(counts[3], 50_000));
    for fingerprint in fingerprints(2000) {
        let places = place(fingerprint, &candidates, 9);
        assert_eq!(places.len(), 3);
        assert_eq!(place(fingerprint, &candidates, 2), places[..2]);
        // Less room on one node moves objects off it, and none between the others.
        candidates[3].weight = 1 << 39;
        let fuller = place(fingerprint, &candidates, 1)[0];
        assert!(fuller == places[0] || places[0] == NodeId(4), "{fuller:?} {places:?}");
        candidates[3].weight = 5 << 40;
    }
}

#[test]
fn a_new_node_grows_for_a_minute() {
    let second = 1_000_000_000;
    assert_eq!(ramped(6000, 0), 1);
    assert_eq!(ramped(6000, 30 * second), 3000);
    assert_eq!(ramped(6000, 60 * second - 1), 5999);
    assert_eq!(ramped(6000, 60 * second), 6000);
    assert_eq!(ramped(u64::MAX, u64::MAX), u64::MAX);
    assert_eq!(ramped(0, second), 0);
}
