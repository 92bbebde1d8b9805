//! Forked children: a child keeps nothing of an engine that would outlive the engine's process, and all of the program.

use crate::common::data::{check, contents, fill, pattern};
use crate::common::{
    config, engine, eventually, peer_of, request, run, wait_for_region, Pair, Settings, PATIENCE,
};
use crate::role;
use ferry::notify::{EventBody, WHAT_PEER_STATES};
use ferry::types::Op;
use ferry::{Engine, RegionOptions, State, TransferOptions};
use std::fs;
use std::io::BufRead;
use std::os::fd::AsRawFd;

const MIB: usize = 1 << 20;
/// The peer's end is known by its process.
const SETTINGS: [(&str, &str); 2] = [("transports", "auto"), ("local_any_tracer", "true")];
/// The peer's end is known by the end of its connections alone.
const REMOTE: [(&str, &str); 2] =
    [("transports", "tcp"), ("secret", "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")];

/// Forks a child that lives until it is killed.
fn fork() -> i32 {
    // SAFETY: the child sleeps, and runs nothing else.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            loop {
                libc::pause();
            }
        }
        child
    }
}

/// A process that ends with the test.
struct Kept(i32);

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: no memory is involved; the process is ours.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}

/// Not a test: an engine whose process forks. It writes a MiB to the first region of the engine at the address that is
/// the word, with the settings that the word names, forks with the first line, and answers with the child's pid.
#[test]
#[ignore = "the other process of a test"]
fn parent_role() {
    let Some(word) = role::word() else { return };
    let (address, how) = word.split_once(' ').unwrap();
    // Files of the program, which a child keeps.
    let kept: Vec<fs::File> = (0..64).map(|_| fs::File::open("/dev/null").unwrap()).collect();
    let own = engine(settings(how));
    let peer = own.connect(address, Some(PATIENCE)).unwrap();
    let local = own.alloc(MIB, &RegionOptions::default()).unwrap();
    fill(&local, 3);
    eventually("a region is announced", || !own.peer_regions(peer).unwrap().is_empty());
    let there = &own.peer_regions(peer).unwrap()[0];
    let one = ferry::types::Request {
        local: local.address(),
        remote: there.address,
        length: MIB as u64,
        remote_region: there.region,
    };
    assert_eq!(run(&own, peer, Op::Write, &[one], &TransferOptions::default()).state, State::Done);
    println!("@@ {}", own.address());
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).unwrap();
    let child = fork();
    let open: Vec<String> = kept.iter().map(|file| file.as_raw_fd().to_string()).collect();
    println!("@@ {child} {}", open.join(" "));
    std::io::stdin().lock().read_line(&mut line).unwrap();
}

/// The descriptors of a process, each with what it refers to, but for those that are closed meanwhile.
fn descriptors(pid: i32) -> Vec<(String, String)> {
    let all = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let named = all.filter_map(|entry| {
        let target = fs::read_link(entry.path()).ok()?;
        Some((entry.file_name().into_string().unwrap(), target.to_string_lossy().into_owned()))
    });
    named.collect()
}

fn settings(how: &str) -> Settings<'static> {
    match how {
        "remote" => &REMOTE,
        _ => &SETTINGS,
    }
}

#[test]
fn a_child_of_a_killed_engine_keeps_no_port_connection_or_memory() {
    ["remote", "same host"].into_iter().for_each(kill_a_parent);
}

fn kill_a_parent(how: &str) {
    let a = engine(settings(how));
    let states = a.queue(WHAT_PEER_STATES, 16).unwrap();
    let remote = a.alloc(MIB, &RegionOptions::default()).unwrap();
    let mut role = role::start("children::parent_role", &format!("{} {how}", a.address()));
    let address = role.answer();
    check("written", &contents(&remote), &pattern(3, MIB));
    role.tell("fork");
    let answer = role.answer();
    let (child, kept) = answer.split_once(' ').unwrap();
    let child: i32 = child.parse().unwrap();
    let _kept = Kept(child);
    // The program's own descriptors stay; the rest are eventfds and their pollers.
    let is_ferrys = |target: &str| {
        ["socket:", "/memfd:ferry", "anon_inode:[pidfd]"].iter().any(|it| target.starts_with(it))
    };
    // The fork returned in the parent, and the child may not have come so far.
    eventually("the child has closed what is ferry's", || {
        !descriptors(child).iter().any(|(_, target)| is_ferrys(target))
    });
    let open = descriptors(child);
    for fd in kept.split(' ') {
        assert!(open.iter().any(|(number, target)| number == fd && target == "/dev/null"), "{open:?}");
    }
    // Memory of the program's own stays; the peer's is not mapped, nor are the pages of grants.
    let maps = fs::read_to_string(format!("/proc/{child}/maps")).unwrap();
    let mapped = maps.lines().filter(|line| line.contains("/memfd:ferry-"));
    let lengths: Vec<u64> = mapped
        .map(|line| {
            let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
            u64::from_str_radix(to, 16).unwrap() - u64::from_str_radix(from, 16).unwrap()
        })
        .collect();
    let own_memory = if how == "remote" { vec![] } else { vec![MIB as u64] };
    assert_eq!(lengths, own_memory, "{how}: {maps}");

    role.kill();
    let mut events = Vec::new();
    eventually("the end of the connection is told", || {
        states.drain(&mut events, 16);
        events.iter().any(|event| matches!(event.body, EventBody::PeerDown { .. }))
    });
    // The port is free, and the engine that takes it is reached.
    let mut again = config(settings(how));
    again.set("listen_address", &address).unwrap();
    let again = Engine::open(again).unwrap();
    let peer = a.connect(&address, Some(PATIENCE)).unwrap();
    let there = again.alloc(MIB, &RegionOptions::default()).unwrap();
    wait_for_region(&a, peer, there.region());
    fill(&remote, 5);
    let one = [request(&remote, 0, &there, 0, MIB)];
    assert_eq!(run(&a, peer, Op::Write, &one, &TransferOptions::default()).state, State::Done);
    check("written", &contents(&there), &pattern(5, MIB));
}

/// Not a test: a child forks too. The word tells how the first child is made.
#[test]
#[ignore = "the other process of a test"]
fn grandparent_role() {
    let Some(word) = role::word() else { return };
    let pair = Pair::new(&SETTINGS);
    let _memories = pair.memories(MIB, MIB);
    // SAFETY: both children go on alone, without the harness, and end at `_exit`.
    unsafe {
        let child = match word.as_str() {
            "raw" => libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32,
            _ => libc::fork(),
        };
        if child != 0 {
            assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
            return;
        }
        // As a container's start does: nothing is open but the standard streams, then files of its own are.
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
        let own: Vec<i32> = (0..256).map(|_| libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY)).collect();
        assert!(own.iter().all(|fd| *fd > 2));
        let grandchild = libc::fork();
        if grandchild == 0 {
            let closed = own.iter().filter(|fd| libc::fcntl(**fd, libc::F_GETFD) < 0).count();
            println!("@@ {closed}");
            libc::_exit(0);
        }
        libc::waitpid(grandchild, std::ptr::null_mut(), 0);
        libc::_exit(0);
    }
}

/// A child has forgotten the numbers of its parent's descriptors, whether or not the C library knew of the fork.
#[test]
fn a_child_of_a_child_keeps_files_with_the_numbers_of_an_engine() {
    for how in ["fork", "raw"] {
        let mut role = role::start("children::grandparent_role", how);
        assert_eq!(role.answer(), "0", "{how}");
        role.ends_well();
    }
}

/// Not a test: a child opens an engine, and its own child counts the sockets that it has.
#[test]
#[ignore = "the other process of a test"]
fn grandchild_role() {
    let Some(_) = role::word() else { return };
    let pair = Pair::new(&SETTINGS);
    // SAFETY: both children go on alone, without the harness, and end at `_exit`.
    unsafe {
        let child = libc::fork();
        if child != 0 {
            assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
            // The parent's engines do not notice.
            pair.a.probe(pair.b_at_a, Some(PATIENCE)).unwrap();
            return;
        }
        let own = Pair::new(&SETTINGS);
        let is_open = descriptors(libc::getpid()).iter().any(|(_, target)| target.starts_with("socket:"));
        let grandchild = libc::fork();
        if grandchild == 0 {
            let open = descriptors(libc::getpid());
            let sockets = open.iter().filter(|(_, target)| target.starts_with("socket:")).count();
            println!("@@ {sockets} sockets left");
            libc::_exit(0);
        }
        libc::waitpid(grandchild, std::ptr::null_mut(), 0);
        own.a.probe(own.b_at_a, Some(PATIENCE)).unwrap();
        assert!(is_open);
        libc::_exit(0);
    }
}

/// A child's engine is its own: its children close its descriptors in turn, and its parent's go on.
#[test]
fn a_child_opens_an_engine_of_its_own() {
    let pair = Pair::new(&SETTINGS);
    let (local, remote) = pair.memories(MIB, MIB);
    assert_eq!(peer_of(&pair.b, &pair.a), pair.a_at_b);
    let mut role = role::start("children::grandchild_role", "run");
    assert_eq!(role.answer(), "0 sockets left");
    role.ends_well();
    fill(&local, 7);
    let one = [request(&local, 0, &remote, 0, MIB)];
    assert_eq!(run(&pair.a, pair.b_at_a, Op::Write, &one, &TransferOptions::default()).state, State::Done);
    check("written", &contents(&remote), &pattern(7, MIB));
}
