//! `ferry-compare rdma`: ferry beside perftest and the verbs reference on two RDMA devices of one machine, in turn,
//! with a verdict on each target. Meant for the virtual machine of `scripts/rdma-vm.sh`, in which absolute figures mean
//! nothing and ratios within one boot do.
//!
//! `rows` has the workloads and their targets, `field` measures each side, with `perftest` for other programs.

mod field;
mod perftest;
mod rows;

use std::io::Write;
use std::path::PathBuf;

use anyhow::ensure;
use clap::Args;
use ferry::limits::QPS_MAX;
use ferry_bench::options::{parse_count, parse_mtu, RdmaOptions, Transport};

use crate::contest::{self, Cost, Plan, Results};
use crate::figures::Run;
use crate::screen;

use field::Field;
use rows::Row;

/// The devices and programs of the measurements.
#[derive(Args, Clone, Debug)]
pub struct Places {
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
#[derive(Args, Clone, Debug)]
pub struct Mooncake {
    /// A Python with Mooncake's wheel, which then takes part
    #[arg(long = "mooncake", value_name = "MOONCAKE")]
    python: Option<PathBuf>,
    /// Its batches in flight; 2 is what ferry has in the same rows
    #[arg(long = "mooncake-in-flight", value_name = "MOONCAKE_IN_FLIGHT", default_value_t = 2, value_parser = parse_count)]
    in_flight: usize,
    /// Where agent.py and its engines are
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
    let rows: Vec<Row> = rows::all().into_iter().filter(|row| plan.wants(&row.name())).collect();
    ensure!(!rows.is_empty(), "no row has such a name");
    let mut results = Results::new(plan, Vec::new());
    screen::heading(out, &results)?;
    let stated = |value: Option<u32>| value.map_or("each side's own".to_owned(), |value| value.to_string());
    let [mtu, pairs, inline] = [places.mtu, places.queue_pairs, places.inline_bytes].map(stated);
    let Places { initiator, target, gid_index, .. } = places;
    let devices = format!("{initiator} to {target}, GID index {gid_index}");
    writeln!(out, "{devices}; MTU {mtu}, queue pairs {pairs}, inline {inline}; perftest checks no data")?;
    let mut field = Field::new(plan.clone(), places.clone());
    for row in &rows {
        let sides = row.sides(places.mooncake.is_some());
        let named = sides.iter().map(|side| contest::Side::new(side.name())).collect();
        let mut found = contest::measure(row.name(), named, plan.rounds, |index| {
            Ok(Run::of([(row.quantity(), field.measure(row, sides[index])?)]))
        });
        for (cell, side) in found.cells.iter_mut().zip(sides) {
            cell.settings = field.settings(row, side);
        }
        screen::tell(out, &mut results, found, &row.targets())?;
        if let (Some(count), Some(least)) = (field.take_requests(), row.requests_expected()) {
            let cost = Cost::limited(&row.name(), "work requests of a transfer", count, least as f64);
            results.costs.push(cost);
        }
    }
    screen::summary(out, &results)?;
    screen::failures(out, &results)?;
    Ok(results)
}
