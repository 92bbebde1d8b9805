//! The same-host references as `Engine`s: they find their best setting for each workload and keep to it.

use std::collections::HashMap;

use super::pair::{SameHostConfig, SameHostPair};
use super::shared::Shared;
use super::vm::Vm;
use super::Way;
use crate::raw::engine::{fastest, TRY_SECONDS};
use crate::workload::{Engine, LatencyWorkload, Limit, Sample, Workload};

/// Memory that only its owner maps.
pub type VmEngine = SameHostEngine<Vm>;
/// Memory that both processes map.
pub type SharedEngine = SameHostEngine<Shared>;

pub struct SameHostEngine<W> {
    pair: SameHostPair<W>,
    best: HashMap<Workload, usize>,
}

impl<W: Way> SameHostEngine<W> {
    pub fn start(config: &SameHostConfig) -> anyhow::Result<SameHostEngine<W>> {
        Ok(SameHostEngine { pair: SameHostPair::start(config)?, best: HashMap::new() })
    }

    /// Process id of the target, this process's child.
    pub fn target_pid(&self) -> u32 {
        self.pair.target_pid()
    }

    fn setting(&self, workload: &Workload) -> usize {
        self.best.get(workload).copied().unwrap_or(W::SETTINGS[0])
    }
}

impl<W: Way> Engine for SameHostEngine<W> {
    fn name(&self) -> &str {
        W::NAME
    }

    fn path(&self) -> String {
        format!("{} memory, {} threads", W::KIND.name(), self.pair.threads())
    }

    fn prepare(&mut self, workload: &Workload) -> anyhow::Result<()> {
        if self.best.contains_key(workload) {
            return Ok(());
        }
        let mut settings = W::SETTINGS.to_vec();
        let best = fastest(&mut settings, |setting| {
            Ok(self.pair.run(workload, *setting, Limit::Seconds(TRY_SECONDS))?.gb_per_second())
        })?;
        self.best.insert(*workload, settings[best]);
        Ok(())
    }

    fn settings(&self, workload: &Workload) -> String {
        let threads = match self.pair.threads() {
            1 => "one thread".to_owned(),
            count => format!("{count} threads"),
        };
        format!("{threads}, {}", W::describe(self.setting(workload)))
    }

    fn throughput(&mut self, workload: &Workload, limit: Limit) -> anyhow::Result<Sample> {
        let setting = self.setting(workload);
        self.pair.run(workload, setting, limit)
    }

    /// On the calling thread.
    fn latency(&mut self, workload: &LatencyWorkload) -> anyhow::Result<Vec<u64>> {
        self.pair.time_each(workload, W::SETTINGS[0])
    }
}
