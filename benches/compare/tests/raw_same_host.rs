//! The same-host references with both of their processes: they move the stated bytes, and fail when they cannot.

use std::time::Duration;

use ferry_bench::layout::Layout;
use ferry_bench::workload::{Engine, LatencyWorkload, Limit, Operation, Workload, KIB, MIB};
use ferry_compare::raw::same_host::{Kind, SameHostConfig, SameHostEngine};

const MEMORY_BYTES: usize = 8 * MIB;

fn start(kind: Kind, threads: usize) -> anyhow::Result<SameHostEngine> {
    let program = env!("CARGO_BIN_EXE_ferry-compare").into();
    SameHostEngine::start(&SameHostConfig { program, kind, memory_bytes: MEMORY_BYTES, threads })
}

fn both(threads: usize) -> [SameHostEngine; 2] {
    [Kind::Own, Kind::Shared].map(|kind| start(kind, threads).expect("the target starts"))
}

fn workload(operation: Operation, layout: Layout, block_bytes: usize, blocks: usize) -> Workload {
    Workload { operation, layout, block_bytes, blocks, walk_bytes: MEMORY_BYTES }
}

#[test]
fn every_operation_layout_and_setting_puts_the_data_in_place() {
    for mut engine in [1, 3].into_iter().flat_map(both) {
        for operation in [Operation::Write, Operation::Read] {
            for layout in [Layout::Contiguous, Layout::Scattered] {
                for (block_bytes, blocks) in [(1, 1), (777, 13), (512, 2_000), (MIB, 8)] {
                    let workload = workload(operation, layout, block_bytes, blocks);
                    let sample = engine.throughput(&workload, Limit::Transfers(11)).expect("right data");
                    assert_eq!(sample.transfers, 11);
                    assert_eq!(sample.bytes, 11 * (block_bytes * blocks) as u64);
                }
            }
        }
    }
}

/// The chosen setting differs between machines; every candidate is tried, and its data checked.
#[test]
fn a_prepared_workload_has_a_setting_of_its_own() {
    for mut engine in both(2) {
        let workload = workload(Operation::Write, Layout::Scattered, 4 * KIB, 64);
        engine.prepare(&workload).expect("every setting works");
        let sample = engine.throughput(&workload, Limit::Seconds(0.05)).expect("right data");
        assert!(sample.seconds >= 0.05 && sample.cpu_seconds.initiator > 0.0, "{sample:?}");
        assert!(engine.settings(&workload).starts_with("2 threads, "), "{}", engine.settings(&workload));
    }
}

#[test]
fn latency_is_taken_of_every_transfer() {
    for mut engine in both(2) {
        for (operation, bytes) in [(Operation::Write, 4 * KIB), (Operation::Read, 64)] {
            let (spin, cpus) = (Some(Duration::ZERO), None);
            let workload = LatencyWorkload { operation, bytes, samples: 500, spin, cpus };
            let nanoseconds = engine.latency(&workload).expect("right data");
            assert_eq!(nanoseconds.len(), 500);
            assert!(nanoseconds.iter().all(|&ns| ns > 0));
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_harms_nothing() {
    for mut engine in both(1) {
        let good = workload(Operation::Write, Layout::Scattered, 4 * KIB, 16);
        let larger = Workload { walk_bytes: MEMORY_BYTES + 1, ..good };
        assert!(engine.throughput(&larger, Limit::Transfers(1)).is_err());
        assert!(engine.throughput(&Workload { blocks: 0, ..good }, Limit::Transfers(1)).is_err());
        assert!(engine.throughput(&good, Limit::Transfers(1)).is_ok());
    }
    assert!(start(Kind::Own, 0).is_err());
}

#[test]
fn a_killed_target_is_an_error_and_no_hang() {
    let mut engine = start(Kind::Own, 2).expect("the target starts");
    // SAFETY: a signal to our own child, which has not been waited for, so the id is still its own.
    assert_eq!(unsafe { libc::kill(engine.target_pid() as libc::pid_t, libc::SIGKILL) }, 0);
    let workload = workload(Operation::Write, Layout::Contiguous, MIB, 1);
    assert!(engine.throughput(&workload, Limit::Transfers(1)).is_err());
}

#[test]
fn dropping_the_engine_ends_the_target() {
    let engine = start(Kind::Shared, 1).expect("the target starts");
    let pid = engine.target_pid();
    drop(engine);
    let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    assert!(!command.contains("same-host-target"), "{command:?}");
}
