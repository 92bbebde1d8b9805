//! The `ferry-bench` program: parses the command line and calls the library.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use ferry_bench::commands::run_test;
use ferry_bench::compare::{self, WALK_BYTES};
use ferry_bench::device::find;
use ferry_bench::options::{
    Cli, Command, CompareArguments, DeviceOptions, PeersArguments, RdmaCompareArguments, SelftestArguments,
    Transport,
};
use ferry_bench::raw::{RawConfig, RawEngine};
use ferry_bench::report::write_json;
use ferry_bench::subject::{Origin, Pair, PairConfig, SecretFile, Setup};
use ferry_bench::{peers, plot, rdma, selftest};

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ferry-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Compare(arguments) => compare(&arguments),
        Command::Selftest(arguments) => selftest(&arguments),
        Command::Peers(arguments) => compare_peers(arguments),
        Command::Rdma(arguments) => compare_rdma(arguments),
        Command::Child { role } => role.serve(),
        test => {
            let (test, arguments) = test.into_test().context("not a test")?;
            run_test(test, arguments, &mut io::stdout().lock())
        }
    }
}

fn selftest(arguments: &SelftestArguments) -> anyhow::Result<()> {
    let out = &mut io::stdout().lock();
    let json = arguments.json.as_deref();
    let Some(at) = arguments.device.location() else {
        let mut pair = selftest_pair([DeviceOptions::default(); 2], arguments.spoil)?;
        return write_json(json, &selftest::run(&mut pair.client, out)?);
    };
    let said = arguments.device.argument().unwrap_or_default();
    let config = ferry::Config::new()?;
    let described = find(at, &config).with_context(|| said.clone())?;
    writeln!(out, "memory of {}", described.text)?;
    let (device, host) = (arguments.device, DeviceOptions::default());
    let mut results = Vec::new();
    for devices in [[device, host], [host, device], [device, device]] {
        let mut pair = selftest_pair(devices, arguments.spoil).with_context(|| said.clone())?;
        results.push(selftest::run_devices(&mut pair.client, out)?);
    }
    write_json(json, &results)
}

fn selftest_pair(devices: [DeviceOptions; 2], spoil: bool) -> anyhow::Result<Pair> {
    let ends = devices.map(Setup::on);
    let program = std::env::current_exe()?;
    let memory = Origin::Alloc;
    let mut pair =
        Pair::start(&PairConfig { program, memory_bytes: WALK_BYTES, ends, memory, pingpong: false })?;
    if spoil {
        pair.client.spoil_checks();
    }
    Ok(pair)
}

fn compare(arguments: &CompareArguments) -> anyhow::Result<()> {
    let program = std::env::current_exe()?;
    let reference = RawConfig::compared(&program, WALK_BYTES, &arguments.congestion_control);
    let mut reference = RawEngine::start_best(&reference)?;
    let end = compared_setup(arguments)?;
    let (ends, memory) = ([end.clone(), end], arguments.memory);
    let config = PairConfig { program, memory_bytes: WALK_BYTES, ends, memory, pingpong: false };
    let mut pair = Pair::start(&config)?;
    let out = &mut io::stdout().lock();
    let comparison = compare::run_with_ferry(&arguments.plan, &mut reference, &mut pair, &config, out)?;
    write_json(arguments.json.as_deref(), &comparison)?;
    plot::write(arguments.plot.as_deref(), || plot::of_comparison(&comparison))
}

fn compare_peers(arguments: PeersArguments) -> anyhow::Result<()> {
    let secret = SecretFile::create()?;
    let places = peers::Places { secret: secret.path().to_owned(), ..arguments.places };
    let program = std::env::current_exe()?;
    let results = peers::run(&arguments.plan, &places, program, &mut io::stdout(), &mut io::stderr())?;
    write_json(arguments.json.as_deref(), &results)
}

fn compare_rdma(arguments: RdmaCompareArguments) -> anyhow::Result<()> {
    let RdmaCompareArguments { places, plan, mooncake, json } = arguments;
    let places = rdma::Places { program: std::env::current_exe()?, mooncake: mooncake.asked(), ..places };
    let results = rdma::run(&plan, &places, &mut io::stdout())?;
    write_json(json.as_deref(), &results)?;
    match results.failures()[..] {
        [] => Ok(()),
        [(side, reason), ..] => anyhow::bail!("{side}: {reason}"),
    }
}

/// Returns ferry's defaults, except where the reference differs from them: both then use the reference's.
fn compared_setup(arguments: &CompareArguments) -> anyhow::Result<Setup> {
    let (spin_us, defaults) = (arguments.plan.spin_us, Setup::default().config()?);
    let congestion_control = Some(&arguments.congestion_control);
    // Raw sockets are the reference; the paths that ferry would choose on one host have rows of their own.
    Ok(Setup::default()
        .given("transports", Transport::Tcp.forced())
        .given("spin_us", Some(spin_us).filter(|&spin_us| u64::from(spin_us) != defaults.spin_us))
        .given("tcp_congestion", congestion_control.filter(|name| *name != RawConfig::CONGESTION_CONTROL)))
}
