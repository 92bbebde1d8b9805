//! Prints the nodes of a cluster, as a client that knows some of them sees them.

use anyhow::{bail, Result};

use crate::client::Client;
use crate::options::Status;

pub fn run(status: &Status) -> Result<()> {
    let client = Client::open(&status.cluster, "status")?;
    let nodes = client.nodes();
    println!("{:<24} {:<24} {:>16} {:>16}  state", "node", "address", "bytes", "free");
    for node in &nodes {
        let state = match node.why.as_str() {
            "" if node.is_draining => "draining",
            "" => "up",
            why => why,
        };
        println!("{:<24} {:<24} {:>16} {:>16}  {state}", node.name, node.address, node.capacity, node.free);
    }
    client.close()?;
    if nodes.iter().any(|node| !node.why.is_empty()) {
        bail!("not all nodes are up");
    }
    Ok(())
}
