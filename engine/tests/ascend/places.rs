//! Finds the library, its initialization, and the location of an address.

use crate::npu::{alone, calls, good, Npu, MIB};
use ferry::internals::device::{Allocation, Direction, Job, Limits, Piece, Worker};
use ferry::internals::sys::acl::Library;
use ferry::internals::transport::ascend;
use ferry::types::{Boottime, Location, MemoryKind};
use ferry::{Start, Status};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

fn at(device: i32, base: u64, length: usize) -> Option<Allocation> {
    let location = Location { kind: MemoryKind::Ascend, device };
    Some(Allocation { location, base, length: length as u64 })
}

#[test]
fn each_kind_of_memory_is_told_from_the_others() {
    for (version, answer) in [("9.1", "fail"), ("9.1", "host"), ("9.1", "unregistered"), ("8.1", "fail")] {
        let test = each_kind_of_memory_is_told_from_the_others;
        alone(test, version, &[("POINTER", answer)], |mut npu| {
            let plain = vec![0u8; 4096];
            let plain = plain.as_ptr() as u64;
            // The library is not initialized: no memory is on a device, and ferry does not initialize the library.
            assert_eq!(npu.driver.locate(plain).unwrap(), None);
            assert_eq!(npu.calls("aclInit"), 0);
            npu.start(1);
            let second = npu.device_memory(MIB);
            npu.set(0);
            let (first, pinned) = (npu.device_memory(3 * MIB), npu.host_memory(MIB));
            let mapped = npu.mapped_memory(1, 2 * MIB);
            let known = npu.program.calls.aclrtMemGetAddressRange.is_some();
            let look = || {
                let locate = |address| npu.driver.locate(address).unwrap();
                let length = |length| if known { length } else { 0 };
                assert_eq!(locate(first), at(0, first, length(3 * MIB)));
                let inside = first + MIB as u64;
                assert_eq!(locate(inside), at(0, if known { first } else { inside }, length(3 * MIB)));
                assert_eq!(locate(second), at(1, second, length(MIB)));
                assert_eq!(locate(mapped.0), at(1, mapped.0, length(2 * MIB)));
                assert_eq!((locate(pinned), locate(plain), locate(0)), (None, None, None));
            };
            look();
            // A thread without a context gets the same answer, and has no context afterwards, whether or not a queue
            // is open.
            let elsewhere = || {
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        look();
                        assert_eq!(npu.program.current_context(), None);
                    });
                });
            };
            elsewhere();
            npu.with_queue(0, MIB, 1, |_| elsewhere()).unwrap();
            npu.unmap(mapped);
            npu.free(first);
            assert_eq!(npu.driver.locate(first).unwrap(), None);
            npu.free_host(pinned);
            npu.set(1);
            npu.free(second);
            npu.end();
        });
    }
}

/// The toolkit is installed and the program has initialized it on a machine without devices: registered memory counts
/// as host memory.
#[test]
fn without_a_device_all_memory_is_the_hosts() {
    for (devices, fault) in [("0", ""), ("2", "aclInit")] {
        alone(without_a_device_all_memory_is_the_hosts, "9.1", &[("DEVICES", devices)], |npu| {
            let plain = [0u8; 64];
            // SAFETY: no file of settings is named, which is allowed.
            good(unsafe { (npu.program.calls.aclInit)(std::ptr::null()) });
            npu.fault(fault, "*", 500_000);
            assert_eq!(npu.driver.locate(plain.as_ptr() as u64).unwrap(), None);
            assert!(npu.with_queue(0, MIB, 1, |_| ()).is_err());
            npu.end();
        });
    }
}

#[test]
fn a_library_that_is_not_there_or_another_is_unavailable() {
    alone(a_library_that_is_not_there_or_another_is_unavailable, "9.1", &[], |npu| {
        let refused = |name: &str| (ascend::library(name, None).open)().err().unwrap();
        let absent = refused("libferry-nobody-has-this.so");
        assert_eq!(absent.status, Status::Unavailable);
        assert!(absent.message.contains("libferry-nobody-has-this.so"), "{absent}");
        let other = refused("libc.so.6");
        assert_eq!(other.status, Status::Unavailable);
        assert!(other.message.contains("libc.so.6 has no aclInit"), "{other}");
        assert_eq!(refused("a\0b").status, Status::Invalid);

        assert!((ascend::library(&npu.path, None).is_loaded)());
        assert!(!(ascend::library("libferry-nobody-has-this.so", None).is_loaded)());
        // By the library's SONAME.
        assert!((ascend::library("libascendcl.so", None).is_loaded)());
        // The program has not opened it: looking must not open it either.
        let unopened = npu.path.replace("cann-9.1", "cann-8.1");
        assert!(
            !(ascend::library(&unopened, None).is_loaded)()
                && !(ascend::library(&unopened, None).is_loaded)()
        );
    });
}

/// The side that initialized the library finalizes it; where the library counts uses, each side ends its own.
#[test]
fn the_library_is_ended_for_nobody_else() {
    for version in ["8.3", "9.1"] {
        alone(the_library_is_ended_for_nobody_else, version, &[], |mut npu| {
            let path = npu.path.clone();
            let ended = || calls(&path, "aclFinalize");
            // Only ferry uses the library.
            npu.with_queue(0, MIB, 1, |_| ()).unwrap();
            let again = (ascend::library(&npu.path, None).open)().unwrap();
            // SAFETY: the stand-in's events are numbers, looked at when they are waited for.
            again.point(unsafe { Start::event(1) }).unwrap();
            npu.driver = again;
            assert_eq!(ended(), 0);
            npu.driver = (ascend::library(&npu.path, None).open)().unwrap();
            assert_eq!(ended(), 1);

            // The program initializes first, and continues when ferry is gone.
            npu.start(0);
            let memory = npu.device_memory(MIB);
            npu.with_queue(0, MIB, 1, |_| ()).unwrap();
            npu.driver = (ascend::library(&npu.path, None).open)().unwrap();
            assert_eq!(ended(), 1);
            npu.expect_device_is_there(memory);
            npu.free(memory);
            npu.end();
        });
    }
}

impl Npu {
    fn expect_device_is_there(&self, memory: u64) {
        self.fill_device(memory, 4096, 1);
        self.expect_device(memory, 4096, 1);
    }
}

/// Does everything beside a program that has a device and a context of its own current.
#[test]
fn the_programs_threads_stay_as_they_are() {
    alone(the_programs_threads_stay_as_they_are, "9.1", &[], |mut npu| {
        npu.start(1);
        let mut own = null_mut();
        // SAFETY: the result lives on this stack.
        good(unsafe { (npu.program.calls.aclrtCreateContext)(&mut own, 1) });
        let state = |npu: &Npu| {
            let mut device = -1;
            // SAFETY: the result lives on this stack.
            good(unsafe { (npu.others.aclrtGetDevice)(&mut device) });
            (device, npu.program.current_context())
        };
        let before = state(&npu);
        assert_eq!(before, (1, Some(own)));

        let memory = npu.device_memory(MIB);
        let host = aligned(MIB);
        npu.driver.pin(host, MIB).unwrap();
        npu.driver.locate(memory).unwrap().unwrap();
        // SAFETY: the default stream.
        drop(npu.driver.point(unsafe { Start::stream(0) }).unwrap());
        let limits = Limits { batch_bytes: MIB, depth: 2, timeout: Duration::from_secs(30) };
        for device in [0, 1] {
            let at = Location { kind: MemoryKind::Ascend, device };
            let worker = Worker::start(npu.driver.clone(), at, limits).unwrap();
            if device == 1 {
                let (tell, told) = sync_channel(1);
                let pieces = vec![Piece { to: memory, from: host, length: MIB as u64 }];
                let done = Box::new(move |result| tell.send(result).unwrap());
                worker.copy(Job {
                    direction: Direction::HostToDevice,
                    pieces,
                    not_after_ns: Boottime::NEVER,
                    durable: false,
                    done,
                });
                told.recv().unwrap().unwrap();
            }
            worker.stop();
        }
        npu.driver.unpin(host);
        assert_eq!(state(&npu), before);
        assert_eq!(npu.calls("aclrtSetDevice"), 1);
        assert_eq!(npu.calls("aclrtResetDevice"), 0);
        npu.free(memory);
        // SAFETY: created above, destroyed once.
        good(unsafe { (npu.program.calls.aclrtDestroyContext)(own) });
        npu.end();
    });
}

fn aligned(length: usize) -> u64 {
    // The memory stays until the process ends.
    let memory = vec![0u8; length + 4096].leak();
    (memory.as_ptr() as u64).next_multiple_of(4096)
}

/// True while the memory was registered with the library more often than unregistered.
fn is_locked(npu: &Npu, address: u64) -> bool {
    let mut device = null_mut();
    let memory = address as *mut c_void;
    // SAFETY: memory that `aligned` never frees; the result lives on this stack.
    match unsafe { (npu.program.calls.aclrtHostRegister)(memory, 4096, 0, &mut device) } {
        0 => {
            // SAFETY: registered a moment ago, and used by nothing.
            good(unsafe { (npu.program.calls.aclrtHostUnregister)(memory) });
            false
        }
        code => {
            assert_eq!(code, 507_910);
            true
        }
    }
}

#[test]
fn host_memory_is_locked_from_any_thread_and_only_ours_is_unlocked() {
    alone(host_memory_is_locked_from_any_thread_and_only_ours_is_unlocked, "9.1", &[], |mut npu| {
        npu.start(0);
        let (ours, theirs) = (aligned(MIB), aligned(MIB));
        std::thread::scope(|scope| {
            scope.spawn(|| npu.driver.pin(ours, MIB).unwrap());
        });
        assert!(is_locked(&npu, ours));
        let mut device = null_mut();
        let memory = theirs as *mut c_void;
        // SAFETY: as in `is_locked`.
        good(unsafe { (npu.program.calls.aclrtHostRegister)(memory, MIB as u64, 0, &mut device) });
        npu.driver.pin(theirs, MIB).unwrap();
        npu.driver.unpin(theirs);
        assert!(is_locked(&npu, theirs));
        // SAFETY: registered above, and used by nothing.
        good(unsafe { (npu.program.calls.aclrtHostUnregister)(memory) });
        std::thread::scope(|scope| {
            scope.spawn(|| npu.driver.unpin(ours));
        });
        assert!(!is_locked(&npu, ours));

        let wrong = npu.driver.pin(ours + 8, 4096).unwrap_err();
        assert_eq!((wrong.status, wrong.vendor_error), (Status::Invalid, 107_000));
        assert!(wrong.message.contains("aclrtHostRegister"), "{wrong}");
        // Devices for which registering fails copy synchronously.
        npu.fault("aclrtHostRegister", "1", 207_000);
        npu.driver.pin(ours, MIB).unwrap();
        npu.driver.unpin(ours);
        npu.end();
    });
}

#[test]
fn a_name_may_be_opened_more_than_once() {
    alone(a_name_may_be_opened_more_than_once, "9.1", &[], |npu| {
        assert!(std::ptr::eq(Library::open(&npu.path).unwrap(), npu.program));
    });
}
