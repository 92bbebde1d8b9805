//! The table's memory against a set, and its size.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn scattered(at: u64) -> u64 {
    let mixed = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

proptest! {
    #[test]
    fn buckets_are_a_set(steps in proptest::collection::vec((0u8..8, 0u64..400, 0u16..3), 1..900)) {
        let (mut buckets, mut set) = (Buckets::new(), BTreeSet::new());
        for (what, at, slot) in steps {
            let fingerprint = scattered(at);
            match what {
                0..4 => prop_assert_eq!(buckets.insert(fingerprint, slot), set.insert((fingerprint, slot))),
                4..6 => prop_assert_eq!(buckets.remove(fingerprint, slot), set.remove(&(fingerprint, slot))),
                6 => { buckets.merge(); }
                _ => {
                    let at = at as usize % buckets.count();
                    let mut seen = Vec::new();
                    buckets.sweep(at, |fingerprint, of| { seen.push((fingerprint, of)); of != slot });
                    for entry in seen.into_iter().filter(|entry| entry.1 == slot) {
                        prop_assert!(set.remove(&entry));
                    }
                }
            }
            prop_assert_eq!(buckets.entries(), set.len());
        }
        for at in 0..400 {
            let mut slots: Vec<u16> = buckets.slots(scattered(at)).collect();
            slots.sort_unstable();
            let expected: Vec<u16> = (0..3).filter(|slot| set.contains(&(scattered(at), *slot))).collect();
            prop_assert_eq!(slots, expected);
        }
    }
}

/// At any count, not only at the best: the table grows a bucket at a time.
#[test]
fn an_entry_takes_at_most_17_bytes() {
    let mut buckets = Buckets::new();
    let mut worst: f64 = 0.0;
    for at in 0..1_000_000 {
        buckets.insert(scattered(at), at as u16);
        if at >= 100_000 && at % 50_000 == 0 {
            worst = worst.max(buckets.bytes() as f64 / buckets.entries() as f64);
        }
    }
    let bytes = buckets.bytes() as f64 / 1e6;
    println!("{bytes:.2} bytes an entry at 1,000,000, at most {worst:.2}");
    assert!(bytes <= 17.0 && worst <= 17.0, "{bytes} {worst}");
    // A removed entry gives its memory back, and entries that come and go leave none behind.
    for at in 0..1_000_000 {
        buckets.remove(scattered(at), at as u16);
        buckets.insert(scattered(at + 1_000_000), at as u16);
    }
    let churned = buckets.bytes() as f64 / 1e6;
    assert!(churned <= 17.0, "{churned}");
    for at in 0..990_000 {
        buckets.remove(scattered(at + 1_000_000), at as u16);
    }
    while buckets.merge() {}
    let few = buckets.bytes() as f64 / 1e4;
    assert!(few <= 40.0, "{few}");
}

/// Prints what `cargo test --release -p ferry-pool speed -- --ignored --nocapture` measures.
#[test]
#[ignore = "a measurement"]
fn speed_of_ten_million_entries() {
    let mut buckets = Buckets::new();
    let start = std::time::Instant::now();
    let mut slowest = std::time::Duration::ZERO;
    for at in 0..10_000_000 {
        let one = std::time::Instant::now();
        buckets.insert(scattered(at), at as u16);
        slowest = slowest.max(one.elapsed());
    }
    let inserts = start.elapsed();
    let start = std::time::Instant::now();
    let found: usize = (0..1_000_000).map(|at| buckets.slots(scattered(at * 7)).count()).sum();
    let hits = start.elapsed();
    let start = std::time::Instant::now();
    let missed: usize = (0..1_000_000).map(|at| buckets.slots(scattered(at + 10_000_000)).count()).sum();
    assert_eq!((found, missed), (1_000_000, 0));
    println!(
        "10,000,000 entries: insert {} ns, the slowest {} µs; look up: hit {} ns, miss {} ns; {:.2} bytes an entry",
        inserts.as_nanos() / 10_000_000,
        slowest.as_micros(),
        hits.as_nanos() / 1_000_000,
        start.elapsed().as_nanos() / 1_000_000,
        buckets.bytes() as f64 / 1e7
    );
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    println!("{}", status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default());
}
