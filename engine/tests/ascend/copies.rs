//! Copies between host and device, contiguous and scattered, and waiting for the program's streams.

use crate::npu::{alone, cause, expect, finish, good, host_slice, pattern, Npu, KIB, MIB, VERSIONS};
use ferry::internals::device::{Direction, Piece};
use ferry::{Start, Status};
use std::ptr::null_mut;

fn piece(to: u64, from: u64, length: usize) -> Piece {
    Piece { to, from, length: length as u64 }
}

#[test]
fn bytes_arrive_in_each_direction() {
    for version in VERSIONS {
        alone(bytes_arrive_in_each_direction, version, &[], |mut npu| {
            npu.start(0);
            for length in [1, 7, 4096, 65_537, 2 * MIB, 5 * MIB + 3] {
                let (near, far) = (npu.device_memory(length), npu.device_memory(length));
                let (source, target) = (npu.host_memory(length), npu.host_memory(length));
                host_slice(source, length).copy_from_slice(&pattern(length, 1));
                npu.with_queue(0, MIB, 4, |queue| {
                    for (direction, to, from) in [
                        (Direction::HostToDevice, near, source),
                        (Direction::DeviceToDevice, far, near),
                        (Direction::DeviceToHost, target, far),
                    ] {
                        let batch = queue.copy(direction, &[piece(to, from, length)]).unwrap();
                        finish(queue, batch).unwrap();
                    }
                })
                .unwrap();
                npu.expect_device(far, length, 1);
                expect(host_slice(target, length), 1);
                for memory in [near, far] {
                    npu.free(memory);
                }
                for memory in [source, target] {
                    npu.free_host(memory);
                }
            }
            npu.end();
        });
    }
}

/// Copies blocks that are scattered on the device and contiguous in host memory, in both directions.
#[test]
fn small_blocks_cross_as_one() {
    const BLOCK: usize = 16 * KIB;
    const COUNT: usize = 256;
    alone(small_blocks_cross_as_one, "9.1", &[], |mut npu| {
        npu.start(0);
        let (device, host) = (npu.device_memory(2 * COUNT * BLOCK), npu.host_memory(COUNT * BLOCK));
        npu.fill_device(device, 2 * COUNT * BLOCK, 3);
        let before = npu.calls("aclrtMemcpyAsync");
        // Every second block, from the last to the first.
        let place = |at: usize| device + ((2 * (COUNT - 1 - at) + 1) * BLOCK) as u64;
        let (out, back) = npu
            .with_queue(0, MIB, 2, |queue| {
                let slot = |at: usize| host + (at * BLOCK) as u64;
                let out: Vec<_> = (0..COUNT).map(|at| piece(slot(at), place(at), BLOCK)).collect();
                let batch = queue.copy(Direction::DeviceToHost, &out).unwrap();
                finish(queue, batch).unwrap();
                let read = host_slice(host, COUNT * BLOCK).to_vec();
                host_slice(host, COUNT * BLOCK).copy_from_slice(&pattern(COUNT * BLOCK, 4));
                let back: Vec<_> = (0..COUNT).map(|at| piece(place(at), slot(at), BLOCK)).collect();
                let batch = queue.copy(Direction::HostToDevice, &back).unwrap();
                finish(queue, batch).unwrap();
                (read, host_slice(host, COUNT * BLOCK).to_vec())
            })
            .unwrap();
        // A scratch buffer holds 64 of them: four copies across and one flag, in each direction.
        assert_eq!(npu.calls("aclrtMemcpyAsync") - before, 2 * (COUNT as i64 + 4 + 1));
        let (old, now) = (pattern(2 * COUNT * BLOCK, 3), npu.read_device(device, 2 * COUNT * BLOCK));
        for at in 0..COUNT {
            let from = (place(at) - device) as usize;
            assert!(out[at * BLOCK..][..BLOCK] == old[from..][..BLOCK], "block {at} out");
            assert!(now[from..][..BLOCK] == back[at * BLOCK..][..BLOCK], "block {at} back");
            assert!(now[from - BLOCK..][..BLOCK] == old[from - BLOCK..][..BLOCK], "before block {at}");
        }
        npu.free(device);
        npu.free_host(host);
        npu.end();
    });
}

/// Scattered host memory can't be gathered on the device: one batch call replaces many, where the library has it.
#[test]
fn blocks_scattered_in_host_memory_take_one_call_where_there_is_one() {
    for (version, batches, copies) in [("8.3", 0, 33), ("8.5", 1, 1)] {
        let test = blocks_scattered_in_host_memory_take_one_call_where_there_is_one;
        alone(test, version, &[], |mut npu| {
            npu.start(0);
            let (device, host) = (npu.device_memory(MIB), npu.host_memory(MIB));
            host_slice(host, MIB).copy_from_slice(&pattern(MIB, 5));
            let before = npu.calls("aclrtMemcpyAsync");
            npu.with_queue(0, MIB, 2, |queue| {
                // A gap follows each block.
                let block = |at: u64| piece(device + at * 4096, host + at * 8192, 4096);
                let pieces: Vec<_> = (0..32).map(block).collect();
                let batch = queue.copy(Direction::HostToDevice, &pieces).unwrap();
                finish(queue, batch).unwrap();
            })
            .unwrap();
            assert_eq!(npu.calls("aclrtMemcpyBatchAsync"), batches);
            assert_eq!(npu.calls("aclrtMemcpyAsync") - before, copies);
            let all = pattern(MIB, 5);
            for at in 0..32 {
                let found = npu.read_device(device + at as u64 * 4096, 4096);
                assert!(found == all[at * 8192..][..4096], "block {at}");
            }
            npu.free(device);
            npu.free_host(host);
            npu.end();
        });
    }
}

#[test]
fn devices_copy_to_one_another_where_they_can() {
    for peer in ["1", "0"] {
        let test = devices_copy_to_one_another_where_they_can;
        alone(test, "9.1", &[("PEER", peer)], |mut npu| {
            npu.start(1);
            let there = npu.device_memory(MIB);
            npu.fill_device(there, MIB, 6);
            npu.set(0);
            let here = npu.device_memory(MIB);
            let copied = npu
                .with_queue(0, MIB, 2, |queue| {
                    let batch = queue.copy(Direction::DeviceToDevice, &[piece(here, there, MIB)])?;
                    finish(queue, batch)
                })
                .unwrap();
            match std::env::var("FERRY_STANDIN_PEER").as_deref() {
                Ok("1") => npu.expect_device(here, MIB, 6),
                _ => assert_eq!(cause(&copied.unwrap_err()), (Status::Unsupported, 0)),
            }
            npu.free(here);
            npu.set(1);
            npu.free(there);
            npu.end();
        });
    }
}

#[test]
fn batches_are_bounded_and_end_in_order() {
    alone(batches_are_bounded_and_end_in_order, "9.1", &[("COPY_US", "20000")], |mut npu| {
        npu.start(0);
        let (device, host) = (npu.device_memory(MIB), npu.host_memory(MIB));
        npu.with_queue(0, MIB, 2, |queue| {
            let pieces = [piece(device, host, MIB)];
            let first = queue.copy(Direction::HostToDevice, &pieces).unwrap();
            let second = queue.copy(Direction::HostToDevice, &pieces).unwrap();
            assert!(second > first && !queue.poll_done(first).unwrap());
            let third = queue.copy(Direction::HostToDevice, &pieces).unwrap_err();
            assert_eq!(third.status, Status::Busy);
            finish(queue, first).unwrap();
            let third = queue.copy(Direction::HostToDevice, &pieces).unwrap();
            assert!(!queue.poll_done(third).unwrap());
            finish(queue, second).unwrap();
            finish(queue, third).unwrap();
            // An empty batch ends too.
            let none = queue.copy(Direction::HostToDevice, &[]).unwrap();
            finish(queue, none).unwrap();
        })
        .unwrap();
        assert!(npu.with_queue(0, MIB, 0, |_| ()).is_err() && npu.with_queue(0, 0, 1, |_| ()).is_err());
        npu.free(device);
        npu.free_host(host);
        npu.end();
    });
}

/// Makes a stream of the program's with a copy that hangs, then records an event.
#[test]
fn points_are_reached_when_the_programs_stream_is_there() {
    alone(points_are_reached_when_the_programs_stream_is_there, "9.1", &[("HANG", "1")], |mut npu| {
        npu.start(0);
        let (device, host) = (npu.device_memory(MIB), npu.host_memory(MIB));
        let (mut stream, mut event) = (null_mut(), null_mut());
        let calls = &npu.program.calls;
        // SAFETY: results live on this stack; the memory is the test's, and stays until the stream has ended.
        unsafe {
            good((npu.others.aclrtCreateStream)(&mut stream));
            good((calls.aclrtCreateEventWithFlag)(&mut event, 2));
            let (to, from) = (device as *mut _, host as *const _);
            good((calls.aclrtMemcpyAsync)(to, MIB, from, MIB, 1, stream));
            good((calls.aclrtRecordEvent)(event, stream));
        }
        // SAFETY: the test's, and alive.
        let (by_event, by_stream) = unsafe { (Start::event(event as u64), Start::stream(stream as u64)) };
        let recorded = npu.driver.point(by_event).unwrap();
        let now = npu.driver.point(by_stream).unwrap();
        assert!(!recorded.is_reached().unwrap() && !now.is_reached().unwrap());
        npu.release_until(|| now.is_reached().unwrap());
        assert!(recorded.is_reached().unwrap());
        drop(recorded);
        // The program's event is the program's.
        // SAFETY: created above, destroyed once.
        good(unsafe { (calls.aclrtDestroyEvent)(event) });

        other_threads_have_no_stream(&npu, stream as u64);
        let held = npu.driver.hold(stream as u64).err().unwrap();
        assert_eq!(held.status, Status::Unsupported);
        // SAFETY: as above; nothing is left in it.
        good(unsafe { (calls.aclrtDestroyStream)(stream) });
        assert!(now.is_reached().unwrap(), "a point needs its stream no longer");
        drop(now);
        npu.free(device);
        npu.free_host(host);
        npu.end();
    });
}

fn other_threads_have_no_stream(npu: &Npu, stream: u64) {
    // SAFETY: the caller's, and alive.
    let at = unsafe { Start::stream(stream) };
    let refused =
        std::thread::scope(|scope| scope.spawn(|| npu.driver.point(at).err().unwrap()).join().unwrap());
    assert_eq!(cause(&refused), (Status::Unsupported, 107_002), "{refused}");
    let refused = npu.with_queue(0, MIB, 1, |_| npu.driver.point(at).err().unwrap());
    assert_eq!(cause(&refused.unwrap()), (Status::Unsupported, 107_003));
}
