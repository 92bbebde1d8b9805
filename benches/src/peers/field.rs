//! The engines during the measurements: each starts when a row needs it, and sleeps while others are measured. An
//! engine that fails is out for the row, and starts anew for the next.

use std::path::PathBuf;

use anyhow::{anyhow, Context};

use super::agent::Refusal;
use super::python::PythonEngine;
use super::results::{Figures, Outcome, Taker};
use super::roster::Entry;
use super::rows::{Quantity, Row, PEERS, PEER_WALK_BYTES, WALK_BYTES};
use crate::stats::Latency;
use crate::workload::{Engine, LatencyWorkload, Limit, Operation, Workload};

/// The amount of one measurement.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    pub seconds: f64,
    pub samples: usize,
}

/// An entry's running engines.
struct Live {
    /// A reference of this program, if that moves the bulk.
    reference: Option<Box<dyn Engine>>,
    /// Everything else.
    python: Option<PythonEngine>,
    targets: usize,
}

impl Live {
    fn bulk(&mut self) -> anyhow::Result<&mut dyn Engine> {
        let python = self.python.as_mut().map(|engine| engine as &mut dyn Engine);
        let engine = self.reference.as_deref_mut().map(|engine| engine as &mut dyn Engine).or(python);
        engine.context("it is not running")
    }

    /// Returns the engine for latencies: a latency is that of Python's users, for the bare system call too.
    fn single(&mut self) -> anyhow::Result<&mut dyn Engine> {
        if self.python.is_none() {
            return self.bulk();
        }
        self.python.as_mut().map(|engine| engine as &mut dyn Engine).context("it is not running")
    }

    fn rest(&mut self) {
        self.python.iter_mut().for_each(PythonEngine::rest);
    }

    fn wake(&mut self) {
        self.python.iter_mut().for_each(PythonEngine::wake);
    }
}

/// One engine's place in the comparison.
pub struct Place {
    pub entry: Entry,
    live: Option<Live>,
    taker: Taker,
    /// This binary, from which the raw reference starts its other end.
    program: PathBuf,
    spoil: bool,
    /// The reason why the engine is out of the current row.
    out: Option<Outcome>,
    runs: Vec<Figures>,
}

impl Place {
    pub fn new(entry: Entry, program: PathBuf, spoil: bool) -> Place {
        let settings = entry.settings.clone();
        let (version, path) = (String::new(), String::new());
        let taker = Taker { engine: entry.name, version, settings, path };
        Place { entry, live: None, taker, program, spoil, out: None, runs: Vec::new() }
    }

    pub fn taker(&self) -> &Taker {
        &self.taker
    }

    pub fn in_row(&self) -> bool {
        self.out.is_none()
    }

    /// Prepares for a row, untimed.
    pub fn enter(&mut self, row: &Row) {
        self.runs.clear();
        self.out = self.inapplicable(row);
        if self.out.is_none() {
            let ready = self.prepare(row);
            self.note(ready);
        }
        self.rest();
    }

    fn inapplicable(&self, row: &Row) -> Option<Outcome> {
        if let Some(reason) = &self.entry.absent {
            return Some(Outcome::Unavailable { reason: reason.clone() });
        }
        let raw = self.entry.name.starts_with("raw");
        let reason = match row {
            Row::Setup if raw => "there is nothing to set up",
            Row::Peers(_) if self.entry.python.is_none() => "the reference has one peer",
            _ => return None,
        };
        Some(Outcome::NotApplicable { reason: reason.to_owned() })
    }

    fn prepare(&mut self, row: &Row) -> anyhow::Result<()> {
        let (targets, workload) = match row {
            // Each round starts a pair of its own.
            Row::Setup => return Ok(()),
            Row::Throughput(workload) => (1, Some(workload)),
            Row::Latency(_) => (1, None),
            Row::Peers(workload) => (PEERS, Some(workload)),
        };
        if self.live.as_ref().is_some_and(|live| live.targets != targets) {
            self.live = None;
        }
        if self.live.is_none() {
            self.live = Some(self.start(targets)?);
        }
        let Some(live) = &mut self.live else { return Ok(()) };
        live.wake();
        let engine = live.bulk()?;
        self.taker.path = engine.path();
        workload.map_or(Ok(()), |workload| engine.prepare(workload))
    }

    fn start(&mut self, targets: usize) -> anyhow::Result<Live> {
        let (reference, launch) = (self.entry.reference, self.entry.python.as_ref());
        let reference = reference.filter(|_| targets == 1);
        let reference = reference.map(|reference| reference.start(&self.program)).transpose()?;
        let area_bytes = if targets == 1 { WALK_BYTES } else { PEER_WALK_BYTES };
        let start = |launch| PythonEngine::start(self.entry.name, launch, targets, area_bytes);
        let mut python = launch.map(start).transpose()?;
        self.taker.version = match &python {
            Some(engine) => engine.version().to_owned(),
            None => env!("CARGO_PKG_VERSION").to_owned(),
        };
        if self.spoil {
            python.iter_mut().for_each(PythonEngine::spoil_checks);
        }
        Ok(Live { reference, python, targets })
    }

    /// Runs one round of the row.
    pub fn run(&mut self, row: &Row, amount: Amount) {
        if self.out.is_some() {
            return;
        }
        let figures = self.measure(row, amount);
        match figures {
            Ok(figures) => self.runs.push(figures),
            Err(error) => {
                let round = self.runs.len() + 1;
                self.note(Err(error.context(format!("round {round}"))));
            }
        }
        self.rest();
    }

    fn measure(&mut self, row: &Row, amount: Amount) -> anyhow::Result<Figures> {
        if let (Row::Setup, Some(launch)) = (row, &self.entry.python) {
            let took = PythonEngine::time_setup(launch)?;
            let figures =
                [(Quantity::ConnectMs, took.connect * 1e3), (Quantity::RegisterMs, took.register * 1e3)];
            return Ok(figures.into());
        }
        let live = self.live.as_mut().context("it is not running")?;
        live.wake();
        match row {
            Row::Throughput(workload) | Row::Peers(workload) => throughput(live.bulk()?, workload, amount),
            Row::Latency(bytes) => latency(live.single()?, *bytes, amount),
            Row::Setup => Err(anyhow!("there is nothing to set up")),
        }
    }

    /// Returns the engine's outcome on the row.
    pub fn leave(&mut self) -> Outcome {
        self.out.take().unwrap_or_else(|| Outcome::measured(&self.runs))
    }

    /// Ends the engine's processes: they start again when a row needs them.
    pub fn end(&mut self) {
        self.live = None;
    }

    fn rest(&mut self) {
        if let Some(live) = &mut self.live {
            live.rest();
        }
    }

    fn note(&mut self, result: anyhow::Result<()>) {
        let Err(error) = result else { return };
        // The engine may be in any state, so the next row starts another.
        self.live = None;
        let unavailable = error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.unavailable);
        let reason = format!("{error:#}");
        self.out = Some(match unavailable {
            true => Outcome::Unavailable { reason },
            false => Outcome::Failed { reason },
        });
    }
}

fn throughput(engine: &mut dyn Engine, workload: &Workload, amount: Amount) -> anyhow::Result<Figures> {
    let sample = engine.throughput(workload, Limit::Seconds(amount.seconds))?;
    Ok(Figures::from([
        (Quantity::GbPerSecond, sample.gb_per_second()),
        (Quantity::CpuSecondsPerGib, sample.cpu_seconds_per_gib()),
    ]))
}

fn latency(engine: &mut dyn Engine, bytes: usize, amount: Amount) -> anyhow::Result<Figures> {
    let nanoseconds = engine.latency(&LatencyWorkload::of(Operation::Write, bytes, amount.samples))?;
    let latency = Latency::of(bytes, &nanoseconds)?;
    Ok(Figures::from([(Quantity::P50Us, latency.p50_us), (Quantity::P99Us, latency.p99_us)]))
}
