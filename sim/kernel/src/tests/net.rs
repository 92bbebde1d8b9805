//! Streams between hosts, and what faults do to them.

use super::{seeded, Log};
use crate::fd::OwnedFd;
use crate::memory::{self, Access};
use crate::net::{self, Faults, IoVec, Listener};
use crate::poller::{poll, Interest};
use crate::process::{self, HostId, ProcessId};
use crate::task::{self, JoinHandle};
use crate::{run, Options, MILLION};
use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

pub const MS: Duration = Duration::from_millis(1);
pub const READ: Interest = Interest { read: true, write: false };
pub const WRITE: Interest = Interest { read: false, write: true };
pub const SECOND_NS: u64 = 1_000_000_000;

pub fn hosts() -> (HostId, HostId) {
    (process::host("a"), process::host("b"))
}

pub fn at(host: HostId, port: u16) -> SocketAddr {
    SocketAddr::new(host.address(), port)
}

/// Dials until it is connected or has failed.
pub fn connect(remote: SocketAddr) -> io::Result<OwnedFd> {
    let socket = net::dial(remote, 0)?;
    while poll(&[(socket.as_raw_fd(), WRITE)], Some(200 * SECOND_NS))?.is_empty() {}
    net::pending_error(socket.as_raw_fd()).map_or(Ok(socket), Err)
}

pub fn accept(listener: &Listener) -> OwnedFd {
    while poll(&[(listener.as_raw_fd(), READ)], None).unwrap().is_empty() {}
    listener.accept().unwrap().0
}

/// Sends all, waiting for room.
pub fn send_all(socket: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match net::send(socket.as_raw_fd(), bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                poll(&[(socket.as_raw_fd(), WRITE)], Some(SECOND_NS))?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Receives until the end or an error.
pub fn receive_all(socket: &OwnedFd) -> (Vec<u8>, io::Result<()>) {
    let (mut all, mut buffer) = (Vec::new(), [0; 5000]);
    loop {
        match net::receive(socket.as_raw_fd(), &mut buffer) {
            Ok(0) => return (all, Ok(())),
            Ok(count) => all.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                poll(&[(socket.as_raw_fd(), READ)], None).unwrap();
            }
            Err(error) => return (all, Err(error)),
        }
    }
}

pub fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect()
}

/// Listens on `b`, sends `bytes` from `a`, closes, and returns what arrived.
fn stream(a: ProcessId, b: ProcessId, bytes: Vec<u8>) -> JoinHandle<(Vec<u8>, io::Result<()>)> {
    let taker = b.spawn("taker", || {
        let listener = Listener::bind(at(process::current().host(), 7000), 0).unwrap();
        let socket = accept(&listener);
        receive_all(&socket)
    });
    let target = at(b.host(), 7000);
    let sends = move || {
        let socket = loop {
            match connect(target) {
                Ok(socket) => break socket,
                Err(_) => task::sleep(MS),
            }
        };
        let _ = send_all(&socket, &bytes);
    };
    a.spawn("sender", sends).unwrap();
    taker.unwrap()
}

#[test]
fn bytes_arrive_whole_and_in_order() {
    for seed in 0..40 {
        seeded(seed, || {
            let (a, b) = hosts();
            let bytes = pattern(300_000);
            let (came, end) = stream(a.start("a"), b.start("b"), bytes.clone()).join().unwrap();
            assert!(came == bytes && end.is_ok());
        })
        .check();
    }
}

#[test]
fn a_seed_repeats_with_faults_and_another_differs() {
    let told = |seed| {
        let mut faults =
            Faults { delay_ppm: 100_000, reset_ppm: 5_000, hang_ppm: 100_000, ..Faults::default() };
        faults.refuse_ppm = 100_000;
        let outcome = run(seed, Options { faults, ..Options::default() }, || {
            let (a, b) = hosts();
            stream(a.start("a"), b.start("b"), pattern(100_000)).join().unwrap().1.ok();
        });
        (outcome.hash, outcome.steps, outcome.end_ns, outcome.failures)
    };
    let seeds: Vec<_> = (0..20).map(told).collect();
    let again: Vec<_> = (0..20).map(told).collect();
    assert_eq!(seeds, again);
    assert!(seeds.windows(2).all(|pair| pair[0].0 != pair[1].0));
}

/// Not a test: prints the hashes of some seeds.
#[test]
#[ignore = "the other process of a test"]
fn prints_hashes() {
    for seed in 0..10 {
        let faults = Faults { delay_ppm: 50_000, reset_ppm: 1_000, ..Faults::default() };
        let outcome = run(seed, Options { faults, ..Options::default() }, || {
            let (a, b) = hosts();
            stream(a.start("a"), b.start("b"), pattern(50_000)).join().unwrap().1.ok();
        });
        println!("@@ {seed} {:x} {}", outcome.hash, outcome.steps);
    }
}

/// Addresses differ from one process of the operating system to the next, and the runs do not.
#[test]
fn hashes_agree_between_processes() {
    let hashes = || {
        let mut other = Command::new(std::env::current_exe().unwrap());
        let told = other
            .args(["--exact", "tests::net::prints_hashes", "--ignored", "--nocapture"])
            .output()
            .unwrap();
        let told = String::from_utf8(told.stdout).unwrap();
        told.lines().filter(|line| line.contains("@@")).map(str::to_owned).collect::<Vec<String>>()
    };
    let first = hashes();
    assert_eq!((first.len(), &first), (10, &hashes()));
}

/// Connects two processes; each has one socket.
pub fn connected() -> (ProcessId, ProcessId, OwnedFd, OwnedFd) {
    let (a, b) = hosts();
    let (a, b) = (a.start("a"), b.start("b"));
    let taker = b.spawn("taker", || {
        let listener = Listener::bind(at(process::current().host(), 7000), 64 << 10).unwrap();
        accept(&listener)
    });
    let target = at(b.host(), 7000);
    let dialer = a.spawn("dialer", move || loop {
        match net::dial(target, 64 << 10) {
            Ok(socket) => {
                poll(&[(socket.as_raw_fd(), WRITE)], None).unwrap();
                if net::pending_error(socket.as_raw_fd()).is_none() {
                    return socket;
                }
            }
            Err(error) => panic!("{error}"),
        }
    });
    let one = dialer.unwrap().join().unwrap();
    (a, b, one, taker.unwrap().join().unwrap())
}

/// Runs in a process and waits for it.
pub fn within<T: 'static>(process: ProcessId, body: impl FnOnce() -> T + 'static) -> T {
    process.spawn("acts", body).unwrap().join().unwrap()
}

pub fn fill(socket: &OwnedFd) -> usize {
    let mut sent = 0;
    loop {
        match net::send(socket.as_raw_fd(), &[7; 4000]) {
            Ok(count) => sent += count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return sent;
            }
        }
    }
}

/// A process without room for one more descriptor; the connection waits until there is room.
#[test]
fn who_has_no_descriptor_left_gets_emfile_and_loses_nothing() {
    seeded(1, || {
        let (a, b) = hosts();
        let taker = b.start("b");
        let listener = within(taker, move || Listener::bind(at(b, 7000), 0).unwrap());
        let dialer = a.start("a");
        let _socket = within(dialer, move || connect(at(b, 7000)).unwrap());
        taker.set_descriptors_max(4);
        within(taker, move || {
            assert_eq!(listener.accept().unwrap_err().raw_os_error(), Some(libc::EMFILE));
            assert_eq!(net::dial(at(a, 1), 0).unwrap_err().raw_os_error(), Some(libc::EMFILE));
            process::current().set_descriptors_max(5);
            assert_eq!(listener.accept().unwrap().0.as_raw_fd(), 4);
        });
        let mut faults = Faults { no_descriptor_ppm: MILLION, ..Faults::default() };
        net::set_faults(faults.clone());
        within(dialer, move || {
            assert_eq!(net::dial(at(b, 1), 0).unwrap_err().raw_os_error(), Some(libc::EMFILE))
        });
        faults.no_descriptor_ppm = 0;
        net::set_faults(faults);
        assert!(within(dialer, move || net::dial(at(b, 1), 0)).is_ok());
    })
    .check();
}

fn observed(seen: &Rc<RefCell<Vec<Access>>>) -> Options {
    let own = seen.clone();
    Options {
        observer: Some(Box::new(move |access| own.borrow_mut().push(access.clone()))),
        ..Options::default()
    }
}

/// A zero-copy send reads memory when the bytes arrive, and says when it will not read any more.
#[test]
fn zero_copy_sends_read_late() {
    let seen = Rc::default();
    run(1, observed(&seen), || {
        let (a, b, one, other) = connected();
        within(a, move || {
            let bytes: &mut [u8] = Box::leak(Box::new([1; 1000]));
            let address = bytes.as_mut_ptr() as u64;
            memory::register(process::current(), 5, address, 1000);
            net::set_zero_copy(one.as_raw_fd(), true).unwrap();
            // SAFETY: leaked.
            let sent =
                unsafe { net::send_vectors(one.as_raw_fd(), &[IoVec { address, length: 1000 }]) }.unwrap();
            bytes.fill(2);
            while net::released(one.as_raw_fd()).unwrap() < sent as u64 {
                task::sleep(MS / 10);
            }
            bytes.fill(3);
        });
        let came = within(b, move || receive_all(&other).0);
        assert!(!came.is_empty() && came.iter().all(|byte| *byte == 2), "{came:?}");
    })
    .check();
    let seen = seen.take();
    assert!(!seen.is_empty() && seen.iter().all(|it| (it.label, it.write, it.by) == (5, false, "late send")));
}

/// Others run in the middle of a receive: a reader of the memory sees it half written in some seed.
#[test]
fn a_receive_goes_piece_by_piece() {
    const COUNT: usize = 200_000;
    let half = (0..200).any(|seed| {
        let log = Log::default();
        let seen = Rc::default();
        run(seed, observed(&seen), || {
            let (a, b, one, other) = connected();
            within(a, move || {
                assert!(send_all(&one, &vec![1; 60_000]).is_ok());
            });
            let own = log.clone();
            within(b, move || {
                task::sleep(200 * MS);
                let memory: &'static mut [u8] = Box::leak(Box::new([0; COUNT]));
                let address = memory.as_mut_ptr() as u64;
                memory::register(process::current(), 9, address, COUNT as u64);
                let watcher = task::spawn("watches", move || loop {
                    // SAFETY: leaked, and one thread runs all tasks.
                    let memory = unsafe { std::slice::from_raw_parts(address as *const u8, 60_000) };
                    match (memory[0], memory[59_999]) {
                        (1, 0) => return own.add("half"),
                        (1, 1) => return,
                        _ => task::spin(),
                    }
                })
                .unwrap();
                let mut done = 0;
                while done < 60_000 {
                    let part = IoVec { address: address + done, length: COUNT - done as usize };
                    // SAFETY: leaked.
                    done += unsafe { net::receive_vectors(other.as_raw_fd(), &[part]) }.unwrap_or(0) as u64;
                }
                watcher.join().unwrap();
            });
        })
        .check();
        let written: u64 = seen.take().iter().map(|it: &Access| it.length).sum();
        assert_eq!(written, 60_000);
        !log.taken().is_empty()
    });
    assert!(half);
}

/// A process that is to stop inside a receive has written the first bytes then, and writes the rest when it goes on.
#[test]
fn a_process_stops_inside_a_receive_and_goes_on() {
    const COUNT: usize = 600_000;
    let log = Log::default();
    let seen = Rc::default();
    run(1, observed(&seen), || {
        let (a, b, one, other) = connected();
        b.stop_in_receive(true);
        within(a, move || {
            assert!(send_all(&one, &vec![1; 60_000]).is_ok());
        });
        let own = log.clone();
        b.spawn("receives", move || {
            task::sleep(200 * MS);
            let memory: &'static mut [u8] = Box::leak(Box::new([0; COUNT]));
            let address = memory.as_mut_ptr() as u64;
            memory::register(process::current(), 9, address, COUNT as u64);
            let mut done = 0;
            while done < 60_000 {
                let part = IoVec { address: address + done, length: COUNT - done as usize };
                // SAFETY: leaked.
                done += unsafe { net::receive_vectors(other.as_raw_fd(), &[part]) }.unwrap_or(0) as u64;
            }
            own.add("all");
        })
        .unwrap();
        task::sleep(Duration::from_secs(1));
        let written = || seen.borrow().iter().map(|it: &Access| it.length).sum::<u64>();
        assert!(b.is_stopped() && (1..60_000).contains(&written()) && log.taken().is_empty());
        b.resume();
        task::sleep(Duration::from_secs(1));
        assert!(!b.is_stopped() && written() == 60_000);
        assert_eq!(log.taken(), ["all"]);
    })
    .check();
}
