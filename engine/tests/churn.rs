//! Peers that come and go: what an engine keeps of them must not grow. This process counts what it has allocated; the
//! peers are processes of their own.

mod common;

use common::role::Role;
use common::{engine, eventually, run, Settings, PATIENCE};
use ferry::notify::{WHAT_NOTIFICATIONS, WHAT_PEERS};
use ferry::types::{Op, Request};
use ferry::{Deadline, Engine, PeerState, RegionOptions, State, TransferOptions};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Read;
use std::sync::atomic::{AtomicI64, Ordering};

static BYTES: AtomicI64 = AtomicI64::new(0);

struct Counting;

// SAFETY: the system's allocator, which is only counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const LENGTH: usize = 64 << 10;
/// A lost peer is known for a while; a small table lets the next peer take its place soon.
const SETTINGS: Settings = &[("lease_ms", "300"), ("reconnect_timeout_ms", "300"), ("peers_max", "32")];
const VISITORS: usize = 800;
const AT_ONCE: usize = 4;
/// Tables that grow by doubling come to less.
const BYTES_A_VISITOR_MAX: i64 = 50;
/// Mappings that the system's allocator may add for threads that come and go.
const ARENAS_MAX: i64 = 64;

/// A peer that moves bytes both ways and tells of it, then ends: at the end of its input, if it is not killed first.
#[test]
#[ignore = "a role"]
fn visitor() {
    let transports = std::env::var("FERRY_TEST_VISITS_BY").unwrap();
    let own = engine(&[SETTINGS, &[("transports", &transports)]].concat());
    let peer = own.connect(&std::env::var("FERRY_TEST_VISITED").unwrap(), Some(PATIENCE)).unwrap();
    let memory = own.alloc(LENGTH, &RegionOptions::default()).unwrap();
    eventually("a region is announced", || !own.peer_regions(peer).unwrap().is_empty());
    let theirs = own.peer_regions(peer).unwrap().remove(0);
    let all = Request {
        local: memory.address(),
        remote: theirs.address,
        length: LENGTH as u64,
        remote_region: theirs.region,
    };
    for op in [Op::Write, Op::Read] {
        assert_eq!(run(&own, peer, op, &[all], &TransferOptions::default()).state, State::Done);
    }
    own.notify(peer, b"hello", Deadline::Default).unwrap();
    println!("@@ done");
    let _ = std::io::stdin().read(&mut [0]);
}

/// Has `AT_ONCE` visitors, over TCP and by the same host, of which half are killed.
fn one_group(at: &Engine) {
    let start = |transports| {
        Role::start("visitor", |command| {
            command.env("FERRY_TEST_VISITED", at.address()).env("FERRY_TEST_VISITS_BY", transports);
        })
    };
    let visitors: Vec<_> = (0..AT_ONCE).map(|nth| start(["tcp", "local,tcp"][nth % 2])).collect();
    for (nth, mut visitor) in visitors.into_iter().enumerate() {
        assert_eq!(visitor.answer(), "done");
        if nth < AT_ONCE / 2 {
            visitor.kill();
        } else {
            visitor.ends_well();
        }
        // The reader of its output ends.
        assert!(visitor.answers.recv_timeout(PATIENCE).is_err());
    }
}

/// This process's resources: bytes allocated, descriptors, threads, mappings.
fn figures() -> [i64; 4] {
    let entries = |folder| std::fs::read_dir(folder).unwrap().count() as i64;
    let mappings = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count() as i64;
    [BYTES.load(Ordering::Relaxed), entries("/proc/self/fd"), entries("/proc/self/task"), mappings]
}

#[test]
fn what_is_kept_of_peers_that_come_and_go_does_not_grow() {
    let own = engine(&[SETTINGS, &[("transports", "local,tcp")]].concat());
    let _memory = own.alloc(LENGTH, &RegionOptions::default()).unwrap();
    let queue = own.queue(WHAT_NOTIFICATIONS | WHAT_PEERS, 64).unwrap();
    let mut events = Vec::with_capacity(64);
    let mut take = || {
        while queue.drain(&mut events, 64) > 0 {
            events.clear();
        }
    };
    let mut visits = |count: usize| {
        for _ in 0..count / AT_ONCE {
            one_group(&own);
            take();
        }
        let lost = |peer| own.peer_info(peer).map_or(true, |info| info.state == PeerState::Lost);
        eventually("all visitors are lost", || own.peers().unwrap().into_iter().all(lost));
        take();
    };
    // Until the tables are full.
    visits(VISITORS / 4);
    let before = figures();
    visits(VISITORS);
    let more = [VISITORS as i64 * BYTES_A_VISITOR_MAX, 0, 0, ARENAS_MAX];
    let most: Vec<i64> = before.iter().zip(more).map(|(before, more)| before + more).collect();
    // Threads that copied for a peer of the same host end half a second after their last piece.
    eventually(&format!("at most {most:?} bytes, descriptors, threads, mappings"), || {
        figures().iter().zip(&most).all(|(now, most)| now <= most)
    });
    println!("bytes, descriptors, threads, mappings: {before:?}, after {VISITORS} visitors {:?}", figures());
    own.close(Some(PATIENCE)).unwrap();
}
