//! The verbs reference with both of its processes, on real queue pairs: `scripts/rdma-vm.sh run` has devices for it.
//! Without devices the tests print so and pass, unless FERRY_TEST_RDMA requires devices.

// Each test program uses its own part of it.
#[allow(dead_code)]
#[path = "../../tool/tests/support/mod.rs"]
mod support;

use ferry_bench::layout::Layout;
use ferry_bench::workload::{Engine, LatencyWorkload, Limit, Operation, Workload, KIB};
use ferry_compare::raw::verbs::{Port, VerbsConfig, VerbsEngine};
use support::has_rdma;

const MEMORY_BYTES: usize = 1024 * KIB;

fn port(device: &str, queues: usize) -> Port {
    Port { device: device.to_owned(), gid_index: 1, mtu: 4_096, queues }
}

fn config(queues: usize) -> VerbsConfig {
    VerbsConfig {
        program: env!("CARGO_BIN_EXE_ferry-compare").into(),
        memory_bytes: MEMORY_BYTES,
        initiator: port("rva0", queues),
        target: port("rva1", queues),
    }
}

fn workload(operation: Operation, layout: Layout, block_bytes: usize, blocks: usize) -> Workload {
    Workload { operation, layout, block_bytes, blocks, walk_bytes: MEMORY_BYTES }
}

#[test]
fn every_operation_layout_and_visibility_puts_the_data_in_place() {
    if !has_rdma() {
        return;
    }
    for queues in [1, 3] {
        let mut engine = VerbsEngine::start(&config(queues)).expect("the target starts");
        for (operation, flush) in
            [(Operation::Write, true), (Operation::Write, false), (Operation::Read, true)]
        {
            engine.set_flush(flush);
            for layout in [Layout::Contiguous, Layout::Scattered] {
                for (block_bytes, blocks) in [(1, 1), (220, 3), (777, 13), (512, 1_000), (256 * KIB, 4)] {
                    let workload = workload(operation, layout, block_bytes, blocks);
                    let sample = engine.throughput(&workload, Limit::Transfers(7)).expect("right data");
                    assert_eq!((sample.transfers, sample.bytes), (7, 7 * (block_bytes * blocks) as u64));
                }
            }
        }
    }
}

#[test]
fn latency_is_taken_of_every_transfer() {
    if !has_rdma() {
        return;
    }
    let mut engine = VerbsEngine::start(&config(1)).expect("the target starts");
    for (operation, bytes) in [(Operation::Write, 2), (Operation::Write, 4 * KIB), (Operation::Read, 64)] {
        let workload = LatencyWorkload { operation, bytes, samples: 200, spin: None, cpus: None };
        let nanoseconds = engine.latency(&workload).expect("right data");
        assert_eq!(nanoseconds.len(), 200);
        assert!(nanoseconds.iter().all(|&ns| ns > 0));
    }
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let mut config = config(1);
    config.initiator.device = "ferry_none0".to_owned();
    let error = VerbsEngine::start(&config).err().expect("there is no such device");
    let text = format!("{error:#}");
    assert!(text.contains("ferry_none0") || text.contains("listing RDMA devices"), "{text}");
}
