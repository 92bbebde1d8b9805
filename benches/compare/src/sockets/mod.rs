//! `ferry-compare sockets`, which `make bench` runs: ferry over TCP beside raw sockets, ferry alone with several
//! threads, beside bulk, idle and with many peers, and ferry's same-host path beside the least that a program can do.

mod costs;
mod crowd;
mod plot;
mod rows;
mod same_host;
mod yardstick;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use ferry_bench::cpu::allowed_cpus;
use ferry_bench::layout::Layout;
use ferry_bench::options::Transport;
use ferry_bench::subject::{Client, Flight, Origin, Pair, PairConfig, Setup};
use ferry_bench::workload::{format_bytes, Engine, LatencyWorkload, Limit, Operation, Workload, KIB, MIB};

use crate::contest::{measure, parse_seconds, Beside, Plan, Results, Side, Taker, Target};
use crate::figures::{Job, Quantity, Run};
use crate::judge::Goal;
use crate::raw::{RawEngine, CONGESTION_CONTROL};
use crate::screen;

pub use crowd::serve_crowd;
pub use plot::drawing;

use rows::{Goals, Row, WALK_BYTES};

/// Bytes of each transfer whose time is taken.
const BYTES: usize = 4 * KIB;
const REFERENCE: &str = "raw";
const SUBJECT: &str = "ferry";

const THREADS: usize = 4;
const IN_FLIGHT: usize = 64;
/// Transfers of one request each, from several threads to one peer. Small ones are judged by their number, larger ones
/// by bytes.
const SUBMITTED: [(usize, Quantity); 2] =
    [(4 * KIB, Quantity::MillionMessagesPerSecond), (64 * KIB, Quantity::GbPerSecond)];

const BESIDE: &str = "WRITE 4 KiB synchronous beside 1 GiB bulk";
const BULK: Workload = Workload {
    operation: Operation::Write,
    layout: Layout::Contiguous,
    block_bytes: MIB,
    blocks: 1_024,
    walk_bytes: 1_024 * MIB,
};
/// The goal of the p99 only.
const BESIDE_GOAL: Goal = Goal::AtMost(5.0);

/// The measurements besides the plan's rows.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    pub plan: Plan,
    /// Seconds for which idle engines are watched
    #[arg(long, default_value_t = 10.0, value_parser = parse_seconds)]
    pub idle_seconds: f64,
    /// Engines that are connected to one
    #[arg(long, default_value_t = 1_000, value_parser = ferry_bench::options::parse_count)]
    pub peers: usize,
    /// Both ends look for data this long before sleeping, in microseconds
    #[arg(long = "spin-us", default_value_t = 50)]
    pub spin_us: u32,
    /// ferry's memory in the rows over TCP; those of one machine have each kind
    #[arg(long, value_enum, default_value_t = Origin::Own)]
    pub memory: Origin,
    /// Congestion control of both sides, where the host allows it
    #[arg(long = "congestion-control", default_value = CONGESTION_CONTROL)]
    pub congestion_control: String,
}

impl Options {
    /// Returns ferry's defaults, except where the reference differs from them: both then use the reference's.
    fn setup(&self) -> anyhow::Result<Setup> {
        let (spin_us, defaults) = (self.spin_us, Setup::default().config()?);
        let congestion_control = Some(&self.congestion_control);
        // Raw sockets are the reference; the paths that ferry would choose on one host have rows of their own.
        Ok(Setup::default()
            .given("transports", Transport::Tcp.forced())
            .given("spin_us", Some(spin_us).filter(|&spin_us| u64::from(spin_us) != defaults.spin_us))
            .given("tcp_congestion", congestion_control.filter(|name| *name != CONGESTION_CONTROL)))
    }
}

/// Measures everything, and prints each row as it is measured. `program` is this program.
pub fn run(options: &Options, program: PathBuf, out: &mut dyn Write) -> anyhow::Result<Results> {
    let mut reference = RawEngine::start_best(&program, WALK_BYTES, &options.congestion_control)?;
    let (end, memory) = (options.setup()?, options.memory);
    let ends = [end.clone(), end];
    let config = PairConfig { program, memory_bytes: WALK_BYTES, ends, memory, pingpong: false };
    let mut pair = Pair::start(&config)?;
    let mut course = Course::start(options, [&reference, &pair.client], out)?;
    course.sockets(&mut reference, &mut pair.client)?;
    yardstick::over_tcp(&mut course, &mut reference)?;
    course.submission(&mut pair.client)?;
    course.found.costs.extend(costs::idle(options, &pair)?);
    course.found.costs.extend(costs::crowd(options, &config.program)?);
    course.beside(&config)?;
    same_host::measure(&mut course, &config)?;
    screen::summary(course.out, &course.found)?;
    screen::failures(course.out, &course.found)?;
    Ok(course.found)
}

/// A comparison under way: prints each row as it is measured, and keeps it.
struct Course<'a> {
    options: &'a Options,
    plan: &'a Plan,
    out: &'a mut dyn Write,
    found: Results,
}

impl<'a> Course<'a> {
    fn start(
        options: &'a Options,
        engines: [&dyn Engine; 2],
        out: &'a mut dyn Write,
    ) -> anyhow::Result<Course<'a>> {
        let taker = |(engine, it): (&'static str, &dyn Engine)| {
            let settings = format!("spin {} µs before sleeping", options.spin_us);
            Taker { engine, settings, path: it.path(), ..Taker::default() }
        };
        let takers = [REFERENCE, SUBJECT].into_iter().zip(engines).map(taker).collect();
        let found = Results::new(&options.plan, takers);
        screen::heading(out, &found)?;
        screen::engines(out, &found)?;
        Ok(Course { options, plan: &options.plan, out, found })
    }

    /// Measures the rows over TCP.
    fn sockets(&mut self, reference: &mut dyn Engine, subject: &mut dyn Engine) -> anyhow::Result<()> {
        let spin = Duration::from_micros(self.options.spin_us.into());
        let rows = rows::all(&allowed_cpus()?, spin, self.plan.samples);
        for row in rows.iter().filter(|row| self.plan.wants(&row.name)) {
            self.engines(row, [reference, subject])?;
        }
        Ok(())
    }

    /// Measures a row of the reference and the subject.
    fn engines(&mut self, row: &Row, mut engines: [&mut dyn Engine; 2]) -> anyhow::Result<()> {
        for (job, engine) in row.jobs.iter().zip(&mut engines) {
            job.prepare(*engine)?;
        }
        let settings = [0, 1].map(|side| row.jobs[side].settings(engines[side]));
        let seconds = self.plan.seconds;
        let run = |side: usize| row.jobs[side].run(engines[side], seconds);
        self.row(&row.name, &row.goals, [REFERENCE, SUBJECT], settings, run)
    }

    /// Measures a row: the figures of the second side are judged beside the first's. A side that fails ends all.
    fn row(
        &mut self,
        name: &str,
        goals: &Goals,
        sides: [&'static str; 2],
        settings: [String; 2],
        run: impl FnMut(usize) -> anyhow::Result<Run>,
    ) -> anyhow::Result<()> {
        let mut row = measure(name.to_owned(), sides.map(Side::new).into(), self.plan.rounds, run);
        for (cell, settings) in row.cells.iter_mut().zip(settings) {
            if let Some(reason) = cell.outcome.reason() {
                bail!("{name}: {}: {reason}", cell.side);
            }
            cell.settings = settings;
        }
        let [beside, subject] = sides;
        let target = |&(quantity, goal): &(Quantity, Goal)| Target {
            quantity,
            subject,
            beside: Beside::side(beside),
            goal: Some(goal),
        };
        let targets: Vec<_> = goals.iter().map(target).collect();
        Ok(screen::tell(self.out, &mut self.found, row, &targets)?)
    }

    /// Submits from several threads to one peer, and from one with the same number of transfers under way: the total
    /// must not suffer.
    fn submission(&mut self, client: &mut Client) -> anyhow::Result<()> {
        let before = client.flight();
        for (block_bytes, quantity) in SUBMITTED {
            let name = format!("WRITE {} submitted by {THREADS} threads", format_bytes(block_bytes));
            if !self.plan.wants(&name) {
                continue;
            }
            let workload = Workload::single(Operation::Write, block_bytes, WALK_BYTES);
            let limit = Limit::Seconds(self.plan.seconds);
            let run = |side: usize| {
                client.set_flight(Flight { threads: [1, THREADS][side], in_flight: IN_FLIGHT });
                let sample = client.throughput(&workload, limit)?;
                let mut run = Run::throughput(&sample);
                let millions = sample.transfers as f64 / sample.seconds / 1e6;
                run.figures.insert(Quantity::MillionMessagesPerSecond, millions);
                Ok(run)
            };
            let settings = [(); 2].map(|()| format!("{IN_FLIGHT} in flight"));
            let goals = vec![(quantity, Goal::AtLeast(1.0))];
            self.row(&name, &goals, ["ferry, one thread", "ferry, 4 threads"], settings, run)?;
        }
        client.set_flight(before);
        Ok(())
    }

    /// Times a small transfer beside a bulk transfer to the same peer, and alone. Uses a pair of its own, because the
    /// bulk transfer needs more memory than all other rows.
    fn beside(&mut self, config: &PairConfig) -> anyhow::Result<()> {
        if !self.plan.wants(BESIDE) {
            return Ok(());
        }
        let memory_bytes = Client::bytes_beside(&BULK, BYTES);
        let Pair { client, .. } = &mut Pair::start(&PairConfig { memory_bytes, ..config.clone() })?;
        let samples = self.plan.samples;
        let job = Job::Latency(LatencyWorkload::of(Operation::Write, BYTES, samples));
        let run = |side: usize| {
            if side == 0 {
                return job.run(client, 0.0);
            }
            let (nanoseconds, gb_per_second) = client.time_beside(&BULK, BYTES, samples)?;
            let mut run = Run::latency(nanoseconds)?;
            run.figures.insert(Quantity::GbPerSecond, gb_per_second);
            Ok(run)
        };
        let goals = vec![(Quantity::P99Us, BESIDE_GOAL)];
        self.row(BESIDE, &goals, ["ferry, alone", "ferry, beside bulk"], Default::default(), run)
    }
}

#[cfg(test)]
mod tests;
