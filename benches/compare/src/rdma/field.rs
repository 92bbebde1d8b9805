//! The sides during the measurements: each starts when a row needs it, and is kept. A side that fails starts anew for
//! the next row, unless it can never reach its target.

use std::collections::HashMap;

use anyhow::bail;
use ferry::Error;
use ferry_bench::stats::Latency;
use ferry_bench::subject::{unavailable, Flight, Origin, Pair, PairConfig, Setup};
use ferry_bench::workload::{Engine, LatencyWorkload, Limit, Operation, Workload};
use serde_json::json;

use super::perftest;
use super::rows::{Row, Side, Throughput, Visibility, WALK_BYTES_MAX};
use super::{Mooncake, Places};
use crate::contest::Plan;
use crate::peers::{Launch, PythonEngine};
use crate::raw::verbs::VerbsEngine;
use crate::role::Port;

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
    no_path: Option<Error>,
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
        let settings = match side {
            Side::Perftest => Some(format!("{} {}", perftest.tool, perftest.settings().join(" "))),
            Side::Verbs(_) => self.verbs.as_ref().map(|engine| engine.settings(merged)),
            Side::Ferry(_) => self.ferry.as_ref().map(|pair| pair.client.settings(workload)),
            Side::Mooncake => {
                self.places.mooncake.as_ref().map(|with| format!("{} batches in flight", with.in_flight))
            }
        };
        settings.unwrap_or_default()
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
        let engine = match &mut self.verbs {
            Some(engine) => engine,
            none => none.insert(start_verbs(&self.places)?),
        };
        engine.set_flush(visibility == Visibility::Proven);
        measure(engine, row, &self.plan)
    }

    fn ferry(&mut self, row: &Row, visibility: Visibility) -> anyhow::Result<f64> {
        if let Some(reason) = &self.no_path {
            return Err(reason.clone().into());
        }
        let started = match &mut self.ferry {
            Some(pair) => Ok(pair),
            none => start_ferry(&self.places).map(|pair| none.insert(pair)),
        };
        let client = &mut started.inspect_err(|error| self.no_path = unavailable(error).cloned())?.client;
        client.set_acked_only(visibility == Visibility::AckedOnly);
        let Row::Throughput(terms) = row else { return measure(client, row, &self.plan) };
        client.set_flight(Flight { threads: 1, in_flight: terms.in_flight });
        let slices = client.engine().stats()?.counts.slices_out;
        let sample = client.throughput(&terms.workload, Limit::Seconds(self.plan.seconds))?;
        let slices = client.engine().stats()?.counts.slices_out - slices;
        self.requests_per_transfer = Some(slices as f64 / sample.transfers as f64);
        Ok(sample.gb_per_second() * 1e3)
    }

    fn mooncake(&mut self, row: &Row) -> anyhow::Result<f64> {
        let Row::Throughput(terms) = row else { bail!("Mooncake has no such test") };
        let engine = match &mut self.mooncake {
            Some(engine) => engine,
            none => none.insert(start_mooncake(&self.places)?),
        };
        engine.wake();
        engine.prepare(&terms.workload)?;
        let measured = throughput(engine, &terms.workload, &self.plan);
        // Its threads poll, and would slow the next side.
        engine.rest();
        measured
    }
}

fn start_verbs(places: &Places) -> anyhow::Result<VerbsEngine> {
    let port = |device: &str| Port {
        device: device.to_owned(),
        gid_index: places.gid_index,
        mtu: places.mtu.unwrap_or(MTU_MAX),
        queues: places.queue_pairs.unwrap_or(1) as usize,
    };
    let ends = [&port(&places.initiator), &port(&places.target)];
    VerbsEngine::start(&places.program, WALK_BYTES_MAX, ends)
}

fn start_ferry(places: &Places) -> anyhow::Result<Pair> {
    let end = |device: &str| {
        Setup::default()
            .given("transports", places.transport.forced())
            .given("rdma_qps", places.queue_pairs)
            .with_all(places.options(device).settings())
    };
    Pair::start(&PairConfig {
        program: places.program.clone(),
        memory_bytes: WALK_BYTES_MAX,
        ends: [end(&places.initiator), end(&places.target)],
        memory: Origin::Own,
        pingpong: true,
    })
}

fn start_mooncake(places: &Places) -> anyhow::Result<PythonEngine> {
    let Some(Mooncake { python: Some(python), scripts, in_flight }) = places.mooncake.clone() else {
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

/// Measures a row with one of this program's engines.
fn measure(engine: &mut dyn Engine, row: &Row, plan: &Plan) -> anyhow::Result<f64> {
    let p50_us = |nanoseconds: Vec<u64>| anyhow::Ok(Latency::of(0, &nanoseconds)?.p50_us);
    match row {
        Row::Throughput(terms) => throughput(engine, &terms.merged, plan),
        Row::PingPong(bytes) => Ok(p50_us(engine.ping_pongs(*bytes, plan.samples)?)? / 2.0),
        Row::Done(bytes) => {
            p50_us(engine.latency(&LatencyWorkload::of(Operation::Write, *bytes, plan.samples))?)
        }
    }
}

/// Returns MB/s.
fn throughput(engine: &mut dyn Engine, workload: &Workload, plan: &Plan) -> anyhow::Result<f64> {
    Ok(engine.throughput(workload, Limit::Seconds(plan.seconds))?.gb_per_second() * 1e3)
}
