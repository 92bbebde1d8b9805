//! The quantities that are measured of an engine, and the figures of one run. `contest` judges them.

use std::collections::BTreeMap;

use ferry_bench::stats::Latency;
use ferry_bench::workload::{Engine, LatencyWorkload, Limit, Sample, Workload};
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    GbPerSecond,
    MbPerSecond,
    CpuSecondsPerGib,
    MillionMessagesPerSecond,
    P50Us,
    P99Us,
    ConnectMs,
    RegisterMs,
}

impl Quantity {
    pub fn unit(self) -> &'static str {
        match self {
            Quantity::GbPerSecond => "GB/s",
            Quantity::MbPerSecond => "MB/s",
            Quantity::CpuSecondsPerGib => "CPU s/GiB",
            Quantity::MillionMessagesPerSecond => "M msg/s",
            Quantity::P50Us => "µs p50",
            Quantity::P99Us => "µs p99",
            Quantity::ConnectMs => "ms until the first WRITE is done",
            Quantity::RegisterMs => "ms to register 1 GiB",
        }
    }
}

/// Figures of one run.
pub type Figures = BTreeMap<Quantity, f64>;

/// The work of one run.
#[derive(Clone, Copy, Debug)]
pub enum Job {
    Throughput(Workload),
    Latency(LatencyWorkload),
}

/// One run.
#[derive(Clone, Debug)]
pub struct Run {
    pub figures: Figures,
    /// The time of each transfer, if the run was about times.
    pub nanoseconds: Vec<u64>,
}

impl Run {
    pub fn of(figures: impl Into<Figures>) -> Run {
        Run { figures: figures.into(), nanoseconds: Vec::new() }
    }

    pub fn throughput(sample: &Sample) -> Run {
        Run::of([
            (Quantity::GbPerSecond, sample.gb_per_second()),
            (Quantity::CpuSecondsPerGib, sample.cpu_seconds_per_gib()),
        ])
    }

    /// Fails without samples.
    pub fn latency(nanoseconds: Vec<u64>) -> anyhow::Result<Run> {
        let latency = Latency::of(0, &nanoseconds)?;
        let figures = [(Quantity::P50Us, latency.p50_us), (Quantity::P99Us, latency.p99_us)];
        Ok(Run { nanoseconds, ..Run::of(figures) })
    }
}

impl Job {
    /// Prepares the engine, untimed. Nothing is tuned for latencies.
    pub fn prepare(&self, engine: &mut dyn Engine) -> anyhow::Result<()> {
        match self {
            Job::Throughput(workload) => engine.prepare(workload),
            Job::Latency(_) => Ok(()),
        }
    }

    /// Returns the engine's settings for the job, for the record.
    pub fn settings(&self, engine: &dyn Engine) -> String {
        match self {
            Job::Throughput(workload) => engine.settings(workload),
            Job::Latency(_) => String::new(),
        }
    }

    /// Runs the job once. A throughput run lasts this many seconds.
    pub fn run(&self, engine: &mut dyn Engine, seconds: f64) -> anyhow::Result<Run> {
        match self {
            Job::Throughput(workload) => {
                Ok(Run::throughput(&engine.throughput(workload, Limit::Seconds(seconds))?))
            }
            Job::Latency(workload) => Run::latency(engine.latency(workload)?),
        }
    }
}
