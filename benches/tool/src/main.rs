//! The `ferry-bench` program: parses the command line and calls the library.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use ferry_bench::commands::run_test;
use ferry_bench::device::{find, DeviceOptions};
use ferry_bench::options::{Cli, Command, SelftestArguments};
use ferry_bench::report::write_json;
use ferry_bench::selftest::{self, PARTS, PARTS_OF_DEVICES};
use ferry_bench::subject::{Origin, Pair, PairConfig, Setup};
use ferry_bench::workload::MIB;

/// Larger than any cache of the machines at hand; both ends walk it.
const WALK_BYTES: usize = 256 * MIB;

fn main() -> ExitCode {
    let line = Cli::read(std::env::args_os()).unwrap_or_else(|error| error.exit());
    match run(line.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ferry-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Selftest(arguments) => selftest(&arguments),
        Command::Child { role } => role.serve(),
        test => {
            let (test, arguments) = test.into_test().context("not a test")?;
            run_test(test, arguments, &mut io::stdout().lock())
        }
    }
}

fn selftest(arguments: &SelftestArguments) -> anyhow::Result<()> {
    let out = &mut io::stdout().lock();
    let (json, verbose) = (arguments.json.as_deref(), arguments.verbose);
    let Some(at) = arguments.device.location() else {
        let mut pair = selftest_pair([DeviceOptions::default(); 2], arguments.spoil)?;
        return write_json(json, &selftest::run(&PARTS, verbose, &mut pair.client, out)?);
    };
    let said = arguments.device.argument().unwrap_or_default();
    let config = ferry::Config::new()?;
    let described = find(at, &config).with_context(|| said.clone())?;
    writeln!(out, "memory of {}", described.text)?;
    let (device, host) = (arguments.device, DeviceOptions::default());
    let mut results = Vec::new();
    for devices in [[device, host], [host, device], [device, device]] {
        let mut pair = selftest_pair(devices, arguments.spoil).with_context(|| said.clone())?;
        results.push(selftest::run(&PARTS_OF_DEVICES, verbose, &mut pair.client, out)?);
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
