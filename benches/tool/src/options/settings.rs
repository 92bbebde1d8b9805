//! A test's settings: its arguments with defaults filled in and contradictions refused, and the terms on which a
//! server insists.

use std::time::Duration;

use ferry::limits::NOTIFY_BYTES_MAX;
use ferry::Config;

use super::parse::address;
use super::{Test, TestArguments, Transport, PORT};
use crate::layout::Layout;
use crate::subject::{Origin, Term};
use crate::workload::{Limit, Named, Operation};

/// A size's transfers run in this many batches: the fastest batch is the peak.
pub const BATCHES: u64 = 5;
const BANDWIDTH_BYTES: usize = 65_536;
const LATENCY_BYTES: usize = 2;
const ITERATIONS: Limit = Limit::Transfers(1_000);
/// A row of --run_infinitely, if -D says nothing else.
const ENDLESS_ROW: Limit = Limit::Seconds(5.0);
/// Enough to walk all memory once, on any machine where that takes less.
const WARM_UP_SECONDS_MAX: f64 = 1.0;
/// More than `LATENCY_SLOTS`: each slot has been used.
const WARM_UP_SAMPLES: u64 = 100;
const TX_DEPTH: usize = 128;
/// `-a` measures powers of two from 2^1 to 2^23.
const ALL_SIZES_LOG2: std::ops::RangeInclusive<u32> = 1..=23;

/// A test's arguments with defaults filled in, without contradictions.
#[derive(Clone, Debug)]
pub struct Settings {
    pub test: Test,
    pub sizes: Vec<usize>,
    pub limit: Limit,
    /// What each size runs before the limit, uncounted: the first transfers find no pages and no lanes.
    pub warm_up: Option<Limit>,
    pub tx_depth: usize,
    pub requests: usize,
    /// The server's `host:port`; `None`: this is the server.
    pub server: Option<String>,
    /// All other options, as given.
    pub said: TestArguments,
}

impl TestArguments {
    /// Returns the settings for `test`, or a sentence that names the contradiction.
    pub fn settle(self, test: Test) -> Result<Settings, String> {
        self.refuse_contradictions(test)?;
        let limit = self.limit().unwrap_or(ITERATIONS);
        Ok(Settings {
            test,
            sizes: self.sizes(test).unwrap_or_else(|| vec![default_bytes(test)]),
            limit,
            warm_up: self.warm_up(test, limit)?,
            tx_depth: self.tx_depth.unwrap_or(default_depth(test)),
            requests: self.requests.unwrap_or(1),
            server: self.host.as_deref().map(|host| address(host, self.port, PORT)).transpose()?,
            said: self,
        })
    }

    /// Returns the terms that both ends must share. The client decides terms that the server was not given. `config`
    /// is that of this end's engine, whose spinning counts even if it was not given: a latency depends on both ends.
    pub fn terms(&self, test: Test, config: &Config) -> Vec<Term> {
        let number = |option, said: Option<usize>, default: usize| Term::new(option, said, default);
        let flag = |option, on: bool| Term::new(option, on.then_some("on"), "off");
        let choice = |option, said: String, default: String| {
            Term::new(option, Some(&said).filter(|said| **said != default), &default)
        };
        let lanes = if self.transport == Transport::Rdma { config.rdma_qps } else { config.lanes };
        vec![
            Term::new("the test", Some(test.name()), ""),
            Term::new("-s or -a", self.sizes(test).map(describe), default_bytes(test)),
            Term::new("-n or -D", self.limit(), ITERATIONS),
            number("-t", self.tx_depth, default_depth(test)),
            number("-l", self.requests, 1),
            flag("-b", self.bidirectional),
            flag("--pingpong", self.pingpong),
            flag("--data_validation", self.data_validation),
            flag("--acked-only", self.acked_only),
            choice("--layout", self.layout.name(), Layout::Contiguous.name()),
            choice("--memory", self.memory.name(), Origin::Alloc.name()),
            choice("--transport", self.transport.name(), Transport::Auto.name()),
            Term::new("-q", self.lanes, lanes),
            Term::new("--spin-us", Some(config.spin_us), config.spin_us),
        ]
    }

    pub fn spin(&self) -> Option<Duration> {
        self.spin_us.map(|us| Duration::from_micros(u64::from(us)))
    }

    /// Returns the run's limit, if given.
    fn limit(&self) -> Option<Limit> {
        let seconds = self.duration_seconds.map(|seconds| Limit::Seconds(f64::from(seconds)));
        let endless = self.perftest.run_infinitely.then_some(ENDLESS_ROW);
        seconds.or(endless).or(self.iterations.map(Limit::Transfers))
    }

    fn warm_up(&self, test: Test, limit: Limit) -> Result<Option<Limit>, String> {
        let Some(said) = self.warm_up else {
            return Ok(Some(match (test.is_bandwidth(), limit) {
                // The walk begins anew in each batch, so one more batch touches the pages of all.
                (true, Limit::Transfers(count)) => Limit::Transfers(count.div_ceil(BATCHES)),
                (true, Limit::Seconds(seconds)) => {
                    Limit::Seconds((seconds / BATCHES as f64).min(WARM_UP_SECONDS_MAX))
                }
                (false, Limit::Transfers(count)) => Limit::Transfers(count.min(WARM_UP_SAMPLES)),
                (false, Limit::Seconds(_)) => Limit::Transfers(WARM_UP_SAMPLES),
            }));
        };
        match limit {
            _ if said == 0.0 => Ok(None),
            Limit::Seconds(_) => Ok(Some(Limit::Seconds(said))),
            Limit::Transfers(_) if said.fract() == 0.0 => Ok(Some(Limit::Transfers(said as u64))),
            Limit::Transfers(_) => {
                Err(format!("--warm-up {said} is no number of transfers; it is of seconds with -D"))
            }
        }
    }

    /// Returns the sizes, if given. Those of a notification end earlier.
    fn sizes(&self, test: Test) -> Option<Vec<usize>> {
        let largest = if test == Test::NotifyLat { NOTIFY_BYTES_MAX } else { usize::MAX };
        let all = || ALL_SIZES_LOG2.map(|log2| 1 << log2).filter(|size| *size <= largest).collect();
        self.size.map(|size| vec![size]).or_else(|| self.all.then(all))
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
        let (misplaced, kind) = if test.is_bandwidth() {
            (latency_only.iter().find(|option| option.1), "latency")
        } else {
            (bandwidth_only.iter().find(|option| option.1), "bandwidth")
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
        self.perftest.refuse_contradictions(test)?;
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
        let of_client = [("--json", self.json.is_some()), ("--plot", self.plot.is_some())];
        if let Some((option, _)) = of_client.iter().find(|option| option.1 && self.host.is_none()) {
            return Err(format!("{option} is the client's: name the HOST to measure against"));
        }
        Ok(())
    }
}

fn default_bytes(test: Test) -> usize {
    if test.is_bandwidth() {
        BANDWIDTH_BYTES
    } else {
        LATENCY_BYTES
    }
}

fn default_depth(test: Test) -> usize {
    if test.is_bandwidth() {
        TX_DEPTH
    } else {
        1
    }
}

fn describe(sizes: Vec<usize>) -> String {
    match sizes[..] {
        [only] => only.to_string(),
        [first, .., last] => format!("{} sizes from {first} to {last}", sizes.len()),
        [] => "none".to_owned(),
    }
}
