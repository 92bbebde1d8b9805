//! The `ferry-compare` program: parses the command line and calls the library.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use ferry_bench::child::parse_role;
use ferry_bench::options::Transport;
use ferry_bench::plot;
use ferry_bench::report::write_json;
use ferry_bench::subject::{Origin, Pair, PairConfig, SecretFile, Setup};
use ferry_compare::raw::{RawConfig, RawEngine};
use ferry_compare::role::Role;
use ferry_compare::sockets::WALK_BYTES;
use ferry_compare::{peers, rdma, sockets};

#[derive(Parser, Debug)]
#[command(name = "ferry-compare", version, about = "Measures ferry beside references and other engines")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Measures ferry against the raw references, interleaved, and judges the ratios (`make bench`)
    Sockets(SocketsArguments),
    /// Measures ferry beside other engines, driven from Python (`make compare` installs and runs them)
    Peers(PeersArguments),
    /// Measures ferry beside perftest and a verbs program on two RDMA devices of this machine
    Rdma(RdmaArguments),
    /// The other end of a measurement, which this program starts of itself
    #[command(hide = true)]
    Child {
        #[arg(value_parser = parse_role::<Role>)]
        role: Role,
    },
}

#[derive(Args, Debug)]
struct SocketsArguments {
    /// Write everything measured to this file as one JSON object
    #[arg(long)]
    json: Option<PathBuf>,
    /// Draw the ratios by row into this file, as SVG
    #[arg(long)]
    plot: Option<PathBuf>,
    #[command(flatten)]
    plan: sockets::Plan,
    /// ferry's memory in the rows over TCP; those of one machine have each kind
    #[arg(long, value_enum, default_value_t = Origin::Own)]
    memory: Origin,
    /// Congestion control of both sides, where the host allows it
    #[arg(long = "congestion-control", default_value = "reno")]
    congestion_control: String,
}

#[derive(Args, Debug)]
struct PeersArguments {
    #[command(flatten)]
    places: peers::Places,
    /// Write every figure of every round to this file as one JSON object
    #[arg(long)]
    json: Option<PathBuf>,
    #[command(flatten)]
    plan: peers::Plan,
}

#[derive(Args, Debug)]
struct RdmaArguments {
    #[command(flatten)]
    places: rdma::Places,
    #[command(flatten)]
    plan: rdma::Plan,
    #[command(flatten)]
    mooncake: rdma::Mooncake,
    /// Write every figure of every round to this file as one JSON object
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Sockets(arguments) => compare_sockets(&arguments),
        Command::Peers(arguments) => compare_peers(arguments),
        Command::Rdma(arguments) => compare_rdma(arguments),
        Command::Child { role } => role.serve(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ferry-compare: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn compare_sockets(arguments: &SocketsArguments) -> anyhow::Result<()> {
    let program = std::env::current_exe()?;
    let reference = RawConfig::compared(&program, WALK_BYTES, &arguments.congestion_control);
    let mut reference = RawEngine::start_best(&reference)?;
    let end = compared_setup(arguments)?;
    let (ends, memory) = ([end.clone(), end], arguments.memory);
    let config = PairConfig { program, memory_bytes: WALK_BYTES, ends, memory, pingpong: false };
    let mut pair = Pair::start(&config)?;
    let out = &mut io::stdout().lock();
    let comparison = sockets::run_with_ferry(&arguments.plan, &mut reference, &mut pair, &config, out)?;
    write_json(arguments.json.as_deref(), &comparison)?;
    plot::write(arguments.plot.as_deref(), || sockets::drawing(&comparison))
}

fn compare_peers(arguments: PeersArguments) -> anyhow::Result<()> {
    let secret = SecretFile::create()?;
    let places = peers::Places { secret: secret.path().to_owned(), ..arguments.places };
    let program = std::env::current_exe()?;
    let results = peers::run(&arguments.plan, &places, program, &mut io::stdout(), &mut io::stderr())?;
    write_json(arguments.json.as_deref(), &results)
}

fn compare_rdma(arguments: RdmaArguments) -> anyhow::Result<()> {
    let RdmaArguments { places, plan, mooncake, json } = arguments;
    let places = rdma::Places { program: std::env::current_exe()?, mooncake: mooncake.asked(), ..places };
    let results = rdma::run(&plan, &places, &mut io::stdout())?;
    write_json(json.as_deref(), &results)?;
    match results.failures()[..] {
        [] => Ok(()),
        [(side, reason), ..] => anyhow::bail!("{side}: {reason}"),
    }
}

/// Returns ferry's defaults, except where the reference differs from them: both then use the reference's.
fn compared_setup(arguments: &SocketsArguments) -> anyhow::Result<Setup> {
    let (spin_us, defaults) = (arguments.plan.spin_us, Setup::default().config()?);
    let congestion_control = Some(&arguments.congestion_control);
    // Raw sockets are the reference; the paths that ferry would choose on one host have rows of their own.
    Ok(Setup::default()
        .given("transports", Transport::Tcp.forced())
        .given("spin_us", Some(spin_us).filter(|&spin_us| u64::from(spin_us) != defaults.spin_us))
        .given("tcp_congestion", congestion_control.filter(|name| *name != RawConfig::CONGESTION_CONTROL)))
}
