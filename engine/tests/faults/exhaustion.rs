//! Limits of the system: descriptors, memory, and no leak over many lives of an engine.

use crate::child::{usage, Child};
use crate::support::*;
use ferry::internals::sys::unix;
use ferry::types::{Op, Request};
use ferry::{Engine, RegionOptions, Status};
use std::time::Duration;

/// The child has no descriptor left: dialing fails with the errno, accepting waits, and both recover.
#[test]
fn descriptors_run_out_and_come_back() {
    let _turn = alone();
    let b = engine(&[]);
    let there = alloc(&b, MIB);
    let (mut child, address) = Child::engine("");
    child.alloc(MIB, 4);
    let peer = child.number(&format!("connect {}", b.address()));
    let write = format!("write {peer} {} {} {MIB}", there.region(), there.address());
    assert_eq!(child.number(&write), MIB as u64);
    let c = engine(&[]);
    assert_eq!(child.ask("nofile 8"), "0");
    child.ask("hoard");
    let answer = child.ask(&format!("connect {}", c.address()));
    assert_eq!(answer, format!("SYSTEM errno {}", libc::EMFILE));
    // A connected peer is served.
    fill(&there, 9);
    assert_eq!(child.number(&write), MIB as u64);
    assert_pattern(&there, 4, 0, MIB);
    // A newcomer waits until descriptors are free; the engine does not turn it away.
    std::thread::scope(|scope| {
        let newcomer = scope.spawn(|| c.connect(&address, Some(BOUND)));
        wait_until("the newcomer waits", || !newcomer.is_finished());
        assert_eq!(child.ask("release 8"), "OK");
        newcomer.join().unwrap().unwrap();
    });
    child.ask("hoard");
    child.ask("release 64");
    assert!(child.ask(&format!("connect {}", c.address())).parse::<u64>().is_ok());
}

/// A user without other processes.
const NOBODY_ELSE: u32 = 54_321;

/// Opening an engine fails when a thread that it needs at once can't be started. The first session fails when a thread
/// that sessions need can't be, whichever end lacks it: LIMIT, with the cause at both ends. Both work later.
#[test]
fn an_engine_without_all_its_threads_is_an_error_and_has_no_sessions() {
    let _turn = alone();
    if !is_root("an_engine_without_all_…", "be another user") {
        return;
    }
    for child_dials in [false, true] {
        let other = engine(&[("transports", "auto")]);
        let mut child = Child::start();
        assert_eq!(child.ask(&format!("setuid {NOBODY_ELSE}")), "0");
        let mut allowed = 0;
        let mut allow_one_more = |child: &mut Child| {
            allowed += 1;
            assert!(allowed < 100, "no engine has so many threads");
            assert_eq!(child.ask(&format!("nproc {allowed}")), "0");
            allowed
        };
        let address = loop {
            allow_one_more(&mut child);
            let answer = child.ask("open transports=auto workers=2");
            if answer != format!("SYSTEM errno {}", libc::EAGAIN) {
                break answer;
            }
        };
        let mut lacking = 0;
        loop {
            let answer = if child_dials {
                let answer = child.ask(&format!("connect {}", other.address()));
                if answer == format!("LIMIT errno {}", libc::EAGAIN) {
                    Err(answer)
                } else {
                    Ok(answer)
                }
            } else {
                match other.connect(&address, Some(BOUND)) {
                    Err(error) if error.status == Status::Limit => Err(error.message),
                    peer => Ok(peer.unwrap().to_string()),
                }
            };
            match answer {
                Ok(peer) => break assert!(peer.parse::<u64>().is_ok(), "{peer}"),
                Err(why) => assert!(child_dials || why.contains("starting "), "{why}"),
            }
            assert_eq!(other.stats().unwrap().peers_up, 0);
            lacking += 1;
            allow_one_more(&mut child);
        }
        // Four threads of lanes, and that of device memory.
        assert_eq!(lacking, 5);
        let (region, remote) = child.alloc(MIB, 4);
        let peer = other.peers().unwrap()[0];
        let local = alloc(&other, MIB);
        other.read(peer, &rounds(local.address(), remote, region, MIB, 1), &options()).unwrap();
        assert_pattern(&local, 4, 0, MIB);
        other.close_peer(peer, Some(BOUND)).unwrap();
    }
}

/// Returns the CPU time of a process so far, in clock ticks.
fn ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit(") ").next().unwrap().split(' ').skip(11).take(2);
    fields.map(|field| field.parse::<u64>().unwrap()).sum()
}

/// Returns the abstract sockets on which the engines of a process listen.
fn listening_names(pid: i32) -> Vec<String> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let open: Vec<_> =
        descriptors.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok()).collect();
    let is_open = |inode: &str| open.contains(&format!("socket:[{inode}]").into());
    let all = std::fs::read_to_string("/proc/net/unix").unwrap();
    let listening = all.lines().filter(|line| line.contains(" 00010000 "));
    let names = listening.filter_map(|line| line.split_once(" @ferry-"));
    let own = names.filter(|(rest, _)| rest.split_whitespace().last().is_some_and(is_open));
    own.map(|(_, hex)| format!("ferry-{hex}")).collect()
}

/// Without descriptors no connection is accepted, and processes that connect to the same-host sockets wait: no thread
/// retries accept in a loop meanwhile.
#[test]
fn connections_without_a_free_descriptor_cost_nothing() {
    let _turn = alone();
    let (mut child, address) = Child::engine("transports=auto secret=");
    let names = listening_names(child.pid());
    assert_eq!(names.len(), 2, "the socket for proofs, and the socket for paths: {names:?}");
    assert_eq!(child.ask("nofile 64"), "0");
    child.ask("hoard");
    let knock = |name: &String| {
        let kinds = [unix::Type::STREAM, unix::PACKETS.into()];
        kinds.into_iter().find_map(|kind| unix::connect_abstract(name.as_bytes(), kind).ok()).unwrap()
    };
    let _waiting: Vec<_> = names.iter().map(knock).collect();
    // A measurement, not a wait: a thread that retries would take most of the period.
    let spent = ticks(child.pid());
    std::thread::sleep(Duration::from_millis(1000));
    let spent = ticks(child.pid()) - spent;
    assert!(spent <= 5, "{spent} ticks of a hundred");
    // Both sockets accept again when there are descriptors.
    child.ask("release 64");
    let a = engine(&[("transports", "local"), SAME_USER]);
    let (region, remote) = child.alloc(4096, 4);
    let local = alloc(&a, 4096);
    let peer = connect(&a, &address);
    let one = Request { local: local.address(), remote, length: 4096, remote_region: region };
    a.write(peer, &[one], &options()).unwrap();
}

#[test]
fn absurd_lengths_are_errors() {
    let _turn = alone();
    let (a, b, peer) = pair(&[]);
    let (local, remote) = (alloc(&a, MIB), alloc(&b, MIB));
    let options = RegionOptions::default();
    assert_eq!(a.alloc(0, &options).map(|_| ()).unwrap_err().status, Status::Invalid);
    for bytes in [usize::MAX, usize::MAX / 2, 1 << 60] {
        let error = a.alloc(bytes, &options).map(|_| ()).unwrap_err();
        assert!(matches!(error.status, Status::NoMemory | Status::Invalid), "{bytes}: {error}");
    }
    for length in [u64::MAX, u64::MAX - local.address(), 1 << 63, 1 << 46, MIB as u64 + 1] {
        let request = Request { length, ..request(&local, &remote, 0, 8) };
        let error =
            a.submit(peer, Op::Write, &[request], &crate::support::options()).map(|_| ()).unwrap_err();
        assert!(matches!(error.status, Status::Invalid | Status::NotRegistered), "{length:#x}: {error}");
        assert_eq!(error.request_index, Some(0));
    }
    let words = vec![0; ferry::limits::NOTIFY_BYTES_MAX + 1];
    a.notify(peer, &words[1..], Default::default()).unwrap();
    assert_eq!(a.notify(peer, &words, Default::default()).unwrap_err().status, Status::Limit);
    a.write(peer, &[request(&local, &remote, 0, MIB)], &crate::support::options()).unwrap();
}

/// A hundred lives: connect, move, close. Descriptors and threads are as before; memory is bounded.
#[test]
fn a_hundred_lives_leak_nothing() {
    let _turn = alone();
    let numbers = || -> Vec<u64> { usage().split(' ').map(|word| word.parse().unwrap()).collect() };
    let life = |settings: &[(&str, &str)]| {
        let (a, b, peer) = pair(settings);
        let (local, remote) = (alloc(&a, MIB), alloc(&b, MIB));
        fill(&local, 3);
        a.write(peer, &[request(&local, &remote, 0, MIB)], &options()).unwrap();
        a.read(peer, &[request(&local, &remote, 0, 4096)], &options()).unwrap();
        a.notify(peer, b"word", Default::default()).unwrap();
        assert_pattern(&remote, 3, 0, MIB);
        a.close(Some(BOUND)).unwrap();
        b.close(Some(BOUND)).unwrap();
    };
    let kinds: [&[(&str, &str)]; 3] = [&[], &[SAME_USER], &[("tcp_poller", "io_uring")]];
    for _ in 0..4 {
        kinds.iter().for_each(|settings| life(settings));
    }
    // Ending threads of the test, and descriptors that the kernel closes later, behind a ring.
    let before = numbers();
    for round in 0..100 {
        life(kinds[round % kinds.len()]);
    }
    wait_until("descriptors and threads are as before", || {
        let now = numbers();
        now[0] <= before[0] && now[1] <= before[1]
    });
    let grown = numbers()[2].saturating_sub(before[2]);
    assert!(grown < 32 << 20, "{grown} bytes more are resident");
}

/// A hundred connections of one pair of engines: each session frees all that it used.
#[test]
fn a_hundred_sessions_of_one_engine_leak_nothing() {
    let _turn = alone();
    let (a, b): (Engine, Engine) = (engine(&[]), engine(&[]));
    let (local, remote) = (alloc(&a, MIB), alloc(&b, MIB));
    let session = || {
        let peer = connect(&a, b.address());
        a.write(peer, &[request(&local, &remote, 0, MIB)], &options()).unwrap();
        a.close_peer(peer, Some(BOUND)).unwrap();
    };
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    session();
    // The lane threads of a session that rests before its end go to sleep instead of looking for more.
    let resting = connect(&a, b.address());
    std::thread::sleep(Duration::from_millis(20));
    a.notify(resting, b"after a rest", ferry::Deadline::Default).unwrap();
    a.close_peer(resting, Some(BOUND)).unwrap();
    wait_until("descriptors are as before the first session", || descriptors() <= before);
    (0..100).for_each(|_| session());
    wait_until("descriptors are as before", || descriptors() <= before);
    assert_eq!(a.stats().unwrap().transfers, 0);
}
