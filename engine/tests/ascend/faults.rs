//! Fails every call that can fail: checks the reported error, and that nothing is leaked or touched too late.

use crate::npu::{alone, cause, expect, finish, host_slice, pattern, Npu, MIB};
use ferry::internals::device::{Direction, Job, Limits, Piece, Worker};
use ferry::status::Result;
use ferry::types::{Boottime, Location, MemoryKind};
use ferry::Status;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

const CODE: i32 = 507_035;

fn piece(to: u64, from: u64, length: usize) -> Piece {
    Piece { to, from, length: length as u64 }
}

/// Makes the driver do everything that it can, up to the first failure.
fn exercise(npu: &Npu, other: u64, device: u64, host: u64) -> Result<()> {
    npu.with_queue(0, MIB, 2, |queue| {
        let batch = queue.copy(Direction::DeviceToDevice, &[piece(device, other, 4096)])?;
        finish(queue, batch)?;
        let small = |at: u64| piece(device + at * 4096, host + at * 4096, 4096);
        let batch = queue.copy(Direction::HostToDevice, &[small(0), small(1)])?;
        finish(queue, batch)?;
        let apart = [piece(host, device, 512), piece(host + 1024, device, 512)];
        let batch = queue.copy(Direction::DeviceToHost, &apart)?;
        finish(queue, batch)?;
        let exported = queue.export(device, MIB as u64, 1)?;
        queue.withdraw(&exported);
        Ok(())
    })?
}

#[test]
fn each_call_that_fails_is_named_and_leaves_nothing() {
    alone(each_call_that_fails_is_named_and_leaves_nothing, "9.1", &[], |mut npu| {
        npu.start(1);
        let other = npu.device_memory(MIB);
        npu.set(0);
        let (device, host) = (npu.device_memory(MIB), npu.host_memory(MIB));
        exercise(&npu, other, device, host).unwrap();
        for (function, nth) in [
            ("aclrtCreateContext", 1),
            ("aclrtMallocHost", 1),
            ("aclrtMalloc", 1),
            ("aclrtMemcpy", 1),
            ("aclrtMalloc", 2),
            ("aclrtCreateStreamWithConfig", 1),
            ("aclrtSetStreamFailureMode", 1),
            // A copy, a flag, a copy across, a copy on the device, another copy.
            ("aclrtMemcpyAsync", 1),
            ("aclrtMemcpyAsync", 2),
            ("aclrtMemcpyAsync", 3),
            ("aclrtMemcpyAsync", 4),
            ("aclrtMemcpyAsync", 6),
            ("aclrtMemcpyBatchAsync", 1),
            ("aclrtGetPhyDevIdByLogicDevId", 1),
            ("aclrtIpcMemSetImportPid", 1),
        ] {
            npu.fault(function, &nth.to_string(), CODE);
            let error = exercise(&npu, other, device, host).unwrap_err();
            assert_eq!(error.vendor_error, CODE, "{function} {nth}: {error}");
            assert!(error.message.contains(function), "{function} {nth}: {error}");
            assert!(error.message.contains("a fault of the test"), "{function} {nth}: {error}");
            assert_eq!(
                (error.status, error.transport),
                (Status::Unavailable, ferry::types::Transport::Ascend)
            );
            npu.no_fault();
            exercise(&npu, other, device, host).unwrap();
        }
        // Only the first time, and only in a process that has not accessed the other device.
        npu.free(device);
        npu.free_host(host);
        npu.set(1);
        npu.free(other);
        npu.end();
    });
}

#[test]
fn a_device_that_may_not_be_reached_says_so() {
    for function in ["aclrtDeviceCanAccessPeer", "aclrtDeviceEnablePeerAccess"] {
        let fault = format!("{function}:1:207000");
        alone(a_device_that_may_not_be_reached_says_so, "9.1", &[("FAULT", &fault)], |mut npu| {
            npu.start(1);
            let other = npu.device_memory(MIB);
            npu.set(0);
            let device = npu.device_memory(MIB);
            let error = exercise(&npu, other, device, 0).unwrap_err();
            assert_eq!(cause(&error), (Status::Unsupported, 207_000));
            assert!(error.message.contains(function), "{error}");
            npu.free(device);
            npu.set(1);
            npu.free(other);
            npu.end();
        });
    }
}

#[test]
fn a_library_that_does_not_begin_says_why() {
    alone(a_library_that_does_not_begin_says_why, "9.1", &[("FAULT", "aclInit:1:100000")], |npu| {
        let error = npu.with_queue(0, MIB, 1, |_| ()).unwrap_err();
        assert_eq!(cause(&error), (Status::Invalid, 100_000));
        assert!(error.message.contains("aclInit"), "{error}");
        npu.with_queue(0, MIB, 1, |_| ()).unwrap();
        let error = npu.with_queue(9, MIB, 1, |_| ()).unwrap_err();
        assert_eq!(cause(&error), (Status::Invalid, 107_001));
    });
}

/// A piece that the library refuses fails its own batch and no other.
#[test]
fn a_wrong_piece_fails_its_batch_alone() {
    alone(a_wrong_piece_fails_its_batch_alone, "8.1", &[], |mut npu| {
        npu.start(0);
        let (device, host) = (npu.device_memory(4 * MIB), npu.host_memory(4 * MIB));
        host_slice(host, 4 * MIB).copy_from_slice(&pattern(4 * MIB, 2));
        npu.with_queue(0, MIB, 2, |queue| {
            // The second piece exceeds its allocation.
            let good = piece(device, host, 2 * MIB);
            let wrong = piece(device + 3 * MIB as u64, host, 2 * MIB);
            let batch = queue.copy(Direction::HostToDevice, &[good, wrong]).unwrap();
            let error = finish(queue, batch).unwrap_err();
            assert_eq!(cause(&error), (Status::Invalid, 107_000));
            // No copy has begun, so there is nothing to wait for.
            let error = queue.copy(Direction::HostToDevice, &[wrong, good]).unwrap_err();
            assert_eq!(cause(&error), (Status::Invalid, 107_000));
            let batch = queue.copy(Direction::HostToDevice, &[good]).unwrap();
            finish(queue, batch).unwrap();
        })
        .unwrap();
        npu.expect_device(device, 2 * MIB, 2);
        npu.free(device);
        npu.free_host(host);
        npu.end();
    });
}

/// The device itself fails a copy: no later copy counts as successful.
#[test]
fn a_copy_that_the_device_fails_ends_the_queue() {
    alone(a_copy_that_the_device_fails_ends_the_queue, "9.1", &[("COPY_US", "2000")], |mut npu| {
        npu.start(0);
        let (device, host) = (npu.device_memory(MIB), npu.host_memory(MIB));
        host_slice(host, MIB).copy_from_slice(&pattern(MIB, 2));
        npu.with_queue(0, MIB, 4, |queue| {
            let pieces = [piece(device, host, MIB)];
            // Tasks: a copy, a flag, a copy.
            npu.fault("task", "3", CODE);
            let first = queue.copy(Direction::HostToDevice, &pieces).unwrap();
            let second = queue.copy(Direction::HostToDevice, &pieces).unwrap();
            let third = queue.copy(Direction::HostToDevice, &pieces).unwrap();
            finish(queue, first).unwrap();
            for failed in [finish(queue, second), finish(queue, third)] {
                let failed = failed.unwrap_err();
                assert_eq!(cause(&failed), (Status::Unavailable, CODE), "{failed}");
            }
            let refused = queue.copy(Direction::HostToDevice, &pieces).unwrap_err();
            assert_eq!(cause(&refused), (Status::Unavailable, CODE));
        })
        .unwrap();
        // Another queue is not affected.
        npu.with_queue(0, MIB, 1, |queue| {
            let batch = queue.copy(Direction::HostToDevice, &[piece(device, host, MIB)]).unwrap();
            finish(queue, batch).unwrap();
        })
        .unwrap();
        npu.expect_device(device, MIB, 2);
        npu.free(device);
        npu.free_host(host);
        npu.end();
    });
}

#[test]
fn a_copy_that_hangs_is_stopped() {
    alone(a_copy_that_hangs_is_stopped, "9.1", &[("HANG", "1")], |mut npu| {
        npu.start(0);
        let (device, host) = (npu.device_memory(MIB), npu.host_memory(MIB));
        npu.fill_device(device, MIB, 1);
        npu.with_queue(0, MIB, 2, |queue| {
            let batch = queue.copy(Direction::HostToDevice, &[piece(device, host, MIB)]).unwrap();
            for _ in 0..2000 {
                assert!(!queue.poll_done(batch).unwrap());
            }
            assert!(queue.abort());
            assert_eq!(queue.poll_done(batch).unwrap_err().status, Status::Unavailable);
            // The library would complain if an export or a task still named the memory.
            npu.expect_device(device, MIB, 1);
            npu.free(device);
            npu.free_host(host);
            assert!(queue.copy(Direction::HostToDevice, &[]).is_err() && queue.abort());
        })
        .unwrap();
        npu.end();
    });
}

/// The stream can't be stopped: its memory is not free, and when the stream continues by itself the copy is good.
#[test]
fn what_can_not_be_stopped_stays_under_way() {
    alone(what_can_not_be_stopped_stays_under_way, "9.1", &[("HANG", "1")], |mut npu| {
        npu.start(0);
        let (device, host) = (npu.device_memory(MIB), npu.host_memory(MIB));
        host_slice(host, MIB).copy_from_slice(&pattern(MIB, 7));
        npu.fault("aclrtStreamAbort", "*", 507_899);
        npu.with_queue(0, MIB, 2, |queue| {
            let batch = queue.copy(Direction::HostToDevice, &[piece(device, host, MIB)]).unwrap();
            assert!(!queue.abort());
            for _ in 0..2000 {
                assert!(!queue.poll_done(batch).unwrap());
            }
            npu.release_until(|| queue.poll_done(batch).unwrap());
            assert!(queue.abort());
        })
        .unwrap();
        npu.expect_device(device, MIB, 7);
        npu.free(device);
        npu.free_host(host);
        npu.end();
    });
}

/// A queue that is dropped meanwhile keeps all memory that the device may still write to.
#[test]
fn a_queue_that_does_not_come_to_rest_is_kept() {
    alone(a_queue_that_does_not_come_to_rest_is_kept, "9.1", &[("HANG", "1")], |mut npu| {
        npu.start(0);
        let (device, host) = (npu.device_memory(MIB), npu.host_memory(MIB));
        host_slice(host, MIB).copy_from_slice(&pattern(MIB, 7));
        npu.fault("aclrtStreamAbort", "*", 507_899);
        let given_back = |npu: &Npu| {
            ["aclrtFree", "aclrtFreeHost", "aclrtDestroyStream", "aclrtDestroyContext", "aclFinalize"]
                .map(|function| npu.calls(function))
        };
        let before = given_back(&npu);
        npu.with_queue(0, MIB, 1, |queue| {
            queue.copy(Direction::HostToDevice, &[piece(device, host, MIB)]).unwrap();
        })
        .unwrap();
        assert_eq!(given_back(&npu), before);
        // The copy itself still works.
        npu.release_until(|| npu.read_device(device, MIB) == pattern(MIB, 7));
        assert_eq!(given_back(&npu), before);
        npu.leave();
    });
}

#[test]
fn a_worker_gives_a_hanging_copy_up() {
    alone(a_worker_gives_a_hanging_copy_up, "9.1", &[("HANG", "1")], |mut npu| {
        npu.start(0);
        let (device, host) = (npu.device_memory(MIB), npu.host_memory(MIB));
        let at = Location { kind: MemoryKind::Ascend, device: 0 };
        let limits = Limits { batch_bytes: MIB, depth: 2, timeout: Duration::from_millis(50) };
        let worker = Worker::start(npu.driver.clone(), at, limits).unwrap();
        let (tell, told) = sync_channel(2);
        for _ in 0..2 {
            let tell = tell.clone();
            let done = Box::new(move |result| tell.send(result).unwrap());
            let pieces = vec![piece(device, host, MIB)];
            worker.copy(Job {
                direction: Direction::HostToDevice,
                pieces,
                not_after_ns: Boottime::NEVER,
                durable: false,
                done,
            });
        }
        for _ in 0..2 {
            let error = told.recv_timeout(Duration::from_secs(30)).unwrap().unwrap_err();
            assert_eq!(error.status, Status::Unavailable, "{error}");
        }
        npu.free(device);
        npu.free_host(host);
        worker.stop();
        npu.end();
    });
}

/// Copies from and to pageable memory are done before `copy` returns, and are correct.
#[test]
fn memory_that_is_not_locked_is_copied_too() {
    alone(memory_that_is_not_locked_is_copied_too, "9.1", &[], |mut npu| {
        npu.start(0);
        let device = npu.device_memory(MIB);
        let (source, target) = (pattern(MIB, 8), vec![0u8; MIB]);
        npu.with_queue(0, MIB, 1, |queue| {
            for (direction, to, from) in [
                (Direction::HostToDevice, device, source.as_ptr() as u64),
                (Direction::DeviceToHost, target.as_ptr() as u64, device),
            ] {
                let batch = queue.copy(direction, &[piece(to, from, MIB)]).unwrap();
                finish(queue, batch).unwrap();
            }
        })
        .unwrap();
        expect(&target, 8);
        npu.free(device);
        npu.end();
    });
}
