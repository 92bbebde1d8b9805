//! Prints the values that nodes hold, those used last first: the first and the last 16 digits of their keys.

use std::collections::BTreeSet;

use anyhow::{bail, Result};
use ferry::Status;
use ferry_pool::{Cursor, Listed};

use crate::client::{Client, PATIENCE};
use crate::options::Ls;

/// Parts of a list whose values were all listed before: a value was used meanwhile, and the list began anew.
const REPEATS_MAX: usize = 1_024;
/// The values of a part, at least.
const PART: u32 = 256;

pub fn run(ls: &Ls) -> Result<()> {
    let client = Client::open(&ls.cluster, "ls")?;
    let nodes = client.nodes();
    let all = nodes.iter().filter(|node| node.is_member).map(|node| node.name.clone()).collect();
    println!("{:<24} {:<16} {:<16} {:>12}  tier", "node", "key", "tenant", "bytes");
    for node in ls.node.clone().map_or(all, |node| vec![node]) {
        for value in list(&client, &node, ls.limit)? {
            let tier = match (value.in_memory, value.in_file) {
                (true, true) => "both",
                (false, true) => "file",
                _ => "memory",
            };
            let (key, tenant) = (value.fingerprint.swap_bytes(), u64::from_be_bytes(value.tenant.0));
            println!("{node:<24} {key:016x} {tenant:016x} {:>12}  {tier}", value.bytes);
        }
    }
    client.close()?;
    if ls.node.is_none() && nodes.iter().any(|node| !node.why.is_empty()) {
        bail!("not all nodes are up");
    }
    Ok(())
}

fn list(client: &Client, node: &str, limit: usize) -> Result<Vec<Listed>> {
    let (mut found, mut seen, mut repeats) = (Vec::new(), BTreeSet::new(), 0);
    let mut from = Some(Cursor::default());
    while let Some(cursor) = from.filter(|_| found.len() < limit && repeats < REPEATS_MAX) {
        let most = u32::try_from(limit - found.len()).unwrap_or(u32::MAX).max(PART);
        let part = client.pool.list_of(node, cursor, most, Some(PATIENCE));
        // The value behind which the list goes on may have been used, or have gone.
        let is_beginning = cursor == Cursor::default();
        let (mut values, next) = match part {
            Err(error) if error.status == Status::Invalid && !is_beginning => {
                (Vec::new(), Some(Cursor::default()))
            }
            part => part?,
        };
        values.retain(|value| seen.insert(value.fingerprint));
        repeats += usize::from(values.is_empty());
        found.extend(values);
        from = next;
    }
    found.truncate(limit);
    Ok(found)
}
