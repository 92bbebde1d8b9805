//! The `ferry-compare` program: parses the command line and calls the library.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, Parser, Subcommand};
use ferry_bench::child::parse_role;
use ferry_bench::cpu::raise_descriptor_limit;
use ferry_bench::plot;
use ferry_bench::report::write_json;
use ferry_bench::subject::{serve_child, SecretFile};
use ferry_compare::contest::Plan;
use ferry_compare::role::Role;
use ferry_compare::{peers, raw, rdma, sockets};

#[derive(Parser, Debug)]
#[command(name = "ferry-compare", version, about = "Measures ferry beside references and other engines")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Measures ferry against the raw references, interleaved, and judges the ratios (`make bench`)
    #[command(mut_args(|arg| with_defaults(arg, ["15", "0.4", "6667"])))]
    Sockets {
        #[command(flatten)]
        options: sockets::Options,
        /// Draw the ratios by row into this file, as SVG
        #[arg(long)]
        plot: Option<PathBuf>,
    },
    /// Measures ferry beside other engines, driven from Python (`make compare` installs and runs them)
    Peers {
        #[command(flatten)]
        options: peers::Options,
    },
    /// Measures ferry beside perftest and a verbs program on two RDMA devices of this machine
    #[command(mut_args(|arg| with_defaults(arg, ["6", "0.5", "1000"])))]
    Rdma {
        #[command(flatten)]
        places: rdma::Places,
        #[command(flatten)]
        plan: Plan,
        #[command(flatten)]
        mooncake: rdma::Mooncake,
    },
    /// The other end of a measurement, which this program starts of itself
    #[command(hide = true)]
    Child {
        #[arg(value_parser = parse_role::<Role>)]
        role: Role,
    },
}

/// Gives a plan's rounds, seconds and samples other defaults.
fn with_defaults(arg: Arg, values: [&'static str; 3]) -> Arg {
    match ["rounds", "seconds", "samples"].iter().position(|name| arg.get_id() == name) {
        Some(place) => arg.default_value(values[place]),
        None => arg,
    }
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ferry-compare: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    let program = std::env::current_exe()?;
    // Keeps colours for a terminal alone.
    let out = &mut anstream::stdout();
    match command {
        Command::Sockets { options, plot: path } => {
            let results = sockets::run(&options, program, out)?;
            write_json(options.plan.json.as_deref(), &results)?;
            plot::write(path.as_deref(), || sockets::drawing(&results))
        }
        Command::Peers { mut options } => {
            let secret = SecretFile::create()?;
            secret.path().clone_into(&mut options.places.secret);
            let results = peers::run(&options, program, out, &mut io::stderr())?;
            write_json(options.plan.json.as_deref(), &results)
        }
        Command::Rdma { places, plan, mooncake } => {
            let places = rdma::Places { program, mooncake: mooncake.asked(), ..places };
            let results = rdma::run(&plan, &places, out)?;
            write_json(plan.json.as_deref(), &results)?;
            match results.failures()[..] {
                [] => Ok(()),
                [(side, reason), ..] => anyhow::bail!("{side}: {reason}"),
            }
        }
        Command::Child { role } => serve(&role),
    }
}

/// Serves the parent at the other end of standard input and output until it closes them.
fn serve(role: &Role) -> anyhow::Result<()> {
    // The usual 1,024 do not suffice for a thousand peers.
    raise_descriptor_limit()?;
    match role {
        Role::RawTarget { memory_bytes, token, socket } => raw::serve(*memory_bytes, *token, socket),
        Role::SameHostTarget { origin, memory_bytes } => raw::same_host::serve(*origin, *memory_bytes),
        Role::VerbsTarget { port, memory_bytes } => raw::verbs::serve(port, *memory_bytes),
        Role::FerryTarget(setup) => serve_child(setup),
        Role::FerryCrowd { engine, address, peers } => sockets::serve_crowd(engine, address, *peers),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn each_comparison_has_defaults_of_its_own() {
        Cli::command().debug_assert();
        let plan = |name| match Cli::parse_from(["x", name]).command {
            Command::Sockets { options, .. } => options.plan,
            Command::Peers { options } => options.plan,
            Command::Rdma { plan, .. } => plan,
            Command::Child { .. } => unreachable!("not asked for"),
        };
        let defaults = ["sockets", "peers", "rdma"].map(plan).map(|it| (it.rounds, it.seconds, it.samples));
        assert_eq!(defaults, [(15, 0.4, 6_667), (7, 0.3, 3_000), (6, 0.5, 1_000)]);
    }
}
