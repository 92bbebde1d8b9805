//! `ferry-bench selftest`: both ends on loopback, a short table, every byte checked.

use std::io::Write;

use serde::Serialize;

use crate::measure;
use crate::options::{Cli, Settings, TestArguments};
use crate::report::Report;
use crate::workload::Engine;

/// The parts of the table, as command lines.
pub const PARTS: [&str; 7] = [
    "write_bw -s 1m -l 16 -D 1 -t 4 --cpu_util 127.0.0.1",
    "read_bw -s 1m -l 16 -D 1 -t 4 --cpu_util 127.0.0.1",
    "write_bw -s 16k -l 1024 -D 1 -t 4 --layout scattered --cpu_util 127.0.0.1",
    "read_bw -s 4k -l 1024 -D 1 -t 4 --layout scattered --cpu_util 127.0.0.1",
    "write_lat -s 4k -n 20000 127.0.0.1",
    "read_lat -s 4k -n 20000 127.0.0.1",
    "notify_lat -s 64 -n 10000 127.0.0.1",
];

/// The parts for memory that may be a device's, as short as possible: a device's copies may be slow.
pub const PARTS_OF_DEVICES: [&str; 6] = [
    "write_bw -s 1m -l 16 -n 12 -t 4 127.0.0.1",
    "read_bw -s 1m -l 16 -n 12 -t 4 127.0.0.1",
    "write_bw -s 16k -l 1024 -n 12 -t 4 --layout scattered 127.0.0.1",
    "read_bw -s 4k -l 1024 -n 12 -t 4 --layout scattered 127.0.0.1",
    "write_lat -s 4k -n 500 127.0.0.1",
    "read_lat -s 4k -n 500 127.0.0.1",
];

#[derive(Debug, Serialize)]
pub struct Selftest {
    pub engine: String,
    pub parts: Vec<Report>,
}

/// Runs a table over `engine`. Wrong data is an error, like any other failure.
pub fn run(
    lines: &[&str],
    verbose: bool,
    engine: &mut dyn Engine,
    out: &mut dyn Write,
) -> anyhow::Result<Selftest> {
    let mut settings: Vec<_> = lines.iter().copied().map(settings).collect();
    settings.iter_mut().for_each(|part| part.said.verbose = verbose);
    let parts = settings.iter().map(|part| measure::run(part, engine, out)).collect::<anyhow::Result<_>>()?;
    Ok(Selftest { engine: engine.name().to_owned(), parts })
}

fn settings(line: &str) -> Settings {
    let words = std::iter::once("ferry-bench").chain(line.split_whitespace());
    let command = Cli::read(words).expect("a constant, parsed by the tests").command;
    let (test, arguments) = command.into_test().expect("a constant, a test");
    // Users would have to ask for the check; a notification is always compared.
    let said = TestArguments { data_validation: test.is_memory(), ..arguments };
    said.settle(test).expect("a constant, settled by the tests")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::IN_FLIGHT;

    #[test]
    fn every_part_is_a_valid_command_line() {
        let of_devices = PARTS_OF_DEVICES.map(settings);
        assert!(of_devices.iter().all(|part| part.said.data_validation));
        let parts = PARTS.map(settings);
        assert_eq!(parts.iter().filter(|part| part.said.data_validation).count(), parts.len() - 1);
        // The pair keeps this many in flight; the banner must not claim another number.
        let bandwidth = parts.iter().chain(&of_devices).filter(|part| part.test.is_bandwidth());
        assert!(bandwidth.into_iter().all(|part| part.tx_depth == IN_FLIGHT));
    }
}
