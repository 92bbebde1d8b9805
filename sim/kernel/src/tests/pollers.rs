//! Pollers, eventfds, pidfds, sockets within a host, and copies between processes.

use super::seeded;
use crate::eventfd::{descriptor_of, has_exited, pidfd, EventFd};
use crate::fd::AsFd;
use crate::memory;
use crate::net::{self, IoVec};
use crate::poller::{poll, Interest, Poller, Ready};
use crate::process::{self, ProcessId};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::task::{self, spawn};
use crate::unix::{self, Type};
use crate::{clock, vm};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const READ: Interest = Interest { read: true, write: false };
const BOTH: Interest = Interest { read: true, write: true };

fn tokens(poller: &Poller, timeout_ns: Option<u64>) -> Vec<u64> {
    let mut out = Vec::new();
    poller.wait(&mut out, timeout_ns).unwrap();
    let mut tokens: Vec<u64> = out.iter().map(|ready| ready.token).collect();
    tokens.sort_unstable();
    tokens
}

fn within<T: 'static>(process: ProcessId, body: impl FnOnce() -> T + 'static) -> T {
    process.spawn("acts", body).unwrap().join().unwrap()
}

#[test]
fn readiness_is_told_as_long_as_it_lasts() {
    for seed in 0..20 {
        seeded(seed, || {
            let poller = Poller::new().unwrap();
            let (event, other) = (EventFd::new().unwrap(), EventFd::new().unwrap());
            poller.add(event.as_raw_fd(), 1, READ).unwrap();
            poller.add(other.as_raw_fd(), 2, READ).unwrap();
            assert!(tokens(&poller, Some(0)).is_empty());
            event.raise();
            assert_eq!((tokens(&poller, None), tokens(&poller, None)), (vec![1], vec![1]));
            other.raise();
            assert_eq!(tokens(&poller, None), [1, 2]);
            event.clear();
            assert_eq!(tokens(&poller, None), [2]);
            poller.set(other.as_raw_fd(), 3, Interest::default()).unwrap();
            assert!(tokens(&poller, Some(1000)).is_empty());
            poller.set(other.as_raw_fd(), 3, BOTH).unwrap();
            let mut out = Vec::new();
            poller.wait(&mut out, None).unwrap();
            let ready = Ready { token: 3, readable: true, writable: true, hangup: false, end: false };
            assert_eq!(out, [ready]);
            poller.remove(other.as_raw_fd());
            assert!(tokens(&poller, Some(1000)).is_empty());
            let error = poller.set(other.as_raw_fd(), 3, BOTH).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
            let error = poller.add(event.as_raw_fd(), 9, READ).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
            let error = poller.add(99, 9, READ).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EBADF));
        })
        .check();
    }
}

/// A wait in progress hears of registrations, of changed interest, of wakes, and of its time.
#[test]
fn a_wait_in_progress_hears_of_all() {
    for seed in 0..30 {
        seeded(seed, || {
            let poller = Rc::new(Poller::new().unwrap());
            let event = EventFd::new().unwrap();
            event.raise();
            let begun = clock::monotonic_ns();
            assert!(tokens(&poller, Some(2_000_000)).is_empty());
            assert!(clock::monotonic_ns() - begun >= 2_000_000);
            let wait = |poller: &Rc<Poller>| {
                let poller = poller.clone();
                spawn("waits", move || tokens(&poller, None)).unwrap()
            };
            let waits = wait(&poller);
            task::sleep(MS);
            poller.wake();
            assert!(waits.join().unwrap().is_empty());
            poller.wake();
            poller.wake();
            assert!(wait(&poller).join().unwrap().is_empty());
            let waits = wait(&poller);
            task::sleep(MS);
            poller.add(event.as_raw_fd(), 4, Interest::default()).unwrap();
            task::sleep(MS);
            assert!(!waits.is_finished());
            poller.set(event.as_raw_fd(), 5, READ).unwrap();
            assert_eq!(waits.join().unwrap(), [5]);
        })
        .check();
    }
}

#[test]
fn a_closed_descriptor_is_forgotten_and_its_number_used_again() {
    seeded(1, || {
        let poller = Poller::new().unwrap();
        let event = EventFd::new().unwrap();
        event.raise();
        let number = event.as_raw_fd();
        poller.add(number, 1, READ).unwrap();
        drop(event);
        assert!(tokens(&poller, Some(0)).is_empty());
        let next = EventFd::new().unwrap();
        assert_eq!(next.as_raw_fd(), number);
        next.raise();
        assert!(tokens(&poller, Some(0)).is_empty());
        poller.add(number, 2, READ).unwrap();
        assert_eq!(tokens(&poller, Some(0)), [2]);
    })
    .check();
}

#[test]
fn a_pidfd_tells_of_the_end_and_gives_descriptors() {
    for seed in 0..20 {
        seeded(seed, || {
            let host = process::host("a");
            let (watcher, victim) = (host.start("watcher"), host.start("victim"));
            let number = within(victim, || {
                let event = EventFd::new().unwrap();
                event.raise();
                let number = event.as_raw_fd();
                std::mem::forget(event);
                number
            });
            let pid = victim.pid() as i32;
            let watches = Rc::new(AtomicBool::new(false));
            let begun = watches.clone();
            let waits = watcher.spawn("watches", move || {
                let process = pidfd(pid).unwrap();
                let copy = descriptor_of(process.as_fd(), number).unwrap();
                assert_eq!(poll(&[(copy.as_raw_fd(), READ)], Some(0)).unwrap().len(), 1);
                assert!(!has_exited(&process));
                begun.store(true, Ordering::Relaxed);
                let ready = poll(&[(process.as_raw_fd(), READ)], None).unwrap();
                assert!(ready[0].readable && has_exited(&process));
                let gone = [pidfd(pid).unwrap_err(), descriptor_of(process.as_fd(), number).unwrap_err()];
                assert!(gone.iter().all(|error| error.raw_os_error() == Some(libc::ESRCH)));
            });
            while !watches.load(Ordering::Relaxed) {
                task::sleep(MS);
            }
            victim.kill();
            waits.unwrap().join().unwrap();
            let elsewhere = process::host("b").start("elsewhere");
            let own = watcher.pid() as i32;
            assert!(within(elsewhere, move || pidfd(own)).is_err());
        })
        .check();
    }
}

#[test]
fn packets_keep_their_bounds_and_carry_descriptors() {
    for seed in 0..10 {
        seeded(seed, || {
            let host = process::host("a");
            let (asks, answers) = (host.start("asks"), host.start("answers"));
            answers.set_user(7);
            let expected = answers.pid() as i32;
            let serves = answers.spawn("serves", || {
                let door = unix::listen(b"door", Type::Packets, 4).unwrap();
                assert_eq!(unix::listen(b"door", Type::Packets, 4).unwrap_err().kind(), ErrorKind::AddrInUse);
                poll(&[(door.as_raw_fd(), READ)], None).unwrap();
                let socket = unix::accept(door.as_fd()).unwrap();
                let event = EventFd::new().unwrap();
                event.raise();
                unix::send_packet(socket.as_fd(), b"one", &[event.as_fd()]).unwrap();
                unix::send_packet(socket.as_fd(), b"three", &[]).unwrap();
            });
            within(asks, move || {
                let socket = loop {
                    match unix::connect(b"door", Type::Packets) {
                        Ok(socket) => break socket,
                        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionRefused),
                    }
                    task::sleep(MS);
                };
                assert_eq!(unix::peer_credentials(socket.as_fd()).unwrap(), (expected, 7));
                let mut buffer = [0; 4];
                let mut next = || {
                    poll(&[(socket.as_raw_fd(), READ)], None).unwrap();
                    unix::receive_packet(socket.as_fd(), &mut buffer).unwrap()
                };
                let first = next();
                assert_eq!((first.length, first.descriptors.len(), first.truncated), (3, 1, false));
                let event = first.descriptors[0].as_raw_fd();
                assert_eq!(poll(&[(event, READ)], Some(0)).unwrap().len(), 1);
                let second = next();
                assert_eq!((second.length, second.truncated), (4, true));
                assert_eq!(next().length, 0);
                let error = unix::send_packet(socket.as_fd(), b"x", &[]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::BrokenPipe);
            });
            serves.unwrap().join().unwrap();
        })
        .check();
    }
}

#[test]
fn local_streams_fill_up_end_and_die_with_their_process() {
    seeded(1, || {
        let (one, other) = unix::pair(Type::Stream).unwrap();
        assert_eq!(net::send(one.as_raw_fd(), b"hello").unwrap(), 5);
        let mut buffer = [0; 3];
        assert_eq!(net::receive(other.as_raw_fd(), &mut buffer).unwrap(), 3);
        assert_eq!(net::receive(other.as_raw_fd(), &mut buffer).unwrap(), 2);
        let error = net::receive(other.as_raw_fd(), &mut buffer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let mut sent = 0;
        let error = loop {
            match net::send(one.as_raw_fd(), &[7; 10_000]) {
                Ok(count) => sent += count,
                Err(error) => break error,
            }
        };
        assert!(error.kind() == ErrorKind::WouldBlock && sent > 200_000);
        drop(other);
        let error = net::receive(one.as_raw_fd(), &mut buffer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(net::receive(one.as_raw_fd(), &mut buffer).unwrap(), 0);
        let host = process::host("a");
        let (stays, dies) = (host.start("stays"), host.start("dies"));
        let door = within(dies, || unix::listen(b"door", Type::Stream, 4).unwrap());
        let socket = within(stays, || unix::connect(b"door", Type::Stream).unwrap());
        dies.kill();
        within(stays, move || {
            assert_eq!(net::receive(socket.as_raw_fd(), &mut [0; 3]).unwrap(), 0);
            assert!(
                unix::peer_pidfd(socket.as_fd()).is_err() && unix::connect(b"door", Type::Stream).is_err()
            );
        });
        drop(door);
    })
    .check();
}

/// A copy reaches registered memory only, takes time, and ends with the process whose memory it is.
#[test]
fn copies_between_processes_end_with_the_process() {
    const COUNT: usize = 4 << 20;
    let mut cut = 0;
    for seed in 0..40 {
        let mut copied = 0;
        seeded(seed, || {
            let host = process::host("a");
            let (reader, victim) = (host.start("reader"), host.start("victim"));
            let address = within(victim, || {
                let memory: &'static [u8] = Box::leak(vec![7u8; COUNT].into_boxed_slice());
                memory::register(process::current(), 1, memory.as_ptr() as u64, COUNT as u64);
                memory.as_ptr() as u64
            });
            let pid = victim.pid() as i32;
            let read = move |length: usize| {
                let mut into = vec![0u8; length];
                let local = [IoVec { address: into.as_mut_ptr() as u64, length }];
                // SAFETY: the vector is this function's own.
                let count = unsafe { vm::read(pid, &local, &[IoVec { address, length }]) };
                assert!(count.iter().all(|count| into[..*count].iter().all(|byte| *byte == 7)));
                count
            };
            assert_eq!(within(reader, move || read(1000)).unwrap(), 1000);
            assert_eq!(within(reader, move || read(COUNT + 1000)).unwrap(), COUNT);
            let last = reader.spawn("reads", move || read(COUNT));
            for _ in 0..seed % 8 {
                task::yield_now();
            }
            victim.kill();
            copied = last.unwrap().join().unwrap().unwrap_or(0);
            let error = within(reader, move || read(1)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
        })
        .check();
        cut += u32::from(copied > 0 && copied < COUNT);
    }
    assert!(cut > 0);
}
