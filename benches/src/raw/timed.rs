//! One timed batch of a reference, from the first transfer to the last, with the CPU time that both
//! processes took for it; or each transfer by itself. What is measured, and the check of the data, are the caller's.

use std::io;
use std::time::Instant;

use anyhow::Context;

use crate::cpu::{child_cpu_seconds, own_cpu_seconds, Pinned};
use crate::dispense::Dispenser;
use crate::workload::{CpuSeconds, LatencyWorkload, Limit, Placement, Sample, Workload};

/// `drive` carries out what the dispenser gives, and says when the last of it was done.
pub fn timed(
    target_pid: u32,
    workload: &Workload,
    limit: Limit,
    drive: impl FnOnce(&Dispenser) -> io::Result<Instant>,
) -> anyhow::Result<Sample> {
    let target_before = child_cpu_seconds(target_pid)?;
    let own_before = own_cpu_seconds();
    let dispenser = Dispenser::new(limit);
    let end = drive(&dispenser).context("the raw run")?;
    let cpu_seconds = CpuSeconds {
        initiator: own_cpu_seconds() - own_before,
        target: child_cpu_seconds(target_pid)? - target_before,
    };
    let transfers = dispenser.transfers();
    let seconds = (end - dispenser.start()).as_secs_f64();
    let bytes = transfers * workload.transfer_bytes() as u64;
    Ok(Sample { bytes, transfers, seconds, cpu_seconds })
}

/// Nanoseconds of each of the workload's transfers, made by the calling thread where it may execute. The
/// target has no part in them: where that may is of no consequence.
pub fn time_each(
    workload: &LatencyWorkload,
    mut carry: impl FnMut(u64) -> io::Result<()>,
) -> anyhow::Result<Vec<u64>> {
    let _pinned = match workload.placement {
        Placement::Anywhere => None,
        Placement::Pinned { initiator_cpu, .. } => Some(Pinned::to(initiator_cpu)?),
    };
    let mut nanoseconds = Vec::with_capacity(workload.samples);
    for number in 0..workload.samples as u64 {
        let start = Instant::now();
        carry(number)?;
        nanoseconds.push(start.elapsed().as_nanos() as u64);
    }
    Ok(nanoseconds)
}
