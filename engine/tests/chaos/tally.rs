//! Counts of the situations that rounds have reached, for the summary.

use crate::network;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

#[derive(Default)]
pub struct Tally {
    pub faults: BTreeMap<&'static str, u64>,
    pub reached: BTreeMap<String, u64>,
    /// The processes of nodes that were started, by language.
    languages: BTreeMap<String, u64>,
    pub bytes_done: u64,
    /// The longest time from a deadline or a cancel to the final state.
    pub longest_end: Duration,
    pub wire: Arc<network::Tally>,
}

impl Tally {
    pub fn fault(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
    }

    pub fn reach(&mut self, what: impl Into<String>) {
        *self.reached.entry(what.into()).or_default() += 1;
    }

    pub fn language(&mut self, name: &str) {
        *self.languages.entry(name.to_owned()).or_default() += 1;
    }

    pub fn print(&self, rounds: u64, took: Duration) {
        let rate = rounds as f64 / took.as_secs_f64();
        println!("chaos: {rounds} rounds in {} s, {rate:.2} rounds/s", took.as_secs());
        println!("  nodes: {}", list(self.languages.iter()));
        println!("  faults: {}", list(self.faults.iter()));
        println!("  reached: {}", list(self.reached.iter()));
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let wire = &self.wire;
        println!(
            "  wire: {} frames passed, {} delayed, {} duplicated, {} lost, {} cut off",
            read(&wire.passed),
            read(&wire.delayed),
            read(&wire.duplicated),
            read(&wire.lost),
            read(&wire.cut)
        );
        let (done, longest) = (self.bytes_done >> 20, self.longest_end.as_millis());
        println!("  {done} MiB done and checked; from a deadline or cancel to the end {longest} ms at most");
    }
}

fn list<'a>(counts: impl Iterator<Item = (impl ToString + 'a, &'a u64)>) -> String {
    let parts: Vec<String> = counts.map(|(name, count)| format!("{} {count}", name.to_string())).collect();
    parts.join(", ")
}
