//! ferry-sim: runs whole engines by seeds on the simulated kernel, under faults, and checks the contracts.

mod actor;
mod beyond;
mod bugs;
mod calls;
mod checks;
mod coverage;
mod devices;
mod draw;
mod faults;
mod fleet;
mod kv;
mod ledger;
mod memory;
mod nics;
mod notes;
mod outside;
mod plan;
mod pool;
mod probes;
mod program;
mod room;
mod seed;
mod wishes;

use bugs::BUGS;
use clap::{Parser, Subcommand};
use ferry_sim_kernel::trace::Story;
use fleet::Orders;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

#[derive(Parser)]
#[command(about = "Runs engines on a simulated kernel by seeds, and checks the contracts")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs one seed and tells how it ends.
    Replay {
        seed: u64,
        /// Prints each event.
        #[arg(long)]
        story: bool,
        /// As in `run`.
        #[arg(long)]
        beyond: bool,
    },
    /// Runs seeds in several processes, beginning with those that showed a bug, and prints what they reached.
    Run {
        #[arg(long, default_value_t = 1_000)]
        seeds: u64,
        #[arg(long, default_value_t = 1)]
        from: u64,
        /// Processes at a time; 0 takes one for each processor.
        #[arg(long, default_value_t = 0)]
        jobs: usize,
        /// The seeds that have run are appended to this file, and not run again.
        #[arg(long)]
        record: Option<PathBuf>,
        /// Ends at the first seed that fails, and prints no table.
        #[arg(long)]
        first: bool,
        /// Clocks are more wrong than the contracts assume: late writes are not told, and all else holds.
        #[arg(long)]
        beyond: bool,
    },
    /// Prints the seeds that showed a bug.
    Bugs,
    /// Runs these seeds in this process, for `run`.
    #[command(hide = true)]
    Work {
        #[arg(value_delimiter = ',')]
        seeds: Vec<u64>,
        #[arg(long)]
        beyond: bool,
    },
}

fn main() -> ExitCode {
    // A panic of a task is a failure of its seed, or of what a fault forces; either way its text is enough.
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    match Args::parse().command {
        Command::Replay { seed, story, beyond } => {
            let begin = Instant::now();
            let verdict = seed::play(seed, beyond, if story { Story::Print } else { Story::None });
            let outcome = &verdict.outcome;
            println!(
                "seed {seed}: hash {:016x}, {} transfers, {} faults, {} steps, {} switches, {} ms of virtual time, {} ms",
                outcome.hash,
                verdict.transfers,
                verdict.faults,
                outcome.steps,
                outcome.switches,
                outcome.end_ns / 1_000_000,
                begin.elapsed().as_millis()
            );
            outcome.failures.iter().for_each(|failure| println!("FAILED: {failure}"));
            ExitCode::from(u8::from(!outcome.failures.is_empty()))
        }
        Command::Run { seeds, from, jobs, record, first, beyond } => {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            let jobs = if jobs == 0 { processors } else { jobs };
            let orders = Orders { seeds, from, jobs, record, first, beyond };
            match fleet::run(&orders) {
                Ok(good) => ExitCode::from(u8::from(!good)),
                Err(error) => {
                    eprintln!("ferry-sim: {error}");
                    ExitCode::from(2)
                }
            }
        }
        Command::Bugs => {
            BUGS.iter().for_each(|bug| println!("{:>8}  {}", bug.seed, bug.showed));
            ExitCode::SUCCESS
        }
        Command::Work { seeds, beyond } => {
            fleet::work(&seeds, beyond);
            ExitCode::SUCCESS
        }
    }
}
