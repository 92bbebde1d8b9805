//! Runs many seeds: starts copies of this program as workers, each for some hundred seeds, because killed processes
//! leak; collects what they tell; runs every hundredth seed a second time, in another worker; keeps the record.
//!
//! A worker prints a line for each fact: `begin SEED`, `end SEED HASH TRANSFERS FAULTS`, `failed SEED TEXT`, and at its
//! end `reached STATE FAULT COUNT` and `moment MOMENT COUNT`. A worker that dies, or that takes too long for a seed,
//! has failed that seed.

use crate::bugs::BUGS;
use crate::coverage::Table;
use crate::seed::{play, Verdict};
use ferry_sim_kernel::trace::Story;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// Seeds of one worker.
const BATCH: u64 = 400;
/// One seed of so many runs twice.
const TWICE: u64 = 100;
/// A seed may take this long in a worker.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Orders {
    pub seeds: u64,
    pub from: u64,
    pub jobs: usize,
    pub record: Option<PathBuf>,
    /// Ends at the first seed that fails, and prints no table.
    pub first: bool,
    /// Clocks are more wrong than the contracts assume.
    pub beyond: bool,
}

/// A worker's message.
enum Told {
    Begin(u64),
    End {
        seed: u64,
        hash: String,
        transfers: u64,
        faults: u64,
    },
    Failed(u64, String),
    Reached(usize, usize, u64),
    Moment(usize, u64),
    /// Its output has ended.
    Gone,
}

/// Runs seeds in this process and prints what a fleet reads.
pub fn work(seeds: &[u64], beyond: bool) {
    let mut table = Table::new();
    for seed in seeds {
        println!("begin {seed}");
        let Verdict { outcome, transfers, faults, reached } = play(*seed, beyond, Story::None);
        table.add(&reached, &outcome.moments);
        for failure in &outcome.failures {
            println!("failed {seed} {}", failure.replace('\n', " "));
        }
        println!("end {seed} {:016x} {transfers} {faults}", outcome.hash);
    }
    for (state, fault, count) in table.entries() {
        println!("reached {state} {fault} {count}");
    }
    for (moment, count) in table.moments() {
        println!("moment {moment} {count}");
    }
}

struct Worker {
    child: Child,
    /// The seed that it runs, and since when.
    seed: Option<u64>,
    since: Instant,
    /// Its hashes are compared with those that are known.
    repeats: bool,
}

struct Fleet {
    sender: Sender<(usize, Told)>,
    receiver: Receiver<(usize, Told)>,
    workers: BTreeMap<usize, Worker>,
    workers_begun: usize,
    table: Table,
    /// Hashes of the seeds that run twice.
    hashes: BTreeMap<u64, String>,
    /// Seeds that failed, with their first failure.
    failures: BTreeMap<u64, String>,
    done: u64,
    transfers: u64,
    faults: u64,
    repeated: u64,
}

/// Runs the seeds. True if none failed.
pub fn run(orders: &Orders) -> std::io::Result<bool> {
    let (sender, receiver) = channel();
    let mut fleet = Fleet {
        sender,
        receiver,
        workers: BTreeMap::new(),
        workers_begun: 0,
        table: Table::new(),
        hashes: BTreeMap::new(),
        failures: BTreeMap::new(),
        done: 0,
        transfers: 0,
        faults: 0,
        repeated: 0,
    };
    let mut batches = batches(orders)?;
    let total: u64 =
        batches.iter().map(|(seeds, repeats)| if *repeats { 0 } else { seeds.len() as u64 }).sum();
    let mut record = orders.record.as_deref().map(append).transpose()?;
    let begin = Instant::now();
    let mut told = Instant::now();
    batches.reverse();
    loop {
        while fleet.workers.len() < orders.jobs {
            let Some((seeds, repeats)) = batches.pop() else { break };
            fleet.start(&seeds, repeats, orders.beyond)?;
        }
        if fleet.workers.is_empty() {
            break;
        }
        fleet.listen(record.as_mut())?;
        if orders.first && !fleet.failures.is_empty() {
            fleet.stop()?;
            break;
        }
        if told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            fleet.tell(total, begin);
        }
    }
    fleet.tell(total, begin);
    if !orders.first {
        fleet.table.print();
    }
    for (seed, failure) in &fleet.failures {
        let beyond = if orders.beyond { " --beyond" } else { "" };
        println!("seed {seed} FAILED: {failure}\n  ferry-sim replay {seed}{beyond} --story");
    }
    println!("{} seeds ran, {} of them twice; {} failed", fleet.done, fleet.repeated, fleet.failures.len());
    let rare = if orders.first { Vec::new() } else { fleet.table.rare_moments(orders.beyond) };
    rare.iter().for_each(|moment| println!("FAILED: too few seeds came to {moment}"));
    let unreached = if orders.first { Vec::new() } else { fleet.table.unreached_pairs() };
    unreached.iter().for_each(|pair| println!("FAILED: no seed came to {pair}"));
    Ok(fleet.failures.is_empty() && rare.is_empty() && unreached.is_empty())
}

/// Cuts the seeds into batches: first the named seeds, then the others that the record does not have. After each batch
/// comes a batch of its seeds that run twice.
fn batches(orders: &Orders) -> std::io::Result<Vec<(Vec<u64>, bool)>> {
    let known = match &orders.record {
        Some(path) if path.exists() => ranges(path)?,
        _ => Vec::new(),
    };
    // The named seeds showed bugs with clocks within the bound.
    let named: Vec<u64> = BUGS.iter().map(|bug| bug.seed).filter(|_| !orders.beyond).collect();
    let fresh = (orders.from..).filter(|seed| !known.iter().any(|range| range.contains(seed)));
    let fresh: Vec<u64> = fresh.take(orders.seeds as usize).collect();
    let mut batches = Vec::new();
    let chunks = std::iter::once(&named[..]).chain(fresh.chunks(BATCH as usize));
    for chunk in chunks.filter(|chunk| !chunk.is_empty()) {
        batches.push((chunk.to_vec(), false));
        let twice: Vec<u64> = chunk.iter().copied().filter(|seed| seed % TWICE == 0).collect();
        if !twice.is_empty() {
            batches.push((twice, true));
        }
    }
    Ok(batches)
}

/// Reads the seeds of a record: lines `FROM COUNT`.
fn ranges(path: &Path) -> std::io::Result<Vec<Range<u64>>> {
    let mut all = Vec::new();
    for line in BufReader::new(File::open(path)?).lines() {
        let line = line?;
        let mut words = line.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
        if let (Some(from), Some(count)) = (words.next(), words.next()) {
            all.push(from..from + count);
        }
    }
    Ok(all)
}

fn append(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

impl Fleet {
    fn start(&mut self, seeds: &[u64], repeats: bool, beyond: bool) -> std::io::Result<()> {
        let list: Vec<String> = seeds.iter().map(u64::to_string).collect();
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("work")
            .arg(list.join(","))
            .args(beyond.then_some("--beyond"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn()?;
        self.workers_begun += 1;
        let (number, sender) = (self.workers_begun, self.sender.clone());
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || read(number, output, &sender));
        }
        self.workers.insert(number, Worker { child, seed: None, since: Instant::now(), repeats });
        Ok(())
    }

    fn stop(&mut self) -> std::io::Result<()> {
        for worker in self.workers.values_mut() {
            worker.child.kill()?;
            worker.child.wait()?;
        }
        Ok(())
    }

    /// Takes in what the next worker says, and ends workers that take too long.
    fn listen(&mut self, record: Option<&mut File>) -> std::io::Result<()> {
        match self.receiver.recv_timeout(Duration::from_secs(1)) {
            Ok((number, told)) => self.take(number, told, record)?,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        let mut slow = Vec::new();
        for worker in self.workers.values_mut().filter(|worker| worker.since.elapsed() > PATIENCE) {
            slow.extend(worker.seed);
            worker.child.kill()?;
            worker.since = Instant::now();
        }
        slow.into_iter().for_each(|seed| self.fail(seed, format!("takes more than {PATIENCE:?}")));
        Ok(())
    }

    fn take(&mut self, number: usize, told: Told, record: Option<&mut File>) -> std::io::Result<()> {
        let Some(worker) = self.workers.get_mut(&number) else { return Ok(()) };
        match told {
            Told::Begin(seed) => (worker.seed, worker.since) = (Some(seed), Instant::now()),
            Told::End { seed, hash, transfers, faults } => {
                worker.seed = None;
                let repeats = worker.repeats;
                if seed % TWICE == 0 {
                    let known = self.hashes.entry(seed).or_insert_with(|| hash.clone());
                    if *known != hash {
                        let text = format!("two processes disagree: {known} and {hash}");
                        self.fail(seed, text);
                    }
                }
                if repeats {
                    self.repeated += 1;
                    return Ok(());
                }
                self.done += 1;
                self.transfers += transfers;
                self.faults += faults;
                if let Some(record) = record {
                    writeln!(record, "{seed} 1")?;
                }
            }
            Told::Failed(seed, text) => self.fail(seed, text),
            Told::Reached(state, fault, count) => {
                if !worker.repeats {
                    self.table.count(state, fault, count);
                }
            }
            Told::Moment(moment, count) => {
                if !worker.repeats {
                    self.table.count_moment(moment, count);
                }
            }
            Told::Gone => {
                let status = worker.child.wait()?;
                if let Some(seed) = worker.seed.filter(|_| !status.success()) {
                    self.fail(seed, format!("its process ended: {status}"));
                }
                self.workers.remove(&number);
            }
        }
        Ok(())
    }

    /// Tells of a seed's first failure at once: a run may take hours.
    fn fail(&mut self, seed: u64, text: String) {
        self.failures.entry(seed).or_insert_with(|| {
            println!("seed {seed} FAILED: {text}");
            text
        });
    }

    fn tell(&self, total: u64, begin: Instant) {
        let seconds = begin.elapsed().as_secs_f64();
        let (rate, done) = (self.done as f64 / seconds, self.done.max(1));
        let (transfers, faults) = (self.transfers / done, self.faults / done);
        let failed = self.failures.len();
        println!(
            "{} of {total} seeds, {rate:.1} seeds/s, {transfers} transfers and {faults} faults a seed, {failed} failed",
            self.done
        );
    }
}

fn read(number: usize, output: ChildStdout, sender: &Sender<(usize, Told)>) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        if let Some(told) = parse(&line) {
            let _ = sender.send((number, told));
        }
    }
    let _ = sender.send((number, Told::Gone));
}

fn parse(line: &str) -> Option<Told> {
    let (verb, rest) = line.split_once(' ')?;
    let (seed, text) = rest.split_once(' ').unwrap_or((rest, ""));
    let seed = seed.parse().ok()?;
    let words: Vec<&str> = text.split(' ').collect();
    Some(match verb {
        "begin" => Told::Begin(seed),
        "failed" => Told::Failed(seed, text.to_owned()),
        "end" => Told::End {
            seed,
            hash: words.first()?.to_string(),
            transfers: words.get(1)?.parse().ok()?,
            faults: words.get(2)?.parse().ok()?,
        },
        "moment" => Told::Moment(seed as usize, words.first()?.parse().ok()?),
        "reached" => Told::Reached(seed as usize, words.first()?.parse().ok()?, words.get(1)?.parse().ok()?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_resumed_behind_its_seeds() {
        let path = std::env::temp_dir().join(format!("ferry-sim-record-{}", std::process::id()));
        std::fs::write(&path, "5 3\n10 1\n").unwrap();
        let orders =
            Orders { seeds: 4, from: 4, jobs: 1, record: Some(path.clone()), first: false, beyond: false };
        let all = batches(&orders).unwrap();
        std::fs::remove_file(path).unwrap();
        let fresh: Vec<u64> =
            all.iter().filter(|(_, repeats)| !repeats).flat_map(|(seeds, _)| seeds.clone()).collect();
        assert!(fresh.ends_with(&[4, 8, 9, 11]), "{fresh:?}");
    }

    #[test]
    fn lines_of_workers_are_understood() {
        assert!(matches!(parse("begin 7"), Some(Told::Begin(7))));
        assert!(
            matches!(parse("failed 7 it was late"), Some(Told::Failed(7, text)) if text == "it was late")
        );
        assert!(matches!(
            parse("end 7 ab 100 12"),
            Some(Told::End { seed: 7, transfers: 100, faults: 12, .. })
        ));
        assert!(matches!(parse("moment 2 5"), Some(Told::Moment(2, 5))));
        assert!(matches!(parse("reached 3 4 5"), Some(Told::Reached(3, 4, 5))));
        assert!(parse("else").is_none());
    }
}
