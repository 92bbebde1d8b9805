//! The command line of `ferry-bench rdma`.

use std::path::PathBuf;

use clap::Args;
use ferry::limits::QPS_MAX;
use regex_lite::Regex;

use super::parse::{parse_count, parse_rows, parse_seconds};
use super::rdma::parse_mtu;
use super::Transport;
use crate::rdma::{Mooncake, Places, Plan};

#[derive(Args, Debug)]
pub struct RdmaCompareArguments {
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
    /// Rounds of each row; below 6 nothing is decided
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// Seconds of each throughput run
    #[arg(long, default_value_t = 0.5, value_parser = parse_seconds)]
    pub seconds: f64,
    /// Latency samples of each side in each round
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(5..=1_000_000))]
    pub samples: u32,
    /// Only rows whose name matches this regular expression
    #[arg(long, value_parser = parse_rows)]
    pub rows: Option<Regex>,
    /// A Python with Mooncake's wheel, which then takes part
    #[arg(long)]
    pub mooncake: Option<PathBuf>,
    /// Its batches in flight; 2 is what ferry has in the same rows
    #[arg(long, default_value_t = 2, value_parser = parse_count)]
    pub mooncake_in_flight: usize,
    /// Where agent.py and its engines are
    #[arg(long, default_value = "benches/peers")]
    pub scripts: PathBuf,
    /// Write every figure of every round to this file as one JSON object
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// ferry's transport: to try this command where there is no RDMA
    #[arg(long, value_enum, default_value_t = Transport::Rdma, hide = true)]
    pub transport: Transport,
}

impl RdmaCompareArguments {
    /// What to measure, on what, and where to write the figures.
    pub fn settle(self, program: PathBuf) -> (Plan, Places, Option<PathBuf>) {
        let plan = Plan {
            rounds: self.rounds as usize,
            seconds: self.seconds,
            samples: self.samples as usize,
            rows: self.rows,
        };
        let (scripts, in_flight) = (self.scripts, self.mooncake_in_flight);
        let places = Places {
            program,
            initiator: self.initiator,
            target: self.target,
            gid_index: self.gid_index,
            mtu: self.mtu,
            queue_pairs: self.queue_pairs,
            inline_bytes: self.inline_bytes,
            transport: self.transport,
            mooncake: self.mooncake.map(|python| Mooncake { python, scripts, in_flight }),
        };
        (plan, places, self.json)
    }
}
