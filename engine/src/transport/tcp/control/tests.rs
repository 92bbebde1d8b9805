//! What the loop must notice though it happens outside of it, and what a test can only do from within.

use crate::{Config, Engine, Status};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const BOUND: Duration = Duration::from_secs(20);

fn engine(settings: &[(&str, &str)]) -> Engine {
    let mut config = Config::default();
    for (key, value) in
        [("transports", "tcp"), ("lease_ms", "300"), ("drain_ms", "20")].iter().chain(settings)
    {
        config.set(key, value).unwrap();
    }
    Engine::open(config).unwrap()
}

/// Returns when the loop has worked off every command that it had been given.
fn settle(engine: &Engine, witness: u64) {
    engine.probe(witness, Some(BOUND)).unwrap();
}

/// Runs a call that blocks; what it returned, when it has.
fn spawn<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
    let (told, result) = mpsc::channel();
    thread::spawn(move || told.send(call()));
    result
}

#[test]
fn a_peer_is_closed_when_the_last_use_ends_after_its_drain() {
    let (a, b, witness) = (engine(&[]), engine(&[]), engine(&[]));
    let peer = a.connect(b.address(), Some(BOUND)).unwrap();
    let witness = a.connect(witness.address(), Some(BOUND)).unwrap();
    let object = a.whole().peers.get(peer).unwrap();
    let busy = object.busy();
    let closing = a.clone();
    let closed = spawn(move || closing.close_peer(peer, None));
    while object.lost().is_none() {
        thread::yield_now();
    }
    settle(&a, witness);
    assert!(closed.try_recv().is_err(), "something of the peer is in use");
    drop(busy);
    closed.recv_timeout(BOUND).expect("the end of the last use is heard of").unwrap();
    assert_eq!(a.probe(peer, Some(BOUND)).unwrap_err().status, Status::Closed);
}

#[test]
fn an_engine_is_closed_when_the_last_use_ends_outside_the_loop() {
    let (a, b) = (engine(&[]), engine(&[]));
    let peer = a.connect(b.address(), Some(BOUND)).unwrap();
    let object = a.whole().peers.get(peer).unwrap();
    let busy = object.busy();
    let closing = a.clone();
    let closed = spawn(move || closing.close(None));
    while object.lost().is_none() {
        thread::yield_now();
    }
    assert!(closed.try_recv().is_err(), "something of the peer is in use");
    drop(busy);
    closed.recv_timeout(BOUND).expect("the end of the last use is heard of").unwrap();
}
