//! The raw reference as an `Engine`: finds its best settings for each workload, then keeps to them.

use std::collections::HashMap;

use anyhow::Context;

use super::pair::{RawConfig, RawPair, Tuning};
use super::socket::SocketOptions;
use crate::layout::Layout;
use crate::stats::median;
use crate::workload::{format_bytes, Engine, LatencyWorkload, Limit, Operation, Sample, Workload, KIB, MIB};

const CONNECTIONS: [usize; 3] = [1, 2, 4];
const IN_FLIGHT: [usize; 4] = [1, 2, 4, 8];
/// `SO_SNDBUF` = `SO_RCVBUF`. The small one keeps what is under way in the cache where that pays (Zen 5:
/// 7 % at 1 MiB); elsewhere 4 MiB was best, and autotuning is what a program gets that asks for nothing.
const BUFFERS: [Option<usize>; 3] = [Some(512 * KIB), Some(4 * MIB), None];
/// Each setting is tried this often, in rounds, so that a busy moment spoils one try of each.
const TRIES: usize = 3;
pub(super) const TRY_SECONDS: f64 = 0.15;
/// Used where a workload was not prepared: good everywhere, best nowhere in particular.
const TUNING_DEFAULT: Tuning = Tuning { connections: 2, in_flight: 4 };

pub struct RawEngine {
    pair: RawPair,
    best: HashMap<Workload, Tuning>,
    congestion_control: String,
    buffers: String,
}

impl RawEngine {
    /// Starts the pair with whichever socket buffers of `BUFFERS` move large transfers fastest here.
    pub fn start(config: &RawConfig) -> anyhow::Result<RawEngine> {
        let mut pairs = Vec::with_capacity(BUFFERS.len());
        for buffer_bytes in BUFFERS {
            let socket = SocketOptions { buffer_bytes, ..config.socket.clone() };
            pairs.push(RawPair::start(&RawConfig { socket, ..config.clone() })?);
        }
        let fastest = fastest(&mut pairs, |pair| {
            let workload = large(config.memory_bytes);
            let tuning =
                Tuning { connections: TUNING_DEFAULT.connections.min(pair.connections()), ..TUNING_DEFAULT };
            Ok(pair.run(&workload, tuning, Limit::Seconds(TRY_SECONDS))?.gb_per_second())
        })?;
        let pair = pairs.swap_remove(fastest);
        let congestion_control = pair.congestion_control()?;
        let buffers = BUFFERS[fastest].map_or("autotuned".to_owned(), |bytes| format_bytes(bytes) + " each");
        Ok(RawEngine { pair, best: HashMap::new(), congestion_control, buffers })
    }

    /// The settings found for a prepared workload.
    pub fn tuning(&self, workload: &Workload) -> Tuning {
        let usable = Tuning { connections: self.pair.connections().min(2), ..TUNING_DEFAULT };
        self.best.get(workload).copied().unwrap_or(usable)
    }

    fn candidates(&self) -> Vec<Tuning> {
        let connections = CONNECTIONS.into_iter().filter(|&c| c <= self.pair.connections());
        let pairs = connections.flat_map(|c| IN_FLIGHT.map(|f| Tuning { connections: c, in_flight: f }));
        pairs.filter(|tuning| tuning.in_flight >= tuning.connections).collect()
    }
}

impl Engine for RawEngine {
    fn name(&self) -> &str {
        "raw"
    }

    fn path(&self) -> String {
        format!("tcp 127.0.0.1, {}, socket buffers {}", self.congestion_control, self.buffers)
    }

    /// Tries every combination of connections and transfers in flight and keeps the fastest.
    fn prepare(&mut self, workload: &Workload) -> anyhow::Result<()> {
        if self.best.contains_key(workload) {
            return Ok(());
        }
        let mut candidates = self.candidates();
        let best = fastest(&mut candidates, |tuning| {
            Ok(self.pair.run(workload, *tuning, Limit::Seconds(TRY_SECONDS))?.gb_per_second())
        })?;
        self.best.insert(*workload, candidates[best]);
        Ok(())
    }

    fn settings(&self, workload: &Workload) -> String {
        let Tuning { connections, in_flight } = self.tuning(workload);
        format!("{connections} connections, {in_flight} in flight")
    }

    fn throughput(&mut self, workload: &Workload, limit: Limit) -> anyhow::Result<Sample> {
        let tuning = self.tuning(workload);
        self.pair.run(workload, tuning, limit)
    }

    fn latency(&mut self, workload: &LatencyWorkload) -> anyhow::Result<Vec<u64>> {
        self.pair.time_each(workload)
    }
}

/// Index of the candidate with the highest median speed over `TRIES` rounds.
pub(super) fn fastest<T>(
    candidates: &mut [T],
    mut speed: impl FnMut(&mut T) -> anyhow::Result<f64>,
) -> anyhow::Result<usize> {
    let mut speeds = vec![Vec::with_capacity(TRIES); candidates.len()];
    for _ in 0..TRIES {
        for (candidate, speeds) in candidates.iter_mut().zip(&mut speeds) {
            speeds.push(speed(candidate)?);
        }
    }
    let medians = speeds.iter().map(|speeds| median(speeds)).enumerate();
    medians.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(index, _)| index).context("nothing to choose from")
}

/// 1 MiB × 16, or as much of it as the memory holds.
fn large(memory_bytes: usize) -> Workload {
    let blocks = (memory_bytes / MIB).clamp(1, 16);
    let block_bytes = MIB.min(memory_bytes);
    let (operation, layout) = (Operation::Write, Layout::Contiguous);
    Workload { operation, layout, block_bytes, blocks, walk_bytes: memory_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lucky_round_does_not_choose() {
        let mut rounds = [vec![9.0, 1.0, 1.0].into_iter(), vec![2.0, 2.0, 2.0].into_iter()];
        let chosen = fastest(&mut rounds, |speeds| speeds.next().context("a fourth round"));
        assert_eq!(chosen.expect("two candidates"), 1);
    }
}
