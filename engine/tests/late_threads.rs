//! Threads of an engine that start when it has a peer: how many there are before, and what each has from the thread
//! that opened the engine. Reads the threads of its own process: one test at a time.

mod common;

use common::{engine, eventually, peer_of, request, Pair, PATIENCE};
use ferry::types::Op;
use ferry::{RegionOptions, State, TransferOptions};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

const MIB: usize = 1 << 20;
const EVERY_PATH: [(&str, &str); 3] = [("transports", "auto"), ("rdma", "false"), ("workers", "2")];

fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The threads of engines in this process, by number: each one's name and status.
fn threads() -> BTreeMap<i32, (String, String)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let all = tasks.filter_map(|task| {
        let read = |what| std::fs::read_to_string(task.path().join(what)).ok();
        let number = task.file_name().to_str()?.parse().ok()?;
        // One that has ended meanwhile is none.
        Some((number, (read("comm")?.trim().to_owned(), read("status")?)))
    });
    all.filter(|(_, (name, _))| name.starts_with("ferry-")).collect()
}

fn names() -> Vec<String> {
    let mut names: Vec<String> = threads().into_values().map(|(name, _)| name).collect();
    names.sort();
    names
}

/// Returns when these are the threads of engines: a thread takes its name when it runs.
fn are_named(expected: &[&str]) {
    eventually(&format!("{expected:?}"), || names() == expected);
}

/// A line of a thread's status.
fn line<'a>(status: &'a str, key: &str) -> &'a str {
    status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap().trim()
}

#[test]
fn an_engine_without_a_peer_has_three_threads_at_most() {
    let _turn = alone();
    let a = engine(&EVERY_PATH);
    are_named(&["ferry-control", "ferry-local"]);
    // Registered memory needs no further thread, nor does a connection that has not proven to be a peer's.
    let local = a.alloc(MIB, &RegionOptions::default()).unwrap();
    let mut stranger = std::net::TcpStream::connect(a.address()).unwrap();
    std::io::Write::write_all(&mut stranger, b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let _ = std::io::Read::read(&mut stranger, &mut [0; 64]);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    a.connect(&nobody.to_string(), Some(PATIENCE)).unwrap_err();
    assert_eq!(names(), ["ferry-control", "ferry-local"]);

    // Of both ends when `connect` answers.
    let b = engine(&EVERY_PATH);
    a.connect(b.address(), Some(PATIENCE)).unwrap();
    let of_each = [
        "ferry-control",
        "ferry-express-0",
        "ferry-express-1",
        "ferry-lane-0",
        "ferry-lane-1",
        "ferry-local",
        "ferry-stage",
    ];
    let mut expected = [of_each, of_each].concat();
    expected.sort();
    are_named(&expected);
    drop(local);
    a.close(Some(PATIENCE)).unwrap();
    b.close(Some(PATIENCE)).unwrap();
    are_named(&[]);
}

fn signals(signals: &[libc::c_int], how: libc::c_int) {
    // SAFETY: `set` is emptied before it is used, and the numbers are those of signals.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        signals.iter().for_each(|signal| assert_eq!(libc::sigaddset(&mut set, *signal), 0));
        assert_eq!(libc::pthread_sigmask(how, &set, std::ptr::null_mut()), 0);
    }
}

fn blocked(status: &str) -> u64 {
    u64::from_str_radix(line(status, "SigBlk"), 16).unwrap()
}

/// The CPUs of a thread; 0 is the calling one.
fn cpus(thread: i32) -> Vec<usize> {
    // SAFETY: all zeroes is the empty set; the kernel fills it, and every number asked for is below its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(thread, size_of_val(&set), &mut set), 0);
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect()
    }
}

fn place(thread: i32, cpus: &[usize]) {
    // SAFETY: all zeroes is the empty set; the numbers came out of one, so they are below its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cpus.iter().for_each(|&cpu| libc::CPU_SET(cpu, &mut set));
        assert_eq!(libc::sched_setaffinity(thread, size_of_val(&set), &set), 0);
    }
}

/// Both starters are covered: the control thread, and a thread of the program whose transfer is copied.
#[test]
fn threads_that_start_later_have_the_signals_and_cpus_of_open() {
    let _turn = alone();
    let all = cpus(0);
    let (first, last) = ([all[0]], [all[all.len() - 1]]);
    if first == last {
        println!("of one CPU: only signals are looked at");
    }
    place(0, &first);
    signals(&[libc::SIGUSR1], libc::SIG_BLOCK);
    let (a, b) = (engine(&EVERY_PATH), engine(&EVERY_PATH));
    signals(&[libc::SIGUSR1], libc::SIG_UNBLOCK);
    signals(&[libc::SIGUSR2], libc::SIG_BLOCK);
    place(0, &last);
    let early: Vec<i32> = threads().into_keys().collect();
    early.iter().for_each(|thread| place(*thread, &last));

    let b_at_a = a.connect(b.address(), Some(PATIENCE)).unwrap();
    let a_at_b = peer_of(&b, &a);
    let pair = Pair { a, b, b_at_a, a_at_b };
    let (local, remote) = pair.memories(16 * MIB, 16 * MIB);
    let one = [request(&local, 0, &remote, 0, 16 * MIB)];
    let copied = pair.a.submit(pair.b_at_a, Op::Write, &one, &TransferOptions::default()).unwrap();
    let mut late = BTreeMap::new();
    // A thread begins with all signals blocked, and sets its mask last.
    let has_begun = |status: &str| blocked(status) & (1 << (libc::SIGTERM - 1)) == 0;
    eventually("threads of each kind are there and have begun", || {
        late = threads();
        late.retain(|thread, _| !early.contains(thread));
        let kinds = ["ferry-lane-", "ferry-express-", "ferry-stage", "ferry-copy"];
        let are_there = kinds.into_iter().all(|kind| late.values().any(|(name, _)| name.starts_with(kind)));
        are_there && late.values().all(|(_, status)| has_begun(status))
    });
    assert_eq!(copied.wait(Some(PATIENCE)).unwrap().state, State::Done);
    for (name, status) in late.into_values() {
        let blocked = blocked(&status);
        assert_eq!(blocked, 1 << (libc::SIGUSR1 - 1), "{name} blocks {blocked:#x}");
        assert_eq!(line(&status, "Cpus_allowed_list"), first[0].to_string(), "{name}");
    }
    signals(&[libc::SIGUSR2], libc::SIG_UNBLOCK);
    place(0, &all);
}
