//! Limits of the process (`ulimit`): an engine does without what a limit forbids, and no limit ends its program.

use crate::common::data::{check, contents, fill, pattern};
use crate::common::{engine, eventually, request, run, Pair, PATIENCE};
use crate::role;
use ferry::limits::STRANGERS_SHARE;
use ferry::types::{Op, Transport};
use ferry::{State, TransferOptions};

const ANY_PATH: [(&str, &str); 1] = [("transports", "auto")];
/// Far below what ferry allocates: files of at most 4 KiB.
const FILE_BYTES_MAX: u64 = 4096;

fn limit_files() {
    let limit = libc::rlimit { rlim_cur: FILE_BYTES_MAX, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is read during the call. SIGXFSZ gets its default action, which ends the program.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
}

/// Not a test: moves data between engines of a process whose files may have 4 KiB. The word says whether the limit
/// comes before the engines or after them.
#[test]
#[ignore = "the other process of a test"]
fn limited_role() {
    let Some(when) = role::word() else { return };
    if when == "before" {
        limit_files();
    }
    let engines = [engine(&ANY_PATH), engine(&ANY_PATH)];
    limit_files();
    let [a, b] = engines;
    let pair = Pair::of(a, b);
    let (local, remote) = pair.memories(1 << 20, 1 << 20);
    fill(&local, 1);
    let one = [request(&local, 0, &remote, 0, 1 << 20)];
    let result = run(&pair.a, pair.b_at_a, Op::Write, &one, &TransferOptions::default());
    assert_eq!(result.state, State::Done);
    check("written", &contents(&remote), &pattern(1, 1 << 20));
    let paths = pair.a.peer_paths(pair.b_at_a).unwrap();
    let same_host = paths.iter().find(|path| path.transport == Transport::Local).unwrap();
    println!("@@ {}", same_host.why);
}

#[test]
fn a_limit_of_files_switches_the_same_host_path_off_and_ends_no_program() {
    for when in ["before", "after"] {
        let mut role = role::start("limits::limited_role", when);
        let why = role.answer();
        assert!(why.contains("ulimit -f"), "{when}: {why}");
        role.ends_well();
    }
}

/// Not a test: a program without standard input, output and error, as a daemon that closed them, moves data.
#[test]
#[ignore = "the other process of a test"]
fn daemon_role() {
    let Some(transports) = role::word() else { return };
    // SAFETY: no memory is involved, and nobody else of this process uses the three descriptors meanwhile.
    let saved = [0, 1, 2].map(|fd| unsafe {
        let saved = libc::fcntl(fd, libc::F_DUPFD, 100);
        libc::close(fd);
        saved
    });
    let pair = Pair::new(&[("transports", &transports)]);
    let (local, remote) = pair.memories(1 << 20, 1 << 20);
    fill(&local, 1);
    let one = [request(&local, 0, &remote, 0, 1 << 20)];
    let result = run(&pair.a, pair.b_at_a, Op::Write, &one, &TransferOptions::default());
    // SAFETY: no memory is involved. -1 where no descriptor is.
    let flags = |fd| unsafe { libc::fcntl(fd, libc::F_GETFL) };
    let writable = |fd: &libc::c_int| flags(*fd) != -1 && flags(*fd) & libc::O_ACCMODE != libc::O_RDONLY;
    let taken: Vec<_> = (0..3).filter(writable).collect();
    // SAFETY: as above.
    saved.iter().zip(0..).for_each(|(&saved, fd)| assert_eq!(unsafe { libc::dup2(saved, fd) }, fd));
    assert_eq!(result.state, State::Done);
    check("written", &contents(&remote), &pattern(1, 1 << 20));
    println!("@@ {taken:?}");
}

#[test]
fn what_a_daemon_prints_does_not_go_into_the_engines_descriptors() {
    for transports in ["tcp", "local,tcp"] {
        let mut role = role::start("limits::daemon_role", transports);
        assert_eq!(role.answer(), "[]", "over {transports} the engine writes to these of 0, 1 and 2");
        role.ends_well();
    }
}

const DESCRIPTORS: u64 = 160;

/// Not a test: an engine whose process may have few descriptors. With the first line strangers have connected to it.
#[test]
#[ignore = "the other process of a test"]
fn beset_role() {
    let Some(_) = role::word() else { return };
    let limit = libc::rlimit { rlim_cur: DESCRIPTORS, rlim_max: DESCRIPTORS };
    // SAFETY: `limit` is read during the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    let pair = Pair::new(&[]);
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let before = open();
    println!("@@ {}", pair.b.address());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let share = DESCRIPTORS / STRANGERS_SHARE as u64;
    eventually("strangers take their share", || open() >= before + share);
    // Each answer is a turn of the control loop, which accepts.
    for _ in 0..8 {
        pair.b.probe(pair.a_at_b, Some(PATIENCE)).unwrap();
    }
    println!("@@ {}", open() - before - share);
}

/// Connections that have not proven anything leave the program most of its descriptors.
#[test]
fn strangers_take_a_share_of_the_descriptors() {
    let mut role = role::start("limits::beset_role", "run");
    let address = role.answer();
    let crowd: Vec<_> = (0..DESCRIPTORS).map(|_| std::net::TcpStream::connect(&address).unwrap()).collect();
    role.tell("all are there");
    assert_eq!(role.answer(), "0", "more than their share");
    drop(crowd);
    role.ends_well();
}
