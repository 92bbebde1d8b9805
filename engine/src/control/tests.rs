//! Tests that need access to the control loop's inside: commands, timers, and the bound on lost peers.

use super::sessions::LOST_PEERS_KEPT;
use crate::command::{Command, Reply};
use crate::status::Result;
use crate::sys::clock;
use crate::types::PeerId;
use crate::{Config, Engine, Status};
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

pub(super) const BOUND: Duration = Duration::from_secs(20);

pub(super) fn config(settings: &[(&str, &str)]) -> Config {
    let mut config = Config::default();
    for (key, value) in
        [("transports", "tcp"), ("lease_ms", "300"), ("drain_ms", "20")].iter().chain(settings)
    {
        config.set(key, value).unwrap();
    }
    config
}

pub(super) fn engine(settings: &[(&str, &str)]) -> Engine {
    Engine::open(config(settings)).unwrap()
}

/// Waits until a condition holds that other threads make true.
#[track_caller]
pub(super) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + BOUND;
    while !is_so() {
        assert!(Instant::now() < end, "never: {what}");
        thread::yield_now();
    }
}

/// Returns when the loop has handled every earlier command.
fn settle(engine: &Engine, witness: u64) {
    engine.probe(PeerId::from_raw(witness), Some(BOUND)).unwrap();
}

/// Runs a blocking call on a thread. The result arrives on the channel.
fn spawn<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
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
    settle(&a, witness.raw());
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

/// No session ends with the engine's own peer.
#[test]
fn an_engine_is_closed_when_the_last_copy_to_itself_has_ended() {
    let a = engine(&[]);
    let own = a.whole().peer(a.own_peer().unwrap()).unwrap();
    let busy = own.busy();
    assert_eq!(a.close(Some(Duration::ZERO)).unwrap_err().status, Status::Busy);
    drop(busy);
    a.close(Some(BOUND)).unwrap();
}

#[test]
fn the_handles_of_the_last_peers_that_were_lost_are_known_and_no_others() {
    let (a, b) = (engine(&[]), engine(&[]));
    let meet = || {
        let peer = a.connect(b.address(), Some(BOUND)).unwrap();
        a.close_peer(peer, Some(BOUND)).unwrap();
        peer
    };
    let status = |peer| a.probe(peer, Some(BOUND)).unwrap_err().status;
    let peers: Vec<PeerId> = (0..LOST_PEERS_KEPT + 2).map(|_| meet()).collect();
    let known: Vec<bool> =
        peers.iter().map(|peer| status(PeerId::from_raw((*peer).raw())) == Status::Closed).collect();
    assert_eq!(known.iter().position(|is_known| *is_known), Some(2));
    assert!(known[2..].iter().all(|is_known| *is_known));
    assert_eq!(status(PeerId::from_raw(peers[0].raw())), Status::Stale);
}

/// Returns a listener that never answers, and its address.
fn silent() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Lets the loop dial like `connect`. The time and the result of the answer arrive on the channel.
fn dial(
    engine: &Engine,
    address: &str,
    at: &[SocketAddr],
    timeout: Duration,
) -> Receiver<(Duration, Result<PeerId>)> {
    let (told, result) = mpsc::channel();
    let begun = Instant::now();
    let reply = Reply::new(move |result| drop(told.send((begun.elapsed(), result))));
    let (address, resolved) = (address.to_owned(), Some(at.to_vec()));
    let deadline = clock::monotonic_ns() + timeout;
    engine.whole().commands.push(Command::Dial { address, resolved, deadline, reply });
    result
}

#[test]
fn an_address_that_is_silent_leaves_time_for_the_others_of_its_name() {
    let (a, b) = (engine(&[]), engine(&[]));
    let (_listener, silent) = silent();
    let good: SocketAddr = b.address().parse().unwrap();
    let answer = dial(&a, "name:1", &[silent, silent, good], Duration::from_secs(3));
    let (took, peer) = answer.recv_timeout(BOUND).unwrap();
    assert_eq!(peer.map_err(|error| error.to_string()), Ok(a.peers().unwrap()[0]), "after {took:?}");
    assert!(took >= Duration::from_millis(1900), "two of three shares were waited for: {took:?}");
}

/// Returns an address where each connection gets `answer` and its end.
fn stranger(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(std::io::Result::ok) {
            let _ = stream.write_all(answer);
        }
    });
    at
}

/// After any failure at an address, the next address is tried, except after a wrong secret.
#[test]
fn an_address_that_fails_leads_to_the_next_of_its_name() {
    let secrets = [("secret", "00".repeat(32)), ("secret", "01".repeat(32))];
    let [ours, theirs] = secrets.each_ref().map(|(key, value)| engine(&[(key, value)]));
    let at = |engine: &Engine| engine.address().parse::<SocketAddr>().unwrap();
    let [web, mute] = [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b""].map(stranger);
    let ended = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let told = |addresses: &[SocketAddr]| {
        // An engine of its own: a peer that is connected is not dialed.
        let a = engine(&[("secret", &secrets[0].1)]);
        let answer = dial(&a, "name:1", addresses, BOUND);
        answer.recv_timeout(2 * BOUND).unwrap().1.map(|_| ()).map_err(|error| error.status)
    };
    for first in [web, mute, ended()] {
        assert_eq!(told(&[first, at(&ours)]), Ok(()), "{first}");
    }
    assert_eq!(told(&[web, ended()]), Err(Status::NotFerry), "an answer tells more than silence");
    assert_eq!(told(&[ended(), web]), Err(Status::NotFerry));
    assert_eq!(told(&[at(&theirs), at(&ours)]), Err(Status::Refused));
}

#[test]
fn connects_that_wait_for_one_dial_keep_their_own_deadlines() {
    let a = engine(&[]);
    let (_listener, at) = silent();
    let ms = Duration::from_millis;
    let waits = [1500, 200, 2500].map(|limit| (ms(limit), dial(&a, "name:1", &[at], ms(limit))));
    for (limit, answer) in waits {
        let (took, result) = answer.recv_timeout(BOUND).unwrap();
        assert_eq!(result.unwrap_err().status, Status::Timeout);
        assert!(took >= limit && took < limit + ms(900), "{took:?} for a limit of {limit:?}");
    }
}

/// A dial whose connection leads to a host that is gone must not hold up callers that joined it later.
#[test]
fn a_dial_is_made_anew_when_its_first_caller_has_waited_in_vain() {
    let a = engine(&[]);
    let (listener, at) = silent();
    let ms = Duration::from_millis;
    let first = dial(&a, "name:1", &[at], ms(500));
    let _dialed = listener.accept().unwrap();
    let later = dial(&a, "name:1", &[at], BOUND);
    first.recv_timeout(BOUND).unwrap().1.unwrap_err();
    listener.set_nonblocking(true).unwrap();
    until("it dials anew", || listener.accept().is_ok());
    assert!(later.try_recv().is_err(), "the later caller waits");
}
