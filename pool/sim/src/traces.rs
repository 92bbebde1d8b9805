//! Two published traces of requests, replayed against the pool's own stores: how much of each prompt the pool still
//! has. A request names the blocks of its prompt; a block's number stands for all tokens up to its end.
//!
//! A request does what a caller of the pool does: it asks how long the stored prefix is, gets the prefix, computes the
//! rest and puts it. Only blocks before the first miss count as hits.

use std::path::Path;
use std::process::Command;

use ferry_pool::index::{place, Candidate, NodeId};
use ferry_pool::store::{Begin, Slot, Store};
use ferry_pool::Digest;

use crate::report::{Axis, Report, Series};
use crate::{digest, Result};

/// The repository kvcache-ai/Mooncake, at the commit whose traces gave the known figures.
const URL: &str = "https://raw.githubusercontent.com/kvcache-ai/Mooncake/3b5a594133958449a1feaf1c9e0fc1b553e34a28/FAST25-release/traces";
const PERCENT: [usize; 5] = [2, 5, 10, 20, 40];
/// 512 tokens of Qwen3-32B in 2 bytes an element.
const BLOCK_BYTES: u64 = (512 * 256) << 10;
/// The node evicts from 1/40 of its memory free to 1/20.
const KEPT: u64 = 20;

/// A trace, and the hits of usable prefix that a separate replay of it has found for other policies.
struct Trace {
    file: &'static str,
    requests: usize,
    blocks: usize,
    unique: usize,
    known: [(&'static str, [f64; 5]); 6],
}

const TRACES: [Trace; 2] = [
    Trace {
        file: "conversation_trace.jsonl",
        requests: 12_031,
        blocks: 288_500,
        unique: 182_790,
        known: [
            ("LRU, tail first", [0.079, 0.196, 0.279, 0.345, 0.360]),
            ("ARC, tail first", [0.092, 0.212, 0.284, 0.320, 0.360]),
            ("S3-FIFO", [0.107, 0.187, 0.245, 0.328, 0.358]),
            ("SIEVE", [0.083, 0.127, 0.195, 0.307, 0.359]),
            ("W-TinyLFU", [0.119, 0.164, 0.197, 0.244, 0.310]),
            ("optimum", [0.314, 0.366, 0.366, 0.366, 0.366]),
        ],
    },
    Trace {
        file: "synthetic_trace.jsonl",
        requests: 3_993,
        blocks: 121_877,
        unique: 43_924,
        known: [
            ("LRU, tail first", [0.078, 0.157, 0.262, 0.393, 0.545]),
            ("ARC, tail first", [0.084, 0.162, 0.265, 0.408, 0.572]),
            ("S3-FIFO", [0.072, 0.144, 0.258, 0.381, 0.542]),
            ("SIEVE", [0.035, 0.105, 0.176, 0.327, 0.562]),
            ("W-TinyLFU", [0.055, 0.126, 0.223, 0.344, 0.534]),
            ("optimum", [0.261, 0.396, 0.506, 0.608, 0.640]),
        ],
    },
];

/// The step after a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// The whole chain becomes the most recently used, from its end on; the memory may be full.
    Chain,
    /// As the node does it: the order stays that of its requests, and a part of its memory is made free.
    Node,
}

#[derive(Default)]
struct Counts {
    blocks: usize,
    hits: usize,
    puts: usize,
    evicted: usize,
}

struct Pool {
    stores: Vec<Store>,
    order: Order,
    counts: Counts,
}

impl Pool {
    fn new(nodes: usize, blocks: usize, order: Order) -> Pool {
        let of_node = (blocks / nodes) as u64 * BLOCK_BYTES;
        let stores = (0..nodes).map(|_| Store::new(of_node, BLOCK_BYTES)).collect();
        Pool { stores, order, counts: Counts::default() }
    }

    /// Serves a prompt. Returns the blocks that were there.
    fn serve(&mut self, chain: &[Digest]) -> usize {
        let held: Vec<(usize, Slot)> = chain.iter().map_while(|digest| self.find(digest)).collect();
        held.iter().rev().for_each(|(node, slot)| self.stores[*node].touch(*slot));
        held.iter().for_each(|(node, slot)| self.stores[*node].hold(*slot));
        // A block is longer than several values of one request may be, so requests end block by block.
        held.iter().for_each(|(node, slot)| self.stores[*node].release(*slot));
        for digest in &chain[held.len()..] {
            if let Some((node, slot)) = self.begin(digest) {
                self.stores[node].commit(slot, 0);
                self.counts.puts += 1;
            }
        }
        match self.order {
            Order::Chain => {
                let slots: Vec<_> = chain.iter().rev().filter_map(|digest| self.find(digest)).collect();
                slots.iter().for_each(|(node, slot)| self.stores[*node].touch(*slot));
            }
            Order::Node => self.make_room(),
        }
        self.counts.blocks += chain.len();
        self.counts.hits += held.len();
        held.len()
    }

    fn make_room(&mut self) {
        for store in &mut self.stores {
            let kept = store.capacity() / KEPT;
            if store.free_bytes() < kept / 2 {
                while store.free_bytes() < kept && store.evict().is_some() {
                    self.counts.evicted += 1;
                }
            }
        }
    }

    fn find(&self, digest: &Digest) -> Option<(usize, Slot)> {
        let mut all = self.stores.iter().enumerate();
        all.find_map(|(node, store)| Some((node, store.find(digest)?)))
    }

    /// Makes room at the node that the pool's placement names.
    fn begin(&mut self, digest: &Digest) -> Option<(usize, Slot)> {
        if self.find(digest).is_some() {
            return None;
        }
        let weights = self.stores.iter().map(|store| store.free_bytes().max(1));
        let candidate = |(at, weight)| Candidate { id: NodeId(crate::random(at as u64)), weight };
        let candidates: Vec<Candidate> = weights.enumerate().map(candidate).collect();
        let first = *place(digest.fingerprint(), &candidates, 1).first()?;
        let node = candidates.iter().position(|candidate| candidate.id == first)?;
        loop {
            match self.stores[node].begin(digest, BLOCK_BYTES) {
                Begin::Write(slot) => return Some((node, slot)),
                Begin::Full => self.counts.evicted += usize::from(self.stores[node].evict().map(|_| true)?),
                Begin::Here | Begin::Written(_) | Begin::OverQuota | Begin::TooLong => return None,
            }
        }
    }
}

/// The blocks of each request of a trace: one JSON object a line, with `"hash_ids": [1, 2, …]`.
fn parse(text: &str) -> Result<Vec<Vec<u64>>> {
    let ids = |line: &str| {
        let (_, after) = line.split_once("\"hash_ids\"")?;
        let (ids, _) = after.split_once('[')?.1.split_once(']')?;
        ids.split(',').map(|id| id.trim().parse().ok()).collect::<Option<Vec<u64>>>()
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty()).enumerate();
    lines.map(|(at, line)| ids(line).ok_or_else(|| format!("line {}: no hash_ids", at + 1).into())).collect()
}

fn read(trace: &Trace, folder: &str, files: &[String]) -> Result<Vec<Vec<u64>>> {
    let named = files.iter().find(|file| file.ends_with(trace.file));
    let path = named.map_or_else(|| Path::new(folder).join(trace.file), Into::into);
    if named.is_none() && !path.exists() {
        std::fs::create_dir_all(folder)?;
        let url = format!("{URL}/{}", trace.file);
        let mut curl = Command::new("curl");
        let fetched = curl.args(["-fsSL", "--max-time", "120", "-o"]).arg(&path).arg(&url).status();
        if !fetched.is_ok_and(|status| status.success()) {
            let _ = std::fs::remove_file(&path);
            return Err(format!(
                "{url} cannot be fetched: name the file, as in `pool-paper FOLDER traces PATH/{}`",
                trace.file
            )
            .into());
        }
    }
    let chains =
        parse(&std::fs::read_to_string(&path)?).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut ids = chains.concat();
    let blocks = ids.len();
    ids.sort_unstable();
    ids.dedup();
    if (chains.len(), blocks, ids.len()) != (trace.requests, trace.blocks, trace.unique) {
        let (requests, unique) = (chains.len(), ids.len());
        return Err(format!(
            "{}: {requests} requests, {blocks} blocks, {unique} unique; the known figures are of another trace",
            path.display()
        )
        .into());
    }
    Ok(chains)
}

/// A replay: its name, nodes and order.
const RUNS: [(&str, usize, Order); 4] = [
    ("this store, tail first", 1, Order::Chain),
    ("the same, 8 nodes", 8, Order::Chain),
    ("as the node does it", 1, Order::Node),
    ("the same, 8 nodes", 8, Order::Node),
];

pub fn write(folder: &str, files: &[String]) -> Result<()> {
    let mut report = Report::new(folder);
    for trace in &TRACES {
        let chains = read(trace, folder, files)?;
        let chains: Vec<Vec<Digest>> =
            chains.into_iter().map(|ids| ids.into_iter().map(digest).collect()).collect();
        let Trace { requests, blocks, unique, .. } = *trace;
        let ideal = (blocks - unique) as f64 / blocks as f64;
        report.say(format!("{}: {requests} requests, {blocks} blocks, {unique} unique", trace.file));
        report.say(format!(
            "hits of usable prefix, by the memory in % of the unique blocks; {ideal:.3} with endless memory"
        ));
        let mut rows = vec![row("", PERCENT.map(|percent| format!("{percent} %")))];
        let memory = PERCENT.map(|percent| tb(unique * percent / 100));
        let mut moved = vec![row("memory", memory)];
        let mut series = Vec::new();
        for (name, nodes, order) in RUNS {
            let counts = PERCENT.map(|percent| {
                let mut pool = Pool::new(nodes, unique * percent / 100, order);
                chains.iter().for_each(|chain| {
                    pool.serve(chain);
                });
                pool.counts
            });
            let rate = |counts: &Counts| counts.hits as f64 / counts.blocks as f64;
            rows.push(row(name, counts.each_ref().map(|counts| format!("{:.3}", rate(counts)))));
            if (nodes, order) == (1, Order::Node) {
                moved.push(row("got", counts.each_ref().map(|counts| tb(counts.hits))));
                moved.push(row("put", counts.each_ref().map(|counts| tb(counts.puts))));
                moved.push(row("evicted", counts.each_ref().map(|counts| tb(counts.evicted))));
            }
            if nodes == 1 {
                series.push(line(name, counts.each_ref().map(rate)));
            }
        }
        for (name, known) in &trace.known {
            rows.push(row(&format!("known: {name}"), known.map(|rate| format!("{rate:.3}"))));
            if ["ARC, tail first", "S3-FIFO", "optimum"].contains(name) {
                series.push(line(name, *known));
            }
        }
        report.table(&rows);
        report.say(format!("TB that are moved, as the node does it, with {} MiB a block", BLOCK_BYTES >> 20));
        report.table(&moved);
        report.say("");
        let name = trace.file.trim_end_matches("_trace.jsonl");
        let axes = [Axis("memory, % of the unique blocks", false), Axis("hits of usable prefix", false)];
        report.plot(&format!("traces-{name}"), &format!("Hits of usable prefix: {name}"), axes, &series)?;
    }
    report.keep("traces")
}

fn tb(blocks: usize) -> String {
    format!("{:.2}", blocks as f64 * BLOCK_BYTES as f64 / 1e12)
}

fn row(name: &str, cells: [String; 5]) -> Vec<String> {
    std::iter::once(name.to_owned()).chain(cells).collect()
}

fn line(name: &str, values: [f64; 5]) -> Series {
    (name.into(), PERCENT.iter().map(|percent| *percent as f64).zip(values).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = r#"{"timestamp": 0, "input_length": 2000, "output_length": 5, "hash_ids": [1, 2, 3, 4]}
        {"timestamp": 5, "input_length": 1000, "output_length": 5, "hash_ids": [5, 6]}
        {"timestamp": 9, "input_length": 2000, "output_length": 5, "hash_ids": [1, 2, 3, 4]}
        {"timestamp": 9, "input_length": 1000, "output_length": 5, "hash_ids": [5, 6]}"#;

    #[test]
    fn a_prefix_loses_its_tail_first() {
        let mut pool = Pool::new(1, 4, Order::Chain);
        let hits: Vec<usize> = parse(TRACE)
            .unwrap()
            .into_iter()
            .map(|ids| pool.serve(&ids.into_iter().map(digest).collect::<Vec<_>>()))
            .collect();
        // 5 and 6 take the places of 4 and 3, then 3 and 4 those of 6 and 5.
        assert_eq!(hits, [0, 0, 2, 0]);
        assert_eq!((pool.counts.puts, pool.counts.evicted), (10, 6));
        assert!(parse("{}").is_err());
    }
}
