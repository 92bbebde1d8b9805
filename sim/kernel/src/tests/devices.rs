//! Devices: what a program may rely on of copies, their ends and failures, and what not.

use super::net::{hosts, within};
use super::{seeded, Log};
use crate::device::{self, Direction, Failure, Faults, Piece, Queue};
use crate::memory::{self, Access};
use crate::net::{self, IoVec};
use crate::process::ProcessId;
use crate::{arena, clock, nic, run, task, unix, vm, Options, Outcome};
use std::cell::{Cell, RefCell};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::Duration;

const BYTES: u64 = 20 << 10;
const PARTS: u64 = BYTES / 4096;
const MS: Duration = Duration::from_millis(1);
/// Longer than any copy takes that no fault delays.
const LONG: Duration = Duration::from_millis(50);

/// Memory of a device, and as much pinned memory of its host with bytes of another value.
struct Rig {
    queue: Queue,
    host: u64,
    device: u64,
}

fn rig() -> Rig {
    let (host, device) =
        (arena::allocate(BYTES as usize).unwrap(), device::allocate(0, BYTES as usize).unwrap());
    memory::write(host, &[7; BYTES as usize]);
    device::pin(host, BYTES);
    Rig { queue: Queue::open(0, BYTES, 2).unwrap(), host, device }
}

/// Runs a body in a process of a host with one device.
fn on_device(seed: u64, body: impl FnOnce(ProcessId) + 'static) -> Outcome {
    seeded(seed, || {
        let (host, _) = hosts();
        assert_eq!(device::add(host), 0);
        let process = host.start("p");
        within(process, move || body(process));
    })
}

impl Rig {
    fn start(&mut self, direction: Direction, pieces: &[Piece]) -> Result<u64, Failure> {
        // SAFETY: memory of both arenas stays until the run is over.
        unsafe { self.queue.copy(direction, pieces) }
    }

    /// Copies all memory of the host to the device.
    fn copy_in(&mut self) -> Result<u64, Failure> {
        self.start(Direction::HostToDevice, &[Piece { to: self.device, from: self.host, length: BYTES }])
    }

    fn end(&mut self, batch: u64) -> Result<(), Failure> {
        let until = clock::virtual_ns() + 10_000_000_000;
        while !self.queue.poll_done(batch)? {
            assert!(clock::virtual_ns() < until, "batch {batch} does not end");
        }
        Ok(())
    }

    /// Returns how many bytes have come to the device.
    fn moved(&self) -> usize {
        memory::read(self.device, BYTES as usize).iter().filter(|byte| **byte == 7).count()
    }
}

#[test]
fn parts_move_in_any_order_among_batches_while_others_run_and_each_is_told() {
    let orders = Rc::new(RefCell::new(Vec::new()));
    let mut seen_between = 0;
    for seed in 0..40 {
        let (log, between) = (Log::default(), Rc::new(Cell::new(0)));
        let (told, counts) = (log.clone(), between.clone());
        let observer = Box::new(move |it: &Access| {
            assert!(it.length <= 4096 && it.actor == it.process && it.by == device::COPIES && it.ns > 0);
            told.add(format!("{}{}:{}", if it.write { "w" } else { "r" }, it.label, it.offset / 4096));
        });
        run(seed, Options { observer: Some(observer), ..Options::default() }, move || {
            let (host, _) = hosts();
            device::add(host);
            let process = host.start("p");
            within(process, move || {
                let mut rig = rig();
                memory::register(process, 1, rig.device, BYTES);
                memory::register(process, 2, rig.host, BYTES);
                let half = BYTES / 2;
                let piece = |from| Piece { to: rig.device + from, from: rig.host + from, length: half };
                let (one, other) = (piece(0), piece(half));
                let first = rig.start(Direction::HostToDevice, &[one]).unwrap();
                let second = rig.start(Direction::HostToDevice, &[other]).unwrap();
                assert_eq!(device::states().coming_in, 2);
                while !rig.queue.poll_done(first).unwrap() {
                    counts.set(counts.get() + usize::from((1..BYTES as usize).contains(&rig.moved())));
                    task::sleep(Duration::from_micros(1));
                }
                rig.end(second).unwrap();
                assert_eq!((rig.moved(), device::states()), (BYTES as usize, device::States::default()));
                let piece = Piece { to: rig.host, from: rig.device, length: 8 };
                let out = rig.start(Direction::DeviceToHost, &[piece]).unwrap();
                assert_eq!(device::states().going_out, 1);
                rig.end(out).unwrap();
            });
        })
        .check();
        let all = log.taken();
        let mut writes: Vec<&String> = all.iter().filter(|it| it.starts_with("w1")).collect();
        orders.borrow_mut().push(writes.iter().map(|it| it.to_string()).collect::<String>());
        writes.sort();
        // Both halves end in the midst of a page, so one page is written by both.
        assert_eq!(writes.len() as u64, PARTS + 1);
        assert_eq!(all.iter().filter(|it| it.starts_with("r2")).count() as u64, PARTS + 1);
        seen_between += usize::from(between.get() > 0);
    }
    assert!(seen_between > 20, "only {seen_between} seeds saw a copy in its midst");
    let mut orders = orders.take();
    orders.sort();
    orders.dedup();
    assert!(orders.len() > 30, "only {} orders of parts", orders.len());
}

#[test]
fn a_failure_is_of_one_batch_or_of_the_device_and_nothing_moves_after_it() {
    let (not_started, one, whole) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let counts = [not_started.clone(), one.clone(), whole.clone()];
    for seed in 0..200 {
        let [not_started, one, whole] = counts.clone();
        on_device(seed, move |process| {
            let mut rig = rig();
            let good = rig.copy_in().unwrap();
            device::set_faults(Faults { fail_ppm: 1_000_000, ..Faults::default() });
            let bad = rig.copy_in();
            device::set_faults(Faults::default());
            let first = rig.end(good);
            let failure = match bad {
                Ok(batch) => rig.end(batch).unwrap_err(),
                Err(failure) => {
                    not_started.set(not_started.get() + 1);
                    failure
                }
            };
            if failure == Failure::Copy {
                assert_eq!((first, rig.moved()), (Ok(()), BYTES as usize), "the other batch is whole");
            }
            memory::write(rig.device, &[0; BYTES as usize]);
            task::sleep(LONG);
            assert_eq!(rig.moved(), 0, "a part moves behind the failure");
            match failure {
                Failure::Copy => {
                    one.set(one.get() + 1);
                    let batch = rig.copy_in().unwrap();
                    rig.end(batch).unwrap();
                }
                Failure::Broken => {
                    whole.set(whole.get() + 1);
                    assert!(device::is_broken(process));
                    assert_eq!(rig.copy_in(), Err(Failure::Broken));
                }
            }
        })
        .check();
    }
    let counts = counts.map(|count| count.get());
    assert!(counts[0] > 30 && counts[1] > 100 && counts[2] > 5, "{counts:?}");
}

#[test]
fn a_device_that_stands_is_stopped_or_goes_on_after_it_was_given_up() {
    for seed in 0..100 {
        on_device(seed, move |process| {
            let can_stop = seed % 2 == 0;
            let mut rig = rig();
            device::hang(400 * MS, can_stop);
            let batch = loop {
                let batch = rig.copy_in().unwrap();
                task::sleep(LONG);
                if device::states().standing == 1 {
                    break batch;
                }
                rig.end(batch).unwrap();
            };
            assert_eq!((device::stood_ns(process), device::is_broken(process)), (400_000_000, false));
            memory::write(rig.device, &[0; BYTES as usize]);
            assert_eq!(rig.queue.poll_done(batch), Ok(false));
            assert_eq!(rig.queue.abort(), can_stop);
            assert!(device::is_broken(process));
            task::sleep(300 * MS);
            assert_eq!(rig.moved(), 0, "nothing moves while the device stands");
            task::sleep(200 * MS);
            assert_eq!(rig.moved() > 0, !can_stop);
            assert_eq!(rig.queue.poll_done(batch), Ok(true));
            assert_eq!(rig.copy_in(), Err(Failure::Broken));
        })
        .check();
    }
}

#[test]
fn calm_lets_a_device_go_on() {
    for seed in 0..50 {
        on_device(seed, |_| {
            let mut rig = rig();
            device::hang(3_600_000 * MS, false);
            while device::states().standing == 0 {
                let batch = rig.copy_in().unwrap();
                task::sleep(LONG);
                if device::states().standing == 0 {
                    rig.end(batch).unwrap();
                }
            }
            device::calm();
            task::sleep(LONG);
            assert_eq!((rig.moved(), device::states().standing), (BYTES as usize, 0));
        })
        .check();
    }
}

/// Starts a copy in a process, and returns how many bytes have moved after `harm` and a while.
fn moved_after(seed: u64, harm: impl Fn(ProcessId) + 'static) -> usize {
    let moved = Rc::new(Cell::new(usize::MAX));
    let tells = moved.clone();
    seeded(seed, move || {
        let (host, _) = hosts();
        device::add(host);
        let process = host.start("p");
        let address = Rc::new(Cell::new(0));
        let own = address.clone();
        process
            .spawn("copies", move || {
                let mut rig = rig();
                own.set(rig.device);
                rig.copy_in().unwrap();
                loop {
                    task::sleep(LONG);
                }
            })
            .unwrap();
        while device::states().coming_in == 0 {
            task::sleep(Duration::from_nanos(100));
        }
        harm(process);
        let bytes = || memory::read(address.get(), BYTES as usize).iter().filter(|byte| **byte == 7).count();
        let at_once = bytes();
        task::sleep(LONG);
        assert!(bytes() >= at_once);
        tells.set(bytes());
    })
    .check();
    moved.get()
}

#[test]
fn a_device_goes_on_for_a_stopped_process_not_for_a_dead_one_and_rests_with_its_host() {
    let (mut cut_short, mut rested) = (0, 0);
    for seed in 0..50 {
        assert_eq!(moved_after(seed, |process| process.stop()), BYTES as usize);
        cut_short += u32::from(moved_after(seed, |process| process.kill()) < BYTES as usize);
        rested += u32::from(moved_after(seed, |process| process.host().suspend()) < BYTES as usize);
        let wakes = |process: ProcessId| {
            process.host().suspend();
            task::sleep(LONG);
            process.host().wake_up();
        };
        assert_eq!(moved_after(seed, wakes), BYTES as usize);
    }
    assert!(cut_short > 30 && rested > 30, "{cut_short} and {rested} of 50");
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<i32> {
    result.unwrap_err().raw_os_error()
}

#[test]
fn no_call_of_the_kernel_reaches_memory_of_a_device() {
    for seed in 0..20 {
        on_device(seed, |process| {
            nic::add(process.host(), nic::Abilities::default());
            let Rig { device, host, queue: _queue } = rig();
            memory::register(process, 1, device, BYTES);
            let (one, other) = unix::pair(unix::Type::Stream).unwrap();
            net::send(one.as_raw_fd(), &[1; 16]).unwrap();
            let own = [IoVec::new(host, 8), IoVec::new(device + 8, 8)];
            // SAFETY: memory of both arenas stays until the run is over.
            unsafe {
                assert_eq!(errno(net::send_vectors(one.as_raw_fd(), &own)), Some(libc::EFAULT));
                assert_eq!(errno(net::receive_vectors(other.as_raw_fd(), &own)), Some(libc::EFAULT));
                let pid = process.pid() as i32;
                let [host, device] = [[own[0]], [own[1]]];
                for (near, far) in [(&host, &device), (&device, &host)] {
                    assert_eq!(errno(vm::read(pid, near, far)), Some(libc::EFAULT));
                    assert_eq!(errno(vm::write(pid, near, far)), Some(libc::EFAULT));
                }
                assert_eq!(vm::read(pid, &host, &host).unwrap(), 8);
            }
            let pd = nic::Pd::new(&nic::Context::open("sim0").unwrap()).unwrap();
            // SAFETY: nothing is registered.
            assert_eq!(errno(unsafe { pd.register(device, 8, true, true, false) }), Some(libc::EFAULT));
            assert_eq!(memory::read(device, BYTES as usize), [0; BYTES as usize]);
        })
        .check();
    }
}

/// Each of these is a failure of the run, whatever the program does about it.
#[test]
fn what_no_correct_program_does_fails_the_run() {
    type Deed = fn(Rig);
    let cases: [(&str, Deed); 6] = [
        ("a processor touches", |rig| {
            // SAFETY: memory of both arenas stays until the run is over.
            unsafe { memory::copied(rig.device as *const u8, rig.host as *mut u8, 8, "test") }
        }),
        ("neither pinned", |mut rig| {
            device::unpin(rig.host);
            assert_eq!(rig.copy_in(), Err(Failure::Broken));
        }),
        ("neither pinned", |mut rig| {
            let piece = Piece { to: rig.device + 1, from: rig.host, length: BYTES };
            assert_eq!(rig.start(Direction::HostToDevice, &[piece]), Err(Failure::Broken));
        }),
        ("taken back meanwhile", |mut rig| {
            rig.copy_in().unwrap();
            device::unpin(rig.host);
            task::sleep(LONG);
        }),
        ("more batches", |mut rig| {
            assert!((0..2).all(|_| rig.copy_in().is_ok()));
            assert_eq!(rig.copy_in(), Err(Failure::Broken));
        }),
        ("closed while it copies", |mut rig| {
            rig.copy_in().unwrap();
        }),
    ];
    for (expected, deed) in cases {
        for seed in 0..5 {
            let outcome = on_device(seed, move |_| deed(rig()));
            let is_told = outcome.failures.iter().any(|failure| failure.contains(expected));
            assert!(is_told, "{expected}: {:?}", outcome.failures);
        }
    }
}

#[test]
fn memory_of_a_device_is_known_to_its_process_alone() {
    on_device(1, |_| {
        let address = device::allocate(0, 100).unwrap();
        let found = device::locate(address + 99).unwrap();
        assert_eq!((found.ordinal, found.base, found.length), (0, address, 100));
        assert_eq!((device::locate(address + 100), device::allocate(1, 100)), (None, None));
        assert!(Queue::open(1, 1, 1).is_none() && device::count_here() == 1);
        let other = crate::process::current().host().start("other");
        within(other, move || assert_eq!(device::locate(address), None));
        let elsewhere = crate::process::host("without").start("another");
        within(elsewhere, || assert_eq!((device::count_here(), device::allocate(0, 1)), (0, None)));
    })
    .check();
}
