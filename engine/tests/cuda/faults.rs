//! Calls of the library that fail, copies that don't end, memory that is gone.

use crate::gpu::{copy, host_bytes, pattern, standin, standin_of, wait, Gpu, MIB, PATIENCE};
use ferry::internals::device::{Direction, Job, Limits, Piece, Worker};
use ferry::internals::sys::cuda::{Context, DeviceMemory};
use ferry::status::Status;
use ferry::types::{Boottime, Location, MemoryKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc};
use std::time::{Duration, Instant};

fn blocks(device: u64, host: u64, count: u64) -> Vec<Piece> {
    // Every other block, so that no two are neighbours.
    (0..count).map(|at| Piece { from: device + at * 8192, to: host + at * 4096, length: 4096 }).collect()
}

/// Makes a scattered copy that must work: nothing of the failed copy is left behind.
fn still_works(gpu: &Gpu, queue: &mut dyn ferry::internals::device::Queue) {
    let (device, host) = (gpu.device(MIB), gpu.pinned(MIB));
    gpu.put(device.address, &pattern(9, MIB));
    copy(queue, Direction::DeviceToHost, &blocks(device.address, host.address, 32)).unwrap();
    for at in 0..32 {
        let expected = &pattern(9, MIB)[at * 8192..at * 8192 + 4096];
        assert!(&host_bytes(&host)[at * 4096..(at + 1) * 4096] == expected, "block {at}");
    }
}

#[test]
fn opening_a_device_fails_with_the_driver_s_reason() {
    for (function, code, status) in [
        ("cuDevicePrimaryCtxRetain", 2, Status::NoMemory),
        ("cuDevicePrimaryCtxRetain", 999, Status::Unavailable),
        ("cuStreamCreate", 2, Status::NoMemory),
        ("cuEventCreate", 2, Status::NoMemory),
        ("cuCtxPushCurrent_v2", 709, Status::Unavailable),
    ] {
        let Some(gpu) = standin("opening_a_device_fails_with_the_driver_s_reason") else { return };
        gpu.standin().fault(function, "1", code);
        let error = gpu.driver().open(0, MIB, 2).err().unwrap();
        assert_eq!((error.status, error.vendor_error), (status, code), "{function}");
        assert!(error.message.starts_with(function) && error.message.contains(&code.to_string()), "{error}");
        still_works(&gpu, &mut *gpu.queue(2));
    }
}

#[test]
fn without_the_kernel_s_parts_copies_work_all_the_same() {
    for (function, code) in [
        ("cuMemAlloc_v2", 2),
        ("cuMemHostAlloc", 2),
        ("cuModuleLoadData", 222),
        ("cuModuleGetFunction", 500),
        ("cuLaunchKernel", 701),
        ("cuStreamSynchronize", 999),
    ] {
        let Some(gpu) = standin("without_the_kernel_s_parts_copies_work_all_the_same") else { return };
        gpu.standin().fault(function, "1", code);
        let mut queue = gpu.queue(2);
        let launches = gpu.count("cuLaunchKernel");
        still_works(&gpu, &mut *queue);
        assert_eq!(gpu.count("cuLaunchKernel"), launches, "{function}");
    }
}

#[test]
fn a_kernel_that_does_not_start_is_replaced_by_copies() {
    let Some(gpu) = standin("a_kernel_that_does_not_start_is_replaced_by_copies") else { return };
    let mut queue = gpu.queue(2);
    gpu.standin().fault("cuLaunchKernel", "1", 701);
    still_works(&gpu, &mut *queue);
    assert!(gpu.count("cuMemcpyBatchAsync") > 0);
}

/// The copies to scratch memory have started when the launch fails.
#[test]
fn a_scatter_whose_kernel_does_not_start_is_copied_too() {
    for version in ["12.4", "12.8"] {
        let Some(gpu) = standin_of("a_scatter_whose_kernel_does_not_start_is_copied_too", version) else {
            return;
        };
        let mut queue = gpu.queue(2);
        let (device, host) = (gpu.device(MIB), gpu.pinned(MIB));
        host_bytes(&host).copy_from_slice(&pattern(8, MIB));
        let pieces: Vec<Piece> = blocks(device.address, host.address, 32)
            .iter()
            .map(|piece| Piece { from: piece.to, to: piece.from, length: piece.length })
            .collect();
        for nth in 0..3 {
            gpu.put(device.address, &vec![0; MIB]);
            gpu.standin().fault("cuLaunchKernel", "1", 701);
            let copies = gpu.count("cuMemcpyHtoDAsync_v2");
            copy(&mut *queue, Direction::HostToDevice, &pieces).unwrap();
            assert!(gpu.count("cuMemcpyHtoDAsync_v2") > copies, "the kernel was not tried");
            let got = gpu.get(device.address, MIB);
            for at in 0..32 {
                let expected = &pattern(8, MIB)[at * 4096..(at + 1) * 4096];
                assert!(
                    &got[at * 8192..at * 8192 + 4096] == expected,
                    "{version}: block {at} of round {nth}"
                );
                assert!(got[at * 8192 + 4096..(at + 1) * 8192].iter().all(|byte| *byte == 0));
            }
        }
        // The later copies fail too: copies that have started read host memory until the batch has ended.
        let copies = if version == "12.4" { "cuMemcpyHtoDAsync_v2:2:1" } else { "cuMemcpyBatchAsync:1:1" };
        gpu.standin().set("FERRY_STANDIN_COPY_US", "50000");
        gpu.standin().set("FERRY_STANDIN_FAULT", &format!("cuLaunchKernel:1:701,{copies}"));
        let batch = queue.copy(Direction::HostToDevice, &pieces).unwrap();
        assert!(!queue.poll_done(batch).unwrap(), "{version}: the copy to scratch memory is under way");
        assert_eq!(wait(&mut *queue, batch).unwrap_err().status, Status::Invalid);
        gpu.standin().set("FERRY_STANDIN_COPY_US", "0");
        still_works(&gpu, &mut *queue);
    }
}

#[test]
fn a_copy_that_is_refused_has_not_begun() {
    let Some(gpu) = standin("a_copy_that_is_refused_has_not_begun") else { return };
    let (device, host) = (gpu.device(MIB), gpu.pinned(MIB));
    let piece = [Piece { from: device.address, to: host.address, length: 4096 }];
    let mut queue = gpu.queue(1);
    for (code, status) in [(1, Status::Invalid), (2, Status::NoMemory), (999, Status::System)] {
        gpu.standin().fault("cuMemcpyDtoHAsync_v2", "1", code);
        let error = queue.copy(Direction::DeviceToHost, &piece).unwrap_err();
        assert_eq!((error.status, error.vendor_error), (status, code), "{error}");
    }
    still_works(&gpu, &mut *queue);
}

#[test]
fn a_batch_that_fails_midway_ends_when_its_beginning_has() {
    let Some(gpu) = standin_of("a_batch_that_fails_midway_ends_when_its_beginning_has", "12.4") else {
        return;
    };
    gpu.standin().fault("cuModuleLoadData", "1", 221);
    let mut queue = gpu.queue(1);
    let (device, host) = (gpu.device(MIB), gpu.pinned(MIB));
    gpu.put(device.address, &pattern(6, MIB));
    host_bytes(&host).fill(0);
    gpu.standin().set("FERRY_STANDIN_COPY_US", "50000");
    gpu.standin().fault("cuMemcpyDtoHAsync_v2", "3", 1);
    let batch = queue.copy(Direction::DeviceToHost, &blocks(device.address, host.address, 4)).unwrap();
    assert!(!queue.poll_done(batch).unwrap(), "two copies of 50 ms are under way");
    let error = wait(&mut *queue, batch).unwrap_err();
    assert_eq!((error.status, error.vendor_error), (Status::Invalid, 1));
    let (got, expected) = (host_bytes(&host), pattern(6, MIB));
    assert!(got[..4096] == expected[..4096] && got[4096..8192] == expected[8192..12288]);
    assert!(got[8192..16384].iter().all(|byte| *byte == 0));
    gpu.standin().set("FERRY_STANDIN_COPY_US", "0");
    gpu.standin().set("FERRY_STANDIN_FAULT", "");
    still_works(&gpu, &mut *queue);
}

#[test]
fn a_batch_whose_event_fails_ends_with_its_stream() {
    for function in ["cuEventRecord", "cuEventQuery"] {
        let Some(gpu) = standin("a_batch_whose_event_fails_ends_with_its_stream") else { return };
        let mut queue = gpu.queue(1);
        let (device, host) = (gpu.device(MIB), gpu.pinned(MIB));
        gpu.put(device.address, &pattern(7, MIB));
        gpu.standin().set("FERRY_STANDIN_COPY_US", "20000");
        gpu.standin().fault(function, "1", 400);
        let piece = [Piece { from: device.address, to: host.address, length: MIB as u64 }];
        let batch = queue.copy(Direction::DeviceToHost, &piece).unwrap();
        assert!(!queue.poll_done(batch).unwrap());
        wait(&mut *queue, batch).unwrap();
        assert!(host_bytes(&host) == pattern(7, MIB), "{function}");
        gpu.standin().set("FERRY_STANDIN_COPY_US", "0");
        still_works(&gpu, &mut *queue);
    }
}

#[test]
fn a_context_that_has_failed_stays_so() {
    for (code, name) in [(700, "CUDA_ERROR_ILLEGAL_ADDRESS"), (719, "CUDA_ERROR_LAUNCH_FAILED")] {
        let Some(gpu) = standin("a_context_that_has_failed_stays_so") else { return };
        let mut queue = gpu.queue(2);
        let host = gpu.pinned(MIB);
        let device = gpu.device(MIB);
        gpu.standin().fault("task", "1", code);
        let piece = [Piece { from: device.address, to: host.address, length: 4096 }];
        // The call itself may return the error already.
        let error = copy(&mut *queue, Direction::DeviceToHost, &piece).unwrap_err();
        assert_eq!((error.status, error.vendor_error), (Status::Unavailable, code));
        assert!(error.message.contains(name), "{error}");
        let calls = gpu.count("cuMemcpyDtoHAsync_v2");
        let later = queue.copy(Direction::DeviceToHost, &piece).unwrap_err();
        assert_eq!((later.status, later.vendor_error), (Status::Unavailable, code));
        assert_eq!(gpu.count("cuMemcpyDtoHAsync_v2"), calls);
        assert!(queue.abort(), "a failed context runs nothing");
        // The context can't release anything either.
        gpu.expect_leaks();
    }
}

#[test]
fn what_is_under_way_in_a_context_that_fails_has_ended() {
    let Some(gpu) = standin("what_is_under_way_in_a_context_that_fails_has_ended") else { return };
    let mut queue = gpu.queue(3);
    let (host, device) = (gpu.pinned(MIB), gpu.device(MIB));
    gpu.standin().set("FERRY_STANDIN_COPY_US", "20000");
    gpu.standin().fault("task", "3", 714);
    let piece = [Piece { from: device.address, to: host.address, length: 4096 }];
    let batches: Vec<_> = (0..3).map(|_| queue.copy(Direction::DeviceToHost, &piece).unwrap()).collect();
    let results: Vec<_> = batches.into_iter().map(|batch| wait(&mut *queue, batch)).collect();
    let error = results[2].as_ref().unwrap_err();
    assert_eq!((error.status, error.vendor_error), (Status::Unavailable, 714));
    gpu.expect_leaks();
}

#[test]
fn memory_that_is_gone_is_refused_and_the_context_lives() {
    let Some(gpu) = standin("memory_that_is_gone_is_refused_and_the_context_lives") else { return };
    let host = gpu.pinned(MIB);
    let mut queue = gpu.queue(2);
    let gone = {
        let memory = gpu.device(MIB);
        memory.address
    };
    // One copy, and enough for the kernel, which must not be given an address that it can't touch.
    for count in [1, 32] {
        let error = queue.copy(Direction::DeviceToHost, &blocks(gone, host.address, count)).unwrap_err();
        assert_eq!(error.status, Status::Invalid, "{error}");
    }
    still_works(&gpu, &mut *queue);
}

#[test]
fn what_hangs_is_kept_until_it_has_ended() {
    let Some(gpu) = standin("what_hangs_is_kept_until_it_has_ended") else { return };
    let (device, host) = (gpu.device(MIB), gpu.pinned(MIB));
    gpu.put(device.address, &pattern(8, MIB));
    let limits = Limits { batch_bytes: MIB, depth: 2, timeout: Duration::from_millis(100) };
    let at = Location { kind: MemoryKind::Cuda, device: 0 };
    let worker = Worker::start(gpu.driver().clone(), at, limits).unwrap();
    gpu.standin().set("FERRY_STANDIN_HANG", "1");
    let piece = Piece { from: device.address, to: host.address, length: MIB as u64 };
    let job = |done: mpsc::Sender<ferry::status::Result<()>>| Job {
        not_after_ns: Boottime::NEVER,
        direction: Direction::DeviceToHost,
        pieces: vec![piece],
        durable: false,
        done: Box::new(move |result| drop(done.send(result.map(drop)))),
    };
    let (first, ended) = mpsc::channel();
    worker.copy(job(first));
    // Once the worker has given up, it refuses; until then it starts copies, which wait behind the first.
    let since = Instant::now();
    loop {
        let (later, refused) = mpsc::channel();
        let asked = Arc::new(AtomicBool::new(false));
        let seen = asked.clone();
        worker.with(move |queue| seen.store(queue.is_err(), Ordering::Release));
        let (done, told) = mpsc::channel();
        worker.with(move |_| {
            let _ = done.send(());
        });
        told.recv_timeout(PATIENCE).unwrap();
        if asked.load(Ordering::Acquire) {
            worker.copy(job(later));
            let error = refused.recv_timeout(PATIENCE).unwrap().unwrap_err();
            assert_eq!(error.status, Status::Unavailable, "{error}");
            break;
        }
        assert!(since.elapsed() < PATIENCE);
    }
    assert!(ended.try_recv().is_err(), "the device may still write: the memory is not given back");
    gpu.standin().release();
    ended.recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(host_bytes(&host) == pattern(8, MIB));
    worker.stop();
}

#[test]
fn a_queue_that_hangs_at_its_end_takes_nothing_from_the_device() {
    let Some(gpu) = standin("a_queue_that_hangs_at_its_end_takes_nothing_from_the_device") else { return };
    // The second device's context is kept for good; no other test uses it.
    let second = Context::retain(gpu.api, 1).unwrap();
    let (device, host) = (DeviceMemory::new(&second, MIB).unwrap(), gpu.pinned(MIB));
    let mut queue = gpu.driver().open(1, MIB, 1).unwrap();
    gpu.standin().set("FERRY_STANDIN_HANG", "1");
    let piece = [Piece { from: device.address, to: host.address, length: 8 }];
    queue.copy(Direction::DeviceToHost, &piece).unwrap();
    assert!(!queue.abort(), "it is under way, and can't be stopped");
    let freed = (
        gpu.count("cuMemFree_v2"),
        gpu.count("cuStreamDestroy_v2"),
        gpu.count("cuDevicePrimaryCtxRelease_v2"),
    );
    drop(queue);
    assert_eq!(
        (
            gpu.count("cuMemFree_v2"),
            gpu.count("cuStreamDestroy_v2"),
            gpu.count("cuDevicePrimaryCtxRelease_v2")
        ),
        freed
    );
    gpu.expect_leaks();
    // The copy may begin to hang only now, so release it repeatedly until its memory is free.
    let (standin, freed) = (gpu.standin(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !freed.load(Ordering::Acquire) {
                standin.release();
                std::thread::yield_now();
            }
        });
        drop(device);
        freed.store(true, Ordering::Release);
    });
    drop(second);
}

#[test]
fn pinning_fails_with_the_driver_s_reason() {
    let Some(gpu) = standin("pinning_fails_with_the_driver_s_reason") else { return };
    let heap = vec![0u8; 8192];
    for (code, status) in [(2, Status::NoMemory), (1, Status::Invalid), (800, Status::Unavailable)] {
        gpu.standin().fault("cuMemHostRegister_v2", "1", code);
        let error = gpu.driver().pin(heap.as_ptr() as u64, 4096).unwrap_err();
        assert_eq!((error.status, error.vendor_error), (status, code), "{error}");
    }
    // A driver may say either of memory that the program has pinned.
    let theirs = gpu.pinned(8192);
    for code in [1, 712] {
        gpu.standin().fault("cuMemHostRegister_v2", "1", code);
        gpu.driver().pin(theirs.address, 4096).unwrap();
        gpu.driver().unpin(theirs.address);
    }
    gpu.standin().fault("cuPointerGetAttributes", "1", 719);
    assert_eq!(gpu.driver().locate(8).unwrap_err().status, Status::Unavailable);
    for not_ours in [1, 3, 4] {
        gpu.standin().fault("cuPointerGetAttributes", "1", not_ours);
        assert_eq!(gpu.driver().locate(8).unwrap(), None);
    }
}

/// Locating memory that is not the driver's needs no context of the program's.
#[test]
fn memory_is_found_on_a_thread_whose_context_is_gone() {
    let Some(gpu) = standin("memory_is_found_on_a_thread_whose_context_is_gone") else { return };
    let (heap, device) = (vec![0u8; 4096], gpu.device(4096));
    // A device on which no other test leaves anything.
    gpu.standin().set("FERRY_STANDIN_DEVICES", "3");
    let gone = Context::retain(gpu.api, 2).unwrap();
    let entered = gone.enter().unwrap();
    drop(gone);
    gpu.standin().set("FERRY_STANDIN_DEVICES", "");
    let asked = gpu.count("cuPointerGetAttributes");
    assert_eq!(gpu.driver().locate(heap.as_ptr() as u64).unwrap(), None);
    assert_eq!(gpu.count("cuPointerGetAttributes") - asked, 2, "the context was not gone");
    let found = gpu.driver().locate(device.address).unwrap().unwrap();
    assert_eq!(found.location, Location { kind: MemoryKind::Cuda, device: 0 });
    drop(entered);
    // As if there were no other context; then as if that context were gone too.
    gpu.standin().set("FERRY_STANDIN_FAULT", "cuPointerGetAttributes:1:709,cuDeviceGetCount:*:999");
    assert_eq!(gpu.driver().locate(heap.as_ptr() as u64).unwrap(), None);
    gpu.standin().fault("cuPointerGetAttributes", "*", 709);
    assert_eq!(gpu.driver().locate(heap.as_ptr() as u64).unwrap_err().vendor_error, 709);
    gpu.standin().set("FERRY_STANDIN_FAULT", "");
}
