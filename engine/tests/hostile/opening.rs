//! Lanes are opened on demand: messages meanwhile that no correct engine sends.

use crate::hostile::{open_lanes, Hostile, HostileListener, Who, PATIENCE};
use crate::support::{alloc, engine, eventually, regions, REMOTE, REMOTE_REGION};
use ferry::internals::session::greeting::{Greeting, GREETING_BYTES};
use ferry::internals::session::message::Message;
use ferry::internals::transport::tcp::wire::Header;
use ferry::types::{LaneId, Op, Request, Transport};
use ferry::{Deadline, PeerState, Status, TransferOptions};
use std::io::{Read, Write};
use std::time::Duration;

/// Only the end that does not dial lanes asks for them.
#[test]
fn a_dialer_that_asks_for_lanes_is_sent_off() {
    let engine = engine(&[]);
    let mut peer = Hostile::dial(engine.address(), &Who::new());
    let _lanes = peer.up();
    peer.send(&open_lanes(3));
    assert_eq!(peer.receive_end(), Some(Status::Corrupt as i32));
}

/// A stranger who saw a session's number on the network lacks its key.
#[test]
fn a_greeting_without_the_key_opens_no_lane() {
    let engine = engine(&[]);
    let mut peer = Hostile::dial(engine.address(), &Who::new());
    let _lanes = peer.up();
    let handle = engine.peers().unwrap()[0];
    let refused = || engine.stats().unwrap().counts.handshakes_refused;
    let before = refused();
    let key = std::mem::replace(&mut peer.lane_key, [7; 32]);
    assert!(peer.open_lane(LaneId::from_raw(10), 1).is_none(), "a forged greeting is answered");
    assert_eq!(refused(), before + 1);
    peer.lane_key = key;
    assert!(peer.open_lane(LaneId::from_raw(10), 1).is_some(), "its number is not used up");
    assert_eq!(engine.peer_info(handle).unwrap().state, PeerState::Up);
}

#[test]
fn a_welcome_without_the_key_opens_no_lane() {
    let (engine, listener) = (engine(&[]), HostileListener::open(Who::new()));
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| engine.connect(&listener.address, Some(PATIENCE)).unwrap());
        let mut peer = listener.accept();
        peer.start();
        peer.ready();
        let mut socket = peer.listener().unwrap().accept().unwrap().0;
        let mut bytes = [0; GREETING_BYTES];
        socket.read_exact(&mut bytes).unwrap();
        let greeting = Greeting::decode(&bytes).0;
        socket.write_all(&greeting.welcome(&[7; 32])).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(socket.read(&mut bytes).unwrap(), 0, "a forged welcome is taken");
        // Another lane is opened in its place.
        let lane = peer.lane(greeting.slot);
        assert!(lane.id > greeting.lane);
        let handle = connecting.join().unwrap();
        let tcp = engine.peer_paths(handle).unwrap().into_iter().find(|it| it.transport == Transport::Tcp);
        let why = tcp.unwrap().why;
        assert!(why.contains("the MAC of the welcome is wrong"), "{why}");
    });
}

/// Without end, of every kind and of none, before Ready and after.
#[test]
fn lanes_that_are_asked_for_without_end_are_opened_once() {
    let (engine, listener) = (engine(&[]), HostileListener::open(Who::new()));
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| engine.connect(&listener.address, Some(PATIENCE)).unwrap());
        let mut peer = listener.accept();
        peer.start();
        let ask = || (0..10_000u32).map(|at| open_lanes([0, !0, 2, 3, 4][at as usize % 5]));
        peer.send_all(&ask().collect::<Vec<_>>());
        peer.ready();
        let lanes: Vec<_> = (0..peer.slots).map(|slot| peer.lane(slot)).collect();
        peer.send_all(&ask().collect::<Vec<_>>());
        peer.sync();
        let handle = connecting.join().unwrap();
        eventually("all lanes stand", || engine.peer_info(handle).unwrap().lanes == lanes.len());
        assert_eq!(lanes.iter().map(|lane| lane.id.raw()).max(), Some(lanes.len() as u32));
        let listener = peer.listener().unwrap();
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "one more was dialed");
    });
}

/// The number of a lane is fenced before it is dialed, and while its greeting is under way.
#[test]
fn a_lane_that_is_fenced_before_it_is_open_is_opened_by_another_number() {
    let (engine, listener) = (engine(&[]), HostileListener::open(Who::new()));
    let memory = alloc(&engine, 4096);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| engine.connect(&listener.address, Some(PATIENCE)).unwrap());
        let mut peer = listener.accept();
        peer.start();
        (1..=3).map(LaneId::from_raw).for_each(|lane| peer.send(&Message::Fence { lane }));
        peer.ready();
        peer.send(&regions(&[(REMOTE_REGION, REMOTE, 1 << 20)]));
        let listener = peer.listener().unwrap().try_clone().unwrap();
        let mut last = LaneId::NONE;
        while last < LaneId::from_raw(6) {
            let mut bytes = [0; GREETING_BYTES];
            let mut socket = listener.accept().unwrap().0;
            // The engine may give up an early lane before it has greeted.
            if socket.read_exact(&mut bytes).is_ok() {
                last = Greeting::decode(&bytes).0.lane;
                peer.send(&Message::Fence { lane: last });
                assert_eq!(socket.read(&mut bytes).unwrap(), 0, "lane {last} is given up");
            }
        }
        let mut lane = peer.lane(0);
        let handle = connecting.join().unwrap();
        let request =
            Request { local: memory.address(), remote: REMOTE, length: 8, remote_region: REMOTE_REGION };
        let transfer = engine.submit(handle, Op::Write, &[request], &TransferOptions::default()).unwrap();
        let frame = lane.receive().unwrap();
        let header = Header { sequence: frame.header.sequence, ..lane.header() };
        assert!(lane.send(header, &[], b"", b""));
        assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().status, Status::Ok);
    });
}

/// The engine dials the lane, and nobody answers its greeting.
#[test]
fn a_session_and_an_engine_end_while_a_lane_is_being_opened() {
    for how in 0..4 {
        // The greeting ends with its session, not by its own timeout.
        let (engine, listener) =
            (engine(&[("handshake_timeout_ms", "600000")]), HostileListener::open(Who::new()));
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| engine.connect(&listener.address, Some(PATIENCE)));
            let mut peer = listener.accept();
            peer.start();
            peer.ready();
            let mut opening = peer.listener().unwrap().accept().unwrap().0;
            opening.set_read_timeout(Some(PATIENCE)).unwrap();
            let handle = engine.peers().unwrap()[0];
            let word =
                scope.spawn(|| engine.notify(engine.peers().unwrap()[0], b"word", Deadline::After(PATIENCE)));
            eventually("the notification waits", || engine.peer_info(handle).unwrap().transfers_active == 1);
            match how {
                0 => engine.close_peer(handle, Some(PATIENCE)).unwrap(),
                1 => engine.fence(handle, Some(PATIENCE)).unwrap(),
                2 => engine.close(Some(PATIENCE)).unwrap(),
                _ => drop(peer.raw().shutdown(std::net::Shutdown::Both)),
            }
            if how < 3 {
                assert!(word.join().unwrap().is_err() && connecting.join().unwrap().is_err());
                opening.read_to_end(&mut Vec::new()).unwrap();
            } else {
                // Control connection and lanes are connected again.
                opening.read_to_end(&mut Vec::new()).unwrap();
                let mut again = listener.accept();
                (again.association, again.known) = (peer.association, peer.known);
                again.start();
                again.ready();
                let mut lane = again.lane(0);
                let frame = lane.receive().unwrap();
                let header = Header { sequence: frame.header.sequence, ..lane.header() };
                assert!(lane.send(header, &[], b"", b""));
                assert!(word.join().unwrap().is_ok() && connecting.join().unwrap().is_ok());
            }
        });
    }
}

/// A transfer that waits for a lane without a welcome is final at once when it is cancelled or times out.
#[test]
fn what_waits_for_a_lane_is_cancelled_and_ends_at_its_deadline() {
    let (engine, listener) = (engine(&[]), HostileListener::open(Who::new()));
    let memory = alloc(&engine, 1 << 20);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| engine.connect(&listener.address, Some(PATIENCE)));
        let mut peer = listener.accept();
        peer.start();
        peer.ready();
        peer.send(&regions(&[(REMOTE_REGION, REMOTE, 64 << 20)]));
        let _opening = peer.listener().unwrap().accept().unwrap();
        peer.sync();
        let handle = engine.peers().unwrap()[0];
        let submit = |length: u64, deadline| {
            let request =
                Request { local: memory.address(), remote: REMOTE, length, remote_region: REMOTE_REGION };
            let options = TransferOptions { deadline, ..TransferOptions::default() };
            engine.submit(handle, Op::Write, &[request], &options).unwrap()
        };
        for length in [8, 1 << 20] {
            let cancelled = submit(length, Deadline::After(PATIENCE));
            cancelled.cancel().unwrap();
            assert_eq!(cancelled.wait(Some(PATIENCE)).unwrap().status, Status::Cancelled);
            let late = submit(length, Deadline::After(Duration::from_millis(20)));
            assert_eq!(late.wait(Some(PATIENCE)).unwrap().status, Status::Timeout);
        }
        engine.close_peer(handle, Some(PATIENCE)).unwrap();
        let _ = connecting.join();
    });
}

/// The acceptor asks for lanes, accepts them, and welcomes none. Nothing else wakes the dialer.
#[test]
fn a_lane_that_is_not_welcomed_is_given_up_and_dialed_again() {
    let settings = [("handshake_timeout_ms", "300"), ("keepalive_ms", "0")];
    let (engine, listener) = (engine(&settings), HostileListener::open(Who::new()));
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| engine.connect(&listener.address, Some(PATIENCE)).unwrap());
        let mut peer = listener.accept();
        peer.start();
        peer.ready();
        let _express = peer.lane(0);
        let handle = connecting.join().unwrap();
        // Timers of the connection's beginning are over.
        std::thread::sleep(Duration::from_millis(500));
        peer.send(&open_lanes(2));
        let dialed = || {
            let mut socket = peer.listener().unwrap().accept().unwrap().0;
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut bytes = [0; GREETING_BYTES];
            socket.read_exact(&mut bytes).unwrap();
            (Greeting::decode(&bytes).0, socket)
        };
        let (first, mut socket) = dialed();
        assert_eq!(socket.read(&mut [0]).unwrap(), 0, "the dialer waits for a welcome without end");
        // Other slots may come first.
        let again = (0..=peer.slots).map(|_| dialed().0).find(|greeting| greeting.slot == first.slot);
        assert!(again.is_some_and(|again| again.lane > first.lane), "it is dialed again: {again:?}");
        let tcp = engine.peer_paths(handle).unwrap().into_iter().find(|it| it.transport == Transport::Tcp);
        let why = tcp.unwrap().why;
        assert!(why.contains("no welcome within handshake_timeout_ms"), "{why}");
    });
}

/// A request for lanes is four bytes. Anything else in its place is malformed, and so is the word that TCP is missing.
#[test]
fn a_request_for_lanes_that_is_malformed_ends_the_session() {
    let transport = Transport::Tcp as u8;
    let of = |body: &[u8], why: &str| Message::Transport { transport, why: why.into(), body: body.into() };
    for bad in [of(b"", ""), of(&[3, 0, 0], ""), of(&[3, 0, 0, 0, 0], ""), of(&[3, 0, 0, 0], "no TCP here")] {
        let (engine, listener) = (engine(&[]), HostileListener::open(Who::new()));
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| engine.connect(&listener.address, Some(PATIENCE)).unwrap());
            let mut peer = listener.accept();
            let _lanes = peer.up();
            connecting.join().unwrap();
            peer.send(&bad);
            assert_eq!(peer.receive_end(), Some(Status::Corrupt as i32), "{bad:?}");
        });
    }
}
