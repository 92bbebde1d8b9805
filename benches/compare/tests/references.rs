//! The references with both of their processes: they move the stated bytes, and fail when they cannot. Those over
//! verbs need devices (`scripts/rdma-vm.sh run`); without devices the tests print so and pass, unless FERRY_TEST_RDMA
//! requires devices.

// Each test program uses its own part of it.
#[allow(dead_code)]
#[path = "../../tool/tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use ferry_bench::layout::Layout;
use ferry_bench::subject::Origin;
use ferry_bench::workload::{Engine, LatencyWorkload, Limit, Operation, Workload, KIB, MIB};
use ferry_compare::raw::same_host::SameHostEngine;
use ferry_compare::raw::verbs::VerbsEngine;
use ferry_compare::raw::{RawEngine, Tuning};
use ferry_compare::role::{Port, SocketOptions};
use support::has_rdma;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ferry-compare");
const MEMORY_BYTES: usize = 8 * MIB;
const USUAL: Tuning = Tuning { connections: 2, in_flight: 4 };

fn tcp() -> RawEngine {
    let socket = SocketOptions { buffer_bytes: Some(512 * KIB), congestion_control: Some("reno".to_owned()) };
    RawEngine::start(Path::new(PROGRAM), MEMORY_BYTES, &socket).expect("the raw pair starts")
}

fn same_host(origin: Origin, threads: usize) -> anyhow::Result<SameHostEngine> {
    SameHostEngine::start(Path::new(PROGRAM), origin, MEMORY_BYTES, threads)
}

fn verbs(initiator: &str, queues: usize) -> anyhow::Result<VerbsEngine> {
    let port = |device: &str| Port { device: device.to_owned(), gid_index: 1, mtu: 4_096, queues };
    VerbsEngine::start(Path::new(PROGRAM), MEMORY_BYTES, [&port(initiator), &port("rva1")])
}

/// Every reference that runs here, with the process id of its target.
fn all() -> Vec<(Box<dyn Engine>, u32)> {
    let raw = tcp();
    let raw_pid = raw.target_pid();
    let mut all: Vec<(Box<dyn Engine>, u32)> = vec![(Box::new(raw), raw_pid)];
    for origin in [Origin::Own, Origin::Alloc] {
        let engine = same_host(origin, 2).expect("the target starts");
        let pid = engine.target_pid();
        all.push((Box::new(engine), pid));
    }
    if has_rdma() {
        let engine = verbs("rva0", 1).expect("the target starts");
        let pid = engine.target_pid();
        all.push((Box::new(engine), pid));
    }
    all
}

fn workload(operation: Operation, layout: Layout, block_bytes: usize, blocks: usize) -> Workload {
    Workload { operation, layout, block_bytes, blocks, walk_bytes: MEMORY_BYTES }
}

/// Moves odd sizes, more blocks than one call takes, and a single transfer per walk, in both layouts.
fn moves(
    operation: Operation,
    mut run: impl FnMut(&Workload) -> anyhow::Result<ferry_bench::workload::Sample>,
) {
    for layout in [Layout::Contiguous, Layout::Scattered] {
        for (block_bytes, blocks) in [(1, 1), (220, 3), (777, 13), (512, 2_000), (MIB, 8)] {
            let sample = run(&workload(operation, layout, block_bytes, blocks)).expect("right data");
            assert_eq!((sample.transfers, sample.bytes), (11, 11 * (block_bytes * blocks) as u64));
        }
    }
}

const COUNTED: Limit = Limit::Transfers(11);

#[test]
fn every_operation_layout_and_setting_puts_the_data_in_place() {
    for operation in [Operation::Write, Operation::Read] {
        let mut raw = tcp();
        for (connections, in_flight) in [(1, 1), (2, 3), (4, 8)] {
            moves(operation, |workload| raw.run(workload, Tuning { connections, in_flight }, COUNTED));
        }
        for (origin, threads) in [(Origin::Own, 1), (Origin::Alloc, 1), (Origin::Own, 3), (Origin::Alloc, 3)]
        {
            let mut engine = same_host(origin, threads).expect("the target starts");
            moves(operation, |workload| engine.throughput(workload, COUNTED));
        }
        for (queues, flush) in [(1, true), (1, false), (3, true), (3, false)] {
            if has_rdma() {
                let mut engine = verbs("rva0", queues).expect("the target starts");
                engine.set_flush(flush);
                moves(operation, |workload| engine.throughput(workload, COUNTED));
            }
        }
    }
}

/// The chosen setting differs between machines; every candidate is tried, and its data checked.
#[test]
fn a_prepared_workload_runs_as_long_as_asked_with_a_setting_of_its_own() {
    for (mut engine, _) in all() {
        let workload = workload(Operation::Write, Layout::Scattered, 4 * KIB, 64);
        engine.prepare(&workload).expect("every setting works");
        let sample = engine.throughput(&workload, Limit::Seconds(0.1)).expect("right data");
        assert!(sample.seconds >= 0.1 && sample.cpu_seconds.initiator > 0.0, "{sample:?}");
        let (name, settings) = (engine.name(), engine.settings(&workload));
        assert!(name != "raw" || sample.cpu_seconds.target > 0.0, "{sample:?}");
        assert!(!name.starts_with("raw ") || settings.starts_with("2 threads, "), "{settings}");
    }
}

#[test]
fn latency_is_taken_of_every_transfer() {
    for (mut engine, _) in all() {
        for (operation, bytes) in [
            (Operation::Write, 2),
            (Operation::Write, 4 * KIB),
            (Operation::Read, 64),
            (Operation::Read, 4 * KIB),
        ] {
            for spin in [Duration::ZERO, Duration::from_micros(50)] {
                let workload =
                    LatencyWorkload { operation, bytes, samples: 500, spin: Some(spin), cpus: None };
                let nanoseconds = engine.latency(&workload).expect("right data");
                assert!(nanoseconds.len() == 500 && nanoseconds.iter().all(|&ns| ns > 0));
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_harms_nothing() {
    let good = workload(Operation::Write, Layout::Scattered, 4 * KIB, 16);
    for (mut engine, _) in all() {
        let larger = Workload { walk_bytes: MEMORY_BYTES + 1, ..good };
        assert!(engine.throughput(&larger, COUNTED).is_err());
        assert!(engine.throughput(&Workload { blocks: 0, ..good }, COUNTED).is_err());
        assert!(engine.throughput(&good, COUNTED).is_ok());
    }
    let mut raw = tcp();
    for (connections, in_flight) in [(5, 8), (2, 1)] {
        assert!(raw.run(&good, Tuning { connections, in_flight }, COUNTED).is_err());
    }
    assert!(raw.run(&good, USUAL, COUNTED).is_ok());
    assert!(same_host(Origin::Own, 0).is_err());
}

#[test]
fn a_killed_target_is_an_error_and_no_hang() {
    for (mut engine, pid) in all() {
        // SAFETY: a signal to our own child, which has not been waited for, so the id is still its own.
        assert_eq!(unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) }, 0);
        let started = Instant::now();
        let workload = workload(Operation::Write, Layout::Contiguous, MIB, 1);
        assert!(engine.throughput(&workload, Limit::Transfers(1)).is_err());
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn dropping_a_reference_ends_its_target() {
    for (engine, pid) in all() {
        drop(engine);
        // The child was waited for: its /proc entry is gone unless another process reuses the id.
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        assert!(!command.contains("-target"), "{command:?}");
    }
}

#[test]
fn a_program_or_a_device_that_is_none_is_an_error() {
    let socket = SocketOptions { buffer_bytes: None, congestion_control: None };
    for program in ["/bin/true", "/nonexistent"] {
        assert!(RawEngine::start(Path::new(program), MIB, &socket).is_err(), "{program}");
    }
    let error = verbs("ferry_none0", 1).err().expect("there is no such device");
    let text = format!("{error:#}");
    assert!(text.contains("ferry_none0") || text.contains("listing RDMA devices"), "{text}");
}
