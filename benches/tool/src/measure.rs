//! A perftest-style test, from its settings to its table and its report, over any `Engine`.

use std::io::Write;

use anyhow::Context;

use crate::options::{Settings, BATCHES};
use crate::progress::Progress;
use crate::report::{Bandwidth, Report, SizeResult, WarmUp};
use crate::stats::Latency;
use crate::subject::PingPong;
use crate::table::{self, BandwidthColumns};
use crate::workload::{Engine, LatencyWorkload, Limit, Sample, Workload, LATENCY_SLOTS, MIB};

/// Memory walked on each side, and the bound on blocks, which keeps the maps of tiny sizes small.
const WALK_BYTES: usize = 256 * MIB;
const WALK_BLOCKS_MAX: usize = 1 << 16;
/// Latency runs are counted, not timed: a duration is measured in runs of this many samples.
const LATENCY_RUN_SAMPLES: u64 = 1_000;
/// Bounds the memory for samples in a long `-D` run.
const LATENCY_SAMPLES_MAX: usize = 50_000_000;

/// Returns the bytes that the largest of the test's workloads walks on each side.
pub fn memory_bytes(settings: &Settings) -> anyhow::Result<usize> {
    let walked = |&bytes: &usize| match (settings.test.is_memory(), settings.test.is_bandwidth()) {
        (false, _) => Ok(MIB),
        (true, _) if settings.said.pingpong => Ok(PingPong::memory_bytes(bytes).min(WALK_BYTES)),
        (true, true) => workload(settings, bytes).map(|workload| workload.walk_bytes),
        (true, false) => Ok((bytes * LATENCY_SLOTS).min(WALK_BYTES).max(bytes)),
    };
    settings.sizes.iter().map(walked).try_fold(1, |largest, bytes| Ok(bytes?.max(largest)))
}

/// Runs the test over all its sizes. The other end's user sees the rows too.
pub fn run(settings: &Settings, engine: &mut dyn Engine, out: &mut dyn Write) -> anyhow::Result<Report> {
    let said = &settings.said;
    let path = if said.verbose { engine.path() } else { engine.path_taken() };
    table::banner(out, settings, engine.name(), &path, &engine.devices())?;
    let no_peak = said.perftest.no_peak;
    let columns = BandwidthColumns { gbits: said.report_gbits, no_peak, cpu_util: said.cpu_util };
    let heading =
        if settings.test.is_bandwidth() { columns.heading() } else { table::latency_heading().to_owned() };
    say(engine, out, &heading)?;
    let mut warm_up = settings.warm_up;
    let sizes = loop {
        let mut sizes = Vec::with_capacity(settings.sizes.len());
        for &bytes in &settings.sizes {
            let progress = Progress::start(settings, warm_up, bytes);
            let (result, nanoseconds) = if settings.test.is_bandwidth() {
                (bandwidth(settings, warm_up, bytes, engine)?, Vec::new())
            } else {
                latency(settings, warm_up, bytes, engine)?
            };
            drop(progress);
            let row = match &result {
                SizeResult::Bandwidth(bandwidth) => columns.row(bandwidth),
                SizeResult::Latency(latency) => table::latency_row(latency),
            };
            say(engine, out, &row)?;
            if said.unsorted {
                table::unsorted(out, &nanoseconds)?;
            }
            if said.histogram {
                table::histogram(out, &nanoseconds)?;
            }
            sizes.push(result);
        }
        if !said.perftest.run_infinitely {
            break sizes;
        }
        // The next rows are warm.
        warm_up = None;
    };
    table::rule(out)?;
    Ok(Report::new(settings, engine.path(), engine.devices(), sizes))
}

/// Prints a line of the table here and at the other end.
fn say(engine: &mut dyn Engine, out: &mut dyn Write, line: &str) -> anyhow::Result<()> {
    writeln!(out, "{line}")?;
    engine.tell(line)
}

fn bandwidth(
    settings: &Settings,
    warm_up: Option<Limit>,
    bytes: usize,
    engine: &mut dyn Engine,
) -> anyhow::Result<SizeResult> {
    let workload = workload(settings, bytes)?;
    engine.prepare(&workload)?;
    let cold = warm_up.map(|limit| engine.throughput(&workload, limit)).transpose()?;
    let parts = if settings.said.perftest.no_peak { vec![settings.limit] } else { batches(settings.limit) };
    let batches = parts
        .into_iter()
        .map(|limit| engine.throughput(&workload, limit))
        .collect::<anyhow::Result<Vec<Sample>>>()?;
    let result = Bandwidth::of(bytes, settings.requests, &batches);
    Ok(SizeResult::Bandwidth(Bandwidth { warm_up: cold.as_ref().map(WarmUp::of), ..result }))
}

fn workload(settings: &Settings, bytes: usize) -> anyhow::Result<Workload> {
    let operation = settings.test.operation().context("a notification moves no memory")?;
    let blocks = (WALK_BYTES / bytes).min(WALK_BLOCKS_MAX).max(settings.requests);
    let walk_bytes = blocks.checked_mul(bytes).context("the transfer is larger than memory can be")?;
    let layout = settings.said.layout;
    Workload { operation, layout, block_bytes: bytes, blocks: settings.requests, walk_bytes }.validated()
}

/// Divides the limit into equal parts, fewer than usual if there are fewer transfers.
fn batches(limit: Limit) -> Vec<Limit> {
    match limit {
        Limit::Seconds(seconds) => vec![Limit::Seconds(seconds / BATCHES as f64); BATCHES as usize],
        Limit::Transfers(count) => {
            let parts = BATCHES.min(count);
            let part = |index| count * (index + 1) / parts - count * index / parts;
            (0..parts).map(|index| Limit::Transfers(part(index))).collect()
        }
    }
}

/// Returns the figures of a size, and its samples in the order taken.
fn latency(
    settings: &Settings,
    warm_up: Option<Limit>,
    bytes: usize,
    engine: &mut dyn Engine,
) -> anyhow::Result<(SizeResult, Vec<u64>)> {
    // There and back: both directions are equal, so a half is one of them.
    let halved = settings.said.pingpong || !settings.test.is_memory();
    let mut timed = |samples| {
        let nanoseconds = match settings.test.operation() {
            Some(_) if settings.said.pingpong => engine.ping_pongs(bytes, samples),
            Some(operation) => engine.latency(&LatencyWorkload {
                spin: settings.said.spin(),
                ..LatencyWorkload::of(operation, bytes, samples)
            }),
            None => engine.round_trips(bytes, samples),
        };
        anyhow::Ok(if halved { nanoseconds?.into_iter().map(|ns| ns / 2).collect() } else { nanoseconds? })
    };
    let mut samples = |limit| match limit {
        Limit::Transfers(count) => timed(count as usize),
        Limit::Seconds(seconds) => {
            let mut all = Vec::new();
            let mut spent = 0;
            let seconds = if halved { seconds / 2.0 } else { seconds };
            while (spent as f64) < seconds * 1e9 && all.len() < LATENCY_SAMPLES_MAX {
                let run: Vec<u64> = timed(LATENCY_RUN_SAMPLES as usize)?;
                spent += run.iter().sum::<u64>();
                all.extend(run);
            }
            Ok(all)
        }
    };
    warm_up.map(&mut samples).transpose()?;
    let nanoseconds = samples(settings.limit)?;
    Ok((SizeResult::Latency(Latency::of(bytes, &nanoseconds)?), nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_add_up_to_the_limit() {
        for count in [1, 4, 5, 6, 999, 1_000] {
            let total = batches(Limit::Transfers(count)).iter().fold(0, |sum, part| match part {
                Limit::Transfers(n) if *n > 0 => sum + n,
                other => panic!("{other:?}"),
            });
            assert_eq!(total, count);
        }
        assert_eq!(batches(Limit::Seconds(1.0)), vec![Limit::Seconds(0.2); 5]);
    }
}
