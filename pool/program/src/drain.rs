//! Takes a node out of the pool.

use anyhow::{bail, Result};

use crate::client::{value_of, Client};
use crate::options::Drain;

pub fn run(drain: &Drain) -> Result<()> {
    let client = Client::open(&drain.cluster, "drain")?;
    let counts = client.pool.drain_node(&drain.node, !drain.no_copy, None)?;
    let of = |metric| value_of(&counts, metric);
    let left = of("ferry_pool_values").max(of("ferry_pool_file_values"));
    println!(
        "{}: {} values moved, {} were there already, {left} {}",
        drain.node,
        of("ferry_pool_drained_total"),
        of("ferry_pool_drained_here_total"),
        if drain.no_copy { "given up" } else { "left" }
    );
    client.close()?;
    if left > 0 && !drain.no_copy {
        bail!(
            "{left} values found no place: {} serves them on, and takes no puts; make room and drain it again, or end it \
             with --no-copy",
            drain.node
        );
    }
    Ok(())
}
