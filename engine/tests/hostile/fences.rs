//! The promise of a fence when a greeting, a welcome or a Start is late: no fenced frame ever lands. Contract 3.

use crate::hostile::{Hostile, HostileLane, HostileListener, Who, PATIENCE};
use crate::proxy::{Passing, Proxy, Verdict, Way};
use crate::support::{alloc, connect, engine, eventually};
use ferry::internals::session::greeting::{Greeting, GREETING_BYTES};
use ferry::internals::session::message::Message;
use ferry::internals::transport::tcp::wire::{Descriptor, Header, Kind};
use ferry::types::{LaneId, Op, PeerId, RegionId, Request};
use ferry::{Deadline, Engine, Fence, Memory, PeerState, State, Status, TransferOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

fn contents(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.length()];
    memory.read(0, &mut bytes);
    bytes
}

/// WRITEs eight bytes to the front of the memory.
fn strike(lane: &mut HostileLane, memory: &Memory, sequence: u64) -> bool {
    let target = Descriptor { address: memory.address(), region: memory.region(), length: 8 };
    let header = Header { kind: Kind::Write, sequence, ..lane.header() };
    lane.send(header, &[target], b"", b"too late")
}

/// The target dials; the welcome of one of its lanes is held until the initiator has been told that nothing of that
/// lane can land any more. If it landed, a second transfer to the same place could be overwritten by the first one's
/// bytes after the second is done.
#[test]
fn a_lane_that_is_fenced_before_its_welcome_arrives_is_never_attached() {
    let initiator = engine(&[("drain_ms", "20")]);
    let target = engine(&[("reconnect_backoff_ms", "1000")]);
    let (local, remote) = (alloc(&initiator, 4096), alloc(&target, 4096));
    let proxy = Proxy::with_judge(initiator.address(), |passing: &mut Passing| match passing {
        Passing { greeting: Some(lane), way: Way::Back, .. }
            if lane.slot == 0 && lane.lane <= LaneId::from_raw(3) =>
        {
            Verdict::Hold
        }
        _ => Verdict::Pass,
    });
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| target.connect(&proxy.address, Some(PATIENCE)));
        let held = proxy.wait_for("the welcome is held", |seen| seen.holds(Way::Back));
        let peer = initiator.peers().unwrap()[0];
        while !initiator.peer_regions(peer).unwrap().iter().any(|known| known.region == remote.region()) {
            std::thread::yield_now();
        }
        local.write(0, b"first...");
        let request = |length| Request {
            local: local.address(),
            remote: remote.address(),
            length,
            remote_region: remote.region(),
        };
        let deadline = Deadline::After(Duration::from_millis(50));
        let options = TransferOptions { deadline, ..TransferOptions::default() };
        let first = initiator.submit(peer, Op::Write, &[request(8)], &options).unwrap();
        let result = first.wait(Some(PATIENCE)).unwrap();
        assert_eq!((result.state, result.fence), (State::TimedOut, Fence::Confirmed));
        proxy.judge(|_| Verdict::Pass);
        local.write(0, b"second..");
        let second = initiator.submit(peer, Op::Write, &[request(8)], &TransferOptions::default()).unwrap();
        // The lane that replaces the fenced one may have been dialed before the judge changed.
        proxy.release_all();
        connecting.join().unwrap().unwrap();
        assert_eq!(second.wait(Some(PATIENCE)).unwrap().state, State::Done);
        // Held bytes have been delivered, or refused, once their connection has ended.
        proxy.wait_for("the fenced lane is closed", |seen| {
            seen.connection == held.connection && !seen.is_open
        });
        assert_eq!(&contents(&remote)[..8], b"second..", "of a transfer that ended with CONFIRMED");
    });
}

/// At an acceptor: the fence arrives first, the greeting after it.
#[test]
fn a_lane_that_is_fenced_before_its_greeting_arrives_is_refused() {
    let target = engine(&[]);
    let memory = alloc(&target, 4096);
    let mut peer = Hostile::dial(target.address(), &Who::new());
    peer.up();
    peer.send(&Message::Fence { lane: LaneId::from_raw(7) });
    peer.receive_until(|message| (*message == Message::FenceAck { lane: LaneId::from_raw(7) }).then_some(()));
    let refused = peer.open_lane(LaneId::from_raw(7), 1).map(|mut lane| strike(&mut lane, &memory, 1));
    assert_eq!(refused, None, "lane 7 was fenced");
    let mut lane = peer.open_lane(LaneId::from_raw(8), 1).expect("another number is welcome");
    assert!(strike(&mut lane, &memory, 1) && lane.receive().is_some());
}

/// With more fences than an engine remembers by number, all numbers up to them are refused.
#[test]
fn fences_beyond_those_that_are_remembered_refuse_more_and_not_less() {
    let target = engine(&[]);
    let mut peer = Hostile::dial(target.address(), &Who::new());
    peer.up();
    let fences: Vec<Message> =
        (10..2000).map(|lane| Message::Fence { lane: LaneId::from_raw(lane) }).collect();
    peer.send_all(&fences);
    peer.receive_until(|message| {
        (*message == Message::FenceAck { lane: LaneId::from_raw(1999) }).then_some(())
    });
    for lane in [10, 11, 1000, 1743, 1744, 1999].map(LaneId::from_raw) {
        assert!(peer.open_lane(lane, 1).is_none(), "lane {lane} was fenced");
    }
    assert!(peer.open_lane(LaneId::from_raw(2000), 1).is_some());
}

/// A fence could not tell two lanes with one number apart, and both would seal their frames with one key.
#[test]
fn a_number_is_taken_by_one_lane_whatever_its_slot() {
    let target = engine(&[]);
    let mut peer = Hostile::dial(target.address(), &Who::new());
    peer.up();
    let lane = peer.open_lane(LaneId::from_raw(8), 1);
    assert!(lane.is_some());
    assert!(peer.open_lane(LaneId::from_raw(8), 0).is_none(), "in another slot");
    drop(lane);
    peer.send(&Message::Fence { lane: LaneId::from_raw(8) });
    peer.receive_until(|message| (*message == Message::FenceAck { lane: LaneId::from_raw(8) }).then_some(()));
    assert!(peer.open_lane(LaneId::from_raw(8), 0).is_none(), "after its end");
    assert!(peer.open_lane(LaneId::from_raw(9), 0).is_some());
}

/// Accepts a lane that the engine has dialed and reads its greeting; returns the unanswered connection.
fn greeted(listener: &TcpListener) -> (TcpStream, Greeting) {
    let mut socket = listener.accept().unwrap().0;
    let mut bytes = [0; GREETING_BYTES];
    socket.read_exact(&mut bytes).unwrap();
    (socket, Greeting::decode(&bytes).0)
}

/// A greeting that began before the session lost its connection: the welcome arrives when the loss is noticed, and the
/// session is kept for the next connection.
#[test]
fn a_greeting_ends_with_its_sessions_connection() {
    let target = engine(&[("reconnect_timeout_ms", "20000"), ("connect_timeout_ms", "20000")]);
    let memory = alloc(&target, 4096);
    let listener = HostileListener::open(Who::new());
    std::thread::scope(|scope| {
        scope.spawn(|| drop(target.connect(&listener.address, Some(std::time::Duration::from_secs(2)))));
        let mut session = listener.accept();
        session.start();
        session.ready();
        let (mut socket, greeting) = greeted(session.listener().unwrap());
        let (peer, key) = (target.peers().unwrap()[0], session.lane_key);
        drop(session);
        while target.peer_info(peer).unwrap().state != PeerState::Down {
            std::thread::yield_now();
        }
        let _ = socket.write_all(&greeting.welcome(&key));
        let mut lane = HostileLane::over(socket, &greeting, &key);
        strike(&mut lane, &memory, 1);
        assert!(lane.receive().is_none(), "the lane was attached");
        assert_eq!(contents(&memory), vec![0; 4096]);
    });
}

/// A handle as the hostile peer would issue it, by its tag.
const REGION: RegionId = RegionId::from_raw(1 << 20 | 7 << 48);

fn lost(engine: &Engine, peer: PeerId) -> bool {
    engine.peer_info(peer).unwrap().state == PeerState::Lost
}

/// Another connection of the same incarnation is past the handshake, and sends Start after the fence has returned.
#[test]
fn a_fence_is_not_passed_by_a_connection_past_its_handshake() {
    let target = engine(&[]);
    let memory = alloc(&target, 4096);
    let who = Who::new();
    let mut first = Hostile::dial(target.address(), &who);
    first.up();
    let peer = target.peers().unwrap()[0];
    let mut second = Hostile::dial(target.address(), &who);
    target.fence(peer, Some(PATIENCE)).unwrap();
    assert!(lost(&target, peer));
    second.send(&Message::Start { association: 0, known: 0, fresh: 5 });
    second.send(&Message::Ready { notify_limit: 1024 });
    second.receive_end();
    assert!(second.open_lane(LaneId::from_raw(1), 0).is_none(), "there is no session to join");
    assert!(target.peers().unwrap().into_iter().all(|peer| lost(&target, peer)));
    assert_eq!(contents(&memory), vec![0; 4096]);
}

/// A session is lost, and the same incarnation connects anew. A fence by the handle of the lost session covers both.
#[test]
fn a_fence_by_the_handle_of_a_lost_session_covers_the_next_one() {
    let target = engine(&[("reconnect_timeout_ms", "0")]);
    let who = Who::new();
    let mut first = Hostile::dial(target.address(), &who);
    let lanes = first.up();
    let old = target.peers().unwrap()[0];
    drop((first, lanes));
    eventually("the peer is lost", || lost(&target, old));
    let mut second = Hostile::dial(target.address(), &who);
    let _lanes = second.up();
    target.fence(old, Some(PATIENCE)).unwrap();
    assert!(target.peers().unwrap().into_iter().all(|peer| lost(&target, peer)));
    assert_eq!(second.receive_end(), Some(Status::Refused as i32));
}

/// A lane is refused while nothing else moves: the engine asks on the control connection whether the peer is there.
#[test]
fn a_refused_lane_asks_whether_the_peer_is_still_there() {
    let target = engine(&[("reconnect_timeout_ms", "0")]);
    let listener = HostileListener::open(Who::new());
    let address = listener.address.clone();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| target.connect(&address, Some(PATIENCE)));
        let mut session = listener.accept();
        session.start();
        session.ready();
        session.sync();
        drop(session.listener().unwrap().accept().unwrap());
        while !matches!(session.receive_any().expect("the session stands"), Message::Ping { .. }) {}
        drop((session, listener));
        assert!(connecting.join().unwrap().is_err());
    });
}

/// A peer's connection ends, and the application gives the peer up while the engine's redial is past the handshake and
/// the peer has not sent Start. No session comes of the redial.
fn given_up_in_a_redial(give_up: impl FnOnce(&Engine, PeerId)) -> (Engine, HostileListener, PeerId) {
    let target = engine(&[("reconnect_timeout_ms", "20000"), ("connect_timeout_ms", "20000")]);
    let listener = HostileListener::open(Who::new());
    let (session, lanes, peer) = connect(&target, &listener);
    drop(session);
    let mut redialed = listener.accept();
    give_up(&target, peer);
    redialed.send(&Message::Start { association: 0, known: 0, fresh: 5 });
    redialed.receive_end();
    assert!(target.peers().unwrap().into_iter().all(|peer| lost(&target, peer)));
    drop(lanes);
    (target, listener, peer)
}

/// An engine redials a peer while its application fences that peer: the redial does not lift the fence.
#[test]
fn a_redial_does_not_lift_a_fence() {
    let (target, listener, peer) =
        given_up_in_a_redial(|target, peer| target.fence(peer, Some(PATIENCE)).unwrap());
    // Only a connect lifts the fence.
    let (_session, _lanes, again) = connect(&target, &listener);
    assert_eq!(target.peer_info(again).unwrap().state, PeerState::Up);
    assert_eq!(target.probe(peer, Some(PATIENCE)).unwrap_err().status, Status::Refused);
}

/// Both sides fence each other while one redials, and the redial is refused because of the other's fence: only a
/// refused `connect` lifts this side's own fence.
#[test]
fn a_refused_redial_does_not_lift_a_fence() {
    let times = [("reconnect_timeout_ms", "20000"), ("lease_ms", "400")];
    let (dialer, acceptor) = (engine(&times), engine(&times));
    let proxy = Proxy::new(acceptor.address());
    let peer = dialer.connect(&proxy.address, Some(PATIENCE)).unwrap();
    let back = acceptor.peers().unwrap()[0];
    let before = proxy.connections().len();
    proxy.judge(
        move |passing: &mut Passing| if passing.connection >= before { Verdict::Hold } else { Verdict::Pass },
    );
    proxy.cut(true);
    let redial =
        proxy.wait_for("the redial is held", |seen| seen.connection >= before && seen.holds(Way::Forth));
    acceptor.fence(back, Some(PATIENCE)).unwrap();
    dialer.fence(peer, Some(PATIENCE)).unwrap();
    proxy.judge(|_| Verdict::Pass);
    proxy.release_all();
    proxy.wait_for("the redial is refused", |seen| seen.connection == redial.connection && !seen.is_open);
    let refused = acceptor.connect(dialer.address(), Some(PATIENCE)).unwrap_err();
    assert_eq!(refused.status, Status::Refused, "{refused}");
    dialer.connect(acceptor.address(), Some(PATIENCE)).unwrap();
}

/// A peer is closed while its redial is past the handshake: the application hears of no new peer.
#[test]
fn a_redial_of_a_peer_that_was_given_up_makes_no_session() {
    given_up_in_a_redial(|target, peer| target.close_peer(peer, Some(PATIENCE)).unwrap());
}

/// A connect from before the fence whose connection is past the handshake does not lift the fence.
#[test]
fn a_connect_from_before_a_fence_does_not_lift_it() {
    let target = engine(&[("connect_timeout_ms", "20000")]);
    let who = Who::new();
    let listener = HostileListener::open(Who(who.0.clone()));
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| target.connect(&listener.address, Some(PATIENCE)));
        let mut dialed = listener.accept();
        // The same engine connects by itself, and is fenced.
        let mut session = Hostile::dial(target.address(), &who);
        let _lanes = session.up();
        let peer = target.peers().unwrap()[0];
        target.fence(peer, Some(PATIENCE)).unwrap();
        dialed.send(&Message::Start { association: 0, known: 0, fresh: 5 });
        dialed.send(&Message::Ready { notify_limit: 1024 });
        dialed.receive_end();
        assert!(target.peers().unwrap().into_iter().all(|peer| lost(&target, peer)));
        // Whatever the call returned, no session exists.
        drop(connecting.join().unwrap());
    });
}

/// Both Starts name the session's association, and then one side gives it up: neither side resumes the session alone,
/// because the two would never agree on notification numbers.
#[test]
fn a_session_that_one_side_has_given_up_is_not_resumed_by_the_other() {
    let target = engine(&[("reconnect_timeout_ms", "20000")]);
    let who = Who::new();
    let mut first = Hostile::dial(target.address(), &who);
    first.up();
    let peer = target.peers().unwrap()[0];
    let mut second = Hostile::dial(target.address(), &who);
    // Resumes the session; but before the engine knows, the peer ends it.
    (second.association, second.known) = (first.association, first.known);
    first.send(&Message::Bye { status: Status::Closed as i32 });
    first.receive_end();
    while !lost(&target, peer) {
        std::thread::yield_now();
    }
    second.send(&Message::Start { association: second.association, known: second.known, fresh: 5 });
    let mut said = Vec::new();
    while let Some(message) = second.receive() {
        said.push(message);
    }
    assert!(matches!(said[..], [Message::Start { .. }]), "no session comes of it: {said:?}");
    let mut third = Hostile::dial(target.address(), &who);
    third.up();
    assert_eq!(target.peers().unwrap().len(), 2);
}

/// The peer starts a new session with an engine that remembers it. Its Start may predate the lanes of the session that
/// it ends; only its Ready says that those lanes are closed.
#[test]
fn a_start_alone_confirms_nothing_of_the_session_that_it_ends() {
    let initiator = engine(&[]);
    let local = alloc(&initiator, 4096);
    let who = Who::new();
    let mut first = Hostile::dial(initiator.address(), &who);
    let mut lanes = first.up();
    let peer = initiator.peers().unwrap()[0];
    first.send(&crate::support::regions(&[(REGION, 4096, 4096)]));
    first.send(&Message::Ping { nonce: 1 });
    first.receive_until(|message| matches!(message, Message::Pong { .. }).then_some(()));
    let request = Request { local: local.address(), remote: 4096, length: 8, remote_region: REGION };
    let transfer = initiator.submit(peer, Op::Write, &[request], &TransferOptions::default()).unwrap();
    lanes[0].receive().expect("the WRITE is posted");
    let mut second = Hostile::dial(initiator.address(), &who);
    second.start();
    second.receive_until(|message| matches!(message, Message::Ready { .. }).then_some(()));
    assert!(lost(&initiator, peer));
    assert!(transfer.result().is_none(), "{:?}", transfer.result());
    second.send(&Message::Ready { notify_limit: 1024 });
    let result = transfer.wait(Some(PATIENCE)).unwrap();
    assert_eq!((result.state, result.status), (State::Failed, Status::PeerLost));
    assert_eq!(result.fence, Fence::Confirmed);
}
