//! The engines during the measurements: each starts when a row needs it, and sleeps while others are measured. An
//! engine that fails is out for the row, and starts anew for the next.

use std::path::PathBuf;

use anyhow::{bail, Context};
use ferry_bench::workload::Engine;

use super::python::PythonEngine;
use super::roster::Entry;
use super::rows::{Row, PEER_WALK_BYTES, WALK_BYTES};
use crate::contest::{Outcome, Plan, Taker};
use crate::figures::{Job, Run};

/// An entry's running engines.
struct Live {
    /// A reference of this program, if that moves the bulk.
    reference: Option<Box<dyn Engine>>,
    /// Everything else.
    python: Option<PythonEngine>,
    targets: usize,
}

impl Live {
    /// Returns the engine for a job: a latency is that of Python's users, for the bare system call too.
    fn engine(&mut self, job: &Job) -> anyhow::Result<&mut dyn Engine> {
        let python = self.python.as_mut().map(|engine| engine as &mut dyn Engine);
        let reference = self.reference.as_mut().map(|engine| &mut **engine as &mut dyn Engine);
        let engine = match job {
            Job::Throughput(_) => reference.or(python),
            Job::Latency(_) => python.or(reference),
        };
        engine.context("it is not running")
    }

    /// Returns the path of the engine that moves the bulk.
    fn path(&self) -> String {
        let python = self.python.as_ref().map(Engine::path);
        self.reference.as_ref().map(|engine| engine.path()).or(python).unwrap_or_default()
    }
}

/// One engine's place in the comparison.
pub struct Place {
    entry: Entry,
    live: Option<Live>,
    pub taker: Taker,
    /// This binary, from which the raw reference starts its other end.
    program: PathBuf,
    spoil: bool,
}

impl Place {
    pub fn new(entry: Entry, program: PathBuf, spoil: bool) -> Place {
        let settings = entry.settings.clone();
        let (version, path) = (String::new(), String::new());
        let taker = Taker { engine: entry.name, version, settings, path };
        Place { entry, live: None, taker, program, spoil }
    }

    /// Prepares for a row, untimed. Returns the reason why the engine is out of it, if it is.
    pub fn enter(&mut self, row: &Row, plan: &Plan) -> Option<Outcome> {
        let out = self.inapplicable(row).or_else(|| {
            let ready = self.prepare(row, plan);
            self.settled(ready).err().map(|error| Outcome::of_error(&error))
        });
        self.rest();
        out
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

    fn prepare(&mut self, row: &Row, plan: &Plan) -> anyhow::Result<()> {
        // Each round of setup steps starts a pair of its own.
        let Some(job) = row.job(plan.samples) else { return Ok(()) };
        let live = match self.live.take().filter(|live| live.targets == row.targets()) {
            Some(live) => live,
            None => self.start(row.targets())?,
        };
        let live = self.live.insert(live);
        live.python.iter_mut().for_each(PythonEngine::wake);
        self.taker.path = live.path();
        job.prepare(live.engine(&job)?)
    }

    fn start(&mut self, targets: usize) -> anyhow::Result<Live> {
        let (reference, launch) = (self.entry.reference, self.entry.python.as_ref());
        let reference = reference.filter(|_| targets == 1);
        let reference = reference.map(|start| start(&self.program)).transpose()?;
        let area_bytes = if targets == 1 { WALK_BYTES } else { PEER_WALK_BYTES };
        let start = |launch| PythonEngine::start(self.entry.name, launch, targets, area_bytes);
        let mut python = launch.map(start).transpose()?;
        let version = python.as_ref().map_or(env!("CARGO_PKG_VERSION"), PythonEngine::version);
        self.taker.version = version.to_owned();
        if self.spoil {
            python.iter_mut().for_each(PythonEngine::spoil_checks);
        }
        Ok(Live { reference, python, targets })
    }

    /// Runs one round of the row.
    pub fn run(&mut self, row: &Row, plan: &Plan) -> anyhow::Result<Run> {
        let measured = self.measure(row, plan);
        let measured = self.settled(measured);
        self.rest();
        measured
    }

    fn measure(&mut self, row: &Row, plan: &Plan) -> anyhow::Result<Run> {
        let Some(job) = row.job(plan.samples) else {
            let Some(launch) = &self.entry.python else { bail!("there is nothing to set up") };
            return PythonEngine::time_setup(launch);
        };
        let live = self.live.as_mut().context("it is not running")?;
        live.python.iter_mut().for_each(PythonEngine::wake);
        job.run(live.engine(&job)?, plan.seconds)
    }

    /// Ends the engine's processes: they start again when a row needs them.
    pub fn end(&mut self) {
        self.live = None;
    }

    fn rest(&mut self) {
        self.live.iter_mut().filter_map(|live| live.python.as_mut()).for_each(PythonEngine::rest);
    }

    /// After an error the engine may be in any state, so the next row starts another.
    fn settled<T>(&mut self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        if result.is_err() {
            self.live = None;
        }
        result
    }
}
