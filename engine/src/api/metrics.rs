//! Statistics: counters of events, and gauges of existing objects.

use super::Engine;
use crate::peer::PeerState;
use crate::stats::{labelled_line, prometheus_line, Counts};
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
            transfers: context.transfers.count() as u64,
        })
    }

    /// Appends a line for each RDMA device and metric.
    fn device_metrics(&self, text: &mut String) {
        let devices: Vec<_> = self.inner.rdma.iter().flat_map(|rdma| rdma.devices()).collect();
        let mut add = |metric: &str, kind: &str, help: &str, value: &dyn Fn(usize) -> u64| {
            for (at, device) in devices.iter().enumerate() {
                let metric = format!("{metric}{{device=\"{}\"}}", device.name);
                let header = (at == 0).then_some((kind, help));
                labelled_line(text, &metric, header, value(at));
            }
        };
        let up = "Whether the RDMA device can be reached.";
        add("ferry_rdma_device_up", "gauge", up, &|at| devices[at].is_up.into());
        let bytes = "Payload bytes that the device moved for this engine's transfers.";
        add("ferry_rdma_bytes_total", "counter", bytes, &|at| devices[at].bytes);
        let requests = "Work requests posted to the device.";
        add("ferry_rdma_work_requests_total", "counter", requests, &|at| devices[at].work_requests);
    }

    /// Returns all statistics in Prometheus' text format.
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
        self.device_metrics(&mut text);
        Ok(text)
    }
}
