//! Workloads, and the interface that runs them: the `Engine` trait.
//!
//! The drivers see only this interface. `subject` implements it over the library; the references of ferry-compare
//! implement it over bare system calls.

use std::fmt;
use std::time::Duration;

use anyhow::{bail, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::layout::Layout;

pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;
pub const GIB: f64 = (1u64 << 30) as f64;
pub const GB: f64 = 1e9;

/// A choice, named as on the command line.
pub trait Named: ValueEnum {
    fn name(&self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

impl<T: ValueEnum> Named for T {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    Write,
    Read,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Write => "WRITE",
            Operation::Read => "READ",
        })
    }
}

/// Equal transfers, each of `blocks` blocks, that walk over the memory of both sides repeatedly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Workload {
    pub operation: Operation,
    pub layout: Layout,
    pub block_bytes: usize,
    /// Blocks, and so requests, per transfer.
    pub blocks: usize,
    /// Memory on each side. Must exceed the caches, or they flatter the result.
    pub walk_bytes: usize,
}

impl Workload {
    /// Makes a workload of transfers with one block.
    pub fn single(operation: Operation, block_bytes: usize, walk_bytes: usize) -> Workload {
        Workload { operation, layout: Layout::Contiguous, block_bytes, blocks: 1, walk_bytes }
    }

    pub fn transfer_bytes(&self) -> usize {
        self.block_bytes * self.blocks
    }

    /// Transfers until the walk starts over.
    pub fn slots(&self) -> usize {
        self.walk_bytes / self.transfer_bytes()
    }

    /// Returns the workload; fails if it has no bytes or does not fit its own memory.
    pub fn validated(self) -> anyhow::Result<Workload> {
        ensure!(self.block_bytes > 0 && self.blocks > 0, "a transfer needs at least one byte");
        let bytes = self.block_bytes.saturating_mul(self.blocks);
        ensure!(
            bytes <= self.walk_bytes,
            "a transfer of {bytes} bytes exceeds the {} walked",
            self.walk_bytes
        );
        ensure!(u32::try_from(self.walk_bytes / self.block_bytes).is_ok(), "more than 2^32 blocks");
        Ok(self)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layout = self.layout.name();
        let size = format_bytes(self.block_bytes);
        write!(f, "{} {size} × {} {layout}", self.operation, format_count(self.blocks))
    }
}

/// Formats "16 KiB", "1 MiB", or bytes if neither unit divides them.
pub fn format_bytes(bytes: usize) -> String {
    match bytes {
        b if b >= MIB && b % MIB == 0 => format!("{} MiB", b / MIB),
        b if b >= KIB && b % KIB == 0 => format!("{} KiB", b / KIB),
        b => format!("{b} B"),
    }
}

/// Formats a count with commas between thousands.
pub fn format_count(count: usize) -> String {
    match count {
        0..1_000 => count.to_string(),
        _ => format!("{},{:03}", format_count(count / 1_000), count % 1_000),
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Seconds(seconds) => write!(f, "{seconds} s"),
            Limit::Transfers(count) => write!(f, "{count} transfers"),
        }
    }
}

/// The end of a throughput run. Transfers under way are finished and counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Limit {
    Seconds(f64),
    Transfers(u64),
}

/// CPU time of the two processes, user and system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CpuSeconds {
    pub initiator: f64,
    pub target: f64,
}

impl CpuSeconds {
    pub fn sum(self) -> f64 {
        self.initiator + self.target
    }
}

/// One throughput run, with its data checked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    pub bytes: u64,
    pub transfers: u64,
    pub seconds: f64,
    pub cpu_seconds: CpuSeconds,
}

impl Sample {
    pub fn of(workload: &Workload, transfers: u64, seconds: f64, cpu_seconds: CpuSeconds) -> Sample {
        let bytes = transfers * workload.transfer_bytes() as u64;
        Sample { bytes, transfers, seconds, cpu_seconds }
    }

    pub fn gb_per_second(&self) -> f64 {
        self.bytes as f64 / self.seconds / GB
    }

    pub fn gib_per_second(&self) -> f64 {
        self.bytes as f64 / self.seconds / GIB
    }

    /// CPU time of both ends for each GiB moved.
    pub fn cpu_seconds_per_gib(&self) -> f64 {
        self.cpu_seconds.sum() / (self.bytes as f64 / GIB)
    }
}

/// Synchronous single-request transfers, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct LatencyWorkload {
    pub operation: Operation,
    pub bytes: usize,
    pub samples: usize,
    /// Both ends poll for this long before they sleep; `None` leaves the time to the engine.
    pub spin: Option<Duration>,
    /// The only CPUs on which the initiator and the target may execute; `None`: any.
    pub cpus: Option<[usize; 2]>,
}

impl LatencyWorkload {
    /// Makes a workload for any CPUs, with the engine's own spinning.
    pub fn of(operation: Operation, bytes: usize, samples: usize) -> LatencyWorkload {
        LatencyWorkload { operation, bytes, samples, spin: None, cpus: None }
    }

    /// Returns the workload of a single transfer, if each side has `memory_bytes`.
    pub fn single(&self, memory_bytes: usize) -> Workload {
        let walk_bytes = self.bytes.saturating_mul(LATENCY_SLOTS).min(memory_bytes);
        Workload::single(self.operation, self.bytes, walk_bytes)
    }
}

/// Latency runs walk this many blocks: enough that misplaced data shows, few enough to stay cached.
pub const LATENCY_SLOTS: usize = 64;

/// A device's name and its library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    pub text: String,
    /// The library is one of `tests/standin`, so its times mean nothing.
    pub is_standin: bool,
}

/// An engine that moves bytes, with both of its ends at hand.
pub trait Engine {
    fn name(&self) -> &str;

    /// Returns the path in use, its settings, and the reason for the choice, in one line.
    fn path(&self) -> String;

    /// Returns only the path in use and the reason for the choice.
    fn path_taken(&self) -> String {
        self.path()
    }

    /// Returns the devices of the initiator's and the target's memory; `None`: host memory.
    fn devices(&self) -> [Option<Described>; 2] {
        [None, None]
    }

    /// Shows lines of the table to the other end's user, untimed, if a user sits there.
    fn tell(&mut self, _lines: &str) -> anyhow::Result<()> {
        Ok(())
    }

    /// Prepares for a workload, untimed, once before it is measured: for tuning and for touching memory.
    fn prepare(&mut self, workload: &Workload) -> anyhow::Result<()>;

    /// Returns the settings chosen for this workload, for the record.
    fn settings(&self, workload: &Workload) -> String;

    /// Runs to the limit and checks the data afterwards, outside the timed part.
    fn throughput(&mut self, workload: &Workload, limit: Limit) -> anyhow::Result<Sample>;

    /// Returns the nanoseconds of each transfer, in order.
    fn latency(&mut self, workload: &LatencyWorkload) -> anyhow::Result<Vec<u64>>;

    /// Returns the nanoseconds of each of `samples` notifications of `bytes` to the other end's application and back.
    fn round_trips(&mut self, _bytes: usize, _samples: usize) -> anyhow::Result<Vec<u64>> {
        bail!("{} has no notifications", self.name())
    }

    /// Returns the nanoseconds of each of `rounds` WRITEs of `bytes` and the other application's WRITE back, each seen
    /// by polling memory.
    fn ping_pongs(&mut self, _bytes: usize, _rounds: usize) -> anyhow::Result<Vec<u64>> {
        bail!("{} has no application at the other end that writes back", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_what_they_say() {
        let cpu_seconds = CpuSeconds { initiator: 0.25, target: 0.75 };
        let sample = Sample { bytes: 1 << 31, transfers: 2, seconds: 2.0, cpu_seconds };
        assert_eq!(sample.gib_per_second(), 1.0);
        assert_eq!(sample.gb_per_second(), 1.073_741_824);
        assert_eq!(sample.cpu_seconds_per_gib(), 0.5);
    }

    #[test]
    fn a_workload_reads_as_people_write_it() {
        let operation = Operation::Read;
        let layout = Layout::Scattered;
        let w = Workload { operation, layout, block_bytes: 16 * KIB, blocks: 1_024, walk_bytes: 256 * MIB };
        assert_eq!(w.to_string(), "READ 16 KiB × 1,024 scattered");
        assert_eq!([999, 1_000, 1_234_567].map(format_count), ["999", "1,000", "1,234,567"]);
        assert_eq!([1_000, 1_024, MIB].map(format_bytes), ["1000 B", "1 KiB", "1 MiB"]);
    }

    #[test]
    fn a_transfer_must_fit_the_memory_it_walks() {
        let layout = Layout::Contiguous;
        let fits =
            Workload { operation: Operation::Write, layout, block_bytes: 8, blocks: 4, walk_bytes: 32 };
        assert_eq!(fits.validated().expect("exactly fits").slots(), 1);
        assert!(Workload { walk_bytes: 31, ..fits }.validated().is_err());
        assert!(Workload { blocks: 0, ..fits }.validated().is_err());
        assert!(Workload { block_bytes: usize::MAX, ..fits }.validated().is_err());
    }
}
