//! Statistics: counters, and gauges of what exists now.

use super::Engine;
use crate::peer::PeerState;
use crate::stats::{prometheus_line, Counts};
use crate::status::Result;

#[derive(Clone, Copy, Debug, Default)]
pub struct EngineStats {
    pub counts: Counts,
    pub peers_up: u64,
    pub regions: u64,
    /// Transfers that are not released, final or not.
    pub transfers: u64,
}

impl Engine {
    pub fn stats(&self) -> Result<EngineStats> {
        self.inner.check_not_forked()?;
        let context = &self.inner.context;
        let up = context.peers.list().iter().filter(|peer| peer.state() == PeerState::Up).count();
        Ok(EngineStats {
            counts: context.stats.counts(),
            peers_up: up as u64,
            regions: context.registry.snapshot().len() as u64,
            transfers: context.transfers.len() as u64,
        })
    }

    /// Everything in Prometheus' text format.
    pub fn metrics(&self) -> Result<String> {
        let stats = self.stats()?;
        let mut text = self.inner.context.stats.prometheus();
        for (metric, help, value) in [
            ("ferry_peers_up", "Peers whose session is up.", stats.peers_up),
            ("ferry_regions", "Registered regions.", stats.regions),
            ("ferry_transfers", "Transfers that are not released.", stats.transfers),
        ] {
            prometheus_line(&mut text, metric, "gauge", help, value);
        }
        Ok(text)
    }
}
