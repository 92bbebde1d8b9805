//! `make demo`: a prefill and a decode process hand over the KV cache of one sequence of Llama-3.1-8B, by
//! push and by pull, and check every word. `ferry_examples::kv` has the two workers. This is the parent: it
//! starts them, shows their progress and prints the table.

use ferry_examples::kv::geometry::{HALVES, LLAMA_3_1_8B};
use ferry_examples::kv::report::{self, Report};
use ferry_examples::kv::story::Line;
use ferry_examples::kv::worker::{Orders, Outcome};
use ferry_examples::kv::{decode, prefill};
use ferry_examples::secret::SecretFile;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::time::{Duration, Instant};

const USAGE: &str = "\
usage: kv_demo [--tokens N] [--passes N] [--corrupt]
  --tokens N   length of the sequence, 16 to 32768 (default 4096)
  --passes N   how often it is pushed, and how often pulled, 1 to 100 (default 3)
  --corrupt    exchange two blocks on the way; the check must find it and the demo fail";

/// A worker is this program with a role as argument.
enum Role {
    Parent,
    Prefill { address: String },
    Decode,
}

fn main() -> ExitCode {
    let Some((role, orders)) = arguments(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let (name, outcome) = match &role {
        Role::Parent => ("kv_demo", parent(orders)),
        Role::Prefill { address } => ("prefill", prefill::run(&orders, address)),
        Role::Decode => ("decode", decode::run(&orders)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One write: the workers share the terminal.
            let _ = std::io::stderr().write_all(format!("{name}: FAILED: {error}\n").as_bytes());
            ExitCode::FAILURE
        }
    }
}

fn arguments(mut given: impl Iterator<Item = String>) -> Option<(Role, Orders)> {
    let mut orders = Orders { secret_file: String::new(), tokens: 4096, passes: 3, corrupt: false };
    let mut role = Role::Parent;
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--tokens" => orders.tokens = given.next()?.parse().ok().filter(|n| (16..=32_768).contains(n))?,
            "--passes" => orders.passes = given.next()?.parse().ok().filter(|n| (1..=100).contains(n))?,
            "--corrupt" => orders.corrupt = true,
            "--secret-file" => orders.secret_file = given.next()?,
            "--decode" => role = Role::Decode,
            "--prefill" => role = Role::Prefill { address: given.next()? },
            _ => return None,
        }
    }
    Some((role, orders))
}

fn parent(mut orders: Orders) -> Outcome {
    let secret = SecretFile::create()?;
    orders.secret_file = secret.path().to_str().ok_or("the temporary directory's name is not UTF-8")?.into();
    let model = LLAMA_3_1_8B;
    let blocks = model.blocks(orders.tokens);
    let cache_bytes = (model.layers * HALVES * blocks * model.block_bytes()) as u64;
    println!(
        "Llama-3.1-8B, {} tokens: {} layers x K and V x {blocks} blocks of {} KiB = {} MiB, {} times each way",
        orders.tokens,
        model.layers,
        model.block_bytes() >> 10,
        cache_bytes >> 20,
        orders.passes,
    );

    let (lines, stories) = channel();
    let decode = Worker::start("decode", &["--decode"], &orders, lines.clone())?;
    let address = match stories.recv()? {
        Heard::Said(Line::Address(address)) => address,
        _ => return Err("decode did not start".into()),
    };
    let prefill = Worker::start("prefill", &["--prefill", &address], &orders, lines)?;
    let shown = show(&stories, &mut [decode, prefill], 2 * u64::from(orders.passes) * cache_bytes)?;
    if shown.reports.len() != 2 {
        return Err("a worker has not reported".into());
    }

    let used = shown.paths.iter().find(|(_, chosen, _)| *chosen).map_or("none", |(name, _, _)| name.as_str());
    println!("\n{}", report::table(&shown.reports, used));
    for (name, chosen, why) in &shown.paths {
        println!("path {name:<7} {} {why}", if *chosen { "used:    " } else { "not used:" });
    }
    println!("every 8 bytes of every pass were where they belong, and no other block was touched");
    Ok(())
}

/// The output of a worker.
enum Heard {
    Said(Line),
    /// The worker of this name closed its output: it has ended, well or not.
    Ended(&'static str),
}

#[derive(Default)]
struct Shown {
    reports: Vec<Report>,
    paths: Vec<(String, bool, String)>,
}

/// How long a worker may take to print its error after the other one has failed.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Shows progress until the workers have ended. Stops when the first fails. Each prints its error on stderr,
/// and the culprit is not always the first to fail, so the other gets time for its error.
fn show(stories: &Receiver<Heard>, workers: &mut [Worker], bytes: u64) -> Outcome<Shown> {
    let style = ProgressStyle::with_template("{msg:<28} [{bar:40}] {bytes}/{total_bytes}")?;
    let bar = ProgressBar::new(bytes).with_style(style.progress_chars("=> ")).with_message("starting");
    let mut shown = Shown::default();
    let mut running = workers.len();
    while running > 0 {
        match stories.recv()? {
            Heard::Said(Line::Doing(what)) => bar.set_message(what),
            Heard::Said(Line::Moved(bytes)) => bar.inc(bytes),
            Heard::Said(Line::Path(name, chosen, why)) => shown.paths.push((name, chosen, why)),
            Heard::Said(Line::Report(report)) => shown.reports.push(report),
            Heard::Said(Line::Address(_)) => {}
            Heard::Ended(name) => {
                running -= 1;
                let mut ended = workers.iter_mut().filter(|worker| worker.name == name);
                ended.try_for_each(Worker::finish).inspect_err(|_| {
                    bar.abandon();
                    hear_out(stories, running);
                })?;
            }
        }
    }
    bar.finish_with_message("done");
    Ok(shown)
}

/// Waits until the remaining workers have ended, or their time is over.
fn hear_out(stories: &Receiver<Heard>, mut running: usize) {
    let until = Instant::now() + LAST_WORDS;
    while running > 0 {
        match stories.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Heard::Ended(_)) => running -= 1,
            Ok(Heard::Said(_)) => {}
            Err(_) => return,
        }
    }
}

/// A running worker; dropping it kills the process unless it has ended.
struct Worker {
    name: &'static str,
    child: Child,
}

impl Worker {
    fn start(name: &'static str, role: &[&str], orders: &Orders, lines: Sender<Heard>) -> Outcome<Worker> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(role).args(["--secret-file", &orders.secret_file]);
        command.args(["--tokens", &orders.tokens.to_string(), "--passes", &orders.passes.to_string()]);
        if orders.corrupt {
            command.arg("--corrupt");
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        let worker = Worker { name, child };
        std::thread::Builder::new().name(format!("{name} output")).spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(line) = Line::decode(&line) {
                    let _ = lines.send(Heard::Said(line));
                }
            }
            let _ = lines.send(Heard::Ended(name));
        })?;
        Ok(worker)
    }

    fn finish(&mut self) -> Outcome {
        let status = self.child.wait()?;
        if status.success() {
            return Ok(());
        }
        Err(format!("{} ended with {status}", self.name).into())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both calls fail without harm if the process has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
