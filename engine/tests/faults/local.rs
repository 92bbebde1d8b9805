//! Faults of the same-host path: processes that die or stop during a copy, memory that is not there, users and
//! processes that may not be reached, sessions that break.

use crate::child::Child;
use crate::proxy::Proxy;
use crate::support::*;
use ferry::notify::{EventBody, WHAT_PEERS};
use ferry::types::{Access, Op, PeerId, RegionId, Request, Transport};
use ferry::{Deadline, Engine, Memory, RegionOptions, State, Status, TransferOptions};
use std::time::Duration;

const LOCAL: (&str, &str) = ("transports", "local");
const AUTO: (&str, &str) = ("transports", "auto");
const BYTES: usize = 32 * MIB;
/// Almost every attempt meets a copy in the middle; so many failures in a row are no bad luck.
const ATTEMPTS: usize = 200;

fn path(engine: &Engine, peer: PeerId) -> (Transport, String) {
    let paths = engine.peer_paths(peer).unwrap();
    let chosen = paths.iter().find(|path| path.chosen).map_or(Transport::None, |path| path.transport);
    (chosen, paths.into_iter().find(|path| path.transport == Transport::Local).unwrap().why)
}

/// Starts a child that writes to memory of `engine` all the time, and stops it during a write. Returns the child, its
/// peer handle here, and the memory, which the child still uses.
fn stopped_in_a_copy(engine: &Engine) -> (Child, PeerId, Memory) {
    let (mut child, _) = Child::engine("transports=local listen_address=");
    let peer = child.number(&format!("connect {}", engine.address()));
    child.alloc(BYTES, 3);
    for _ in 0..ATTEMPTS {
        let memory = alloc(engine, BYTES);
        let (region, address) = (memory.region(), memory.address());
        let before = child.number("stat bytes_local");
        child.ask(&format!("flood {peer} {region} {address} {BYTES}"));
        wait_until("it copies", || child.number("stat bytes_local") > before);
        child.stop();
        match memory.free(Some(Duration::ZERO)) {
            Err((memory, error)) => {
                assert_eq!(error.status, Status::Busy);
                let here = engine.peers().unwrap().into_iter().next_back().unwrap();
                return (child, here, memory);
            }
            Ok(()) => child.resume(),
        }
    }
    panic!("never met in a copy");
}

#[test]
fn a_stopped_initiator_keeps_memory_busy_until_it_goes_on() {
    let _turn = alone();
    let b = engine(&[LOCAL]);
    let (child, _, memory) = stopped_in_a_copy(&b);
    let (region, address) = (memory.region(), memory.address());
    let says_who = |error: &ferry::Error| {
        let says = format!("region {region:#x} is in use: at {address:#x} + {BYTES} has ");
        // The child's threads copy, one or several.
        let who =
            error.message.strip_prefix(&says).and_then(|rest| rest.strip_suffix(&child.pid().to_string()));
        assert!(matches!(who, Some(it) if it.contains(" of process ") && !it.starts_with('0')), "{error}");
    };
    // Nothing has changed; afterwards the region is revoked, and still in use.
    let (memory, error) = memory.free(Some(Duration::ZERO)).err().unwrap();
    assert_eq!(error.status, Status::Busy);
    says_who(&error);
    let (memory, error) = memory.free(Some(Duration::from_millis(20))).err().unwrap();
    assert_eq!(error.status, Status::Busy);
    says_who(&error);
    child.resume();
    memory.free(Some(BOUND)).map_err(|(_, error)| error).unwrap();
}

#[test]
fn a_killed_initiator_holds_nothing() {
    let _turn = alone();
    // With a secret too the kernel reports the end; no timeout is involved.
    let b = engine(&[LOCAL, ("reconnect_timeout_ms", "600000")]);
    let queue = b.queue(WHAT_PEERS, 16).unwrap();
    let (mut child, peer, memory) = stopped_in_a_copy(&b);
    child.kill();
    memory.free(Some(BOUND)).map_err(|(_, error)| error).unwrap();
    assert_eq!(wait_for_loss(&queue, peer), Status::PeerLost);
}

#[test]
fn a_fence_waits_for_the_copy_and_the_loss_is_told_behind_it() {
    let _turn = alone();
    let b = engine(&[LOCAL]);
    let queue = b.queue(WHAT_PEERS, 16).unwrap();
    let (child, peer, memory) = stopped_in_a_copy(&b);
    let error = b.fence(peer, Some(Duration::from_millis(50))).unwrap_err();
    assert_eq!(error.status, Status::Timeout);
    let pid = child.pid();
    let name = format!("fencing an engine of 127.0.0.1 that does not listen (process {pid}) takes longer: ");
    assert_eq!(error.message, name + &format!("its process {pid} has not ended a copy here"));
    let mut events = Vec::new();
    queue.drain(&mut events, 16);
    let told = |events: &[ferry::notify::Event]| {
        events.iter().any(|event| matches!(event.body, EventBody::PeerLost { .. }))
    };
    assert!(!told(&events), "its copy is still under way");
    assert_eq!(b.close(Some(Duration::from_millis(50))).unwrap_err().status, Status::Busy);
    child.resume();
    wait_until("PEER_LOST comes", || {
        queue.drain(&mut events, 16);
        told(&events)
    });
    memory.free(Some(BOUND)).map_err(|(_, error)| error).unwrap();
    b.close(Some(BOUND)).unwrap();
}

fn kill_the_target(transports: (&str, &str), own: bool) {
    let _turn = alone();
    let settings = format!("{}={}", transports.0, transports.1);
    let (mut child, address) = Child::engine(&settings);
    let (region, remote) = if own { child.own(BYTES) } else { child.alloc(BYTES, 0) };
    let a = engine(&[transports, ("reconnect_timeout_ms", "600000")]);
    let memory = alloc(&a, BYTES);
    fill(&memory, 7);
    let peer = connect(&a, &address);
    let requests = rounds(memory.address(), remote, region, BYTES, 256);
    let transfer =
        a.submit(peer, Op::Write, &requests, &TransferOptions { deadline: Deadline::Never, ..options() });
    let transfer = transfer.unwrap();
    wait_until("the first bytes land", || child.peek(remote, 8) != [0; 8]);
    child.kill();
    // Within `BOUND`, and so long before the engine stops trying to reconnect.
    let result = finish(&transfer);
    assert_eq!((result.state, result.status), (State::Failed, Status::PeerLost), "{result:?}");
    let confirmed: u64 = transfer.results().iter().map(|request| request.bytes_confirmed).sum();
    assert_eq!(confirmed, result.bytes_confirmed);
    let refused = a.submit(peer, Op::Write, &requests, &options()).map(|_| ()).unwrap_err();
    assert_eq!(refused.status, Status::PeerLost);
    drop(transfer);
    memory.free(Some(Duration::ZERO)).map_err(|(_, error)| error).unwrap();
}

#[test]
fn a_killed_target_is_lost_at_once() {
    kill_the_target(LOCAL, true);
    kill_the_target(AUTO, false);
}

/// The session breaks and comes back: transfers under way continue over TCP, and then this path is back, too.
#[test]
fn a_broken_session_loses_nothing() {
    let _turn = alone();
    let b = engine(&[AUTO]);
    let proxy = Proxy::new(b.address());
    let a = engine(&[AUTO]);
    let peer = connect(&a, &proxy.address);
    let (local, remote) = (alloc(&a, BYTES), alloc(&b, BYTES));
    fill(&local, 1);
    assert_eq!(path(&a, peer).0, Transport::Local);
    for round in 0..4 {
        let many = rounds(local.address(), remote.address(), remote.region(), BYTES, 16);
        let before = a.stats().unwrap().counts.bytes_local;
        let transfer = a.submit(peer, Op::Write, &many, &options()).unwrap();
        wait_until("it copies", || a.stats().unwrap().counts.bytes_local > before);
        proxy.cut(true);
        let result = finish(&transfer);
        assert_eq!((result.state, result.status), (State::Done, Status::Ok), "round {round}: {result:?}");
        assert_eq!(result.bytes_confirmed, 16 * BYTES as u64);
        assert_pattern(&remote, 1, 0, BYTES);
        wait_until("the path is back", || path(&a, peer).0 == Transport::Local);
    }
}

/// Registered pages are missing: requests that need them fail, each with its errno; the others are done.
#[test]
fn missing_pages_fail_the_requests_that_name_them() {
    let _turn = alone();
    let (a, b, peer) = pair(&[LOCAL]);
    const PAGE: usize = 4096;
    // SAFETY: a fresh mapping, of which one page is taken away before it is registered.
    let hole = unsafe {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let base = libc::mmap(std::ptr::null_mut(), 4 * PAGE, rights, flags, -1, 0).cast::<u8>();
        assert_eq!(libc::munmap(base.add(2 * PAGE).cast(), PAGE), 0);
        base
    };
    // SAFETY: a page is missing on purpose; nothing here touches the others while they are registered.
    let region = unsafe { b.register(hole, 4 * PAGE, &RegionOptions::default()) }.unwrap();
    let local = alloc(&a, 4 * PAGE);
    fill(&local, 5);
    for op in [Op::Write, Op::Read] {
        let requests: Vec<Request> = (0..4)
            .map(|page| Request {
                local: local.address() + (page * PAGE) as u64,
                remote: hole as u64 + (page * PAGE) as u64,
                length: PAGE as u64,
                remote_region: region,
            })
            .collect();
        let before = a.stats().unwrap().counts.bytes_local;
        let transfer = a.submit(peer, op, &requests, &options()).unwrap();
        let result = finish(&transfer);
        assert_eq!(a.stats().unwrap().counts.bytes_local - before, 3 * PAGE as u64, "what was copied");
        assert_eq!((result.status, result.os_error), (Status::Partial, libc::EFAULT), "{result:?}");
        for (index, request) in transfer.results().iter().enumerate() {
            let expected = match index {
                2 => (Status::System, libc::EFAULT, 0),
                _ => (Status::Ok, 0, PAGE as u64),
            };
            assert_eq!((request.status, request.os_error, request.bytes_confirmed), expected, "{op:?}");
        }
    }
    assert_pattern(&local, 5, 0, 2 * PAGE);
    b.unregister(region, Some(Duration::ZERO)).unwrap();
}

/// The kernel lends no pages of secret memory to another process, but the target's own process reaches them.
#[test]
fn memory_that_the_kernel_does_not_lend_goes_by_tcp() {
    let _turn = alone();
    const PAGE: usize = 4096;
    // An engine registers only memory whose ends another process can read.
    // SAFETY: a fresh mapping, whose two inner pages are replaced by a fresh descriptor's.
    let (all, memory) = unsafe {
        let fd = libc::syscall(libc::SYS_memfd_secret, 0) as libc::c_int;
        if fd < 0 || libc::ftruncate(fd, 2 * PAGE as i64) != 0 {
            let error = std::io::Error::last_os_error();
            println!("SKIPPED memory_that_the_kernel_does_not_lend_goes_by_tcp: memfd_secret: {error}");
            return;
        }
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let all = libc::mmap(std::ptr::null_mut(), 4 * PAGE, rights, flags, -1, 0).cast::<u8>();
        assert_ne!(all as isize, -1);
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let inner = libc::mmap(all.add(PAGE).cast(), 2 * PAGE, rights, flags, fd, 0).cast::<u8>();
        assert_eq!(inner, all.add(PAGE), "{}", std::io::Error::last_os_error());
        (all, inner)
    };
    let (a, b, peer) = pair(&[AUTO]);
    // SAFETY: mapped until the test program ends.
    let region = unsafe { b.register(all, 4 * PAGE, &RegionOptions::default()) }.unwrap();
    let (local, remote) = (alloc(&a, 4 * PAGE), alloc(&b, 2 * PAGE));
    fill(&local, 5);
    let request = |at: usize, remote: u64, remote_region| Request {
        local: local.address() + (at * PAGE) as u64,
        remote,
        length: PAGE as u64,
        remote_region,
    };
    // Before, between and behind the memory in question is other memory.
    let places = [
        (remote.address(), remote.region()),
        (memory as u64, region),
        (remote.address() + PAGE as u64, remote.region()),
        (memory as u64 + PAGE as u64, region),
    ];
    let all: Vec<Request> = (0..4).map(|at| request(at, places[at].0, places[at].1)).collect();
    let each = TransferOptions { no_coalesce: true, ..options() };
    for op in [Op::Write, Op::Read] {
        let before = a.stats().unwrap().counts.bytes_local;
        let transfer = a.submit(peer, op, &all, &each).unwrap();
        let result = finish(&transfer);
        assert_eq!(
            (result.status, result.bytes_confirmed),
            (Status::Ok, 4 * PAGE as u64),
            "{op:?}: {result:?}"
        );
        assert_eq!(a.stats().unwrap().counts.bytes_local - before, 2 * PAGE as u64, "{op:?}");
        if op == Op::Write {
            // SAFETY: mapped above, and nothing moves.
            let found = unsafe { std::slice::from_raw_parts(memory, 2 * PAGE) }.to_vec();
            assert_eq!(misplaced(&found[..PAGE], 5, PAGE), None);
            assert_eq!(misplaced(&found[PAGE..], 5, 3 * PAGE), None);
            local.write(0, &[0; 4 * PAGE]);
        }
    }
    assert_pattern(&local, 5, 0, 4 * PAGE);
    b.unregister(region, Some(BOUND)).unwrap();
}

/// The board decides: rights, bounds and generation are checked against it, also for regions that the session has not
/// announced.
#[test]
fn what_is_not_granted_is_not_touched() {
    let _turn = alone();
    let (a, b, peer) = pair(&[LOCAL]);
    let local = alloc(&a, 8192);
    fill(&local, 1);
    let readable = RegionOptions { access: Access::REMOTE_READ, ..RegionOptions::default() };
    for (round, op) in [Op::Write, Op::Read].into_iter().cycle().take(40).enumerate() {
        let closed = b.alloc(4096, &readable).unwrap();
        let outcome = |offset: usize, bytes: usize| {
            let one = Request { length: bytes as u64, ..request(&local, &closed, offset, 8) };
            let submitted = a.submit(peer, op, &[one], &options());
            submitted.map_or_else(|error| error.status, |transfer| finish(&transfer).status)
        };
        let allowed = if op == Op::Read { Status::Ok } else { Status::Access };
        assert_eq!(outcome(0, 4096), allowed, "round {round}");
        let beyond = outcome(8, 4096);
        assert!([Status::Invalid, Status::Access].contains(&beyond), "round {round}: {beyond}");
        assert_zero(&closed, 0, 4096);
        closed.free(Some(Duration::ZERO)).map_err(|(_, error)| error).unwrap();
    }
}

/// Returns a request that names no region.
fn unnamed(local: u64, remote: u64, length: u64) -> Request {
    Request { local, remote, length, remote_region: RegionId::NONE }
}

/// Each request is done that is inside a region, behind others and behind one that is not.
#[test]
fn requests_that_name_no_region_find_each_its_own() {
    let _turn = alone();
    let (a, b, peer) = pair(&[LOCAL]);
    const PART: usize = 4096;
    let local = alloc(&a, 4 * PART);
    let memories: Vec<Memory> = (0..3).map(|_| alloc(&b, PART)).collect();
    wait_until("all are known", || a.peer_regions(peer).unwrap().len() == 3);
    let nowhere = Box::new([0_u64; 1]);
    for op in [Op::Write, Op::Read] {
        fill(&local, 1);
        (2..).zip(&memories).for_each(|(seed, memory)| fill(memory, seed));
        // The first and the third region, nothing, and the second; in this order, and none next to the one before.
        let places = [0, 2, 3, 1].map(|at| memories.get(at).map_or(nowhere.as_ptr() as u64, Memory::address));
        let request =
            |at: usize| unnamed(local.address() + (at * PART) as u64, places[at], 8 * (1 + at as u64));
        let all: Vec<Request> = (0..4).map(request).collect();
        let many = TransferOptions { no_coalesce: true, ..options() };
        let transfer = a.submit(peer, op, &all, &many).unwrap();
        assert_eq!(finish(&transfer).status, Status::Partial);
        let statuses: Vec<Status> = transfer.results().iter().map(|it| it.status).collect();
        assert_eq!(statuses, [Status::Ok, Status::Ok, Status::NotRegistered, Status::Ok], "{op:?}");
        for (at, region) in [(0, 0), (1, 2), (3, 1)] {
            let (bytes, seed) = (8 * (1 + at), 2 + region as u64);
            match op {
                Op::Write => {
                    assert_eq!(misplaced(&read(&memories[region], 0, bytes), 1, at * PART), None, "{at}");
                    assert_pattern(&memories[region], seed, bytes, PART - bytes);
                }
                Op::Read => {
                    assert_eq!(misplaced(&read(&local, at * PART, bytes), seed, 0), None, "{at}");
                    assert_pattern(&local, 1, at * PART + bytes, PART - bytes);
                }
            }
        }
    }
}

/// Memory that is registered anew is known here by the peer's board before the peer's announcement arrives.
#[test]
fn memory_that_is_registered_anew_at_its_address_is_found_at_once() {
    let _turn = alone();
    for transports in [LOCAL, AUTO] {
        let (a, b, peer) = pair(&[transports]);
        let (local, mut there) = (alloc(&a, 4096), vec![0_u64; 512]);
        fill(&local, 1);
        let address = there.as_mut_ptr();
        for round in 0..100 {
            // SAFETY: `there` lives until both engines are dropped, and is read when nothing moves.
            let region = unsafe { b.register(address.cast(), 4096, &RegionOptions::default()) }.unwrap();
            for (op, length) in [(Op::Write, 4096), (Op::Read, 2048)] {
                let one = [unnamed(local.address(), address as u64, length)];
                let by_submit = a.submit(peer, op, &one, &options()).unwrap();
                let at_once = match op {
                    Op::Write => a.write(peer, &one, &options()),
                    Op::Read => a.read(peer, &one, &options()),
                };
                assert_eq!(finish(&by_submit).status, Status::Ok, "{transports:?}, round {round}, {op:?}");
                assert_eq!(at_once.unwrap().bytes_confirmed, length, "{transports:?}, round {round}");
            }
            b.unregister(region, Some(BOUND)).unwrap();
        }
        let gone = a.submit(peer, Op::Write, &[unnamed(local.address(), address as u64, 8)], &options());
        let gone = gone.map_or_else(|error| error.status, |transfer| finish(&transfer).status);
        assert_eq!(gone, Status::NotRegistered, "{transports:?}");
        drop((a, b));
        assert!(there.iter().enumerate().all(|(at, found)| *found == word(1, at * 8)));
    }
}

#[test]
fn another_user_goes_by_tcp() {
    let _turn = alone();
    if !is_root("another_user_goes_by_tcp", "become somebody else") {
        return;
    }
    let a = engine(&[AUTO]);
    let mut child = Child::start();
    assert_eq!(child.ask("setuid 65534"), "0");
    let address = child.ask("open transports=auto");
    let (region, remote) = child.alloc(4096, 0);
    let memory = alloc(&a, 4096);
    fill(&memory, 9);
    let peer = connect(&a, &address);
    let (chosen, why) = path(&a, peer);
    assert!(chosen == Transport::Tcp && why.contains("user"), "{chosen:?}: {why}");
    let one = rounds(memory.address(), remote, region, 4096, 1);
    assert_eq!(a.write(peer, &one, &options()).unwrap().transport, Transport::Tcp);
    let only = TransferOptions { transports_allowed: Transport::Local.bit(), ..options() };
    let error = a.submit(peer, Op::Write, &one, &only).map(|_| ()).unwrap_err();
    assert!(error.status == Status::Unavailable && error.message.contains("user"), "{error}");
    let there = child.number("peers");
    // The other side learns the reason.
    wait_until("the reason is known there", || {
        let said = child.ask(&format!("path {there}"));
        said.starts_with("tcp; ") && said.contains("user")
    });
}

/// Two processes of a user without the right to trace each other: memory that ferry allocated is shared, other memory
/// goes over TCP.
#[test]
fn processes_that_may_not_be_traced_share_what_ferry_allocated() {
    let _turn = alone();
    if !is_root("processes_that_may_not_be_traced_…", "become somebody else") {
        return;
    }
    let (mut x, mut y) = (Child::start(), Child::start());
    for child in [&mut x, &mut y] {
        assert_eq!(child.ask("setuid 65534"), "0");
        child.ask("open transports=auto");
    }
    let address = y.ask("open transports=auto");
    let (shared, shared_at) = y.alloc(MIB, 0);
    let (own, own_at) = y.own(MIB);
    x.alloc(MIB, 4);
    let peer = x.number(&format!("connect {address}"));
    let said = x.ask(&format!("path {peer}"));
    assert!(said.starts_with("local; ") && said.contains("process_vm_readv"), "{said}");
    assert_eq!(x.number(&format!("write {peer} {own} {own_at} {MIB}")), MIB as u64);
    assert_eq!(x.number("stat bytes_local"), 0, "by TCP");
    assert_eq!(x.number(&format!("write {peer} {shared} {shared_at} {MIB}")), MIB as u64);
    assert_eq!(x.number("stat bytes_local"), MIB as u64);
    // A later region is shared as soon as it is known, and an unregistered one is not reached any more.
    let (later, later_at) = y.alloc(MIB, 0);
    wait_until("it is mapped", || {
        assert_eq!(x.number(&format!("write {peer} {later} {later_at} {MIB}")), MIB as u64);
        x.number("stat bytes_local") > MIB as u64
    });
    for at in [own_at, shared_at, later_at] {
        assert_eq!(misplaced(&y.peek(at, MIB), 4, 0), None);
    }
    assert_eq!(y.ask("unregister 1 5000"), "OK");
    let gone = x.ask(&format!("write {peer} {later} {later_at} {MIB}"));
    assert!(gone.starts_with("STALE"), "{gone}");
}

#[test]
fn switched_off_it_is_not_used_and_says_so() {
    let _turn = alone();
    for (ours, theirs) in [(("local", "false"), AUTO), (AUTO, ("local", "false"))] {
        let (a, b) = (engine(&[AUTO, ours]), engine(&[AUTO, theirs]));
        let peer = connect(&a, b.address());
        let (chosen, why) = path(&a, peer);
        assert!(chosen == Transport::Tcp && why.contains("switched off"), "{chosen:?}: {why}");
        let (local, remote) = (alloc(&a, 64), alloc(&b, 64));
        let result = a.write(peer, &[request(&local, &remote, 0, 64)], &options()).unwrap();
        assert_eq!(result.transport, Transport::Tcp);
    }
}

/// A chain of ORDERED transfers that each finish at submit needs no stack.
#[test]
fn a_long_chain_of_small_ordered_transfers() {
    let _turn = alone();
    let (a, b, peer) = pair(&[LOCAL]);
    let (local, remote) = (alloc(&a, BYTES), alloc(&b, BYTES));
    fill(&local, 2);
    let ordered = TransferOptions { ordered: true, ..options() };
    let mut transfers =
        vec![a.submit(peer, Op::Write, &[request(&local, &remote, 0, BYTES)], &ordered).unwrap()];
    for at in 0..20_000 {
        let one = request(&local, &remote, at % 4096 * 8, 8);
        transfers.push(a.submit(peer, Op::Write, &[one], &ordered).unwrap());
    }
    for transfer in &transfers {
        assert_eq!(finish(transfer).state, State::Done);
    }
    assert_pattern(&remote, 2, 0, BYTES);
}

/// A small transfer does not wait for a large one.
#[test]
fn small_ones_overtake() {
    let _turn = alone();
    let (a, b, peer) = pair(&[LOCAL]);
    let (local, remote) = (alloc(&a, BYTES), alloc(&b, BYTES));
    let many = rounds(local.address(), remote.address(), remote.region(), BYTES, 64);
    let bulk = a.submit(peer, Op::Write, &many, &options()).unwrap();
    let small = a.write(peer, &[request(&local, &remote, 0, 4096)], &options()).unwrap();
    assert!(small.state == State::Done && bulk.state() == State::Pending);
    bulk.cancel().unwrap();
    assert_eq!(finish(&bulk).state, State::Cancelled);
}
