//! A test's settings: its arguments with defaults filled in and contradictions refused, and what of
//! them a server insists on.

use std::path::PathBuf;
use std::time::Duration;

use ferry::limits::NOTIFY_BYTES_MAX;

use super::{DeviceOptions, RdmaOptions, Test, TestArguments, Transport};
use crate::layout::Layout;
use crate::subject::{Claims, Origin};
use crate::workload::{Limit, Operation};

const BANDWIDTH_BYTES: usize = 65_536;
const LATENCY_BYTES: usize = 2;
const ITERATIONS: u64 = 1_000;
const TX_DEPTH: usize = 128;
/// `-a` measures powers of two from 2^1 to 2^23.
const ALL_SIZES_LOG2: std::ops::RangeInclusive<u32> = 1..=23;

/// A test's arguments with defaults filled in and contradictions gone.
#[derive(Clone, Debug)]
pub struct Settings {
    pub test: Test,
    pub host: Option<String>,
    pub port: u16,
    pub sizes: Vec<usize>,
    pub limit: Limit,
    pub tx_depth: usize,
    /// Queue pairs with `Transport::Rdma`.
    pub lanes: Option<u32>,
    pub requests: usize,
    pub bidirectional: bool,
    pub pingpong: bool,
    pub histogram: bool,
    pub unsorted: bool,
    pub report_gbits: bool,
    pub cpu_util: bool,
    pub data_validation: bool,
    pub transport: Transport,
    pub rdma: RdmaOptions,
    pub acked_only: bool,
    pub layout: Layout,
    pub memory: Origin,
    /// Of this end.
    pub device: DeviceOptions,
    pub secret_file: Option<PathBuf>,
    pub json: Option<PathBuf>,
    pub spin: Option<Duration>,
    pub spoil: bool,
}

impl TestArguments {
    /// The settings for `test`, or one sentence on what does not go together.
    pub fn settle(self, test: Test) -> Result<Settings, String> {
        self.refuse_contradictions(test)?;
        let default_bytes = if test.is_bandwidth() { BANDWIDTH_BYTES } else { LATENCY_BYTES };
        let sizes = match self.all {
            true => all_sizes(test),
            false => vec![self.size.unwrap_or(default_bytes)],
        };
        let limit = self.limit().unwrap_or(Limit::Transfers(ITERATIONS));
        Ok(Settings {
            test,
            host: self.host,
            port: self.port,
            sizes,
            limit,
            tx_depth: if test.is_bandwidth() { self.tx_depth.unwrap_or(TX_DEPTH) } else { 1 },
            lanes: self.lanes,
            requests: self.requests.unwrap_or(1),
            bidirectional: self.bidirectional,
            pingpong: self.pingpong,
            histogram: self.histogram,
            unsorted: self.unsorted,
            report_gbits: self.report_gbits,
            cpu_util: self.cpu_util,
            data_validation: self.data_validation,
            transport: self.transport,
            rdma: self.rdma,
            acked_only: self.acked_only,
            layout: self.layout,
            memory: self.memory,
            device: self.device,
            secret_file: self.secret_file,
            json: self.json,
            spoil: self.spoil,
            spin: self.spin_us.map(|us| Duration::from_micros(u64::from(us))),
        })
    }

    /// What a server holds its client to: what its own command line says, and nothing else.
    pub fn claims(&self, test: Test) -> Claims {
        let all = self.all.then(|| all_sizes(test));
        Claims {
            test: Some(test),
            sizes: self.size.map(|size| vec![size]).or(all),
            limit: self.limit(),
            tx_depth: self.tx_depth,
            requests: self.requests,
            bidirectional: self.bidirectional.then_some(true),
            pingpong: self.pingpong.then_some(true),
            data_validation: self.data_validation.then_some(true),
            layout: Some(self.layout).filter(|layout| *layout != Layout::Contiguous),
            memory: Some(self.memory).filter(|memory| *memory != Origin::Alloc),
            acked_only: self.acked_only.then_some(true),
            transport: Some(self.transport).filter(|transport| *transport != Transport::Auto),
            lanes: self.lanes,
            spin_us: self.spin_us.map(u64::from),
        }
    }

    /// How long, if that was said.
    fn limit(&self) -> Option<Limit> {
        let seconds = self.duration_seconds.map(|seconds| Limit::Seconds(f64::from(seconds)));
        seconds.or(self.iterations.map(Limit::Transfers))
    }

    fn refuse_contradictions(&self, test: Test) -> Result<(), String> {
        let bandwidth_only = [
            ("-b", self.bidirectional),
            ("-t", self.tx_depth.is_some()),
            ("-l", self.requests.is_some()),
            ("--report_gbits", self.report_gbits),
            ("--cpu_util", self.cpu_util),
            ("--layout scattered", self.layout == Layout::Scattered),
        ];
        let latency_only = [("-H", self.histogram), ("-U", self.unsorted)];
        let (misplaced, kind) = match test.is_bandwidth() {
            true => (latency_only.iter().find(|option| option.1), "latency"),
            false => (bandwidth_only.iter().find(|option| option.1), "bandwidth"),
        };
        if let Some((option, _)) = misplaced {
            return Err(format!("{option} belongs to {kind} tests, and {} is none", test.title()));
        }
        if self.all && (self.histogram || self.unsorted) {
            return Err("-H and -U describe one size: give it with -s instead of -a".to_owned());
        }
        if self.pingpong && test != Test::WriteLat {
            return Err(format!("--pingpong belongs to write_lat, and this is the {}", test.title()));
        }
        if self.acked_only && test.operation() != Some(Operation::Write) {
            return Err(format!("--acked-only belongs to WRITE tests, and {} is none", test.title()));
        }
        self.rdma.refuse_without_rdma(self.transport, self.acked_only)?;
        if let Some(option) = self.device.argument() {
            if test == Test::NotifyLat {
                return Err(format!("{option} is of memory, and a notification carries none"));
            }
            if self.pingpong {
                return Err(format!("--pingpong polls its memory, and {option} says it is a device's"));
            }
        }
        if test == Test::NotifyLat && self.data_validation {
            return Err("--data_validation checks memory, and a notification carries none".to_owned());
        }
        if test == Test::NotifyLat && self.size.is_some_and(|size| size > NOTIFY_BYTES_MAX) {
            return Err(format!("a notification has at most {NOTIFY_BYTES_MAX} bytes"));
        }
        if self.host.is_none() && self.json.is_some() {
            return Err("--json is the client's: name the HOST to measure against".to_owned());
        }
        Ok(())
    }
}

/// A notification ends earlier.
fn all_sizes(test: Test) -> Vec<usize> {
    let largest = if test == Test::NotifyLat { NOTIFY_BYTES_MAX } else { usize::MAX };
    ALL_SIZES_LOG2.map(|log2| 1 << log2).filter(|size| *size <= largest).collect()
}
