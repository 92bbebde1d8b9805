//! Who learns what, how soon (docs/losses.md): a peer that is killed, stopped or cut off is told as PEER_DOWN, and as
//! PEER_UP when its connection stands again.

use crate::child::Child;
use crate::proxy::{Proxy, Verdict, Way};
use crate::support::*;
use ferry::notify::{EventBody, Queue, WHAT_PEERS, WHAT_PEER_STATES};
use ferry::types::{PeerId, Request};
use ferry::{Engine, PeerState, Status};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A kill is told within this time wherever the kernel tells it.
const AT_ONCE: Duration = Duration::from_millis(100);
const KEEPALIVE: (&str, &str) = ("keepalive_ms", "800");
const SILENCE: Duration = Duration::from_millis(800);
/// Keeps a peer that is down for as long as a test takes.
const PATIENT: (&str, &str) = ("reconnect_timeout_ms", "60000");

/// Waits for a peer event of another kind than PeerUp for the first time.
#[track_caller]
fn next(queue: &Arc<Queue>, peer: PeerId) -> (EventBody, Instant) {
    let mut events = Vec::new();
    wait_until("an event of the peer comes", || queue.drain(&mut events, 1) > 0);
    let event = events.pop().unwrap();
    assert_eq!(event.peer, peer, "{event:?}");
    match event.body {
        EventBody::PeerUp { again: false } => next(queue, peer),
        body => (body, Instant::now()),
    }
}

#[track_caller]
fn down(body: EventBody) -> (Status, String) {
    match body {
        EventBody::PeerDown { status, why, .. } => (status, why.into()),
        other => panic!("{other:?} instead of PeerDown"),
    }
}

fn watched(engine: &Engine) -> Arc<Queue> {
    engine.queue(WHAT_PEERS | WHAT_PEER_STATES, 16).unwrap()
}

#[track_caller]
fn a_kill_is_told_at_once(settings: &[(&str, &str)], child_settings: &str) -> (Arc<Queue>, PeerId, Engine) {
    let (mut child, address) = Child::engine(child_settings);
    let a = engine(&[settings, &[PATIENT]].concat());
    let queue = watched(&a);
    let peer = connect(&a, &address);
    wait_until("the peer is up", || a.peer_info(peer).unwrap().state == PeerState::Up);
    let killed = Instant::now();
    child.kill();
    let (body, at) = next(&queue, peer);
    down(body);
    let after = at - killed;
    assert!(after < AT_ONCE, "told {after:?} after the kill");
    (queue, peer, a)
}

#[test]
fn a_kill_is_told_at_once_over_tcp() {
    let _turn = alone();
    let (queue, peer, a) = a_kill_is_told_at_once(&[("transports", "tcp")], "transports=tcp");
    // The address may be another machine's by now: only time tells that the peer is lost.
    assert_eq!(a.peer_info(peer).unwrap().state, PeerState::Down);
    assert_eq!(queue.pending(), 0, "one state, one event");
}

#[test]
fn a_kill_is_told_at_once_on_the_same_host_where_the_kernel_proves_the_end() {
    let _turn = alone();
    let (queue, peer, _a) = a_kill_is_told_at_once(&[SAME_USER], "secret=");
    let (body, _) = next(&queue, peer);
    assert!(matches!(body, EventBody::PeerLost { .. }), "{body:?}");
}

/// Nothing is under way, and the kernel answers for a stopped process.
#[test]
fn a_stopped_peer_is_down_after_keepalive_ms_and_up_again_when_it_continues() {
    let _turn = alone();
    let (mut child, address) = Child::engine("keepalive_ms=800 reconnect_timeout_ms=60000");
    let (region, remote) = child.alloc(MIB, 0);
    let a = engine(&[KEEPALIVE, PATIENT]);
    let (queue, memory) = (watched(&a), alloc(&a, MIB));
    let peer = connect(&a, &address);
    fill(&memory, 3);
    child.stop();
    let stopped = Instant::now();
    let (body, at) = next(&queue, peer);
    let (status, why) = down(body);
    assert_eq!(status, Status::Timeout, "{why}");
    assert!(why.contains("did not answer in time"), "{why}");
    // The peer was heard of at the connect, perhaps some time before the stop.
    let after = at - stopped;
    assert!(after >= SILENCE / 4 && after <= SILENCE + SLACK, "told {after:?} after the stop");
    child.resume();
    let (body, _) = next(&queue, peer);
    assert_eq!(body, EventBody::PeerUp { again: true });
    let request = Request { local: memory.address(), remote, length: MIB as u64, remote_region: region };
    a.write(peer, &[request], &options()).unwrap();
    assert_eq!(misplaced(&child.peek(remote, MIB), 3, 0), None);
}

/// A host or a link that is gone sends nothing, not even a reset. Both ends learn of it, also the acceptor.
#[test]
fn a_link_that_is_cut_is_told_at_both_ends() {
    let _turn = alone();
    let b = engine(&[KEEPALIVE, PATIENT, ("transports", "tcp")]);
    let proxy = Proxy::new(b.address());
    let a = engine(&[KEEPALIVE, PATIENT, ("transports", "tcp")]);
    let queues = [watched(&a), watched(&b)];
    let peer = connect(&a, &proxy.address);
    wait_until("both are up", || b.peers().unwrap().len() == 1);
    let back = b.peers().unwrap()[0];
    wait_until("b's is up", || b.peer_info(back).unwrap().state == PeerState::Up);
    // Nothing is told while both are heard.
    let quiet = Instant::now();
    while quiet.elapsed() < SILENCE * 2 {
        std::thread::yield_now();
    }
    assert!(queues.iter().all(|queue| queue.pending() <= 1), "only PeerUp has come");
    proxy.judge(|_| Verdict::Hold);
    let cut = Instant::now();
    for (queue, peer) in queues.iter().zip([peer, back]) {
        let (body, at) = next(queue, peer);
        let (status, why) = down(body);
        assert_eq!(status, Status::Timeout, "{why}");
        assert!(at - cut <= SILENCE + SLACK, "told {:?} after the cut", at - cut);
    }
    proxy.judge(|_| Verdict::Pass);
    proxy.release_all();
    for (queue, peer) in queues.iter().zip([peer, back]) {
        assert_eq!(next(queue, peer).0, EventBody::PeerUp { again: true });
    }
}

/// The question is lost with the connection that carried it, and asked again on the next one.
#[test]
fn a_probe_that_an_outage_swallowed_is_answered_after_it() {
    let _turn = alone();
    let (a, b) = (engine(&[PATIENT]), engine(&[PATIENT]));
    let proxy = Proxy::new(b.address());
    let peer = connect(&a, &proxy.address);
    a.probe(peer, Some(BOUND)).unwrap();
    proxy.judge(|_| Verdict::Hold);
    std::thread::scope(|scope| {
        let prober = scope.spawn(|| a.probe(peer, Some(BOUND / 3)));
        proxy.wait_for("the question is held", |seen| !seen.is_lane && seen.holds(Way::Forth));
        proxy.judge(|_| Verdict::Pass);
        proxy.cut(true);
        prober.join().unwrap().unwrap();
    });
}

#[test]
fn an_idle_peer_may_be_silent_for_ever_without_keepalive() {
    let _turn = alone();
    let (child, address) = Child::engine("keepalive_ms=0");
    let a = engine(&[("keepalive_ms", "0"), ("progress_timeout_ms", "300"), PATIENT]);
    let queue = watched(&a);
    let peer = connect(&a, &address);
    a.probe(peer, Some(BOUND)).unwrap();
    child.stop();
    let stopped = Instant::now();
    while stopped.elapsed() < SILENCE * 2 {
        std::thread::yield_now();
    }
    assert_eq!(a.peer_info(peer).unwrap().state, PeerState::Up);
    // A question is something under way.
    assert_eq!(a.probe(peer, Some(Duration::from_secs(2))).unwrap_err().status, Status::Timeout);
    down(next(&queue, peer).0);
    child.resume();
}

/// The application knows what it does itself.
#[test]
fn what_this_side_ends_is_told_as_lost_and_not_as_down() {
    let _turn = alone();
    let (a, b, peer) = pair(&[]);
    let queue = watched(&a);
    a.fence(peer, Some(BOUND)).unwrap();
    let (body, _) = next(&queue, peer);
    assert!(matches!(body, EventBody::PeerLost { .. }), "{body:?}");
    drop(b);
}
