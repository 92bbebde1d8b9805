//! Promises about a lane hold for its connection, too: after a fence's answer, a Ready, a Bye, or an unregister's OK,
//! the connection neither writes nor reads memory. Contracts 3 and 12.

use crate::hostile::{Hostile, HostileLane, Who, PATIENCE};
use crate::support::{eventually, Scene, MIB};
use ferry::internals::session::message::Message;
use ferry::internals::transport::tcp::wire::{Descriptor, Header, Kind};
use ferry::Engine;
use std::io::{Read, Write};
use std::time::Duration;

/// Writes a WRITE that the engine may take or not; None when the lane ended without an answer.
fn strike(lane: &mut HostileLane, place: Descriptor) -> Option<u64> {
    let header = Header { kind: Kind::Write, sequence: 1, ..lane.header() };
    lane.send(header, &[place], b"", &vec![7; place.length as usize]);
    lane.receive().map(|answer| answer.header.sequence)
}

/// In the middle of a frame, and between two frames.
#[test]
fn a_fence_is_acknowledged_when_its_lane_is_closed() {
    let mut scene = Scene::new(&[]);
    for has_begun in [true, false] {
        let place = scene.place(MIB);
        let lane = &mut scene.lanes[1];
        let header = Header { kind: Kind::Write, sequence: 1, ..lane.header() };
        let frame = lane.frame(header, &[place], b"", &vec![7; MIB]);
        let (first, rest) = frame.split_at(if has_begun { frame.len() - MIB } else { 0 });
        lane.socket.write_all(first).unwrap();
        let fenced = lane.id;
        scene.peer.send(&Message::Fence { lane: fenced });
        scene.peer.receive_until(|message| (*message == Message::FenceAck { lane: fenced }).then_some(()));
        let lane = &mut scene.lanes[1];
        let _ = lane.socket.write_all(rest);
        assert!(lane.receive().is_none(), "the lane was fenced");
        assert!(scene.is_zero(), "bytes landed behind a fence");
        scene.lanes[1] = scene.peer.lane(1);
    }
}

/// The engine's Ready confirms frames posted on earlier connections, lost or not.
#[test]
fn ready_is_said_when_the_lanes_of_earlier_connections_are_closed() {
    for is_lost in [true, false] {
        let mut scene = Scene::new(&[]);
        let place = scene.place(8);
        let mut again = Hostile::dial(scene.engine.address(), &scene.who);
        (again.association, again.known) = (scene.peer.association, scene.peer.known);
        // A number names one lane of a session, also behind a new connection.
        again.next_lane = scene.peer.next_lane;
        let old = is_lost.then(|| drop(scene.peer));
        again.start();
        again.ready();
        assert_eq!(strike(&mut scene.lanes[1], place), None, "lost before: {old:?}");
        let mut found = [1; 8];
        scene.memory.read(0, &mut found);
        assert_eq!(found, [0; 8], "bytes landed by a lane that Ready said is closed");
        let mut lane = again.lane(1);
        assert_eq!(strike(&mut lane, place), Some(1), "the session goes on");
    }
}

/// Sends WRITEs of a rising number without end, until the engine closes the lane.
fn flood(lane: &mut HostileLane, place: Descriptor) {
    for batch in 0u64.. {
        let numbers = batch * 64 + 1..=batch * 64 + 64;
        let header = Header { kind: Kind::Write, ..lane.header() };
        let frame = |it: u64| lane.frame(Header { sequence: it, ..header }, &[place], b"", &it.to_le_bytes());
        let frames: Vec<u8> = numbers.flat_map(frame).collect();
        if lane.socket.write_all(&frames).is_err() {
            return;
        }
    }
}

/// Floods the bulk lane, makes the engine send a message that promises that the lane is closed, and checks that
/// nothing lands after that message. Several rounds, because an engine that sends the message too soon closes the lane
/// a moment later.
fn nothing_lands_behind(
    scene: &mut Scene,
    ask: impl FnOnce(&mut Hostile, &Engine) + Send,
    is_expected: impl Fn(&Message) -> bool,
) {
    let place = scene.place(8);
    let Scene { engine, peer, lanes, memory, .. } = scene;
    let number = || {
        let mut bytes = [0; 8];
        memory.read(0, &mut bytes);
        u64::from_le_bytes(bytes)
    };
    memory.write(0, &[0; 8]);
    peer.sync();
    let control = peer.raw();
    std::thread::scope(|scope| {
        let flooding = scope.spawn(|| flood(&mut lanes[1], place));
        eventually("the flood flows", || number() > 0);
        ask(peer, engine);
        control.set_nonblocking(true).unwrap();
        while control.peek(&mut [0]).is_err() {
            std::hint::spin_loop();
        }
        control.set_nonblocking(false).unwrap();
        // The engine sends all its other messages before that message.
        while !is_expected(&peer.receive_any().expect("the engine ended the session")) {}
        let last = number();
        flooding.join().unwrap();
        assert_eq!(number(), last, "bytes landed after the message");
    });
}

/// A Bye promises that its sender takes in nothing more.
#[test]
fn a_bye_is_said_when_the_lanes_are_closed() {
    let mut scene = Scene::new(&[]);
    for _ in 0..100 {
        let handle = *scene.engine.peers().unwrap().iter().max().unwrap();
        std::thread::scope(|scope| {
            let close = |_: &mut Hostile, engine: &Engine| {
                let engine = engine.clone();
                scope.spawn(move || engine.close_peer(handle, Some(PATIENCE)).unwrap());
            };
            nothing_lands_behind(&mut scene, close, |word| matches!(word, Message::Bye { .. }));
        });
        scene.who = Who::new();
        scene.peer = Hostile::dial(scene.engine.address(), &scene.who);
        scene.lanes = scene.peer.up();
    }
}

#[test]
fn a_fence_of_a_lane_that_is_busy_is_acknowledged_when_the_lane_is_closed() {
    let mut scene = Scene::new(&[]);
    for _ in 0..300 {
        let lane = scene.lanes[1].id;
        let fence = |peer: &mut Hostile, _: &Engine| peer.send(&Message::Fence { lane });
        nothing_lands_behind(&mut scene, fence, |word| *word == Message::FenceAck { lane });
        // The engine sends its peer a fence, too.
        scene.peer.send(&Message::FenceAck { lane });
        scene.lanes[1] = scene.peer.lane(1);
    }
}

/// The reader holds up the answer to a READ; meanwhile the application gets its memory back.
#[test]
fn an_answer_is_not_read_from_memory_that_is_unregistered() {
    // The sockets hold less than the answer.
    let mut scene = Scene::new(&[("socket_buffer_bytes", "65536")]);
    let place = scene.place(MIB);
    let lane = &mut scene.lanes[1];
    let header = Header { kind: Kind::Read, sequence: 1, ..lane.header() };
    assert!(lane.send(header, &[place], b"", b""));
    assert_eq!(lane.socket.peek(&mut [0; 16]).unwrap(), 16, "the answer has begun");
    scene.memory.unregister(Some(Duration::from_secs(20))).unwrap();
    scene.memory.write(0, &vec![9; MIB]);
    let (mut found, lane) = (Vec::new(), &mut scene.lanes[1]);
    let _ = Read::take(&lane.socket, MIB as u64).read_to_end(&mut found);
    let run = found.iter().rev().take_while(|byte| **byte == 9).count();
    assert!(run < 64, "{run} bytes of {} were read after the region was unregistered", found.len());
}
