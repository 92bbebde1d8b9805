//! The costs of idle engines, and of a thousand peers: figures with a limit of their own instead of a reference.

use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context};
use ferry_bench::child::ChildProcess;
use ferry_bench::cpu::child_cpu_seconds;
use ferry_bench::subject::{Listening, Pair, SecretFile, Setup};

use super::crowd::CrowdReply;
use super::Options;
use crate::contest::Cost;
use crate::role::Role;

const IDLE_ROW: &str = "idle engine with an idle peer";
const CROWD_ROW: &str = "peers connected to one engine";
const IDLE_PERCENT_MAX: f64 = 0.1;
/// Several processes, so that no limit of a single process applies.
const CROWD_PROCESSES: usize = 4;
/// "Within seconds".
const CONNECT_SECONDS_MAX: f64 = 10.0;
/// After this time sessions have settled: first heartbeats and measurements of the round trip are over.
const SETTLE: Duration = Duration::from_secs(1);

/// Measures the CPU time of both processes of an idle pair.
pub fn idle(options: &Options, pair: &Pair) -> anyhow::Result<Vec<Cost>> {
    if !options.plan.wants(IDLE_ROW) {
        return Ok(Vec::new());
    }
    let percents = idle_percents(options, &[std::process::id(), pair.target_pid()])?;
    let quantities = ["% of a core, initiator", "% of a core, target"].into_iter().zip(percents);
    let cost = |(quantity, percent)| Cost::limited(IDLE_ROW, quantity, percent, IDLE_PERCENT_MAX);
    Ok(quantities.map(cost).collect())
}

/// Returns the CPU time of each process, in percent of a core.
fn idle_percents(options: &Options, processes: &[u32]) -> anyhow::Result<Vec<f64>> {
    thread::sleep(SETTLE);
    let cpu = || processes.iter().map(|pid| child_cpu_seconds(*pid)).collect::<io::Result<Vec<_>>>();
    let (before, start) = (cpu()?, Instant::now());
    thread::sleep(Duration::from_secs_f64(options.idle_seconds));
    let (after, seconds) = (cpu()?, start.elapsed().as_secs_f64());
    Ok(before.iter().zip(after).map(|(before, after)| (after - before) / seconds * 100.0).collect())
}

/// Connects `options.peers` engines to one engine, and states that engine's resources.
pub fn crowd(options: &Options, program: &Path) -> anyhow::Result<Vec<Cost>> {
    let row = format!("{} {CROWD_ROW}", options.peers);
    if !options.plan.wants(&row) || options.peers == 0 {
        return Ok(Vec::new());
    }
    let secret = SecretFile::create()?;
    let setup = Setup::default().with("secret_file", secret.path().display());
    let mut hub = ChildProcess::start(program, &Role::FerryTarget(setup.clone()))?;
    let Listening { address } = hub.reply().context("the engine that all connect to")?;
    let alone = Process::look(hub.pid())?;
    let mut crowds = Vec::with_capacity(CROWD_PROCESSES);
    for index in 0..CROWD_PROCESSES {
        let peers = options.peers * (index + 1) / CROWD_PROCESSES - options.peers * index / CROWD_PROCESSES;
        let (engine, address) = (setup.clone().with("workers", 1), address.clone());
        let mut crowd = ChildProcess::start(program, &Role::FerryCrowd { engine, address, peers })?;
        expect(&mut crowd, CrowdReply::Opened)?;
        crowds.push(crowd);
    }
    let start = Instant::now();
    crowds.iter_mut().try_for_each(|crowd| crowd.tell(&CrowdReply::Connect))?;
    crowds.iter_mut().try_for_each(|crowd| expect(crowd, CrowdReply::Connected))?;
    let seconds = start.elapsed().as_secs_f64();
    let idle = idle_percents(options, &[hub.pid()])?[0];
    let crowded = Process::look(hub.pid())?;
    let per_peer = (crowded.resident_kib - alone.resident_kib) / options.peers as f64;
    Ok(vec![
        Cost::limited(&row, "s until all are connected", seconds, CONNECT_SECONDS_MAX),
        Cost::stated(&row, "threads", crowded.threads),
        Cost::stated(&row, "descriptors", crowded.descriptors),
        Cost::stated(&row, "MiB resident", crowded.resident_kib / 1_024.0),
        Cost::stated(&row, "KiB resident per peer", per_peer),
        Cost::stated(&row, "% of a core, idle", idle),
    ])
}

fn expect(crowd: &mut ChildProcess, expected: CrowdReply) -> anyhow::Result<()> {
    let reply: CrowdReply = crowd.reply().context("a process of peers")?;
    ensure!(reply == expected, "a process of peers sent {reply:?} instead of {expected:?}");
    Ok(())
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
    fn this_process_has_threads_memory_and_descriptors() {
        let own = Process::look(std::process::id()).expect("a living process");
        assert!(own.threads >= 1.0 && own.resident_kib > 100.0 && own.descriptors >= 3.0);
    }
}
