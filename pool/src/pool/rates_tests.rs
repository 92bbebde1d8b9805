use super::*;

const ME: NodeId = NodeId(1);
const MIB: u64 = 1 << 20;

fn ends(values: &[(u64, u64)]) -> Vec<KeyEnd> {
    let end = |(node, bytes): &(u64, u64)| KeyEnd {
        outcome: Outcome::Ok,
        bytes: *bytes,
        node: Some(NodeId(*node)),
    };
    values.iter().map(end).collect()
}

/// A get of values (node, bytes) has taken so long.
fn took(rates: &mut Rates, values: &[(u64, u64)], ns: u64) {
    rates.note(1_000, 1_000 + ns, &ends(values), ME, false);
}

fn from(node: u64, bytes: u64) -> (Source, u64) {
    (Source { node: NodeId(node), is_file: false }, bytes)
}

fn get_ns(rates: &Rates, values: &[(Source, u64)]) -> Option<u64> {
    rates.cost(ME, values, values.len(), None).get.map(|time| time.as_nanos() as u64)
}

#[test]
fn a_get_takes_the_time_of_a_call_and_of_its_bytes() {
    let mut rates = Rates::default();
    assert_eq!(get_ns(&rates, &[from(2, MIB)]), None);
    took(&mut rates, &[(2, 64)], 100_000);
    assert_eq!(get_ns(&rates, &[from(2, 64)]), Some(100_000));
    assert_eq!(get_ns(&rates, &[from(2, MIB)]), None, "a short get does not tell what a byte costs");
    took(&mut rates, &[(2, MIB), (2, MIB)], 100_000 + 2 * MIB);
    assert_eq!(get_ns(&rates, &[from(2, 10 * MIB)]), Some(100_000 + 10 * MIB));
    // The last get counts for an eighth.
    took(&mut rates, &[(2, MIB)], 100_000 + 9 * MIB);
    assert_eq!(get_ns(&rates, &[from(2, MIB)]), Some(100_000 + 2 * MIB));
}

#[test]
fn the_node_with_most_bytes_is_measured_and_the_slowest_decides() {
    let mut rates = Rates::default();
    took(&mut rates, &[(2, 4 * MIB), (3, MIB)], 4 * MIB);
    took(&mut rates, &[(2, MIB), (3, 4 * MIB)], 12 * MIB);
    assert_eq!(get_ns(&rates, &[from(2, MIB), from(3, 2 * MIB), from(2, MIB)]), Some(6 * MIB));
    // A node that was not measured is as slow as the slowest other one; this node is none of these.
    assert_eq!(get_ns(&rates, &[from(4, MIB)]), Some(3 * MIB));
    assert_eq!(get_ns(&rates, &[from(1, MIB)]), None);
}

#[test]
fn the_file_of_this_node_has_a_rate_of_its_own() {
    let mut rates = Rates::default();
    rates.note(0, MIB, &ends(&[(1, MIB)]), ME, false);
    rates.note(0, 5 * MIB, &ends(&[(1, MIB)]), ME, true);
    // Others have files too, and do not say so.
    rates.note(0, 2 * MIB, &ends(&[(2, MIB)]), ME, true);
    let file = Source { node: ME, is_file: true };
    let times = [from(1, MIB), (file, MIB), from(2, MIB)].map(|value| get_ns(&rates, &[value]));
    assert_eq!(times, [Some(MIB), Some(5 * MIB), Some(2 * MIB)]);
}

#[test]
fn a_get_that_missed_a_key_teaches_nothing() {
    let mut rates = Rates::default();
    let mut missed = ends(&[(2, MIB), (2, MIB)]);
    missed[1] = KeyEnd::of(Outcome::OwnerLost);
    rates.note(0, 1_000_000_000, &missed, ME, false);
    rates.note(0, 1_000_000_000, &[], ME, false);
    assert!(rates.by_source.is_empty());
}

#[test]
fn a_prefix_is_loaded_as_far_as_that_is_faster() {
    let mut rates = Rates::default();
    let values: Vec<_> = (0..8).map(|nth| from(if nth < 4 { 2 } else { 3 }, MIB)).collect();
    let best = |rates: &Rates, chunk_ns: u64| {
        let cost = rates.cost(ME, &values, 10, Some(chunk_ns as f64));
        (cost.load_keys, cost.best.map(|best| best.as_nanos() as u64))
    };
    assert_eq!(best(&rates, MIB), (8, None), "nothing is known, and a get would be measured");
    took(&mut rates, &[(2, MIB)], MIB);
    took(&mut rates, &[(3, MIB)], 100 * MIB);
    // The first four are fast to load, the others slow; ten chunks are wanted.
    assert_eq!(best(&rates, MIB / 2), (0, Some(5 * MIB)));
    assert_eq!(best(&rates, MIB), (4, Some(10 * MIB)), "of equal times, more is loaded");
    assert_eq!(best(&rates, 10 * MIB), (4, Some(64 * MIB)));
    assert_eq!(best(&rates, 200 * MIB), (8, Some(800 * MIB)));
    let cost = rates.cost(ME, &values, 10, None);
    assert_eq!((cost.keys, cost.bytes, cost.load_keys, cost.best), (8, 8 * MIB, 8, None));
}
