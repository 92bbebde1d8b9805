//! Kinds of memory, and copies between them: each direction and method, few and many pieces, one device and two.

use crate::gpu::{copy, gpu, host_bytes, pattern, shuffled, standin, standin_of, wait, Gpu, MIB};
use ferry::internals::device::{Allocation, Direction, Piece, Queue};
use ferry::internals::sys::cuda::{Context, DeviceMemory};
use ferry::status::Status;
use ferry::types::{Location, MemoryKind};

fn managed(gpu: &Gpu, bytes: usize) -> u64 {
    let _entered = gpu.program().enter().unwrap();
    // SAFETY: the driver's function of this name has this type.
    let function: unsafe extern "C" fn(*mut u64, usize, u32) -> i32 =
        unsafe { std::mem::transmute(gpu.symbol("cuMemAllocManaged")) };
    let mut address = 0;
    // SAFETY: the result lives on this stack.
    assert_eq!(unsafe { function(&mut address, bytes, 1) }, 0);
    address
}

fn free(gpu: &Gpu, address: u64) {
    let _entered = gpu.program().enter().unwrap();
    // SAFETY: allocated by the test, which does not use the memory again.
    assert!(unsafe { gpu.api.mem_free(address) }.is_ok());
}

#[test]
fn memory_of_each_kind_is_told_apart() {
    let Some(gpu) = gpu("memory_of_each_kind_is_told_apart") else { return };
    let device = gpu.device(3 * MIB);
    let at = |kind, base, length| {
        Some(Allocation { location: Location { kind, device: 0 }, base, length: length as u64 })
    };
    let driver = gpu.driver().clone();
    for offset in [0, 1, 3 * MIB as u64 - 1] {
        assert_eq!(
            driver.locate(device.address + offset).unwrap(),
            at(MemoryKind::Cuda, device.address, 3 * MIB)
        );
    }
    let pinned = gpu.pinned(MIB);
    assert_eq!(driver.locate(pinned.address + 5).unwrap(), at(MemoryKind::Pinned, pinned.address, MIB));
    let unified = managed(&gpu, MIB);
    assert_eq!(driver.locate(unified + 5).unwrap(), at(MemoryKind::Managed, unified, MIB));
    free(&gpu, unified);
    let heap = vec![0u8; MIB];
    assert_eq!(driver.locate(heap.as_ptr() as u64).unwrap(), None);
    assert_eq!(driver.locate(8).unwrap(), None);
    // A thread without a CUDA context gets the same answer.
    let address = device.address;
    let found = std::thread::spawn(move || driver.locate(address).unwrap()).join().unwrap();
    assert_eq!(found, at(MemoryKind::Cuda, device.address, 3 * MIB));
    drop(device);
    assert_eq!(gpu.driver().locate(address).unwrap(), None, "freed");
}

#[test]
fn memory_of_the_second_device_is_its_own() {
    let Some(gpu) = standin("memory_of_the_second_device_is_its_own") else { return };
    let second = Context::retain(gpu.api, 1).unwrap();
    let memory = DeviceMemory::new(&second, MIB).unwrap();
    assert_eq!(gpu.driver().locate(memory.address).unwrap().unwrap().location.device, 1);
    drop(memory);
    drop(second);
}

#[test]
fn host_memory_is_pinned_and_let_go() {
    let Some(gpu) = gpu("host_memory_is_pinned_and_let_go") else { return };
    let heap = vec![0u8; 2 * MIB];
    let address = (heap.as_ptr() as u64).next_multiple_of(4096);
    let driver = gpu.driver();
    driver.pin(address, MIB).unwrap();
    let found = driver.locate(address + 77).unwrap().unwrap();
    assert_eq!((found.location.kind, found.base, found.length), (MemoryKind::Pinned, address, MIB as u64));
    // Ferry leaves memory alone that the program has pinned.
    let theirs = gpu.pinned(MIB);
    driver.pin(theirs.address + 4096, 4096).unwrap();
    driver.unpin(theirs.address + 4096);
    assert!(driver.locate(theirs.address).unwrap().is_some());
    // A range that is pinned only in part can't be used.
    let error = driver.pin(address + MIB as u64 - 4096, 8192).unwrap_err();
    assert_eq!((error.status, error.vendor_error), (Status::Overlap, 712), "{error}");
    driver.unpin(address);
    assert_eq!(driver.locate(address).unwrap(), None);
}

#[test]
fn large_copies_arrive_in_every_direction() {
    let Some(gpu) = gpu("large_copies_arrive_in_every_direction") else { return };
    let (a, b) = (gpu.device(MIB), gpu.device(MIB));
    let host = gpu.pinned(MIB);
    let mut queue = gpu.queue(2);
    host_bytes(&host).copy_from_slice(&pattern(1, MIB));
    let whole = |from, to| [Piece { from, to, length: MIB as u64 }];
    copy(&mut *queue, Direction::HostToDevice, &whole(host.address, a.address)).unwrap();
    assert!(gpu.get(a.address, MIB) == pattern(1, MIB));
    copy(&mut *queue, Direction::DeviceToDevice, &whole(a.address, b.address)).unwrap();
    assert!(gpu.get(b.address, MIB) == pattern(1, MIB));
    gpu.put(b.address, &pattern(2, MIB));
    copy(&mut *queue, Direction::DeviceToHost, &whole(b.address, host.address)).unwrap();
    assert!(host_bytes(&host) == pattern(2, MIB));
    // Managed memory, in and out.
    let unified = managed(&gpu, MIB);
    copy(&mut *queue, Direction::HostToDevice, &whole(host.address, unified)).unwrap();
    host_bytes(&host).fill(0);
    copy(&mut *queue, Direction::DeviceToHost, &whole(unified, host.address)).unwrap();
    assert!(host_bytes(&host) == pattern(2, MIB));
    free(&gpu, unified);
}

/// Returns blocks of `length` bytes, in random order on the device, contiguous on the host.
fn scattered(
    device: u64,
    host: u64,
    count: usize,
    length: usize,
    gap: usize,
    direction: Direction,
) -> Vec<Piece> {
    let order = shuffled(count, 42);
    (0..count)
        .map(|at| {
            let block = device + (order[at] * length) as u64;
            let packed = host + (at * (length + gap)) as u64;
            let (from, to) =
                if direction == Direction::HostToDevice { (packed, block) } else { (block, packed) };
            Piece { from, to, length: length as u64 }
        })
        .collect()
}

/// Copies there and back; checks the gathered and the scattered bytes.
fn check_scattered(gpu: &Gpu, queue: &mut dyn Queue, count: usize, length: usize, gap: usize) {
    let (device, host) = (gpu.device(count * length), gpu.pinned(count * (length + gap)));
    let order = shuffled(count, 42);
    gpu.put(device.address, &pattern(3, count * length));
    host_bytes(&host).fill(0xee);
    let pieces = scattered(device.address, host.address, count, length, gap, Direction::DeviceToHost);
    copy(queue, Direction::DeviceToHost, &pieces).unwrap();
    let (expected, got) = (pattern(3, count * length), host_bytes(&host));
    for (at, place) in order.iter().enumerate() {
        let (block, packed) = (place * length, at * (length + gap));
        assert!(got[packed..packed + length] == expected[block..block + length], "block {at}");
        assert!(got[packed + length..packed + length + gap].iter().all(|byte| *byte == 0xee), "gap {at}");
    }
    gpu.put(device.address, &vec![0; count * length]);
    let pieces = scattered(device.address, host.address, count, length, gap, Direction::HostToDevice);
    copy(queue, Direction::HostToDevice, &pieces).unwrap();
    assert!(gpu.get(device.address, count * length) == expected);
}

const SHAPES: [(usize, usize, usize); 6] =
    [(256, 4096, 0), (8, 16384, 0), (7, 4096, 0), (100, 1000, 0), (64, 333, 0), (64, 1001, 7)];

#[test]
fn scattered_blocks_go_through_the_kernel() {
    let Some(gpu) = gpu("scattered_blocks_go_through_the_kernel") else { return };
    let mut queue = gpu.queue(2);
    for (count, length, gap) in SHAPES {
        let before = (gpu.count("cuLaunchKernel"), gpu.count("cuMemcpyDtoHAsync_v2"));
        check_scattered(&gpu, &mut *queue, count, length, gap);
        if gpu.library.is_empty() {
            continue;
        }
        let launches = gpu.count("cuLaunchKernel") - before.0;
        // With gaps only the copy to the host is one run: the copy to the device must leave the gaps alone.
        let expected = if count < 8 {
            0
        } else if gap > 0 {
            1
        } else {
            2
        };
        assert_eq!(launches, expected, "{count} blocks of {length} bytes, {gap} apart");
        if expected == 2 {
            // One copy by ferry, and one by the test to read the result.
            assert_eq!(gpu.count("cuMemcpyDtoHAsync_v2") - before.1, 2);
        }
    }
}

#[test]
fn scattered_blocks_go_without_the_kernel() {
    for (version, batches) in [("12.8", true), ("12.4", false)] {
        let Some(gpu) = standin_of("scattered_blocks_go_without_the_kernel", version) else { return };
        // CUDA_ERROR_JIT_COMPILER_NOT_FOUND.
        gpu.standin().fault("cuModuleLoadData", "*", 221);
        let mut queue = gpu.queue(2);
        for (count, length, gap) in SHAPES {
            check_scattered(&gpu, &mut *queue, count, length, gap);
        }
        assert_eq!(gpu.count("cuMemcpyBatchAsync") > 0, batches);
    }
}

#[test]
fn scattered_blocks_go_from_device_to_device() {
    for peer in ["1", "0"] {
        let Some(gpu) = standin("scattered_blocks_go_from_device_to_device") else { return };
        gpu.standin().set("FERRY_STANDIN_PEER", peer);
        let (count, length) = (64, 4096);
        let other = Context::retain(gpu.api, 1).unwrap();
        let far = DeviceMemory::new(&other, count * length).unwrap();
        let (near, back) = (gpu.device(count * length), gpu.device(count * length));
        gpu.put(near.address, &pattern(4, count * length));
        let mut queue = gpu.queue(2);
        let launches = gpu.count("cuLaunchKernel");
        let there = scattered(near.address, far.address, count, length, 0, Direction::DeviceToHost);
        copy(&mut *queue, Direction::DeviceToDevice, &there).unwrap();
        let again: Vec<Piece> = there
            .iter()
            .map(|piece| Piece {
                from: piece.to,
                to: back.address + (piece.from - near.address),
                length: piece.length,
            })
            .collect();
        copy(&mut *queue, Direction::DeviceToDevice, &again).unwrap();
        assert!(gpu.get(back.address, count * length) == pattern(4, count * length));
        // A kernel may touch another device's memory only with peer access.
        assert_eq!(gpu.count("cuLaunchKernel") - launches, if peer == "1" { 2 } else { 0 });
        drop((queue, far));
        drop(other);
    }
}

#[test]
fn more_batches_than_slots_follow_one_another() {
    let Some(gpu) = gpu("more_batches_than_slots_follow_one_another") else { return };
    let (blocks, length, rounds) = (16, 1024, 40);
    let size = blocks * length;
    let (device, host) = (gpu.device(rounds * size), gpu.pinned(rounds * size));
    gpu.put(device.address, &pattern(5, rounds * size));
    let mut queue = gpu.queue(3);
    let mut running = Vec::new();
    for round in 0..rounds {
        let offset = (round * size) as u64;
        let pieces = scattered(
            device.address + offset,
            host.address + offset,
            blocks,
            length,
            0,
            Direction::DeviceToHost,
        );
        if running.len() == 3 {
            wait(&mut *queue, running.remove(0)).unwrap();
        }
        running.push(queue.copy(Direction::DeviceToHost, &pieces).unwrap());
    }
    for batch in running {
        wait(&mut *queue, batch).unwrap();
    }
    let (order, expected) = (shuffled(blocks, 42), pattern(5, rounds * size));
    for at in 0..rounds * blocks {
        let from = at / blocks * size + order[at % blocks] * length;
        assert!(
            host_bytes(&host)[at * length..(at + 1) * length] == expected[from..from + length],
            "block {at}"
        );
    }
}

#[test]
fn a_batch_has_bounds() {
    let Some(gpu) = gpu("a_batch_has_bounds") else { return };
    let (device, host) = (gpu.device(2 * MIB), gpu.pinned(2 * MIB));
    let mut queue = gpu.queue(1);
    let piece = |length| Piece { from: device.address, to: host.address, length };
    copy(&mut *queue, Direction::DeviceToHost, &[piece(MIB as u64)]).unwrap();
    for bad in [piece(MIB as u64 + 1), Piece { from: u64::MAX, ..piece(2) }] {
        let error = queue.copy(Direction::DeviceToHost, &[bad]).unwrap_err();
        assert_eq!(error.status, Status::Invalid);
        assert!(error.message.contains("pieces[0]"), "{error}");
    }
    copy(&mut *queue, Direction::DeviceToHost, &[]).unwrap();
    let first = queue.copy(Direction::DeviceToHost, &[piece(8)]).unwrap();
    assert_eq!(queue.copy(Direction::DeviceToHost, &[piece(8)]).unwrap_err().status, Status::Limit);
    wait(&mut *queue, first).unwrap();
    for (bytes, depth) in [(0, 1), (1, 0)] {
        let refused = gpu.driver().open(0, bytes, depth).err().unwrap();
        assert_eq!(refused.status, Status::Invalid);
    }
    assert_eq!(gpu.driver().open(99, MIB, 1).err().unwrap().status, Status::Invalid);
}

#[test]
fn the_caller_s_context_is_as_it_was() {
    let Some(gpu) = gpu("the_caller_s_context_is_as_it_was") else { return };
    let device = gpu.device(MIB);
    let heap = vec![0u8; 8192];
    let page = (heap.as_ptr() as u64).next_multiple_of(4096);
    let everything = || {
        let driver = gpu.driver();
        let before = gpu.current();
        driver.locate(device.address).unwrap();
        assert_eq!(gpu.current(), before, "locate");
        driver.pin(page, 4096).unwrap();
        assert_eq!(gpu.current(), before, "pin");
        driver.unpin(page);
        assert_eq!(gpu.current(), before, "unpin");
        assert!(driver.pci_address(0).is_some_and(|it| it.len() == 12));
        let _ = driver.dmabuf(device.address, 4096);
        assert_eq!(gpu.current(), before, "dmabuf");
        let queue = driver.open(0, 4096, 1).unwrap();
        drop(queue);
        assert_eq!(gpu.current(), before, "a queue");
    };
    everything();
    let _entered = gpu.program().enter().unwrap();
    assert_ne!(gpu.current(), 0);
    everything();
}

#[test]
fn a_dmabuf_is_given_or_refused_with_the_reason() {
    let Some(gpu) = gpu("a_dmabuf_is_given_or_refused_with_the_reason") else { return };
    let device = gpu.device(4 * MIB);
    match gpu.driver().dmabuf(device.address + 5000, 100) {
        Ok(buffer) => assert_eq!(buffer.offset, (device.address + 5000) % 4096),
        Err(error) => assert!(
            error.status == Status::Unavailable && error.message.contains("dma-buf")
                || error.vendor_error != 0,
            "{error}"
        ),
    }
    let heap = [0u8; 64];
    let error = gpu.driver().dmabuf(heap.as_ptr() as u64, 64).unwrap_err();
    assert_eq!(error.status, Status::Invalid);
}
