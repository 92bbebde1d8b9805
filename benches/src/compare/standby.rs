//! The costs of idle engines, and of a thousand peers: figures with a limit of their own instead of a reference.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;

use super::Plan;
use crate::child::ChildProcess;
use crate::cpu::{child_cpu_seconds, own_cpu_seconds};
use crate::role::Role;
use crate::stats::Verdict;
use crate::subject::{CrowdReply, Listening, Pair, SecretFile, Setup};

const IDLE_ROW: &str = "idle engine with an idle peer";
const CROWD_ROW: &str = "peers connected to one engine";
const IDLE_PERCENT_MAX: f64 = 0.1;
/// Several processes, so that no limit of a single process applies.
const CROWD_PROCESSES: usize = 4;
/// "Within seconds".
const CONNECT_SECONDS_MAX: f64 = 10.0;
/// After this time sessions have settled: first heartbeats and measurements of the round trip are over.
const SETTLE: Duration = Duration::from_secs(1);

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    pub row: String,
    pub quantity: &'static str,
    pub value: f64,
    /// The highest allowed value; `None` if the figure is only stated.
    pub limit: Option<f64>,
    pub verdict: Option<Verdict>,
}

impl Cost {
    fn stated(row: &str, quantity: &'static str, value: f64) -> Cost {
        Cost { row: row.to_owned(), quantity, value, limit: None, verdict: None }
    }

    fn limited(row: &str, quantity: &'static str, value: f64, limit: f64) -> Cost {
        let verdict = if value <= limit { Verdict::Met } else { Verdict::Missed };
        Cost { limit: Some(limit), verdict: Some(verdict), ..Cost::stated(row, quantity, value) }
    }
}

/// Measures the CPU time of both processes of an idle pair.
pub fn idle(plan: &Plan, pair: &Pair) -> anyhow::Result<Vec<Cost>> {
    if !plan.wants(IDLE_ROW) {
        return Ok(Vec::new());
    }
    thread::sleep(SETTLE);
    let (own, target, start) = (own_cpu_seconds(), child_cpu_seconds(pair.target_pid())?, Instant::now());
    thread::sleep(Duration::from_secs_f64(plan.idle_seconds));
    let percent = |cpu_seconds: f64| cpu_seconds / start.elapsed().as_secs_f64() * 100.0;
    let (own, target) = (own_cpu_seconds() - own, child_cpu_seconds(pair.target_pid())? - target);
    let cost =
        |quantity, cpu_seconds| Cost::limited(IDLE_ROW, quantity, percent(cpu_seconds), IDLE_PERCENT_MAX);
    Ok(vec![cost("% of a core, initiator", own), cost("% of a core, target", target)])
}

/// Connects `plan.peers` engines to one engine, and states that engine's resources.
pub fn crowd(plan: &Plan, program: &Path) -> anyhow::Result<Vec<Cost>> {
    let row = format!("{} {CROWD_ROW}", plan.peers);
    if !plan.wants(&row) || plan.peers == 0 {
        return Ok(Vec::new());
    }
    let secret = SecretFile::create()?;
    let setup = Setup { secret_file: Some(secret.path().to_owned()), ..Setup::default() };
    let mut hub = ChildProcess::start(program, &Role::FerryTarget(setup.clone()))?;
    let Listening { address } = hub.reply().context("the engine that all connect to")?;
    let alone = Process::look(hub.pid())?;
    let mut crowds = Vec::with_capacity(CROWD_PROCESSES);
    for index in 0..CROWD_PROCESSES {
        let peers = plan.peers * (index + 1) / CROWD_PROCESSES - plan.peers * index / CROWD_PROCESSES;
        crowds.push(start_crowd(program, &setup, &address, peers)?);
    }
    let start = Instant::now();
    for crowd in &mut crowds {
        crowd.tell(&CrowdReply::Connect)?;
    }
    for crowd in &mut crowds {
        let CrowdReply::Connected = crowd.reply().context("connecting the peers")? else {
            anyhow::bail!("a process of peers did not connect");
        };
    }
    let seconds = start.elapsed().as_secs_f64();
    thread::sleep(SETTLE);
    let (cpu, start) = (child_cpu_seconds(hub.pid())?, Instant::now());
    thread::sleep(Duration::from_secs_f64(plan.idle_seconds));
    let idle = (child_cpu_seconds(hub.pid())? - cpu) / start.elapsed().as_secs_f64() * 100.0;
    let crowded = Process::look(hub.pid())?;
    let per_peer = (crowded.resident_kib - alone.resident_kib) / plan.peers as f64;
    Ok(vec![
        Cost::limited(&row, "s until all are connected", seconds, CONNECT_SECONDS_MAX),
        Cost::stated(&row, "threads", crowded.threads),
        Cost::stated(&row, "descriptors", crowded.descriptors),
        Cost::stated(&row, "MiB resident", crowded.resident_kib / 1_024.0),
        Cost::stated(&row, "KiB resident per peer", per_peer),
        Cost::stated(&row, "% of a core, idle", idle),
    ])
}

/// Starts a process whose engines are open and wait for the command to connect.
fn start_crowd(program: &Path, setup: &Setup, address: &str, peers: usize) -> anyhow::Result<ChildProcess> {
    let engine = Setup { workers: Some(1), ..setup.clone() };
    let role = Role::FerryCrowd { engine, address: address.to_owned(), peers };
    let mut crowd = ChildProcess::start(program, &role)?;
    match crowd.reply().context("opening the peers' engines")? {
        CrowdReply::Opened => Ok(crowd),
        other => anyhow::bail!("a process of peers began with {other:?}"),
    }
}

/// The resources of a process, as `/proc` states them.
struct Process {
    threads: f64,
    resident_kib: f64,
    descriptors: f64,
}

impl Process {
    fn look(pid: u32) -> anyhow::Result<Process> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let number = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            let word = line.and_then(|line| line.split_whitespace().nth(1));
            word.and_then(|word| word.parse().ok()).with_context(|| format!("no {name} in /proc"))
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?.count() as f64;
        Ok(Process { threads: number("Threads:")?, resident_kib: number("VmRSS:")?, descriptors })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_met_at_the_limit_and_missed_above() {
        let verdict = |value| Cost::limited("row", "s", value, 10.0).verdict;
        assert_eq!((verdict(10.0), verdict(10.001)), (Some(Verdict::Met), Some(Verdict::Missed)));
    }

    #[test]
    fn this_process_has_threads_memory_and_descriptors() {
        let own = Process::look(std::process::id()).expect("a living process");
        assert!(own.threads >= 1.0 && own.resident_kib > 100.0 && own.descriptors >= 3.0);
    }
}
