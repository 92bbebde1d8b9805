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
        // A thread that has ended meanwhile does not count.
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

    // Threads of both ends when `connect` answers.
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

/// Whether the thread blocks the signals that a program waits for, and none of a fault.
fn is_undisturbed(status: &str) -> bool {
    let blocked = u64::from_str_radix(line(status, "SigBlk"), 16).unwrap();
    let bits = |signals: &[libc::c_int]| signals.iter().fold(0, |all, signal| all | 1 << (signal - 1));
    let faults =
        bits(&[libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS]);
    // SIGKILL and SIGSTOP can't be blocked. The C library keeps 32 and 33, in some also 34, to itself.
    let standard = bits(&(1..32).collect::<Vec<_>>()) & !faults & !bits(&[libc::SIGKILL, libc::SIGSTOP]);
    blocked & (standard | faults) == standard && blocked & bits(&[libc::SIGRTMAX()]) != 0
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

/// As a program that has real-time threads opens engines. Such threads that never sleep starve others, and are ended by
/// `ulimit -R`.
#[test]
fn threads_have_no_real_time_policy() {
    let _turn = alone();
    // SAFETY: no memory is involved.
    let policy = |thread| unsafe { libc::sched_getscheduler(thread) };
    let set = |policy, priority| {
        let parameters = libc::sched_param { sched_priority: priority };
        // SAFETY: reads the parameters.
        unsafe { libc::sched_setscheduler(0, policy, &parameters) }
    };
    if set(libc::SCHED_FIFO, 1) != 0 {
        println!("SKIPPED: this user may have no real-time threads");
        return;
    }
    let pair = Pair::of(engine(&EVERY_PATH), engine(&EVERY_PATH));
    let (local, remote) = pair.memories(MIB, MIB);
    pair.a.write(pair.b_at_a, &[request(&local, 0, &remote, 0, MIB)], &TransferOptions::default()).unwrap();
    let of_each: Vec<_> = threads().into_iter().map(|(thread, (name, _))| (name, policy(thread))).collect();
    assert_eq!(set(libc::SCHED_OTHER, 0), 0);
    assert!(of_each.len() >= 14, "{of_each:?}");
    assert!(of_each.iter().all(|(_, policy)| *policy == libc::SCHED_OTHER), "{of_each:?}");
}

/// Both starters are covered: the control thread, and a thread of the program whose transfer is copied.
#[test]
fn threads_block_all_signals_but_faults_and_have_the_cpus_of_open() {
    let _turn = alone();
    let all = cpus(0);
    let (first, last) = ([all[0]], [all[all.len() - 1]]);
    if first == last {
        println!("of one CPU: only signals are looked at");
    }
    place(0, &first);
    let (a, b) = (engine(&EVERY_PATH), engine(&EVERY_PATH));
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
    let mut undisturbed = BTreeMap::new();
    // A thread places itself after its start.
    let is_placed = |status: &str| line(status, "Cpus_allowed_list") == first[0].to_string();
    eventually("threads of each kind are there and have begun", || {
        late = threads();
        undisturbed.extend(late.values().map(|(name, status)| (name.clone(), is_undisturbed(status))));
        late.retain(|thread, _| !early.contains(thread));
        let kinds = ["ferry-lane-", "ferry-express-", "ferry-stage", "ferry-copy"];
        let are_there = kinds.into_iter().all(|kind| late.values().any(|(name, _)| name.starts_with(kind)));
        are_there && late.values().all(|(_, status)| is_placed(status))
    });
    assert_eq!(copied.wait(Some(PATIENCE)).unwrap().state, State::Done);
    undisturbed.into_iter().for_each(|(name, is_so)| assert!(is_so, "{name}"));
    place(0, &all);
}
