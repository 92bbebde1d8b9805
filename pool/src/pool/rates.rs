//! How fast values come, by the node and the tier that they come from, and how long a get of a prefix would take:
//! whether loading it is worth while.
//!
//! ```text
//! gets that end ─▶ Rates: time of a short call, time of a byte ─▶ estimate: get, or compute from where on
//! ```
//! A node does not say whether its memory or its file had a value, so only this node's own file has a rate of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use ferry::status::{Error, Result};

use super::calls::Work;
use super::Pool;
use crate::index::NodeId;
use crate::key::Digest;
use crate::limits::NODES_MAX;
use crate::node::{Ask, KeyEnd, Machine};
use crate::outcome::Outcome;

/// A get of up to so many bytes measures what a call costs, a longer one what a byte costs.
const SHORT_BYTES: u64 = 64 << 10;
/// The weight of the last measurement.
const WEIGHT: f64 = 0.125;

/// Arguments of an estimate beyond its keys. The default says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostOptions {
    /// Bytes of each value whose length is not known here; 0: the mean of the values that went through this node.
    pub value_bytes: u64,
    /// Tokens that the caller computes in a second; 0: the caller does not compute.
    pub prefill_tokens_per_s: u64,
    /// Tokens of a chunk; 0: as the pool's options say.
    pub chunk_tokens: u32,
}

/// The cost of a get of a prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Leading keys that exist, and bytes of their values.
    pub keys: usize,
    pub bytes: u64,
    /// How long a get of them takes. None: no get has been measured.
    pub get: Option<Duration>,
    /// Leading keys that are worth a get; the caller computes from there on. All of them if nothing is known.
    pub load_keys: usize,
    /// How long the get of those and the computing of all other keys take. None as in `get`, or without a prefill rate.
    pub best: Option<Duration>,
}

impl Pool {
    /// Says how long a get of a prefix would take, by what gets through this node have taken so far, and how much of
    /// the prefix is worth loading: the get of the leading keys and the computing of the others take least. `ends` are
    /// those of `exists` with the same keys. Moves nothing and waits for nobody. INVALID if the two have different
    /// lengths.
    pub fn estimate(&self, keys: &[Digest], ends: &[KeyEnd], options: &CostOptions) -> Result<Cost> {
        if keys.len() != ends.len() {
            let (keys, ends) = (keys.len(), ends.len());
            let text = format!("ends: {ends} for {keys} keys: pass what exists returned for the same keys");
            return Err(Error::invalid(text));
        }
        let inner = self.shared.lock();
        let (me, store) = (inner.machine.my_id(), inner.machine.store());
        let stats = inner.machine.stats().calls;
        let values = stats.hits + stats.puts_ended[Outcome::Ok as usize];
        let mean = (stats.got_bytes + stats.put_bytes).checked_div(values).unwrap_or(0);
        let unknown = if options.value_bytes > 0 { options.value_bytes } else { mean };
        let found = keys.iter().zip(ends).take_while(|(_, end)| end.outcome.is_ok());
        let values: Vec<(Source, u64)> = found
            .map(|(key, end)| {
                let node = end.node.unwrap_or(NodeId(0));
                let source = Source { node, is_file: node == me && store.find(key).is_none() };
                (source, if end.bytes > 0 { end.bytes } else { unknown })
            })
            .collect();
        let tokens = if options.chunk_tokens > 0 { options.chunk_tokens } else { self.shared.chunk_tokens };
        let chunk_ns = 1e9 * f64::from(tokens) / options.prefill_tokens_per_s as f64;
        let chunk_ns = Some(chunk_ns).filter(|ns| ns.is_finite());
        Ok(inner.rates.cost(me, &values, keys.len(), chunk_ns))
    }
}

/// Where values come from: a node, or this node's own file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Source {
    node: NodeId,
    is_file: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    call_ns: Option<f64>,
    byte_ns: Option<f64>,
}

impl Rate {
    fn note(&mut self, bytes: u64, ns: u64) {
        let ns = ns as f64;
        let (mean, last) = if bytes <= SHORT_BYTES {
            (&mut self.call_ns, ns)
        } else {
            (&mut self.byte_ns, (ns - self.call_ns.unwrap_or(0.0)).max(ns / 2.0) / bytes as f64)
        };
        *mean = Some(mean.map_or(last, |mean| mean + WEIGHT * (last - mean)));
    }

    fn ns(&self, bytes: u64) -> Option<f64> {
        match (self.call_ns, self.byte_ns) {
            (call, Some(byte)) => Some(call.unwrap_or(0.0) + byte * bytes as f64),
            (call, None) => call.filter(|_| bytes <= SHORT_BYTES),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Rates {
    by_source: BTreeMap<Source, Rate>,
}

impl Rates {
    /// A get has brought all of its keys, or has not: then nothing is learned. The node that brought most of the bytes
    /// decided how long it took. `is_file`: what came from this node came from its file.
    pub fn note(&mut self, began_ns: u64, now_ns: u64, ends: &[KeyEnd], me: NodeId, is_file: bool) {
        let mut by_node = BTreeMap::<NodeId, u64>::new();
        for end in ends {
            let (Outcome::Ok, Some(node)) = (end.outcome, end.node) else { return };
            let sum = by_node.entry(node).or_default();
            *sum = sum.saturating_add(end.bytes);
        }
        let Some((node, bytes)) = by_node.into_iter().max_by_key(|(_, bytes)| *bytes) else { return };
        if self.by_source.len() > 2 * NODES_MAX {
            // Names of nodes come and go.
            self.by_source.clear();
        }
        let source = Source { node, is_file: is_file && node == me };
        self.by_source.entry(source).or_default().note(bytes, now_ns.saturating_sub(began_ns));
    }

    /// The rate of a source. What was not measured of it is as slow as the slowest of its kind.
    fn of(&self, me: NodeId, source: Source) -> Rate {
        let own = self.by_source.get(&source).copied().unwrap_or_default();
        let kind = |source: &Source| (source.node == me, source.is_file);
        let slowest = |of: fn(&Rate) -> Option<f64>| {
            let alike = self.by_source.iter().filter(|(other, _)| kind(other) == kind(&source));
            of(&own).or_else(|| alike.filter_map(|(_, rate)| of(rate)).max_by(f64::total_cmp))
        };
        Rate { call_ns: slowest(|rate| rate.call_ns), byte_ns: slowest(|rate| rate.byte_ns) }
    }

    /// Sources are read at the same time: the slowest one decides.
    fn cost(&self, me: NodeId, values: &[(Source, u64)], keys: usize, chunk_ns: Option<f64>) -> Cost {
        let mut of_source = BTreeMap::<Source, (Rate, u64)>::new();
        let (mut get_ns, mut load_keys) = (Some(0.0), 0);
        let mut best_ns = chunk_ns.map_or(f64::INFINITY, |chunk_ns| chunk_ns * keys as f64);
        for (nth, (source, bytes)) in values.iter().enumerate() {
            let (rate, sum) = of_source.entry(*source).or_insert_with(|| (self.of(me, *source), 0));
            *sum = sum.saturating_add(*bytes);
            let ns = rate.ns(*sum).filter(|_| *bytes > 0).map(f64::round);
            get_ns = get_ns.zip(ns).map(|(slowest, ns): (f64, f64)| slowest.max(ns));
            let rest_ns = chunk_ns.unwrap_or(0.0) * (keys - nth - 1) as f64;
            if let Some(total_ns) = get_ns.map(|ns| ns + rest_ns).filter(|ns| *ns <= best_ns) {
                (best_ns, load_keys) = (total_ns, nth + 1);
            }
        }
        let time = |ns: f64| Duration::from_nanos(ns as u64);
        Cost {
            keys: values.len(),
            bytes: values.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes)),
            get: get_ns.map(time),
            load_keys: if get_ns.is_none() || chunk_ns.is_none() { values.len() } else { load_keys },
            best: get_ns.and(chunk_ns).map(|_| time(best_ns)),
        }
    }
}

/// A call of the program that has not ended.
#[derive(Debug)]
pub(super) struct Open {
    pub user_data: u64,
    began_ns: u64,
    /// A get; whether this node's file has one of its values, and its memory has not.
    reads: Option<bool>,
}

impl Open {
    pub fn new(work: &Work, user_data: u64, machine: &Machine, began_ns: u64) -> Open {
        let in_file = |key: &Digest| {
            machine.tier().is_some_and(|tier| machine.store().find(key).is_none() && tier.find(key).is_some())
        };
        let reads = match work {
            Work::Machine(Ask::Get { keys, .. }) => Some(keys.iter().any(|key| in_file(&key.digest))),
            _ => None,
        };
        Open { user_data, began_ns, reads }
    }

    /// Measures a get that has ended.
    pub fn note(&self, rates: &mut Rates, ends: &[KeyEnd], me: NodeId, now_ns: u64) {
        self.reads.into_iter().for_each(|is_file| rates.note(self.began_ns, now_ns, ends, me, is_file));
    }
}

#[cfg(test)]
#[path = "rates_tests.rs"]
mod tests;
