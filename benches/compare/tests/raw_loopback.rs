//! The raw reference with both of its processes: it moves the stated bytes, and fails when it cannot.

use std::time::{Duration, Instant};

use ferry_bench::layout::Layout;
use ferry_bench::workload::{Engine, LatencyWorkload, Limit, Operation, Workload, KIB, MIB};
use ferry_compare::raw::{RawConfig, RawEngine, SocketOptions, Tuning};

const MEMORY_BYTES: usize = 8 * MIB;

fn start() -> RawEngine {
    let socket = SocketOptions { buffer_bytes: Some(512 * KIB), congestion_control: Some("reno".to_owned()) };
    let program = env!("CARGO_BIN_EXE_ferry-compare").into();
    RawEngine::start(&RawConfig { program, connections: 4, memory_bytes: MEMORY_BYTES, socket })
        .expect("the raw pair starts")
}

fn workload(operation: Operation, layout: Layout, block_bytes: usize, blocks: usize) -> Workload {
    Workload { operation, layout, block_bytes, blocks, walk_bytes: MEMORY_BYTES }
}

#[test]
fn every_operation_layout_and_tuning_puts_the_data_in_place() {
    let mut pair = start();
    for operation in [Operation::Write, Operation::Read] {
        for layout in [Layout::Contiguous, Layout::Scattered] {
            // Odd sizes, more blocks than one call takes, and a single transfer per walk.
            for (block_bytes, blocks) in [(1, 1), (777, 13), (512, 2_000), (MIB, 8)] {
                for (connections, in_flight) in [(1, 1), (2, 3), (4, 8)] {
                    let workload = workload(operation, layout, block_bytes, blocks);
                    let tuning = Tuning { connections, in_flight };
                    let sample = pair.run(&workload, tuning, Limit::Transfers(11)).expect("right data");
                    assert_eq!(sample.transfers, 11);
                    assert_eq!(sample.bytes, 11 * (block_bytes * blocks) as u64);
                }
            }
        }
    }
}

#[test]
fn a_timed_run_lasts_about_as_long_as_asked() {
    let mut pair = start();
    let workload = workload(Operation::Write, Layout::Contiguous, 64 * KIB, 16);
    let tuning = Tuning { connections: 2, in_flight: 4 };
    let sample = pair.run(&workload, tuning, Limit::Seconds(0.1)).expect("right data");
    assert!(sample.seconds >= 0.1 && sample.transfers > 0, "{sample:?}");
    assert!(sample.cpu_seconds.initiator > 0.0 && sample.cpu_seconds.target > 0.0, "{sample:?}");
}

#[test]
fn latency_is_taken_of_every_transfer() {
    let mut pair = start();
    for (operation, bytes) in [(Operation::Write, 64), (Operation::Read, 4 * KIB)] {
        for spin in [Duration::ZERO, Duration::from_micros(50)] {
            let workload = LatencyWorkload { operation, bytes, samples: 500, spin: Some(spin), cpus: None };
            let nanoseconds = pair.latency(&workload).expect("right data");
            assert_eq!(nanoseconds.len(), 500);
            assert!(nanoseconds.iter().all(|&ns| ns > 0));
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_harms_nothing() {
    let mut pair = start();
    let good = workload(Operation::Write, Layout::Scattered, 4 * KIB, 16);
    let tuning = Tuning { connections: 2, in_flight: 2 };
    let limit = Limit::Transfers(3);
    let larger = Workload { walk_bytes: MEMORY_BYTES + 1, ..good };
    assert!(pair.run(&larger, tuning, limit).is_err());
    assert!(pair.run(&Workload { blocks: 0, ..good }, tuning, limit).is_err());
    assert!(pair.run(&good, Tuning { connections: 5, in_flight: 8 }, limit).is_err());
    assert!(pair.run(&good, Tuning { connections: 2, in_flight: 1 }, limit).is_err());
    assert!(pair.run(&good, tuning, limit).is_ok());
}

#[test]
fn a_killed_target_is_an_error_and_no_hang() {
    let mut pair = start();
    let pid = pair.target_pid() as libc::pid_t;
    // SAFETY: a signal to our own child, which has not been waited for, so the id is still its own.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    let started = Instant::now();
    let workload = workload(Operation::Write, Layout::Contiguous, MIB, 1);
    let tuning = Tuning { connections: 1, in_flight: 1 };
    assert!(pair.run(&workload, tuning, Limit::Transfers(1)).is_err());
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn dropping_the_pair_ends_the_target() {
    let pair = start();
    let pid = pair.target_pid();
    drop(pair);
    // The child was waited for: its /proc entry is gone unless another process reuses the id.
    let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    assert!(!command.contains("raw-target"), "{command:?}");
}

#[test]
fn a_program_that_is_no_target_is_an_error() {
    let socket = SocketOptions { buffer_bytes: None, congestion_control: None };
    for program in ["/bin/true", "/nonexistent"] {
        let config =
            RawConfig { program: program.into(), connections: 1, memory_bytes: MIB, socket: socket.clone() };
        assert!(RawEngine::start(&config).is_err(), "{program}");
    }
}
