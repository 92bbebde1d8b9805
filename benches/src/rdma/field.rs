//! The sides during the measurements: each starts when a row needs it, and is kept. A side that fails starts anew for
//! the next row, unless it can never reach its target.

use std::collections::HashMap;

use anyhow::{bail, Context};
use serde_json::json;

use super::perftest;
use super::rows::{Row, Side, Throughput, Visibility, WALK_BYTES_MAX};
use super::{Mooncake, Places, Plan};
use crate::peers::{Launch, PythonEngine};
use crate::raw::verbs::{Port, VerbsConfig, VerbsEngine};
use crate::stats::Latency;
use crate::subject::{Flight, NoPath, Origin, Pair, PairConfig, Setup};
use crate::workload::{Engine, LatencyWorkload, Limit, Operation, Workload};

/// The speed that is assumed of perftest before its first run of a row.
const MB_PER_SECOND_GUESSED: f64 = 30.0;
const MTU_MAX: u32 = 4_096;

pub struct Field {
    plan: Plan,
    places: Places,
    verbs: Option<VerbsEngine>,
    ferry: Option<Pair>,
    mooncake: Option<PythonEngine>,
    /// The reason why ferry's target can't be reached, now or later.
    no_path: Option<String>,
    /// perftest's last speed, by row.
    speeds: HashMap<String, f64>,
    /// From ferry's last throughput run.
    requests_per_transfer: Option<f64>,
}

impl Field {
    pub fn new(plan: Plan, places: Places) -> Field {
        Field {
            plan,
            places,
            verbs: None,
            ferry: None,
            mooncake: None,
            no_path: None,
            speeds: HashMap::new(),
            requests_per_transfer: None,
        }
    }

    pub fn sides(&self, row: &Row) -> Vec<Side> {
        row.sides(self.places.mooncake.is_some())
    }

    /// Measures one value of the row's quantity.
    pub fn measure(&mut self, row: &Row, side: Side) -> anyhow::Result<f64> {
        let measured = match side {
            Side::Perftest => return self.perftest(row),
            Side::Verbs(visibility) => self.verbs(row, visibility),
            Side::Ferry(visibility) => self.ferry(row, visibility),
            Side::Mooncake => self.mooncake(row),
        };
        if measured.is_err() {
            match side {
                Side::Verbs(_) => self.verbs = None,
                Side::Ferry(_) => self.ferry = None,
                Side::Mooncake | Side::Perftest => self.mooncake = None,
            }
        }
        measured
    }

    /// Returns the side's settings, for the record.
    pub fn settings(&self, row: &Row, side: Side) -> String {
        let Row::Throughput(Throughput { workload, merged, perftest, .. }) = row else {
            return String::new();
        };
        match side {
            Side::Perftest => format!("{} {}", perftest.tool.name(), perftest.settings().join(" ")),
            Side::Verbs(_) => self.verbs.as_ref().map_or(String::new(), |engine| engine.settings(merged)),
            Side::Ferry(_) => {
                self.ferry.as_ref().map_or(String::new(), |pair| pair.client.settings(workload))
            }
            Side::Mooncake => {
                let asked = self.places.mooncake.as_ref();
                asked.map_or(String::new(), |with| format!("{} batches in flight", with.in_flight))
            }
        }
    }

    /// Returns the slices of each transfer in ferry's last throughput run, if there was a run since the last call.
    pub fn take_requests(&mut self) -> Option<f64> {
        self.requests_per_transfer.take()
    }

    fn perftest(&mut self, row: &Row) -> anyhow::Result<f64> {
        match row {
            Row::Throughput(terms) => {
                let last = self.speeds.get(&row.name()).copied().unwrap_or(MB_PER_SECOND_GUESSED);
                let bytes_wanted = last * 1e6 * self.plan.seconds;
                let found = perftest::bandwidth(&self.places, &terms.perftest, bytes_wanted)?;
                self.speeds.insert(row.name(), found);
                Ok(found)
            }
            Row::PingPong(bytes) => perftest::latency(&self.places, *bytes, self.plan.samples),
            Row::Done(_) => bail!("perftest has no such test"),
        }
    }

    fn verbs(&mut self, row: &Row, visibility: Visibility) -> anyhow::Result<f64> {
        let (seconds, samples) = (self.plan.seconds, self.plan.samples);
        if self.verbs.is_none() {
            self.verbs = Some(self.start_verbs()?);
        }
        let engine = self.verbs.as_mut().context("just started")?;
        engine.set_flush(visibility == Visibility::Proven);
        match row {
            Row::Throughput(terms) => throughput(engine, &terms.merged, seconds),
            Row::Done(bytes) => until_done(engine, *bytes, samples),
            Row::PingPong(_) => bail!("the verbs reference has a passive target"),
        }
    }

    fn ferry(&mut self, row: &Row, visibility: Visibility) -> anyhow::Result<f64> {
        let (seconds, samples) = (self.plan.seconds, self.plan.samples);
        if self.ferry.is_none() {
            self.ferry = Some(self.start_ferry()?);
        }
        let client = &mut self.ferry.as_mut().context("just started")?.client;
        client.set_acked_only(visibility == Visibility::AckedOnly);
        match row {
            Row::Throughput(terms) => {
                client.set_flight(Flight { threads: 1, in_flight: terms.in_flight });
                let slices = client.engine().stats()?.counts.slices_out;
                let sample = client.throughput(&terms.workload, Limit::Seconds(seconds))?;
                let slices = client.engine().stats()?.counts.slices_out - slices;
                self.requests_per_transfer = Some(slices as f64 / sample.transfers as f64);
                Ok(sample.gb_per_second() * 1e3)
            }
            Row::PingPong(bytes) => Ok(p50_us(&client.ping_pongs(*bytes, samples)?)? / 2.0),
            Row::Done(bytes) => until_done(client, *bytes, samples),
        }
    }

    fn mooncake(&mut self, row: &Row) -> anyhow::Result<f64> {
        let Row::Throughput(terms) = row else { bail!("Mooncake has no such test") };
        if self.mooncake.is_none() {
            self.mooncake = Some(self.start_mooncake()?);
        }
        let engine = self.mooncake.as_mut().context("just started")?;
        engine.wake();
        engine.prepare(&terms.workload)?;
        let measured = throughput(engine, &terms.workload, self.plan.seconds);
        // Its threads poll, and would slow the next side.
        engine.rest();
        measured
    }

    fn start_verbs(&self) -> anyhow::Result<VerbsEngine> {
        let places = &self.places;
        let port = |device: &str| Port {
            device: device.to_owned(),
            gid_index: places.gid_index,
            mtu: places.mtu.unwrap_or(MTU_MAX),
            queues: places.queue_pairs.unwrap_or(1) as usize,
        };
        VerbsEngine::start(&VerbsConfig {
            program: places.program.clone(),
            memory_bytes: WALK_BYTES_MAX,
            initiator: port(&places.initiator),
            target: port(&places.target),
        })
    }

    fn start_ferry(&mut self) -> anyhow::Result<Pair> {
        if let Some(reason) = &self.no_path {
            return Err(NoPath(reason.clone()).into());
        }
        let places = &self.places;
        let end = |device: &str| Setup {
            transport: places.transport,
            rdma: places.options(device),
            qps: places.queue_pairs,
            ..Setup::default()
        };
        let started = Pair::start_for_ping_pongs(&PairConfig {
            program: places.program.clone(),
            memory_bytes: WALK_BYTES_MAX,
            ends: [end(&places.initiator), end(&places.target)],
            memory: Origin::Own,
        });
        if let Some(NoPath(reason)) = started.as_ref().err().and_then(|error| error.downcast_ref()) {
            self.no_path = Some(reason.clone());
        }
        started
    }

    fn start_mooncake(&self) -> anyhow::Result<PythonEngine> {
        let places = &self.places;
        let Some(Mooncake { python, scripts, in_flight }) = places.mooncake.clone() else {
            bail!("--mooncake was not given");
        };
        let options = |device: &str| json!({"in_flight": in_flight, "protocol": "rdma", "device": device});
        let mut variables = vec![
            ("MC_GID_INDEX".to_owned(), places.gid_index.to_string()),
            ("MC_LOG_LEVEL".to_owned(), "WARNING".to_owned()),
        ];
        variables.extend(places.mtu.map(|mtu| ("MC_MTU".to_owned(), mtu.to_string())));
        let launch = Launch {
            python,
            agent: scripts.join("agent.py"),
            engine: "mooncake".to_owned(),
            initiator: options(&places.initiator),
            target: options(&places.target),
            variables,
            log: "/dev/null".into(),
            polls_when_idle: true,
        };
        PythonEngine::start("Mooncake", &launch, 1, WALK_BYTES_MAX)
    }
}

/// Returns MB/s.
fn throughput(engine: &mut dyn Engine, workload: &Workload, seconds: f64) -> anyhow::Result<f64> {
    Ok(engine.throughput(workload, Limit::Seconds(seconds))?.gb_per_second() * 1e3)
}

fn until_done(engine: &mut dyn Engine, bytes: usize, samples: usize) -> anyhow::Result<f64> {
    p50_us(&engine.latency(&LatencyWorkload::of(Operation::Write, bytes, samples))?)
}

fn p50_us(nanoseconds: &[u64]) -> anyhow::Result<f64> {
    Ok(Latency::of(0, nanoseconds)?.p50_us)
}
