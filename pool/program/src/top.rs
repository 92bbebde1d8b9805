//! Prints what each node does, by the differences of its counts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::client::{value_of, Client, PATIENCE};
use crate::options::Top;

/// Clears a terminal, and goes to its beginning.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// The counts of a node at a moment.
type Counts = (Instant, String);

pub fn run(top: &Top) -> Result<()> {
    let client = Client::open(&top.cluster, "top")?;
    let mut before = look(&client);
    let mut out = std::io::stdout();
    for _ in 0..top.count.unwrap_or(usize::MAX) {
        std::thread::sleep(Duration::from_secs(top.interval));
        let now = look(&client);
        let clear = if out.is_terminal() { CLEAR } else { "" };
        // The reader of the tables has gone.
        if write!(out, "{clear}{}", table(&before, &now)).and_then(|()| out.flush()).is_err() {
            break;
        }
        before = now;
    }
    client.close()
}

/// The counts of the nodes that answer.
fn look(client: &Client) -> BTreeMap<String, Counts> {
    let members = client.nodes().into_iter().filter(|node| node.is_member && node.why.is_empty());
    let counts = |name: String| {
        let counts = client.pool.counts_of(&name, Some(PATIENCE)).ok()?;
        Some((name, (Instant::now(), counts)))
    };
    members.filter_map(|node| counts(node.name)).collect()
}

fn table(before: &BTreeMap<String, Counts>, now: &BTreeMap<String, Counts>) -> String {
    let mut text = format!(
        "{:<24} {:>15} {:>15} {:>9} {:>9} {:>6} {:>9} {:>9} {:>9}\n",
        "node", "memory", "file", "values", "gets/s", "hits", "in/s", "out/s", "evicted/s"
    );
    for (name, (at, counts)) in now {
        let of = |metric: &str| value_of(counts, metric);
        let used = |what: &str| {
            let capacity = of(&format!("ferry_pool_{what}capacity_bytes"));
            let used = capacity.saturating_sub(of(&format!("ferry_pool_{what}free_bytes")));
            format!("{}/{}", size(used), size(capacity))
        };
        let earlier = before.get(name).filter(|(before, _)| before < at);
        let seconds = earlier.map_or(f64::INFINITY, |(before, _)| (*at - *before).as_secs_f64());
        let gained = |metric: &str| {
            of(metric).saturating_sub(earlier.map_or(0, |(_, before)| value_of(before, metric)))
        };
        let rate = |metric: &str| (gained(metric) as f64 / seconds) as u64;
        let (gets, hits) = (gained("ferry_pool_gets_total"), gained("ferry_pool_gets_total{outcome=\"OK\"}"));
        let percent = (hits * 100).checked_div(gets).map_or("-".into(), |percent| format!("{percent}%"));
        let _ = writeln!(
            text,
            "{name:<24} {:>15} {:>15} {:>9} {:>9} {percent:>6} {:>9} {:>9} {:>9}",
            used(""),
            used("file_"),
            of("ferry_pool_values"),
            rate("ferry_pool_gets_total"),
            size(rate("ferry_pool_bytes_stored_total")),
            size(rate("ferry_pool_bytes_served_total")),
            rate("ferry_pool_evictions_total")
        );
    }
    text
}

/// A number of bytes with a unit.
fn size(bytes: u64) -> String {
    let units = ["", "K", "M", "G", "T"];
    let at = ((bytes.max(1).ilog2() / 10) as usize).min(units.len() - 1);
    match at {
        0 => bytes.to_string(),
        at => format!("{:.1}{}", bytes as f64 / f64::from(1u32 << 10).powi(at as i32), units[at]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        let expected = [(0, "0"), (1023, "1023"), (1024, "1.0K"), (3 << 29, "1.5G"), (1 << 50, "1024.0T")];
        expected.into_iter().for_each(|(bytes, text)| assert_eq!(size(bytes), text));
    }

    #[test]
    fn rates_are_differences_over_the_time_between() {
        let counts = |hits: u64, misses: u64, stored: u64| {
            format!(
                "ferry_pool_gets_total{{outcome=\"OK\"}} {hits}\nferry_pool_gets_total{{outcome=\"ABSENT\"}} {misses}\n\
                 ferry_pool_bytes_stored_total {stored}\nferry_pool_capacity_bytes 4096\nferry_pool_free_bytes 1024\n"
            )
        };
        let at = Instant::now();
        let one = |at: Instant, text: String| BTreeMap::from([("n".to_owned(), (at, text))]);
        let before = one(at, counts(10, 5, 100));
        let now = one(at + Duration::from_secs(2), counts(40, 15, 4196));
        let table = table(&before, &now);
        let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row, ["n", "3.0K/4.0K", "0/0", "0", "20", "75%", "2.0K", "0", "0"]);
    }
}
