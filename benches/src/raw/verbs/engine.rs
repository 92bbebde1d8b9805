//! The verbs reference as an `Engine`. Nothing is tuned per workload.

use super::pair::{lists, VerbsConfig, VerbsPair};
use crate::workload::{Engine, LatencyWorkload, Limit, Sample, Workload};

pub struct VerbsEngine {
    pair: VerbsPair,
    path: String,
    queues: usize,
    flush: bool,
}

impl VerbsEngine {
    /// With a READ behind each list of WRITEs that proves it visible, or as `set_flush` says.
    pub fn start(config: &VerbsConfig) -> anyhow::Result<VerbsEngine> {
        let pair = VerbsPair::start(config)?;
        let (from, to) = (&config.initiator, &config.target);
        let path = format!("rdma {} to {}, MTU {}", from.device, to.device, pair.mtu());
        Ok(VerbsEngine { pair, path, queues: from.queues, flush: true })
    }

    /// Whether lists of WRITEs are proven visible, or acknowledged only.
    pub fn set_flush(&mut self, flush: bool) {
        self.flush = flush;
    }
}

impl Engine for VerbsEngine {
    fn name(&self) -> &str {
        "verbs"
    }

    fn path(&self) -> String {
        self.path.clone()
    }

    fn prepare(&mut self, _: &Workload) -> anyhow::Result<()> {
        Ok(())
    }

    fn settings(&self, workload: &Workload) -> String {
        let visibility = if self.flush { "proven" } else { "acked only" };
        let (queues, lists) = (self.queues, lists(workload, self.queues));
        let queues = if queues == 1 { "one queue pair".to_owned() } else { format!("{queues} queue pairs") };
        format!("{queues}, {lists} lists under way, {visibility}")
    }

    fn throughput(&mut self, workload: &Workload, limit: Limit) -> anyhow::Result<Sample> {
        self.pair.run(workload, self.flush, limit)
    }

    fn latency(&mut self, workload: &LatencyWorkload) -> anyhow::Result<Vec<u64>> {
        self.pair.time_each(workload, self.flush)
    }
}
