//! Prints the nodes of a cluster, as a client that knows some of them sees them.

use std::time::Duration;

use anyhow::{bail, Result};
use ferry_pool::{Pool, PoolOptions};

use crate::options::Status;

const PATIENCE: Duration = Duration::from_secs(5);

pub fn run(status: &Status) -> Result<()> {
    let cluster = &status.cluster;
    if cluster.nodes.is_empty() && cluster.directory.is_none() {
        bail!("--nodes or --directory: give the nodes to ask, or a directory that lists them");
    }
    let engine = cluster.engine("127.0.0.1:0", None)?;
    let options =
        PoolOptions { name: format!("ferry-pool status {}", std::process::id()), ..cluster.options()? };
    let pool = Pool::open(&engine, options)?;
    // Those that are missing are told below, each with the reason.
    let _ = pool.wait_for_nodes(pool.nodes().len(), Some(PATIENCE));
    let nodes = pool.nodes();
    println!("{:<24} {:<24} {:>16} {:>16}  state", "node", "address", "bytes", "free");
    // The first one is this client.
    for node in nodes.iter().skip(1) {
        let state = if node.why.is_empty() { "up" } else { &node.why };
        println!("{:<24} {:<24} {:>16} {:>16}  {state}", node.name, node.address, node.capacity, node.free);
    }
    pool.close(Some(PATIENCE))?;
    engine.close(Some(PATIENCE))?;
    if nodes.iter().any(|node| !node.why.is_empty()) {
        bail!("not all nodes are up");
    }
    Ok(())
}
