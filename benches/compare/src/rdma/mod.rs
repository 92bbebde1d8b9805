//! `ferry-compare rdma`: ferry beside perftest and the verbs reference on two RDMA devices of one machine, in turn, with
//! a verdict on each target. Meant for the virtual machine of `scripts/rdma-vm.sh`, in which absolute figures mean
//! nothing and ratios within one boot do.
//!
//! `rows` has the workloads and their targets, `field` measures each side, with `perftest` for other programs;
//! `results` computes ratios and prints them.

mod field;
mod perftest;
mod results;
mod rows;

use std::io::Write;
use std::path::PathBuf;

use anyhow::ensure;
use clap::Args;
use ferry::limits::QPS_MAX;
use regex_lite::Regex;
use serde::Serialize;

use crate::arguments::{from_to, parse_rows, parse_seconds};
use crate::turns::order;
use ferry_bench::cpu::Machine;
use ferry_bench::options::{parse_count, parse_mtu, RdmaOptions, Transport};

pub use results::Results;

use field::Field;
use results::RowResult;
use rows::Row;

/// How much is measured.
#[derive(Args, Clone, Debug, Serialize)]
pub struct Plan {
    /// Rounds of each row; below 6 nothing is decided
    #[arg(long, default_value_t = 6, value_parser = from_to(1, 1_000))]
    pub rounds: usize,
    /// Seconds of each throughput run
    #[arg(long, default_value_t = 0.5, value_parser = parse_seconds)]
    pub seconds: f64,
    /// Latency samples of each side in each round
    #[arg(long, default_value_t = 1_000, value_parser = from_to(5, 1_000_000))]
    pub samples: usize,
    /// Only rows whose name matches this regular expression
    #[serde(skip)]
    #[arg(long, value_parser = parse_rows)]
    pub rows: Option<Regex>,
}

/// The devices and programs of the measurements.
#[derive(Args, Clone, Debug, Serialize)]
pub struct Places {
    #[serde(skip)]
    #[arg(skip)]
    pub program: PathBuf,
    /// The device that initiates
    #[arg(long, default_value = "rva0")]
    pub initiator: String,
    /// The device at the other end
    #[arg(long, default_value = "rva1")]
    pub target: String,
    /// Index of both ports' GID
    #[arg(short = 'x', long = "gid-index", default_value_t = 1)]
    pub gid_index: u8,
    /// Path MTU at most, in bytes [default: what the ports have]
    #[arg(short = 'm', long, value_parser = parse_mtu)]
    pub mtu: Option<u32>,
    /// Queue pairs of every side [default: perftest and verbs 1, ferry its own]
    #[arg(short = 'q', long = "qp", value_parser = clap::value_parser!(u32).range(1..=i64::from(QPS_MAX)))]
    pub queue_pairs: Option<u32>,
    /// Inline size of perftest and ferry, in bytes [default: each side's own]
    #[arg(short = 'I', long = "inline_size", value_parser = clap::value_parser!(u32).range(0..=1_024))]
    pub inline_bytes: Option<u32>,
    /// ferry's transport: to try this command where there is no RDMA
    #[arg(long, value_enum, default_value_t = Transport::Rdma, hide = true)]
    pub transport: Transport,
    #[arg(skip)]
    pub mooncake: Option<Mooncake>,
}

/// How Mooncake takes part.
#[derive(Args, Clone, Debug, Serialize)]
pub struct Mooncake {
    /// A Python with Mooncake's wheel, which then takes part
    #[serde(skip)]
    #[arg(long = "mooncake", value_name = "MOONCAKE")]
    python: Option<PathBuf>,
    /// Its batches in flight; 2 is what ferry has in the same rows
    #[arg(long = "mooncake-in-flight", value_name = "MOONCAKE_IN_FLIGHT", default_value_t = 2, value_parser = parse_count)]
    in_flight: usize,
    /// Where agent.py and its engines are
    #[serde(skip)]
    #[arg(long, default_value = "benches/compare/peers")]
    scripts: PathBuf,
}

impl Mooncake {
    /// Returns the options, if Mooncake takes part.
    pub fn asked(self) -> Option<Mooncake> {
        self.python.is_some().then_some(self)
    }
}

impl Places {
    /// Returns ferry's settings at the end with this device.
    fn options(&self, device: &str) -> RdmaOptions {
        RdmaOptions {
            devices: Some(device.to_owned()),
            gid_index: Some(self.gid_index.into()),
            mtu: self.mtu,
            inline_bytes: self.inline_bytes,
        }
    }
}

/// Measures everything in the plan, and prints each row as it is measured. A side that fails is out of its row.
pub fn run(plan: &Plan, places: &Places, out: &mut dyn Write) -> anyhow::Result<Results> {
    let wanted = |row: &Row| plan.rows.as_ref().is_none_or(|rows| rows.is_match(&row.name()));
    let rows: Vec<Row> = rows::all().into_iter().filter(wanted).collect();
    ensure!(!rows.is_empty(), "no row has such a name");
    let mut results = Results {
        machine: Machine::describe(),
        plan: plan.clone(),
        places: places.clone(),
        rows: Vec::new(),
    };
    results.heading(out)?;
    let mut field = Field::new(plan.clone(), places.clone());
    for row in &rows {
        let found = measure(plan, row, &mut field);
        found.print(out)?;
        results.rows.push(found);
    }
    results.summary(out)?;
    Ok(results)
}

/// Runs the rounds, in an order that rotates and reverses.
fn measure(plan: &Plan, row: &Row, field: &mut Field) -> RowResult {
    let mut found = RowResult::new(row, field.sides(row));
    for round in 0..plan.rounds {
        for index in order(round, found.sides.len()) {
            let taken = &mut found.sides[index];
            if taken.failure.is_none() {
                match field.measure(row, taken.side) {
                    Ok(value) => taken.values.push(value),
                    Err(error) => taken.failure = Some(format!("{error:#}")),
                }
                taken.settings = field.settings(row, taken.side);
            }
        }
    }
    found.requests_per_transfer = field.take_requests();
    found.judge(row);
    found
}
