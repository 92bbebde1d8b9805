//! A client that asks the nodes of a cluster, for one command.

use std::time::Duration;

use anyhow::{bail, Result};
use ferry::Engine;
use ferry_pool::{NodeInfo, Pool, PoolOptions};

use crate::options::Cluster;

pub const PATIENCE: Duration = Duration::from_secs(5);

pub struct Client {
    engine: Engine,
    pub pool: Pool,
}

impl Client {
    /// Opens a client for this command, and waits for the nodes that it is told of, but not for long.
    pub fn open(cluster: &Cluster, command: &str) -> Result<Client> {
        if cluster.nodes.is_empty() && cluster.directory.is_none() {
            bail!("--nodes or --directory: give the nodes to ask, or a directory that lists them");
        }
        let engine = cluster.engine("127.0.0.1:0", None)?;
        let name = format!("ferry-pool {command} {}", std::process::id());
        let pool = Pool::open(&engine, PoolOptions { name, ..cluster.options()? })?;
        // Each command names the nodes that are missing, with the reason.
        let _ = pool.wait_for_nodes(pool.nodes().len(), Some(PATIENCE));
        Ok(Client { engine, pool })
    }

    /// The other nodes.
    pub fn nodes(&self) -> Vec<NodeInfo> {
        self.pool.nodes().into_iter().skip(1).collect()
    }

    pub fn close(self) -> Result<()> {
        self.pool.close(Some(PATIENCE))?;
        Ok(self.engine.close(Some(PATIENCE))?)
    }
}

/// The sum of a metric over its labels, in the text of a node's counts.
pub fn value_of(counts: &str, metric: &str) -> u64 {
    let is_it = |line: &&str| line.strip_prefix(metric).is_some_and(|rest| rest.starts_with([' ', '{']));
    let value = |line: &str| line.rsplit(' ').next()?.parse::<u64>().ok();
    counts.lines().filter(is_it).filter_map(value).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_the_sum_of_its_labels_and_no_other_ones() {
        let counts = "# HELP a_total 7\na_total{o=\"X\"} 1\na_total{o=\"Y\"} 2\na_total_b 4\nb 8\n";
        let expected = [("a_total", 3), ("a_total{o=\"Y\"}", 2), ("a_total_b", 4), ("b", 8), ("c", 0)];
        expected.into_iter().for_each(|(metric, sum)| assert_eq!(value_of(counts, metric), sum, "{metric}"));
    }
}
