//! Connects that come to nothing: the status and the sentence of each, whether a thread waits or an event tells.
//! `peers.rs` has the connects that lead to a peer, `faults/strangers.rs` listeners that are no engines.

mod common;

use common::{engine, eventually, PATIENCE};
use ferry::notify::{Event, EventBody, WHAT_PEERS};
use ferry::{Engine, Error, Status};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(150);

/// Connects without waiting, and returns what the event tells.
fn by_event(engine: &Engine, address: &str, timeout: Option<Duration>) -> (Status, i32, String) {
    let queue = engine.queue(WHAT_PEERS, 8).unwrap();
    engine.connect_async(address, timeout, &queue, 5).unwrap();
    let mut events: Vec<Event> = Vec::new();
    eventually("the event", || queue.drain(&mut events, 8) > 0);
    match &events[0].body {
        EventBody::PeerConnect { user_data: 5, status, os_error, why } => {
            (*status, *os_error, why.to_string())
        }
        other => panic!("{other:?}"),
    }
}

fn told(error: &Error) -> (Status, i32, String) {
    (error.status, error.os_error, error.message.clone())
}

/// Returns a listener that takes connections and never says a word.
fn silent() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

/// Returns a listener whose backlog is full: the kernel drops what asks for a connection, as a firewall does.
fn full() -> (socket2::Socket, TcpStream, SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let at = socket.local_addr().unwrap().as_socket().unwrap();
    let first = TcpStream::connect(at).unwrap();
    (socket, first, at)
}

#[test]
fn a_connect_whose_time_passes_ends_with_timeout() {
    let patient = engine(&[]);
    let hasty = engine(&[("connect_timeout_ms", "150")]);
    let ((_silent, silent), (_full, _first, full)) = (silent(), full());
    // The caller's timeout, or the engine's setting.
    for (from, timeout, bound) in [
        (&patient, Some(SHORT), "the call's timeout"),
        (&hasty, None, "connect_timeout_ms"),
        (&hasty, PATIENCE.into(), "connect_timeout_ms"),
    ] {
        for (at, step) in [
            (silent, format!("something listens at {silent} but did not answer ferry's handshake")),
            (full, format!("no answer from {full}")),
        ] {
            let expected = (Status::Timeout, 0, format!("{step} within 150 ms ({bound})"));
            let begun = Instant::now();
            assert_eq!(told(&from.connect(&at.to_string(), timeout).unwrap_err()), expected);
            assert!(begun.elapsed() >= SHORT && begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
            assert_eq!(by_event(from, &at.to_string(), timeout), expected);
        }
    }
}

/// A connect that joins an attempt that runs keeps its own deadline, and so does the connect that began the attempt.
#[test]
fn a_connect_that_joins_another_keeps_its_own_deadline() {
    let engine = engine(&[]);
    let (_listener, at) = silent();
    let (at, queue) = (at.to_string(), engine.queue(WHAT_PEERS, 8).unwrap());
    engine.connect_async(&at, Some(6 * SHORT), &queue, 7).unwrap();
    let begun = Instant::now();
    let joined = told(&engine.connect(&at, Some(SHORT)).unwrap_err());
    assert_eq!(joined, (Status::Timeout, 0, format!("{at}: no answer within 150 ms (the call's timeout)")));
    assert!(begun.elapsed() >= SHORT && begun.elapsed() < 5 * SHORT, "{:?}", begun.elapsed());
    let mut events = Vec::new();
    assert_eq!(queue.drain(&mut events, 8), 0, "the first connect has time left");
    eventually("the first connect ends", || queue.drain(&mut events, 8) > 0);
    assert!(matches!(&events[0].body, EventBody::PeerConnect { user_data: 7, status: Status::Timeout, .. }));
}

/// A refused connection is an answer: the connect does not wait for its timeout.
#[test]
fn a_refused_connection_is_unreachable() {
    let engine = engine(&[]);
    let free = silent().1.to_string();
    let begun = Instant::now();
    let error = engine.connect(&free, Some(PATIENCE)).unwrap_err();
    assert!(begun.elapsed() < PATIENCE / 2);
    assert_eq!((error.status, error.os_error), (Status::Unreachable, libc::ECONNREFUSED));
    assert_eq!(error.message, format!("{free}: Connection refused: nothing listens there"));
    assert_eq!(by_event(&engine, &free, Some(PATIENCE)), told(&error));
}

/// A name that nobody knows may be known later, as a pod's is; a text that is no address is the caller's mistake.
#[test]
fn an_unknown_name_is_unreachable_and_a_malformed_address_invalid() {
    let engine = engine(&[]);
    let queue = engine.queue(WHAT_PEERS, 8).unwrap();
    let unknown = "no.such.host.invalid:7000";
    let error = engine.connect(unknown, Some(PATIENCE)).unwrap_err();
    assert_eq!(error.status, Status::Unreachable, "{error}");
    let reason = error.message.strip_prefix("no.such.host.invalid:7000: the name was not found: ");
    assert!(
        reason.is_some_and(|reason| !reason.is_empty() && !reason.contains("failed to lookup")),
        "{error}"
    );
    assert_eq!(by_event(&engine, unknown, Some(PATIENCE)), told(&error));
    // `config::address` has a table of these.
    for malformed in ["", "nowhere", "127.0.0.1:0", "127.0.0.1:99999", "two words:1", "::1:1", "tcp://h:1"] {
        let error = engine.connect(malformed, Some(PATIENCE)).unwrap_err();
        assert!(error.message.starts_with(&format!("address: {malformed:?} ")), "{error}");
        assert!(error.status == Status::Invalid && error.message.contains(": write "), "{error}");
        let told_at_once = engine.connect_async(malformed, Some(PATIENCE), &queue, 5).unwrap_err();
        assert_eq!(told(&told_at_once), told(&error));
    }
    assert_eq!(queue.drain(&mut Vec::new(), 8), 0, "a call that fails reports nothing to the queue");
}

/// A port where another program listens: it speaks another protocol, or closes what it does not know.
#[test]
fn a_listener_that_is_no_engine_is_named_so() {
    let engine = engine(&[]);
    let not_ferry = "something listens there but does not speak ferry";
    let closed = "the connection was closed during the handshake";
    for (answer, status, says) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], Status::NotFerry, not_ferry.to_owned()),
        (b"", Status::Unreachable, format!("{closed}: {not_ferry}, or is being closed")),
    ] {
        let (listener, at) = silent();
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                // All that the engine sends first is read, so that the close is no reset.
                stream.set_read_timeout(Some(SHORT)).unwrap();
                while stream.read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0) {}
                stream.write_all(answer).unwrap();
            });
            engine.connect(&at.to_string(), Some(PATIENCE)).unwrap_err()
        });
        assert_eq!(told(&error), (status, 0, format!("{at}: {says}")));
    }
}

/// The sentence has the address as the caller wrote it, and the one that it led to.
#[test]
fn a_name_is_told_with_its_address() {
    let engine = engine(&[]);
    let at = silent().1;
    let by_name = format!("localhost:{}", at.port());
    let error = engine.connect(&by_name, Some(PATIENCE)).unwrap_err();
    assert!(error.message.starts_with(&format!("{by_name}: ")), "{error}");
    assert!(error.message.ends_with(&format!(":{}: Connection refused: nothing listens there", at.port())));
}

/// In C a handle says whose it is; in Rust a queue comes as an object.
#[test]
fn a_queue_of_another_engine_is_refused() {
    let (one, other) = (engine(&[]), engine(&[]));
    let queue = other.queue(WHAT_PEERS, 1).unwrap();
    let error = one.connect_async("127.0.0.1:1", Some(PATIENCE), &queue, 5).unwrap_err();
    assert_eq!(error.status, Status::Stale);
    assert!(error.message.starts_with("the queue belongs to another engine"), "{error}");
}
