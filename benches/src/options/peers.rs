//! The command line of `ferry-bench peers`.

use std::path::PathBuf;

use clap::Args;
use regex_lite::Regex;

use super::parse::{parse_rows, parse_seconds};
use crate::peers::{Places, Plan};

#[derive(Args, Debug)]
pub struct PeersArguments {
    /// The Python that has the peers' wheels
    #[arg(long, default_value = "python3")]
    pub python: PathBuf,
    /// Where agent.py and the engines are
    #[arg(long, default_value = "benches/peers")]
    pub scripts: PathBuf,
    /// ferry's library
    #[arg(long, default_value = "target/release/libferry.so")]
    pub library: PathBuf,
    /// What the engines print is appended to this file
    #[arg(long, default_value = "/dev/null")]
    pub log: PathBuf,
    /// Folder with a file PEER.failed for each peer that could not be installed
    #[arg(long)]
    pub install: Option<PathBuf>,
    /// Write every figure of every round to this file as one JSON object
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Rounds of each row; below 6 nothing is decided
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// Seconds of each throughput run
    #[arg(long, default_value_t = 0.3, value_parser = parse_seconds)]
    pub seconds: f64,
    /// Latency samples of each engine in each round
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub samples: u32,
    /// Only rows whose name matches this regular expression
    #[arg(long, value_parser = parse_rows)]
    pub rows: Option<Regex>,
    /// Only engines whose name matches this regular expression
    #[arg(long, value_parser = parse_rows)]
    pub engines: Option<Regex>,
    /// Damage a byte before each check, to see the check fail
    #[arg(long, hide = true)]
    pub spoil: bool,
}

impl PeersArguments {
    /// What to measure, where things are, and where to write the figures.
    pub fn settle(self, secret: PathBuf) -> (Plan, Places, Option<PathBuf>) {
        let plan = Plan {
            rounds: self.rounds as usize,
            seconds: self.seconds,
            samples: self.samples as usize,
            rows: self.rows,
            engines: self.engines,
            spoil: self.spoil,
        };
        let places = Places {
            python: self.python,
            agent: self.scripts.join("agent.py"),
            library: self.library,
            secret,
            log: self.log,
            install: self.install,
        };
        (plan, places, self.json)
    }
}
