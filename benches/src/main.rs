//! The `ferry-bench` program: reads the command line and hands over to the library.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use ferry_bench::commands::run_test;
use ferry_bench::compare::{self, Plan, WALK_BYTES};
use ferry_bench::cpu::raise_descriptor_limit;
use ferry_bench::device::find;
use ferry_bench::options::{
    Cli, Command, CompareArguments, DeviceOptions, FerryCrowdArguments, FerryTargetArguments, PeersArguments,
    RawTargetArguments, RdmaCompareArguments, SameHostTargetArguments, SelftestArguments, Transport,
    VerbsTargetArguments,
};
use ferry_bench::peers;
use ferry_bench::raw::same_host::{self, SameHostTargetOptions};
use ferry_bench::raw::verbs;
use ferry_bench::raw::{serve, RawConfig, RawEngine, SocketOptions, TargetOptions};
use ferry_bench::rdma;
use ferry_bench::report::write_json;
use ferry_bench::selftest;
use ferry_bench::subject::{serve_child, serve_crowd, Origin, Pair, PairConfig, SecretFile, Setup};

/// The most connections that the reference's search tries.
const RAW_CONNECTIONS: usize = 4;
/// What ferry takes by itself between ends on one host.
const CONGESTION_CONTROL: &str = "reno";

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
        Command::RawTarget(arguments) => raw_target(arguments),
        Command::SameHostTarget(arguments) => same_host_target(&arguments),
        Command::VerbsTarget(arguments) => verbs_target(&arguments),
        Command::FerryTarget(arguments) => ferry_target(arguments),
        Command::FerryCrowd(arguments) => ferry_crowd(arguments),
        test => {
            let (test, arguments) = test.into_test().context("not a test")?;
            run_test(test, arguments, &mut io::stdout().lock())
        }
    }
}

fn selftest(arguments: &SelftestArguments) -> anyhow::Result<()> {
    let out = &mut io::stdout().lock();
    let Some(at) = arguments.device.location() else {
        let mut pair = selftest_pair([DeviceOptions::default(); 2], arguments.spoil)?;
        let result = selftest::run(&mut pair.client, out)?;
        return arguments.json.as_deref().map_or(Ok(()), |path| write_json(path, &result));
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
    arguments.json.as_deref().map_or(Ok(()), |path| write_json(path, &results))
}

fn selftest_pair(devices: [DeviceOptions; 2], spoil: bool) -> anyhow::Result<Pair> {
    let mut pair = Pair::start(&PairConfig {
        program: std::env::current_exe()?,
        memory_bytes: WALK_BYTES,
        spin: None,
        congestion_control: None,
        transport: Transport::Auto,
        rdma: Default::default(),
        devices,
        qps: None,
        pingpong: false,
        memory: Origin::Alloc,
    })?;
    if spoil {
        pair.client.spoil_checks();
    }
    Ok(pair)
}

fn compare(arguments: &CompareArguments) -> anyhow::Result<()> {
    let plan = Plan {
        pairs: arguments.pairs as usize,
        seconds: arguments.seconds,
        samples: arguments.samples as usize,
        spin: Duration::from_micros(u64::from(arguments.spin_us)),
        idle_seconds: arguments.idle_seconds,
        peers: arguments.peers,
        rows: arguments.rows.clone(),
    };
    let mut reference = RawEngine::start(&raw_config(&arguments.congestion_control)?)?;
    let config = pair_config(arguments)?;
    let mut pair = Pair::start(&config)?;
    let out = &mut io::stdout().lock();
    let comparison = compare::run_with_ferry(&plan, &mut reference, &mut pair, &config, out)?;
    arguments.json.as_deref().map_or(Ok(()), |path| write_json(path, &comparison))
}

fn compare_peers(arguments: PeersArguments) -> anyhow::Result<()> {
    let secret = SecretFile::create()?;
    let (plan, places, json) = arguments.settle(secret.path().to_owned());
    let program = std::env::current_exe()?;
    let results = peers::run(&plan, &places, program, &mut io::stdout(), &mut io::stderr())?;
    json.map_or(Ok(()), |path| write_json(&path, &results))
}

fn compare_rdma(arguments: RdmaCompareArguments) -> anyhow::Result<()> {
    let (plan, places, json) = arguments.settle(std::env::current_exe()?);
    let results = rdma::run(&plan, &places, &mut io::stdout())?;
    json.map_or(Ok(()), |path| write_json(&path, &results))?;
    match results.failures()[..] {
        [] => Ok(()),
        [(side, reason), ..] => anyhow::bail!("{side}: {reason}"),
    }
}

/// ferry's defaults, unless the reference departs from what they come to: then both do.
fn pair_config(arguments: &CompareArguments) -> anyhow::Result<PairConfig> {
    let defaults = Setup::default().config()?;
    let spin = Duration::from_micros(u64::from(arguments.spin_us));
    let congestion_control = &arguments.congestion_control;
    Ok(PairConfig {
        program: std::env::current_exe()?,
        memory_bytes: WALK_BYTES,
        spin: (spin != Duration::from_micros(defaults.spin_us)).then_some(spin),
        // Measured against raw sockets; what ferry would choose on one host is in rows of its own.
        transport: Transport::Tcp,
        rdma: Default::default(),
        devices: Default::default(),
        qps: None,
        pingpong: false,
        memory: arguments.memory,
        congestion_control: (congestion_control != CONGESTION_CONTROL).then(|| congestion_control.clone()),
    })
}

/// The socket buffers are the reference's to choose.
fn raw_config(congestion_control: &str) -> anyhow::Result<RawConfig> {
    Ok(RawConfig {
        program: std::env::current_exe()?,
        connections: RAW_CONNECTIONS,
        memory_bytes: WALK_BYTES,
        socket: SocketOptions { buffer_bytes: None, congestion_control: Some(congestion_control.to_owned()) },
    })
}

fn ferry_target(arguments: FerryTargetArguments) -> anyhow::Result<()> {
    raise_descriptor_limit()?;
    serve_child(&setup(arguments))
}

fn ferry_crowd(arguments: FerryCrowdArguments) -> anyhow::Result<()> {
    raise_descriptor_limit()?;
    serve_crowd(&setup(arguments.engine), &arguments.address, arguments.peers)
}

fn setup(arguments: FerryTargetArguments) -> Setup {
    let FerryTargetArguments {
        secret_file,
        spin_us,
        congestion_control,
        workers,
        transport,
        qps,
        rdma,
        device,
    } = arguments;
    let spin = spin_us.map(|us| Duration::from_micros(u64::from(us)));
    Setup { secret_file, spin, congestion_control, workers, transport, qps, rdma, device, ..Setup::default() }
}

fn raw_target(arguments: RawTargetArguments) -> anyhow::Result<()> {
    let RawTargetArguments { connections, memory_bytes, token, buffer_bytes, congestion_control } = arguments;
    let socket = SocketOptions { buffer_bytes, congestion_control };
    let options = TargetOptions { connections, memory_bytes, token, socket };
    serve(&options, io::stdin().lock(), io::stdout().lock())
}

fn same_host_target(arguments: &SameHostTargetArguments) -> anyhow::Result<()> {
    let SameHostTargetArguments { kind, memory_bytes } = *arguments;
    let options = SameHostTargetOptions { kind, memory_bytes };
    same_host::serve(&options, io::stdin().lock(), io::stdout().lock())
}

fn verbs_target(arguments: &VerbsTargetArguments) -> anyhow::Result<()> {
    verbs::serve(&arguments.port, arguments.memory_bytes, io::stdin().lock(), io::stdout().lock())
}
