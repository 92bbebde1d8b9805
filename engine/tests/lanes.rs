//! TCP lanes are opened on demand: a peer that is reached by another transport costs one connection.

mod common;

#[path = "common/proxy/mod.rs"]
mod proxy;

use common::{config, eventually, peer_of, request, PATIENCE};
use ferry::types::{Op, PeerId, Transport};
use ferry::{Deadline, Engine, Memory, RegionOptions, Status, TransferOptions};
use proxy::{Passing, Proxy, Verdict};
use std::time::Duration;

const MIB: usize = 1 << 20;

/// Opens an engine over these transports, whatever the tests run over.
fn engine(transports: &str, settings: &[(&str, &str)]) -> Engine {
    let mut config = config(settings);
    config.set("transports", transports).unwrap();
    Engine::open(config).unwrap()
}

fn alloc(engine: &Engine, bytes: usize) -> Memory {
    engine.alloc(bytes, &RegionOptions::default()).unwrap()
}

/// Connects `a` to `b` by a proxy; returns both, the handle of `b` at `a`, and the proxy.
fn by_proxy(a: Engine, b: Engine) -> (Engine, Engine, PeerId, Proxy) {
    let proxy = Proxy::new(b.address());
    let peer = a.connect(&proxy.address, Some(PATIENCE)).unwrap();
    (a, b, peer, proxy)
}

fn impatient() -> Engine {
    let times = [
        ("handshake_timeout_ms", "200"),
        ("progress_timeout_ms", "200"),
        ("reconnect_timeout_ms", "300"),
        ("lease_ms", "500"),
        ("drain_ms", "50"),
    ];
    engine("local,tcp", &times)
}

struct Pair {
    a: Engine,
    b: Engine,
    b_at_a: PeerId,
    a_at_b: PeerId,
}

impl Pair {
    fn new(transports: &str) -> Pair {
        let (a, b) = (engine(transports, &[]), engine(transports, &[]));
        let b_at_a = a.connect(b.address(), Some(PATIENCE)).unwrap();
        let a_at_b = peer_of(&b, &a);
        Pair { a, b, b_at_a, a_at_b }
    }

    /// Returns the lanes as each end counts them.
    fn lanes(&self) -> (u32, u32) {
        let count = |at: &Engine, peer| at.peer_info(peer).unwrap().lanes as u32;
        (count(&self.a, self.b_at_a), count(&self.b, self.a_at_b))
    }

    /// Returns the number of open TCP connections that `b` has accepted, of all kinds.
    fn connections(&self) -> usize {
        let port: u16 = self.b.address().rsplit(':').next().unwrap().parse().unwrap();
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let is_accepted = |line: &&str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields[1].ends_with(&format!(":{port:04X}")) && fields[3] == "01"
        };
        table.lines().skip(1).filter(is_accepted).count()
    }

    /// Returns the transport that carried a WRITE from `a`.
    fn write(&self, bytes: usize, checksum: bool) -> Transport {
        let (local, remote) = (alloc(&self.a, bytes), alloc(&self.b, bytes));
        let options = TransferOptions { checksum, ..TransferOptions::default() };
        let requests = [request(&local, 0, &remote, 0, bytes)];
        let transfer = self.a.submit(self.b_at_a, Op::Write, &requests, &options).unwrap();
        let result = transfer.wait(Some(PATIENCE)).unwrap();
        assert_eq!(result.status, Status::Ok);
        result.transport
    }
}

#[test]
fn over_tcp_the_express_lane_stands_when_connect_answers_and_the_others_when_something_large_is_sent() {
    let pair = Pair::new("tcp");
    assert_eq!(pair.lanes().0, 1);
    pair.write(4096, false);
    assert_eq!((pair.lanes(), pair.connections()), ((1, 1), 2), "something small needs no other lane");
    pair.write(MIB, false);
    eventually("all lanes stand", || pair.lanes() == (3, 3));
    assert_eq!(pair.connections(), 4);
}

#[test]
fn the_end_that_was_dialed_asks_for_lanes() {
    let pair = Pair::new("tcp");
    let (local, remote) = (alloc(&pair.b, MIB), alloc(&pair.a, MIB));
    let requests = [request(&local, 0, &remote, 0, MIB)];
    pair.b.write(pair.a_at_b, &requests, &TransferOptions::default()).unwrap();
    eventually("all lanes stand", || pair.lanes() == (3, 3));
}

#[test]
fn a_peer_on_the_same_host_costs_one_connection_until_a_notification_is_sent() {
    for transports in ["auto", "local,tcp"] {
        let pair = Pair::new(transports);
        assert_eq!(pair.write(MIB, false), Transport::Local);
        assert_eq!((pair.lanes(), pair.connections()), ((0, 0), 1), "{transports}");
        pair.a.notify(pair.b_at_a, b"word", Deadline::After(PATIENCE)).unwrap();
        eventually("the express lane stands", || pair.lanes() == (1, 1));
        assert_eq!(pair.connections(), 2);
        assert_eq!(pair.write(MIB, true), Transport::Tcp, "checksums go by TCP");
        eventually("all lanes stand", || pair.lanes() == (3, 3));
    }
}

#[test]
fn an_engine_without_tcp_opens_no_lane_for_data() {
    let pair = Pair::new("local");
    assert_eq!(pair.write(MIB, false), Transport::Local);
    assert_eq!(pair.connections(), 1);
    pair.a.notify(pair.b_at_a, b"word", Deadline::After(PATIENCE)).unwrap();
    eventually("the express lane stands", || pair.lanes() == (1, 1));
}

#[test]
fn lanes_that_were_open_are_opened_again_with_the_session() {
    let (a, b, peer, proxy) = by_proxy(engine("tcp", &[]), engine("tcp", &[]));
    let count = || a.peer_info(peer).unwrap().lanes;
    assert_eq!(count(), 1);
    proxy.cut(true);
    eventually("the session is lost", || a.stats().unwrap().counts.sessions_lost == 1);
    eventually("the express lane stands again", || count() == 1);
    let (local, remote) = (alloc(&a, MIB), alloc(&b, MIB));
    a.probe(peer, Some(PATIENCE)).unwrap();
    a.write(peer, &[request(&local, 0, &remote, 0, MIB)], &TransferOptions::default()).unwrap();
    eventually("all lanes stand", || count() == 3);
    proxy.cut(true);
    eventually("the session is lost again", || a.stats().unwrap().counts.sessions_lost == 2);
    eventually("all lanes stand again", || count() == 3);
}

/// The control connection stands and answers; the proxy lets no other connection through.
#[test]
fn what_waits_for_a_lane_that_cannot_be_opened_ends_at_its_deadline_with_the_cause() {
    let (a, b, peer, proxy) = by_proxy(engine("tcp", &[]), engine("tcp", &[]));
    let (local, remote) = (alloc(&a, MIB), alloc(&b, MIB));
    a.probe(peer, Some(PATIENCE)).unwrap();
    proxy.refuse(true);
    proxy.cut(false);
    let deadline = Deadline::After(Duration::from_millis(300));
    let options = TransferOptions { deadline, ..TransferOptions::default() };
    let requests = [request(&local, 0, &remote, 0, MIB)];
    let error = a.write(peer, &requests, &options).unwrap_err();
    assert_eq!(error.status, Status::Timeout, "{error:?}");
    let cause = ["; last lost: TCP lane ", ", to 127.0.0.1:"];
    assert!(cause.iter().all(|part| error.message.contains(part)), "{}", error.message);
    // The proxy accepts and closes; the moment at which the engine notices is random.
    let ends = ["the peer closed the connection", "Connection reset by peer"];
    assert!(ends.iter().any(|end| error.message.ends_with(end)), "{}", error.message);
    assert_eq!(a.stats().unwrap().counts.sessions_lost, 0, "the peer is there");
    // Later transfers succeed once lanes can be opened.
    proxy.refuse(false);
    a.write(peer, &requests, &TransferOptions::default()).unwrap();
}

/// Bulk lanes only add speed: if they can't be opened, the express lane does their work.
#[test]
fn the_express_lane_carries_everything_as_long_as_it_is_alone() {
    let (a, b, peer, proxy) = by_proxy(engine("tcp", &[]), engine("tcp", &[]));
    let (local, remote) = (alloc(&a, 16 * MIB), alloc(&b, 16 * MIB));
    a.probe(peer, Some(PATIENCE)).unwrap();
    proxy.refuse(true);
    let requests = [request(&local, 0, &remote, 0, 16 * MIB)];
    a.write(peer, &requests, &TransferOptions::default()).unwrap();
    assert_eq!(a.peer_info(peer).unwrap().lanes, 1);
    proxy.refuse(false);
    eventually("all lanes stand", || a.peer_info(peer).unwrap().lanes == 3);
    a.write(peer, &requests, &TransferOptions::default()).unwrap();
}

/// No connection ends or is refused, but the peer does not answer any more. No lane stands that would show it.
#[test]
fn a_peer_that_falls_silent_before_a_lane_is_open_is_lost() {
    let (a, _b, peer, proxy) = by_proxy(impatient(), engine("local,tcp", &[]));
    assert_eq!(a.peer_info(peer).unwrap().lanes, 0);
    proxy.judge(|_: &mut Passing| Verdict::Swallow);
    assert_eq!(a.notify(peer, b"word", Deadline::After(PATIENCE)).unwrap_err().status, Status::PeerLost);
}

/// A dialer falls silent before it opens a lane; the dialed end can only ask for lanes.
#[test]
fn a_dialer_that_falls_silent_before_it_opens_a_lane_is_lost() {
    let (a, b, _, proxy) = by_proxy(engine("local,tcp", &[]), impatient());
    let peer = peer_of(&b, &a);
    assert_eq!(b.peer_info(peer).unwrap().lanes, 0);
    proxy.judge(|_: &mut Passing| Verdict::Swallow);
    assert_eq!(b.notify(peer, b"word", Deadline::After(PATIENCE)).unwrap_err().status, Status::PeerLost);
}

/// The dialer answers when it is asked for lanes, cannot open them, and falls silent later.
#[test]
fn a_dialer_that_falls_silent_while_it_cannot_open_a_lane_is_lost() {
    // The engine does not end the connection by itself.
    let patient = engine("local,tcp", &[("progress_timeout_ms", "600000")]);
    let (a, b, _, proxy) = by_proxy(patient, impatient());
    let peer = peer_of(&b, &a);
    proxy.refuse(true);
    std::thread::scope(|scope| {
        let word = scope.spawn(|| b.notify(peer, b"word", Deadline::After(PATIENCE)));
        eventually("lanes are refused", || proxy.refused() > 3);
        b.probe(peer, Some(PATIENCE)).unwrap();
        proxy.judge(|_: &mut Passing| Verdict::Swallow);
        assert_eq!(word.join().unwrap().unwrap_err().status, Status::PeerLost);
    });
}

/// Several threads at both ends queue transfers in the first moment, when no lane stands.
#[test]
fn the_first_of_both_ends_have_their_lanes_opened() {
    let hub = engine("local,tcp", &[]);
    let at_hub = alloc(&hub, MIB);
    for _ in 0..100 {
        let other = engine("local,tcp", &[]);
        let there = alloc(&other, MIB);
        let to_hub = other.connect(hub.address(), Some(PATIENCE)).unwrap();
        let back = peer_of(&hub, &other);
        let write = |at: &Engine, peer, from: &Memory, to: &Memory| {
            let deadline = Deadline::After(PATIENCE);
            let options = TransferOptions { checksum: true, deadline, ..TransferOptions::default() };
            common::wait_for_region(at, peer, to.region());
            at.write(peer, &[request(from, 0, to, 0, MIB)], &options).unwrap();
        };
        let word = |at: &Engine, peer| at.notify(peer, b"word", Deadline::After(PATIENCE)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| word(&other, to_hub));
            scope.spawn(|| write(&other, to_hub, &there, &at_hub));
            scope.spawn(|| word(&hub, back));
            scope.spawn(|| write(&hub, back, &at_hub, &there));
        });
    }
}
