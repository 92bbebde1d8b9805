//! A cluster of 1,000 nodes with 10^8 keys. One index member's table and ten nodes' stores are built whole, with the
//! pool's own code; what concerns all of them is computed from a sample of keys, and said so.

use ferry_bench::cpu::{own_cpu_seconds, Machine};
use ferry_pool::index::{
    place, ramped, Candidate, IndexMembers, Member, Members, NodeId, Owner, Part, Table,
};
use ferry_pool::limits::{HOMES, INVENTORY_PLACES_MAX, RAMP_NS, SWEEP_BUCKETS};
use ferry_pool::store::{Begin, Store};
use ferry_pool::wire::Message;

use crate::report::{Axis, Report};
use crate::{digest, random, Result};

const NODES: usize = 1_000;
const KEYS: u64 = 100_000_000;
const KEYS_OF_NODE: u64 = KEYS / NODES as u64;
const LENT_BYTES: u64 = 512 << 30;
const VALUE_BYTES: u64 = 4 << 20;
/// The share of a member's link that inventories get, and of a node's that values get.
const INVENTORY_BYTES_S: f64 = 10e9 / 8.0;
const LINK_BYTES_S: f64 = 100e9 / 8.0;
/// Keys of the samples: one is placed, of the other the homes are computed.
const PLACED: u64 = 400_000;
const HOMED: u64 = 2_000_000;
/// Puts of the cluster in a second that go by rendezvous, and those of them that are drawn.
const PUTS_S: f64 = 25_000.0;
const DRAWN_S: u64 = 1_000;
const RAMP_S: u64 = 300;

pub fn write(folder: &str) -> Result<()> {
    let mut report = Report::new(folder);
    report.say(format!(
        "{NODES} nodes that lend {} GiB each; {KEYS} keys of {} MiB; {}",
        LENT_BYTES >> 30,
        VALUE_BYTES >> 20,
        Machine::describe()
    ));
    let cluster = members(None, None);
    let store_bytes = stores(&mut report);
    let mut index = index(&mut report, &cluster, store_bytes)?;
    let firsts = balance(&mut report, &cluster);
    lost(&mut report, &cluster, &mut index, &firsts);
    joined(&mut report, &cluster, &index);
    ramp(&mut report, &cluster)?;
    report.keep("cluster")
}

fn name(number: usize) -> String {
    format!("node-{number:04}")
}

/// The cluster's nodes, without one of them or with a further one.
fn members(without: Option<NodeId>, further: Option<usize>) -> Members {
    let all = (0..NODES).chain(further).map(|number| (name(number), LENT_BYTES));
    Members::new(all.filter(|(name, _)| Some(NodeId::of(name)) != without)).expect("names differ")
}

/// Bytes of this process that are in memory.
fn resident() -> f64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok()).unwrap_or(f64::NAN) * 4096.0
}

/// Fills ten nodes' stores. Returns the bytes that a key takes there.
fn stores(report: &mut Report) -> f64 {
    let before = resident();
    let mut stores: Vec<Store> = (0..10).map(|_| Store::new(LENT_BYTES, 16 << 10)).collect();
    for (node, store) in stores.iter_mut().enumerate() {
        for key in 0..KEYS_OF_NODE {
            let Begin::Write(slot) = store.begin(&digest(node as u64 * KEYS_OF_NODE + key), VALUE_BYTES)
            else {
                unreachable!("there is room for {KEYS_OF_NODE} keys");
            };
            store.commit(slot, key);
        }
    }
    let bytes = (resident() - before) / (10 * KEYS_OF_NODE) as f64;
    let filled = 1.0 - stores[0].free_bytes() as f64 / stores[0].capacity() as f64;
    report.say(format!("a node is {:.0} % full", filled * 100.0));
    bytes
}

struct Index {
    table: Table,
    owners: Vec<Owner>,
    /// Seconds of the member, and of an owner, for each key of an inventory; bytes of messages for each.
    member_s: f64,
    owner_s: f64,
    message_bytes: f64,
}

/// Fills one index member's table from the inventories of all owners, as after the loss of the index.
fn index(report: &mut Report, cluster: &Members, store_bytes: f64) -> Result<Index> {
    let list = cluster.index();
    let me = list.ids()[0];
    let before = resident();
    let mut table = Table::new(me, cluster);
    let owner = |member: &Member| Owner { node: member.id, incarnation: 1 };
    let owners: Vec<Owner> = cluster.list().iter().map(owner).collect();
    let (mut cut_s, mut taken_s, mut bytes) = (0.0, 0.0, 0);
    for (nth, owner) in owners.iter().enumerate() {
        table.join(*owner)?;
        let begun = own_cpu_seconds();
        let messages = inventory(nth as u64 * KEYS_OF_NODE, me, list);
        let cut = own_cpu_seconds();
        for message in &messages {
            let Message::Inventory { inventory, number, is_last, view, since, fingerprints } =
                Message::decode(message)?
            else {
                unreachable!("it is one");
            };
            let fingerprints = &fingerprints[..];
            table.part(
                *owner,
                &Part { inventory, number, last: is_last, members: view, since, fingerprints },
            )?;
        }
        (cut_s, taken_s) = (cut_s + cut - begun, taken_s + own_cpu_seconds() - cut);
        bytes += messages.iter().map(Vec::len).sum::<usize>();
    }
    assert_eq!(table.lacking().count(), 0, "all inventories are complete");
    let entries = table.entries() as f64;
    let (told, seen) = (table.bytes() as f64 / entries, (resident() - before) / entries);
    let copies = HOMES as f64;
    let of_key = copies * seen + store_bytes;
    report.say("\nmemory a key, bytes (one member's table and ten nodes' stores, built whole; the cluster is extrapolated)");
    report.table(&[
        cells("index: an entry, by the table's own count", &[told]),
        cells("index: an entry, by the process", &[seen]),
        cells("owner: an object of the store, by the process", &[store_bytes]),
        cells(&format!("a key in the cluster: {HOMES} entries and an object"), &[of_key]),
    ]);
    report.say(format!(
        "  {:.1} GB in all; {:.2} GB at each index member beside {:.1} MB at each owner",
        of_key * KEYS as f64 / 1e9,
        seen * entries / 1e9,
        store_bytes * KEYS_OF_NODE as f64 / 1e6
    ));
    let index = Index {
        member_s: taken_s / entries,
        owner_s: cut_s / entries,
        message_bytes: bytes as f64 / entries,
        table,
        owners,
    };
    report.say("\nthe index made anew at one member, from the inventories of all owners (every part made, read and entered)");
    report.say(format!("  {entries:.0} entries of {KEYS} keys by {HOMES} of {} members", list.ids().len()));
    rebuilt(report, &index, entries);
    Ok(index)
}

/// The messages of an owner whose keys begin with this one, for a member that knows nothing of it.
fn inventory(first: u64, member: NodeId, list: &IndexMembers) -> Vec<Vec<u8>> {
    let keys: Vec<u64> = (first..first + KEYS_OF_NODE).collect();
    let parts = keys.chunks(INVENTORY_PLACES_MAX);
    let count = parts.len();
    let message = |(number, part): (usize, &[u64])| {
        let fingerprints = part.iter().map(|key| digest(*key).fingerprint());
        let message = Message::Inventory {
            inventory: 1,
            number: number as u32,
            is_last: number + 1 == count,
            view: list.stamp(),
            since: None,
            fingerprints: fingerprints.filter(|fingerprint| list.is_home(member, *fingerprint)).collect(),
        };
        message.encode()
    };
    parts.enumerate().map(message).collect()
}

/// Says what inventories of this many keys cost one member and all owners.
fn rebuilt(report: &mut Report, index: &Index, entries: f64) {
    let bytes = entries * index.message_bytes;
    report.say(format!(
        "  {:.0} MB of messages: {:.2} s at 10 Gbit/s, {:.1} s of the member's CPU, {:.1} ms of each owner's",
        bytes / 1e6,
        bytes / INVENTORY_BYTES_S,
        entries * index.member_s,
        entries * index.owner_s / NODES as f64 * 1e3
    ));
}

/// Free bytes from 5 % to 95 % of the memory, over the nodes.
fn spread(cluster: &Members) -> Vec<Candidate> {
    let weight = |at: usize| LENT_BYTES / 100 * 5 + LENT_BYTES / 100 * 90 * at as u64 / (NODES as u64 - 1);
    let candidate = |(at, member): (usize, &Member)| Candidate { id: member.id, weight: weight(at) };
    cluster.list().iter().enumerate().map(candidate).collect()
}

/// Places a sample with two copies. Returns for each node the keys whose first copy it has.
fn balance(report: &mut Report, cluster: &Members) -> Vec<f64> {
    let candidates = spread(cluster);
    let of_all: f64 = candidates.iter().map(|candidate| candidate.weight as f64).sum();
    let place_of = |id: NodeId| candidates.iter().position(|candidate| candidate.id == id);
    let mut counts = vec![0.0; NODES];
    let begun = own_cpu_seconds();
    for key in 0..PLACED {
        let placed = place(random(key), &candidates, 2);
        assert_ne!(placed[0], placed[1], "copies lie on different nodes");
        counts[place_of(placed[0]).expect("a candidate")] += 1.0;
    }
    let place_us = (own_cpu_seconds() - begun) / PLACED as f64 * 1e6;
    let expected = |at: usize| PLACED as f64 * candidates[at].weight as f64 / of_all;
    let mut ratios: Vec<f64> = (0..NODES).map(|at| counts[at] / expected(at)).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let off = |at: usize| (counts[at] - expected(at)).powi(2) / expected(at);
    let noise = ((0..NODES).map(off).sum::<f64>() / (NODES - 1) as f64).sqrt();
    report.say(format!(
        "\nplacement over {NODES} nodes whose free bytes are 5 % to 95 % of the memory ({PLACED} keys)"
    ));
    let at = |share: f64| ratios[((NODES - 1) as f64 * share) as usize];
    let head = ["least", "1 %", "median", "99 %", "most"].map(String::from);
    let found = [0.0, 0.01, 0.5, 0.99, 1.0].map(|share| format!("{:.3}", at(share)));
    let row = |name: &str, cells: [String; 5]| std::iter::once(name.into()).chain(cells).collect();
    report.table(&[row("", head), row("keys of a node over its share", found)]);
    report.say(format!("  {noise:.2} of the deviation that chance alone makes (1: the draw adds nothing)"));
    report.say(format!(
        "  so with {KEYS} keys the mean node deviates by {:.2} % (extrapolated)",
        noise * 100.0 / (KEYS_OF_NODE as f64).sqrt()
    ));
    report.say(format!("  {place_us:.0} us for each key that is placed, with {NODES} candidates"));
    counts
}

fn lost(report: &mut Report, cluster: &Members, index: &mut Index, firsts: &[f64]) {
    report.say(format!("\na node is lost with its {KEYS_OF_NODE} keys ({:.0} GB)", gb(KEYS_OF_NODE)));
    let mut shares: Vec<f64> = firsts.iter().map(|count| count / PLACED as f64 * 100.0).collect();
    shares.sort_unstable_by(f64::total_cmp);
    let pair = 100.0 / (NODES * (NODES - 1) / 2) as f64;
    report.table(&[
        cells("copies", &[1.0, 2.0]),
        cells("% of keys lost with one node: the median node", &[shares[NODES / 2], 0.0]),
        cells("% of keys lost with one node: the node with most", &[shares[NODES - 1], 0.0]),
        vec!["% of keys lost with two nodes of equal weight".into(), "0.2".into(), format!("{pair:.4}")],
    ]);
    report.say("  (two nodes: arithmetic; nothing copies the keys anew that have one copy left)");
    let gone = index.owners[NODES / 2].node;
    let (before, begun, mut turns) = (index.table.entries(), own_cpu_seconds(), 0);
    index.table.forget(gone);
    while index.table.sweep(SWEEP_BUCKETS) {
        turns += 1;
    }
    let (swept_s, swept) = (own_cpu_seconds() - begun, before - index.table.entries());
    report.say(format!(
        "  no index member: no key changes homes; {swept} entries are swept from each table in {swept_s:.1} s, \
         {turns} turns of {:.0} us",
        swept_s / turns as f64 * 1e6
    ));
    let was = cluster.index();
    report.say(format!("  an index member (in {} of {NODES} cases):", was.ids().len()));
    changed(report, index, was, members(Some(was.ids()[1]), None).index());
}

/// Says which keys change homes, and what that costs the member that is new.
fn changed(report: &mut Report, index: &Index, was: &IndexMembers, now: &IndexMembers) {
    let newest = *now.ids().iter().find(|id| !was.ids().contains(id)).expect("one is new");
    let (mut moved, mut gained) = (0, 0);
    for key in 0..HOMED {
        let (old, new) = (was.homes(random(key)), now.homes(random(key)));
        moved += u64::from(new.ids().iter().any(|id| !old.ids().contains(id)));
        gained += u64::from(new.ids().contains(&newest));
    }
    let share = |count: u64| count as f64 / HOMED as f64;
    report.say(format!("    {:.1} % of the keys get another home ({HOMED} keys)", share(moved) * 100.0));
    report.say("    the member that is new hears:");
    rebuilt(report, index, share(gained) * KEYS as f64);
}

fn joined(report: &mut Report, cluster: &Members, index: &Index) {
    const TRIED: usize = 4_000;
    let was = cluster.index();
    let all: Vec<usize> = (NODES..NODES + TRIED).collect();
    let chosen: Vec<&usize> =
        all.iter().filter(|number| members(None, Some(**number)).index() != was).collect();
    report.say(format!(
        "\na node joins: no value moves; with {:.2} % of {TRIED} names it becomes an index member \
         ({:.2} % of all clusters), and otherwise no key changes homes; then",
        chosen.len() as f64 / TRIED as f64 * 100.0,
        was.ids().len() as f64 / (NODES + 1) as f64 * 100.0
    ));
    changed(report, index, was, members(None, Some(*chosen[0])).index());
}

/// A node joins empty where all others are as full as eviction leaves them: what it draws, second by second.
fn ramp(report: &mut Report, cluster: &Members) -> Result<()> {
    let kept = LENT_BYTES / 20;
    report.say(format!(
        "\nan empty node joins {NODES} nodes with 5 % free; {PUTS_S:.0} puts a second go by rendezvous ({DRAWN_S} of them drawn)"
    ));
    let mut candidates: Vec<Candidate> =
        cluster.list().iter().map(|member| Candidate { id: member.id, weight: kept }).collect();
    let new = NodeId::of(&name(NODES));
    candidates.push(Candidate { id: new, weight: 0 });
    let mut draw = |has_ramp: bool| {
        let (mut held, mut rates, mut full) = (0.0, Vec::new(), Vec::new());
        for second in 0..RAMP_S {
            let free = (LENT_BYTES as f64 - held).max(kept as f64) as u64;
            candidates[NODES].weight = ramped(free, if has_ramp { second * 1_000_000_000 } else { RAMP_NS });
            let is_new = |nth: &u64| place(random(second * DRAWN_S + nth), &candidates, 1)[0] == new;
            let share = (0..DRAWN_S).filter(is_new).count() as f64 / DRAWN_S as f64;
            rates.push(share * PUTS_S * VALUE_BYTES as f64 / 1e6);
            held = (held + share * PUTS_S * VALUE_BYTES as f64).min((LENT_BYTES - kept) as f64);
            full.push((second as f64 + 1.0, held / LENT_BYTES as f64 * 100.0));
        }
        (rates, full)
    };
    let both = [true, false].map(&mut draw);
    let mut rows = vec![["s", "ramp: MB/s", "full %", "no ramp: MB/s", "full %"].map(String::from).to_vec()];
    for second in [1, 10, 30, 60, 120, 200, 300] {
        let mut row = vec![second.to_string()];
        for (rates, full) in &both {
            let recent = &rates[second.max(10) - 10..second];
            let mean = recent.iter().sum::<f64>() / recent.len() as f64;
            row.extend([format!("{mean:.0}"), format!("{:.1}", full[second - 1].1)]);
        }
        rows.push(row);
    }
    let [with, without] = both.map(|(_, points)| points);
    let lines = [("60 s of ramp".into(), with), ("none".into(), without)];
    report.table(&rows);
    report.say(format!(
        "  MB/s are means of up to 10 s; a link of 100 Gbit/s takes {:.0} MB/s",
        LINK_BYTES_S / 1e6
    ));
    let axes = [Axis("seconds since the node joined", false), Axis("% of its memory in use", false)];
    report.plot("cluster-joined", "How a node that joins fills", axes, &lines)
}

fn gb(keys: u64) -> f64 {
    (keys * VALUE_BYTES) as f64 / 1e9
}

fn cells(name: &str, figures: &[f64]) -> Vec<String> {
    let figure = |figure: &f64| format!("{figure:.*}", if figure.fract() == 0.0 { 0 } else { 2 });
    std::iter::once(name.to_owned()).chain(figures.iter().map(figure)).collect()
}
