//! `ferry-bench rdma`: ferry beside perftest and the verbs reference on two RDMA devices of one machine, in
//! turn, with a verdict on each target. Meant for the virtual machine of `scripts/rdma-vm.sh`, where absolute
//! figures mean nothing and ratios within one boot do.
//!
//! `rows` says what is measured and what it is held to, `field` carries it out for each side, with `perftest`
//! (and `parse`) for the programs of others; `results` makes ratios of it, `screen` prints them.

mod field;
mod parse;
mod perftest;
mod results;
mod rows;
mod screen;

use std::io::Write;
use std::path::PathBuf;

use anyhow::ensure;
use regex_lite::Regex;
use serde::Serialize;

use crate::cpu::Machine;
use crate::options::{RdmaOptions, Transport};
use crate::turns::order;

pub use results::Results;

use field::Field;
use results::RowResult;
use rows::Row;

/// How much is measured.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    pub rounds: usize,
    /// Of each throughput run.
    pub seconds: f64,
    /// Latency samples of each side in each round.
    pub samples: usize,
    /// Only rows whose name matches.
    #[serde(skip)]
    pub rows: Option<Regex>,
}

/// Who is measured on what.
#[derive(Clone, Debug, Serialize)]
pub struct Places {
    #[serde(skip)]
    pub program: PathBuf,
    pub initiator: String,
    pub target: String,
    pub gid_index: u8,
    /// `None` leaves it to each side: what the ports have.
    pub mtu: Option<u32>,
    /// Of every side; `None` is one for perftest and the reference, and ferry's default for ferry.
    pub queue_pairs: Option<u32>,
    /// `None` leaves it to each side.
    pub inline_bytes: Option<u32>,
    /// Of ferry; anything but RDMA is a trial of this program, not of RDMA.
    pub transport: Transport,
    pub mooncake: Option<Mooncake>,
}

/// How Mooncake takes part, if it does.
#[derive(Clone, Debug, Serialize)]
pub struct Mooncake {
    /// It has the wheel.
    #[serde(skip)]
    pub python: PathBuf,
    /// Where agent.py is.
    #[serde(skip)]
    pub scripts: PathBuf,
    pub in_flight: usize,
}

impl Places {
    /// ferry's settings at the end with this device.
    fn options(&self, device: &str) -> RdmaOptions {
        RdmaOptions {
            devices: Some(device.to_owned()),
            gid_index: Some(self.gid_index.into()),
            mtu: self.mtu,
            inline_bytes: self.inline_bytes,
        }
    }
}

/// Measures everything the plan wants, printing each row as it is found. A side that fails is out of its row.
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
    screen::heading(out, &results)?;
    let mut field = Field::new(plan.clone(), places.clone());
    for row in &rows {
        let found = measure(plan, row, &mut field);
        screen::row(out, &found)?;
        results.rows.push(found);
    }
    screen::summary(out, &results)?;
    Ok(results)
}

/// Round after round, in an order that rotates and turns around.
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
