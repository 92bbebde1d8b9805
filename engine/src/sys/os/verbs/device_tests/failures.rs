//! Tests of errors: refused keys, dropped registrations, full queues, and silent peers and cables.

use super::*;
use crate::sys::verbs::context::Event;
use std::process::Command;

#[test]
fn keys_are_refused_where_they_do_not_fit() {
    if skipped() {
        return;
    }
    let outside = |end: &End| end.address(MEMORY - 4095);
    type Target = fn(&End) -> (u64, u32);
    let cases: [(&str, Target); 4] = [
        ("no such key", |b| (b.address(0), b.rkey() ^ 0x5a00)),
        ("the key's variant is off", |b| (b.address(0), b.rkey() ^ 1)),
        ("only to be read", |b| (b.read_only_memory.address() as u64, b.read_only.rkey())),
        ("before the start", |b| (b.address(0) - 8, b.rkey())),
    ];
    for (case, target) in cases {
        let (mut a, b) = pair();
        let (remote, rkey) = target(&b);
        assert_eq!(a.try_write(remote, rkey), wc::REM_ACCESS_ERR, "{case}");
        // The connection is gone: work posted now is flushed.
        assert_eq!(a.try_write(b.address(0), b.rkey()), wc::WR_FLUSH_ERR, "{case}");
        readable(b.context.event_fd(), 100);
        eprintln!("{case}: b's events: {:?}", events(&b));
    }
    let (mut a, b) = pair();
    assert_eq!(a.try_write(outside(&b) - 1, b.rkey()), wc::SUCCESS, "up to the end");
    assert_eq!(a.try_write(outside(&b), b.rkey()), wc::REM_ACCESS_ERR, "one byte beyond");
}

#[test]
fn a_dropped_registration_is_refused() {
    if skipped() {
        return;
    }
    let (mut a, mut b) = pair();
    let (remote, rkey) = (b.address(0), b.rkey());
    assert_eq!(a.try_write(remote, rkey), wc::SUCCESS);
    b.mr = None;
    assert_eq!(a.try_write(remote, rkey), wc::REM_ACCESS_ERR);
}

#[test]
fn a_registration_can_go_while_it_is_used() {
    if skipped() {
        return;
    }
    for ours in [true, false] {
        let (mut a, mut b) = pair();
        let (local, lkey, remote, rkey) = (a.address(HALF), a.lkey(), b.address(0), b.rkey());
        for id in 0..16 {
            a.chain.write(id, local, lkey, remote, rkey, HALF as u32, false);
            a.chain.signal_last();
        }
        a.post();
        let start_ns = monotonic_ns();
        if ours {
            a.mr = None;
        } else {
            b.mr = None;
        }
        let took_us = (monotonic_ns() - start_ns) / 1000;
        let ends = a.completions(16);
        let ok = ends.iter().filter(|done| done.is_success()).count();
        let failed = ends.iter().find(|done| !done.is_success());
        eprintln!("ours {ours}: dropped in {took_us} us, {ok} of 16 went through, then {failed:?}");
        assert!(failed.is_some());
    }
}

#[test]
fn an_error_flushes_every_request() {
    if skipped() {
        return;
    }
    let (mut a, b) = pair();
    // Without a receive there, the first one is sent again and again.
    let (local, lkey, remote, rkey) = (a.address(0), a.lkey(), b.address(0), b.rkey());
    a.chain.send(0, local, lkey, 64, false);
    for id in 1..20 {
        match id % 3 {
            0 => a.chain.send(id, local, lkey, 64, false),
            1 => a.chain.write(id, local, lkey, remote, rkey, 4096, false),
            _ => a.chain.read(id, local, lkey, remote, rkey, 4096),
        }
        if id == 10 {
            a.chain.signal_last();
        }
    }
    a.post();
    assert_eq!(a.cq.poll(&mut [Completion::default()]).unwrap(), 0);
    a.qp.to_error().unwrap();
    let flushed = a.completions(20);
    assert!(flushed.iter().all(|done| done.status() == wc::WR_FLUSH_ERR), "{flushed:?}");
    assert_eq!(flushed.iter().map(Completion::id).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
    assert_eq!(a.try_write(remote, rkey), wc::WR_FLUSH_ERR);
    assert_eq!(a.cq.poll(&mut [Completion::default()]).unwrap(), 0);
    eprintln!("a's events: {:?}", events(&a));
    // The receives stay in the SRQ, for other QPs.
    b.receive(1, HALF, 64);
    b.qp.to_error().unwrap();
    assert!(!readable(b.channel.fd(), 100));
    assert_eq!(b.cq.poll(&mut [Completion::default()]).unwrap(), 0);
    eprintln!("b's events: {:?}", events(&b));
}

#[test]
fn a_full_queue_says_how_far_it_came() {
    if skipped() {
        return;
    }
    let (mut a, b) = pair();
    let (local, lkey) = (a.address(0), a.lkey());
    let _ = &b;
    let mut posted = 0;
    let full = loop {
        a.chain.clear();
        for id in 0..32 {
            a.chain.send(posted as u64 + id, local, lkey, 64, false);
        }
        // SAFETY: `memory` outlives the QP.
        match unsafe { a.qp.post(&mut a.chain) } {
            Ok(()) => posted += 32,
            Err((some, error)) => break (posted + some, error),
        }
        assert!(posted < 100_000);
    };
    eprintln!("asked for 64, full after {}: {}", full.0, full.1);
    assert_eq!(full.1.raw_os_error(), Some(libc::ENOMEM));
    assert!(full.0 >= 64);
    a.qp.to_error().unwrap();
    assert_eq!(a.completions(full.0).last().unwrap().id(), full.0 as u64 - 1);
    // And a chain that the driver refuses in the middle.
    a.chain.clear();
    a.chain.send(1, local, lkey, 64, false);
    a.chain.send(2, local, lkey, a.qp.inline_bytes() + 1, true);
    a.chain.send(3, local, lkey, 64, false);
    // SAFETY: as above.
    let (count, error) = unsafe { a.qp.post(&mut a.chain) }.unwrap_err();
    assert_eq!((count, error.raw_os_error()), (1, Some(libc::EINVAL)));
    assert_eq!(a.completion().id(), 1);
}

#[test]
fn a_sender_gives_up_without_receives() {
    if skipped() {
        return;
    }
    let (mut a, _b) = pair_with("rva0", "rva1", Patience { rnr_retries: 2, ..PATIENT });
    let (local, lkey) = (a.address(0), a.lkey());
    let start_ns = monotonic_ns();
    a.chain.send(1, local, lkey, 64, false);
    a.post();
    assert_eq!(a.completion().status(), wc::RNR_RETRY_EXC_ERR);
    eprintln!("2 RNR retries: {} us", (monotonic_ns() - start_ns) / 1000);
}

fn ip(arguments: &[&str]) {
    assert!(Command::new("ip").args(arguments).status().unwrap().success(), "ip {arguments:?}");
}

fn events(end: &End) -> Vec<Event> {
    let next = || end.context.next_event().unwrap();
    std::iter::from_fn(next).collect()
}

/// Takes the interface down, calls `meanwhile`, and takes it up again. Both ends notice: a pair is like one cable.
fn cycle_link(interface: &str, meanwhile: impl FnOnce(&mut End, &End)) {
    let (mut a, b) = pair_with("rvb0", "rvb1", PATIENT);
    assert_eq!(a.try_write(b.address(0), b.rkey()), wc::SUCCESS);
    assert_eq!((events(&a), events(&b)), (vec![], vec![]));
    ip(&["link", "set", interface, "down"]);
    for end in [&a, &b] {
        assert!(readable(end.context.event_fd(), 30_000));
        assert_eq!(events(end)[..], [Event::PortError(1)]);
        assert_eq!(end.context.port(1).unwrap().state, PortState::Down);
    }
    meanwhile(&mut a, &b);
    ip(&["link", "set", interface, "up"]);
    // An interface that goes down forgets its neighbours.
    for (ours, theirs, address) in [("vb0", "vb1", "10.2.0.2"), ("vb1", "vb0", "10.2.0.1")] {
        let mac = std::fs::read_to_string(format!("/sys/class/net/{theirs}/address")).unwrap();
        ip(&["neigh", "replace", address, "lladdr", mac.trim(), "nud", "permanent", "dev", ours]);
    }
    for end in [&a, &b] {
        let mut seen = Vec::new();
        while !seen.contains(&Event::PortActive(1)) {
            assert!(readable(end.context.event_fd(), 30_000), "{seen:?}");
            seen.extend(events(end));
        }
        eprintln!("{interface} up: {} has events {seen:?}, {:?}", end.context.name(), end.context.gids(1));
    }
    let (mut a, b) = pair_with("rvb0", "rvb1", PATIENT);
    assert_eq!(a.try_write(b.address(0), b.rkey()), wc::SUCCESS);
}

fn post_write(a: &mut End, b: &End) {
    let (local, lkey) = (a.address(HALF), a.lkey());
    a.chain.write(9, local, lkey, b.address(0), b.rkey(), 4096, false);
    a.chain.signal_last();
    a.post();
}

/// One test, so that no other has these devices meanwhile.
#[test]
fn links_go_down_and_come_back() {
    if skipped() {
        return;
    }
    eprintln!("our own link, with nothing under way");
    cycle_link("vb0", |_, _| ());
    eprintln!("our own link");
    cycle_link("vb0", |a, b| {
        post_write(a, b);
        // This driver finds no route through an interface that is down, and calls that an error of the QP.
        assert_eq!(a.completion().status(), wc::LOC_QP_OP_ERR);
    });
    eprintln!("the peer's link");
    cycle_link("vb1", |a, b| {
        post_write(a, b);
        // Nothing leaves; that counts as lost.
        let start_ns = monotonic_ns();
        assert_eq!(a.completion().status(), wc::RETRY_EXC_ERR);
        eprintln!("gave up after {} ms", (monotonic_ns() - start_ns) / 1_000_000);
    });
    // Silence: the answers are lost.
    for (timeout, retries) in [(8, 6), (14, 0), (14, 2), (14, 6), (16, 3)] {
        let (mut a, b) = pair_with("rvb0", "rvb1", Patience { timeout, retries, rnr_retries: 7 });
        let tc = |arguments: &[&str]| assert!(Command::new("tc").args(arguments).status().unwrap().success());
        tc(&["qdisc", "replace", "dev", "vb1", "root", "netem", "loss", "100%"]);
        let start_ns = monotonic_ns();
        let status = a.try_write(b.address(0), b.rkey());
        let took_ms = (monotonic_ns() - start_ns) / 1_000_000;
        let nominal_ms = (u64::from(retries) + 1) * (4096 << timeout) / 1_000_000;
        eprintln!("timeout {timeout}, {retries} retries: {took_ms} ms, nominally {nominal_ms}");
        tc(&["qdisc", "del", "dev", "vb1", "root"]);
        assert_eq!(status, wc::RETRY_EXC_ERR);
        assert!(took_ms >= nominal_ms);
    }
}

#[test]
fn a_peer_that_failed_is_silent() {
    if skipped() {
        return;
    }
    let (mut a, b) = pair();
    b.qp.to_error().unwrap();
    let start_ns = monotonic_ns();
    let status = a.try_write(b.address(0), b.rkey());
    eprintln!(
        "a peer's QP in error: {} after {} ms",
        wc::name(status),
        (monotonic_ns() - start_ns) / 1_000_000
    );
    assert_eq!(status, wc::RETRY_EXC_ERR);
    let (mut a, b) = pair();
    let (remote, rkey) = (b.address(0), b.rkey());
    let End { qp, memory, mr, .. } = b;
    drop(qp);
    let start_ns = monotonic_ns();
    let status = a.try_write(remote, rkey);
    eprintln!(
        "a peer's QP dropped: {} after {} ms",
        wc::name(status),
        (monotonic_ns() - start_ns) / 1_000_000
    );
    assert_eq!(status, wc::RETRY_EXC_ERR);
    drop((mr, memory));
}
