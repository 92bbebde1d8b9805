//! Faults of a process from outside: it runs another program, a child holds its descriptors, its pages are
//! missing or late.

use super::net::{accept, at, connect, connected, within, MS};
use super::{seeded, Log};
use crate::eventfd::{has_exited, pidfd};
use crate::net::{self, IoVec, Listener};
use crate::pages::{self, Page};
use crate::process::ProcessId;
use crate::{arena, memory, process, task, vm};
use std::io;
use std::os::fd::AsRawFd;

const PAGE: u64 = 4096;

/// Gives a process watched memory of so many bytes.
fn memory_of(process: ProcessId, bytes: u64) -> u64 {
    within(process, move || {
        let address = arena::allocate(bytes as usize).unwrap();
        memory::register(process::current(), 1, address, bytes);
        address
    })
}

/// Reads another process's memory in a process of its host.
fn read(reader: ProcessId, of: ProcessId, address: u64, length: usize) -> io::Result<(usize, Vec<u8>)> {
    let pid = of.pid() as i32;
    within(reader, move || {
        let mut into = vec![0u8; length];
        let local = [IoVec { address: into.as_mut_ptr() as u64, length }];
        // SAFETY: the vector is this function's own.
        let count = unsafe { vm::read(pid, &local, &[IoVec { address, length }]) }?;
        Ok((count, into))
    })
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn exec_keeps_the_process_and_ends_its_program() {
    for seed in 0..30 {
        let log = Log::default();
        let own = log.clone();
        seeded(seed, move || {
            let host = process::host("a");
            let (one, other) = (host.start("one"), host.start("other"));
            let (memory, unknown) = (memory_of(one, PAGE), within(one, || arena::allocate(8).unwrap()));
            let listening = at(host, 7000);
            let waits = one.spawn("waits", move || {
                let listener = Listener::bind(listening, 0).unwrap();
                accept(&listener);
                task::sleep(1_000 * MS);
                own.add("the old program goes on");
            });
            let watched = within(other, move || pidfd(one.pid() as i32).unwrap());
            let socket = within(other, move || connect(listening).unwrap());
            task::sleep(5 * MS);
            one.exec();
            assert!(one.is_alive() && !has_exited(&watched) && waits.unwrap().join().is_err());
            let (end, again) = within(other, move || {
                let mut byte = [0];
                let end = loop {
                    match net::receive(socket.as_raw_fd(), &mut byte) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => task::sleep(MS),
                        end => break end.unwrap_or(0),
                    }
                };
                (end, errno(connect(listening)))
            });
            assert_eq!((end, again), (0, Some(libc::ECONNREFUSED)));
            // The new program has other bytes where memory was registered, and nothing elsewhere.
            let (count, bytes) = read(other, one, memory, 8).unwrap();
            assert_eq!((count, bytes[0] != 0), (8, true));
            assert_eq!(errno(read(other, one, unknown, 8)), Some(libc::EFAULT));
            let new = memory_of(one, PAGE);
            assert_eq!(read(other, one, new, 8).unwrap(), (8, vec![0; 8]));
            one.kill();
            assert!(has_exited(&watched));
        })
        .check();
        assert_eq!(log.taken(), Vec::<String>::new());
    }
}

#[test]
fn a_copy_into_a_program_that_was_not_meant_fails_the_run() {
    let outcome = seeded(1, || {
        let host = process::host("a");
        let (one, other) = (host.start("one"), host.start("other"));
        let memory = memory_of(one, PAGE);
        one.exec();
        let pid = one.pid() as i32;
        within(other, move || {
            let byte = 7u8;
            let local = [IoVec { address: &raw const byte as u64, length: 1 }];
            // SAFETY: the byte is this function's own.
            unsafe { vm::write(pid, &local, &[IoVec { address: memory, length: 1 }]) }
        })
        .unwrap();
    });
    assert!(outcome.failures[0].contains("since its exec"), "{:?}", outcome.failures);
}

#[test]
fn a_child_holds_what_its_parent_had() {
    seeded(1, || {
        let host = process::host("a");
        let (parent, other) = (host.start("parent"), host.start("other"));
        let listening = at(host, 7000);
        let bind = move || Listener::bind(listening, 0);
        within(parent, move || std::mem::forget(bind().unwrap()));
        let child = parent.fork();
        parent.kill();
        assert_eq!(errno(within(other, bind)), Some(libc::EADDRINUSE));
        child.kill();
        assert!(within(other, bind).is_ok());
    })
    .check();
}

#[test]
fn a_missing_page_ends_the_calls_that_touch_it() {
    for seed in 0..20 {
        seeded(seed, || {
            let (a, b, one, other) = connected();
            let (from, into) = (memory_of(a, 3 * PAGE), memory_of(b, 3 * PAGE));
            pages::harm(from + PAGE, PAGE, Page::ReadOnly);
            pages::harm(into + PAGE, PAGE, Page::ReadOnly);
            let vector = |address| [IoVec { address, length: 2 * PAGE as usize }];
            let one = within(a, move || {
                let mut sent = 0;
                while sent < 2 * PAGE as usize {
                    let left = [IoVec { address: from + sent as u64, length: 2 * PAGE as usize - sent }];
                    // SAFETY: memory of the arena.
                    sent += unsafe { net::send_vectors(one.as_raw_fd(), &left) }.unwrap();
                }
                one
            });
            task::sleep(3_000 * MS);
            within(b, move || {
                // SAFETY: memory of the arena.
                let first = unsafe { net::receive_vectors(other.as_raw_fd(), &vector(into)) }.unwrap();
                assert!(first <= PAGE as usize);
                // SAFETY: memory of the arena.
                let at = |from| unsafe { net::receive_vectors(other.as_raw_fd(), &vector(from)) };
                assert_eq!(errno(at(into + PAGE)), Some(libc::EFAULT));
                pages::mend(into + PAGE);
                assert!(at(into + PAGE).is_ok());
            });
            pages::mend(from + PAGE);
            pages::harm(from + PAGE, PAGE, Page::Missing);
            let reader = a.host().start("reader");
            assert_eq!(read(reader, a, from, 2 * PAGE as usize).unwrap().0, PAGE as usize);
            assert_eq!(errno(read(reader, a, from + PAGE, 8)), Some(libc::EFAULT));
            within(a, move || {
                // SAFETY: as above.
                let sent = unsafe { net::send_vectors(one.as_raw_fd(), &vector(from + PAGE)) };
                assert_eq!(errno(sent), Some(libc::EFAULT));
            });
        })
        .check();
    }
    let outcome = seeded(1, || {
        let memory = arena::allocate(8).unwrap();
        pages::harm(memory, PAGE, Page::Missing);
        // SAFETY: memory of the arena, and a word of this function's.
        unsafe { memory::copied(memory as *const u8, &mut [0u8; 8] as *mut u8, 8, "a test") };
    });
    assert!(outcome.failures[0].contains("SIGSEGV"), "{:?}", outcome.failures);
}

#[test]
fn a_late_page_holds_the_task_alone_that_touches_it() {
    for seed in 0..20 {
        seeded(seed, || {
            let host = process::host("a");
            let (one, other) = (host.start("one"), host.start("other"));
            let memory = memory_of(one, PAGE);
            pages::harm(memory, PAGE, Page::Late);
            let (log, own) = (Log::default(), Log::default());
            let (waits, goes_on) = (log.clone(), own.clone());
            let pid = one.pid() as i32;
            let copies = other.spawn("copies", move || {
                let mut byte = 1u8;
                let local = [IoVec { address: &raw mut byte as u64, length: 1 }];
                // SAFETY: the byte is this function's own.
                let count = unsafe { vm::read(pid, &local, &[IoVec { address: memory, length: 1 }]) };
                waits.add("copied");
                (count.unwrap(), byte)
            });
            let others = other.spawn("goes on", move || {
                task::sleep(10 * MS);
                goes_on.add("goes on");
            });
            others.unwrap().join().unwrap();
            assert_eq!((log.taken(), own.taken()), (vec![], vec!["goes on".to_owned()]));
            pages::mend(memory);
            assert_eq!(copies.unwrap().join().unwrap(), (1, 0));
        })
        .check();
    }
}
