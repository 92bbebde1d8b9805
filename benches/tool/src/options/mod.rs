//! The command line: perftest's letters in ferry's terms.
//!
//! clap and `parse` refuse malformed values; `settings` refuses contradictions and fills in a test's defaults.

mod end;
mod parse;
mod perftest;
mod settings;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ferry::limits::LANES_MAX;
use serde::{Deserialize, Serialize};

use crate::child::parse_role;
use crate::device::DeviceOptions;
use crate::layout::Layout;
use crate::subject::{Origin, Role};
use crate::workload::{Named, Operation};

pub use end::{parse_mtu, RdmaOptions};
pub use parse::parse_count;
use parse::{parse_bytes, parse_warm_up};
use perftest::explained;
pub use perftest::PerftestOptions;
pub use settings::{Settings, BATCHES};

pub const PORT: u16 = 18_515;

#[derive(Parser, Debug)]
#[command(name = "ferry-bench", version, about = "Measures ferry, perftest's way")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses a command line. Words that perftest knows and ferry-bench does not are answered with a sentence.
    pub fn read(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(words).map_err(explained)
    }
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Bandwidth of WRITE; without HOST the server, with HOST the client (so for all tests)
    #[command(name = "write_bw", alias = "ib_write_bw")]
    WriteBandwidth(TestArguments),
    /// Bandwidth of READ
    #[command(name = "read_bw", alias = "ib_read_bw")]
    ReadBandwidth(TestArguments),
    /// Time of one synchronous WRITE, from the call until done at the target: the whole round trip
    #[command(name = "write_lat", alias = "ib_write_lat")]
    WriteLatency(TestArguments),
    /// Time of one synchronous READ
    #[command(name = "read_lat", alias = "ib_read_lat")]
    ReadLatency(TestArguments),
    /// Time of one notification to the peer and back, halved
    #[command(name = "notify_lat")]
    NotifyLatency(TestArguments),
    /// Starts both ends on loopback and runs a short table
    Selftest(SelftestArguments),
    /// The other end of a measurement, which this program starts of itself
    #[command(hide = true)]
    Child {
        #[arg(value_parser = parse_role::<Role>)]
        role: Role,
    },
}

impl Command {
    /// Returns the test and its arguments, if the command is a test.
    pub fn into_test(self) -> Option<(Test, TestArguments)> {
        match self {
            Command::WriteBandwidth(arguments) => Some((Test::WriteBw, arguments)),
            Command::ReadBandwidth(arguments) => Some((Test::ReadBw, arguments)),
            Command::WriteLatency(arguments) => Some((Test::WriteLat, arguments)),
            Command::ReadLatency(arguments) => Some((Test::ReadLat, arguments)),
            Command::NotifyLatency(arguments) => Some((Test::NotifyLat, arguments)),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Test {
    WriteBw,
    ReadBw,
    WriteLat,
    ReadLat,
    NotifyLat,
}

impl Test {
    pub fn is_bandwidth(self) -> bool {
        matches!(self, Test::WriteBw | Test::ReadBw)
    }

    /// Returns whether memory moves, and so can be checked.
    pub fn is_memory(self) -> bool {
        self.operation().is_some()
    }

    /// Returns the timed operation; a notification is none.
    pub fn operation(self) -> Option<Operation> {
        match self {
            Test::WriteBw | Test::WriteLat => Some(Operation::Write),
            Test::ReadBw | Test::ReadLat => Some(Operation::Read),
            Test::NotifyLat => None,
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Test::WriteBw => "WRITE BW Test",
            Test::ReadBw => "READ BW Test",
            Test::WriteLat => "WRITE Latency Test",
            Test::ReadLat => "READ Latency Test",
            Test::NotifyLat => "NOTIFY Latency Test",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    #[default]
    Auto,
    Tcp,
    Local,
    Rdma,
}

impl Transport {
    /// Returns the name, unless every transport is allowed.
    pub fn forced(self) -> Option<String> {
        Some(self).filter(|transport| *transport != Transport::Auto).map(|transport| transport.name())
    }
}

#[derive(Args, Debug, Clone)]
pub struct TestArguments {
    /// The server to measure against, as HOST or HOST:PORT; absent, this is the server
    pub host: Option<String>,
    /// Bytes of each request [default: 65536 for bandwidth, 2 for latency]; k, m and g are binary
    #[arg(short = 's', long, value_parser = parse_bytes)]
    pub size: Option<usize>,
    /// All sizes from 2 to 2^23
    #[arg(short = 'a', long, conflicts_with = "size")]
    pub all: bool,
    /// Transfers per size [default: 1000]
    #[arg(short = 'n', long = "iters", value_parser = clap::value_parser!(u64).range(1..))]
    pub iterations: Option<u64>,
    /// Run each size this many seconds instead of a number of transfers
    #[arg(short = 'D', long = "duration", conflicts_with = "iterations", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub duration_seconds: Option<u32>,
    /// Transfers of each size before those that count, or seconds with -D; 0 counts the cold ones too [default: a
    /// fifth of -n or -D, at most 1 s; 100 transfers for latency]
    #[arg(long = "warm-up", value_name = "COUNT", value_parser = parse_warm_up)]
    pub warm_up: Option<f64>,
    /// Transfers in flight [default: 128]
    #[arg(short = 't', long = "tx-depth", value_parser = parse_count)]
    pub tx_depth: Option<usize>,
    /// Lanes to the peer, with --transport rdma queue pairs [default: ferry's own]
    #[arg(short = 'q', long = "lanes", alias = "qp", value_parser = clap::value_parser!(u32).range(1..=i64::from(LANES_MAX)))]
    pub lanes: Option<u32>,
    /// Requests per transfer [default: 1]
    #[arg(short = 'l', long = "requests", alias = "post_list", value_parser = parse_count)]
    pub requests: Option<usize>,
    /// Both ends initiate at once; the sum is reported
    #[arg(short = 'b', long)]
    pub bidirectional: bool,
    /// Port of the server [default: 18515]
    #[arg(short = 'p', long)]
    pub port: Option<u16>,
    /// Print every path with its reason, the settings and the machine, too
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// Print the latency histogram
    #[arg(short = 'H', long = "report-histogram")]
    pub histogram: bool,
    /// Print every latency sample in the order taken
    #[arg(short = 'U', long = "report-unsorted")]
    pub unsorted: bool,
    /// Bandwidth in 10^9 bits per second instead of 2^20 bytes
    #[arg(long = "report_gbits", alias = "report-gbits")]
    pub report_gbits: bool,
    /// Show the CPU time used by both ends, in percent of one core
    #[arg(long = "cpu_util", alias = "cpu-util")]
    pub cpu_util: bool,
    /// Check after each run that every 8 bytes are where they belong
    #[arg(long = "data_validation", alias = "data-validation")]
    pub data_validation: bool,
    /// Transports that may be used; anything but auto fails rather than falls back
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub transport: Transport,
    #[command(flatten)]
    pub rdma: RdmaOptions,
    /// Both applications poll memory and WRITE to each other: half the round trip, as ib_write_lat has it
    #[arg(long)]
    pub pingpong: bool,
    /// Over RDMA a WRITE is done when the target's NIC has acknowledged it, visible there or not
    #[arg(long = "acked-only")]
    pub acked_only: bool,
    /// scattered permutes the blocks on both sides so that none can be merged
    #[arg(long, value_enum, default_value_t = Layout::Contiguous)]
    pub layout: Layout,
    /// The memory of both ends, where it is the host's
    #[arg(long, value_enum, default_value_t = Origin::Alloc)]
    pub memory: Origin,
    #[command(flatten)]
    pub device: DeviceOptions,
    /// File with the shared secret; without it, peers are this user on this host only
    #[arg(long = "secret-file")]
    pub secret_file: Option<PathBuf>,
    /// Write everything measured to this file as one JSON object
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Draw the figures by size into this file, as SVG
    #[arg(long)]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    pub perftest: PerftestOptions,
    /// Damage a byte before each check, to see the check fail
    #[arg(long, hide = true)]
    pub spoil: bool,
    /// Look for completions this long before sleeping, in microseconds [default: ferry's own]
    #[arg(long = "spin-us")]
    pub spin_us: Option<u32>,
}

#[derive(Args, Debug)]
pub struct SelftestArguments {
    /// With memory of the device at one end, the other and both
    #[command(flatten)]
    pub device: DeviceOptions,
    /// Print every path with its reason, the settings and the machine, too
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// Damage a byte before each check, to see the check fail
    #[arg(long, hide = true)]
    pub spoil: bool,
    /// Write everything measured to this file as one JSON object
    #[arg(long)]
    pub json: Option<PathBuf>,
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::settle as settings_of;
