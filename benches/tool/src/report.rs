//! The JSON that `--json` writes: one object, every size measured, units in the names of the keys. `gb` is 10^9 bytes,
//! `gib` is 2^30.

use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use serde_json::{json, Value};

use crate::cpu::Machine;
use crate::options::{Settings, Test};
use crate::stats::{median, Latency};
use crate::workload::{CpuSeconds, Described, Sample};

#[derive(Debug, Serialize)]
pub struct Report {
    pub tool: &'static str,
    pub version: &'static str,
    pub units: &'static str,
    pub test: Test,
    /// The given options that change the figures.
    pub options: Value,
    pub machine: Machine,
    /// The path used, and the reason.
    pub path: String,
    /// The client's and the server's device; `null`: host memory.
    pub devices: [Option<Described>; 2],
    pub sizes: Vec<SizeResult>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SizeResult {
    Bandwidth(Bandwidth),
    Latency(Latency),
}

#[derive(Clone, Debug, Serialize)]
pub struct Bandwidth {
    pub request_bytes: usize,
    pub requests_per_transfer: usize,
    pub transfers: u64,
    pub bytes: u64,
    pub seconds: f64,
    /// The fastest batch.
    pub peak_gb_per_second: f64,
    /// All bytes over all time.
    pub average_gb_per_second: f64,
    pub average_gib_per_second: f64,
    /// The batch in the middle.
    pub median_gb_per_second: f64,
    pub batches_gb_per_second: Vec<f64>,
    /// What ran before and is in no other figure.
    pub warm_up: Option<WarmUp>,
    pub requests_per_second: f64,
    pub cpu_seconds: CpuSeconds,
    pub cpu_seconds_per_gib_both_ends: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WarmUp {
    pub transfers: u64,
    pub gb_per_second: f64,
}

impl WarmUp {
    pub fn of(sample: &Sample) -> WarmUp {
        WarmUp { transfers: sample.transfers, gb_per_second: sample.gb_per_second() }
    }
}

impl Bandwidth {
    /// `batches` must not be empty.
    pub fn of(request_bytes: usize, requests_per_transfer: usize, batches: &[Sample]) -> Bandwidth {
        let sum = |part: fn(&Sample) -> f64| batches.iter().map(part).sum::<f64>();
        let all = Sample {
            transfers: batches.iter().map(|batch| batch.transfers).sum(),
            bytes: batches.iter().map(|batch| batch.bytes).sum(),
            seconds: sum(|batch| batch.seconds),
            cpu_seconds: CpuSeconds {
                initiator: sum(|batch| batch.cpu_seconds.initiator),
                target: sum(|batch| batch.cpu_seconds.target),
            },
        };
        let speeds: Vec<f64> = batches.iter().map(Sample::gb_per_second).collect();
        Bandwidth {
            request_bytes,
            requests_per_transfer,
            transfers: all.transfers,
            bytes: all.bytes,
            seconds: all.seconds,
            peak_gb_per_second: speeds.iter().copied().fold(0.0, f64::max),
            average_gb_per_second: all.gb_per_second(),
            average_gib_per_second: all.gib_per_second(),
            median_gb_per_second: median(&speeds),
            batches_gb_per_second: speeds,
            warm_up: None,
            requests_per_second: all.transfers as f64 * requests_per_transfer as f64 / all.seconds,
            cpu_seconds: all.cpu_seconds,
            cpu_seconds_per_gib_both_ends: all.cpu_seconds_per_gib(),
        }
    }
}

impl Report {
    pub fn new(
        settings: &Settings,
        path: String,
        devices: [Option<Described>; 2],
        sizes: Vec<SizeResult>,
    ) -> Report {
        let said = &settings.said;
        Report {
            tool: "ferry-bench",
            version: env!("CARGO_PKG_VERSION"),
            units: "gb = 10^9 bytes, gib = 2^30 bytes, us = 10^-6 s",
            test: settings.test,
            options: json!({
                "transfers_in_flight": settings.tx_depth,
                "requests_per_transfer": settings.requests,
                "bidirectional": said.bidirectional,
                "pingpong": said.pingpong,
                "layout": said.layout,
                "memory": said.memory,
                "transport": said.transport,
                // `null`: ferry's own choice.
                "lanes": said.lanes,
                "rdma": said.rdma,
                "acked_only": said.acked_only,
                "data_validation": said.data_validation,
                // `null`: none.
                "warm_up": settings.warm_up.map(|limit| limit.to_string()),
            }),
            machine: Machine::describe(),
            path,
            devices,
            sizes,
        }
    }
}

/// Writes one JSON object and a newline into the file at `path`, if any, replacing it.
pub fn write_json(path: Option<&Path>, report: &impl Serialize) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(bytes: u64, seconds: f64) -> Sample {
        let cpu_seconds = CpuSeconds { initiator: 0.1, target: 0.2 };
        Sample { bytes, transfers: 10, seconds, cpu_seconds }
    }

    #[test]
    fn an_average_weighs_batches_by_time_and_a_peak_is_the_best() {
        let b = Bandwidth::of(100, 4, &[batch(1 << 30, 1.0), batch(1 << 30, 3.0), batch(1 << 30, 2.0)]);
        assert_eq!((b.transfers, b.bytes, b.seconds), (30, 3 << 30, 6.0));
        assert_eq!((b.average_gib_per_second, b.peak_gb_per_second), (0.5, 1.073_741_824));
        assert_eq!((b.median_gb_per_second, b.requests_per_second), (0.536_870_912, 20.0));
        assert!((b.cpu_seconds_per_gib_both_ends - 0.3).abs() < 1e-12);
    }

    #[test]
    fn every_size_is_in_the_file() {
        let latency = |bytes| Latency::of(bytes, &[1_000, 2_000, 9_000]).expect("not empty");
        let sizes = [2, 4].map(|bytes| SizeResult::Latency(latency(bytes)));
        let report = Report::new(
            &crate::options::settings_of("write_lat -a host").expect("a client"),
            "tcp".to_owned(),
            [None, None],
            sizes.into(),
        );
        let file = tempfile::NamedTempFile::new().expect("a new file");
        write_json(Some(file.path()), &report).expect("written");
        let text = fs::read_to_string(file.path()).expect("readable");
        let value: serde_json::Value = serde_json::from_str(&text).expect("one object");
        assert_eq!(value["test"], "write_lat");
        assert_eq!(value["sizes"][0]["request_bytes"], 2);
        assert_eq!(value["sizes"][1]["request_bytes"], 4);
        assert_eq!((&value["sizes"][1]["p50_us"], &value["sizes"][1]["max_us"]), (&2.0.into(), &9.0.into()));
    }
}
