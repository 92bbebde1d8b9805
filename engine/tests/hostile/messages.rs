//! Messages on the control channel that no correct engine sends, and more messages than it sends: the session ends
//! with CORRUPT, and other peers are served as before.

use crate::hostile::{Hostile, HostileLane, Who, PATIENCE};
use crate::support::{engine, eventually, regions};
use ferry::internals::session::message::Message;
use ferry::limits::CHANNELS_MAX;
use ferry::types::{Access, Boottime, LaneId, MemoryKind, PeerId, RegionId, Transport};
use ferry::{Engine, Fence, PeerState, RegionSpec, State, Status};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Returns a session with its lanes, which the engine would fence if they ended.
fn session(engine: &Engine) -> (Hostile, Vec<HostileLane>) {
    let mut peer = Hostile::dial(engine.address(), &Who::new());
    let lanes = peer.up();
    (peer, lanes)
}

/// Returns a message for the staging service.
fn staged(body: Vec<u8>) -> Message {
    Message::Transport { transport: Transport::Staged as u8, why: String::new(), body }
}

/// Returns a WANT, by its number among staging's messages.
fn want(op: u64) -> Vec<u8> {
    [&[1][..], &op.to_le_bytes()].concat()
}

#[test]
fn unasked_answers_and_repeated_messages_end_the_session() {
    let engine = engine(&[]);
    for wrong in [
        Message::Pong { nonce: 12345, clock_ns: Boottime::NEVER },
        Message::FenceAck { lane: LaneId::from_raw(1) },
        Message::Ready { notify_limit: 7 },
        // Credits for a channel that does not exist.
        Message::Grant { limit: u64::from(CHANNELS_MAX) << 48 | 7 },
        Message::Start { association: 1, known: 2, fresh: 3 },
        staged(vec![0xff; 9]),
    ] {
        let (mut peer, _lanes) = session(&engine);
        peer.send(&wrong);
        assert_eq!(peer.receive_end(), Some(Status::Corrupt as i32), "{wrong:?}");
    }
    let (mut peer, _lanes) = session(&engine);
    peer.send_bytes(&[99, 1, 2, 3]);
    assert_eq!(peer.receive_end(), Some(Status::Corrupt as i32), "no message at all");
}

/// A Bye confirms posted frames; a Bye after the end of the session confirms nothing.
#[test]
fn messages_behind_the_one_that_ended_the_session_are_ignored() {
    let mut all = crate::support::Attacked::new(&[("lease_ms", "1000")]);
    let memory = crate::support::alloc(&all.engine, 4096);
    let transfer = all.submit(ferry::types::Op::Write, &memory, 8);
    assert!(all.lanes[0].receive().is_some(), "it is posted");
    let wrong = Message::Pong { nonce: 12345, clock_ns: Boottime::ZERO };
    all.peer.send_all(&[wrong, Message::Bye { status: Status::Closed as i32 }]);
    let result = transfer.wait(Some(PATIENCE)).unwrap();
    assert_eq!((result.state, result.fence), (State::Failed, Fence::Lease), "{result:?}");
    assert_eq!(all.peer.receive_end(), Some(Status::Corrupt as i32));
}

/// A good answer may state any clock; only the peer's own frames are then too late.
#[test]
fn a_clock_at_its_end_harms_nobody() {
    for clock_ns in [0, u64::MAX, 1 << 63, i64::MAX as u64] {
        let mut all = crate::support::Attacked::new(&[]);
        let memory = crate::support::alloc(&all.engine, 4096);
        std::thread::scope(|scope| {
            let probing = scope.spawn(|| all.engine.probe(PeerId::from_raw(all.handle), Some(PATIENCE)));
            let nonce = loop {
                if let Message::Ping { nonce } = all.peer.receive_any().unwrap() {
                    break nonce;
                }
            };
            all.peer.send(&Message::Pong { nonce, clock_ns: Boottime::from_ns(clock_ns) });
            probing.join().unwrap().unwrap();
        });
        let transfer = all.submit(ferry::types::Op::Write, &memory, 8);
        let frame = all.lanes[0].receive().unwrap();
        let header = ferry::internals::transport::tcp::wire::Header {
            sequence: frame.header.sequence,
            clock_ns: Boottime::from_ns(clock_ns),
            ..all.lanes[0].header()
        };
        assert!(all.lanes[0].send(header, &[], b"", b""));
        assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
    }
}

#[test]
fn operations_without_end_end_the_session() {
    let engine = engine(&[]);
    let (mut peer, _lanes) = session(&engine);
    for first in (0..3000).step_by(1000) {
        peer.send(&staged((first..first + 1000).flat_map(want).collect()));
    }
    assert_eq!(peer.receive_end(), Some(Status::Corrupt as i32));
}

#[test]
fn a_peer_that_asks_and_reads_no_answers_is_disconnected() {
    let engine = engine(&[("socket_buffer_bytes", "65536")]);
    for question in [Message::Ping { nonce: 1 }, Message::Fence { lane: LaneId::from_raw(900) }] {
        let (mut peer, _lanes) = session(&engine);
        let is = |peer: PeerId, state| engine.peer_info(peer).is_ok_and(|info| info.state == state);
        let up = || engine.peers().unwrap().into_iter().find(|peer| is(*peer, PeerState::Up));
        eventually("the session is up", || up().is_some());
        let handle = up().unwrap();
        let flood = peer.seal_all(std::iter::repeat_n(&question, 50_000));
        let mut socket = peer.raw();
        let written = std::thread::spawn(move || socket.write_all(&flood).is_ok());
        eventually("the peer that does not read is lost", || is(handle, PeerState::Lost));
        drop(peer);
        let _ = written.join();
    }
}

/// Returns a BORROW of an unknown region, by its number among staging's messages: a short question with a long answer.
fn borrow() -> Vec<u8> {
    [&[12][..], &77u64.to_le_bytes(), &(MemoryKind::Cuda as u32).to_le_bytes(), &1u32.to_le_bytes()].concat()
}

/// Floods transports' services with questions; their answers are longer.
#[test]
fn a_peer_that_asks_services_and_reads_no_answers_loses_its_connection() {
    let engine = engine(&[("socket_buffer_bytes", "65536")]);
    let (mut peer, _lanes) = session(&engine);
    let handle = engine.peers().unwrap()[0];
    eventually("the session is up", || engine.peer_info(handle).unwrap().state == PeerState::Up);
    let question = staged(std::iter::repeat_n(borrow(), 500).flatten().collect());
    let flood = peer.seal_all(std::iter::repeat_n(&question, 1000));
    let mut socket = peer.raw();
    let written = std::thread::spawn(move || socket.write_all(&flood).is_ok());
    let state = || engine.peer_info(handle).unwrap().state;
    eventually("the peer that does not read is cut off", || state() != PeerState::Up);
    drop(peer);
    let _ = written.join();
}

/// Answers wait behind announcements of regions, which the peer does not read either.
#[test]
fn a_peer_that_asks_services_and_reads_no_announcements_loses_its_connection() {
    const REGIONS: usize = 20_000;
    let engine = engine(&[("socket_buffer_bytes", "65536"), ("progress_timeout_ms", "600000")]);
    let memory = alloc_unregistered(8 * REGIONS);
    let spec = |nth: usize| RegionSpec {
        address: memory + 8 * nth as u64,
        length: 8,
        access: Access::BOTH,
        name: "n".repeat(63),
        ..RegionSpec::default()
    };
    // SAFETY: it is mapped for ever, and nobody else reads or writes it.
    unsafe { engine.register_batch((0..REGIONS).map(spec).collect(), None) }.unwrap();
    let mut peer = Hostile::dial(engine.address(), &Who::new());
    peer.start();
    peer.send(&Message::Ready { notify_limit: 1024 });
    eventually("the session begins", || !engine.peers().unwrap().is_empty());
    let handle = engine.peers().unwrap()[0];
    let question = staged(std::iter::repeat_n(borrow(), 500).flatten().collect());
    let flood = peer.seal_all(std::iter::repeat_n(&question, 1000));
    let mut socket = peer.raw();
    let written = std::thread::spawn(move || socket.write_all(&flood).is_ok());
    eventually("the peer that does not read is cut off", || {
        engine.peer_info(handle).is_ok_and(|info| info.state == PeerState::Down)
    });
    drop(peer);
    let _ = written.join();
}

/// Memory that stays mapped.
fn alloc_unregistered(bytes: usize) -> u64 {
    Box::leak(vec![0u64; bytes.div_ceil(8)].into_boxed_slice()).as_ptr() as u64
}

const PINGS: usize = 150_000;
/// Length, kind, nonce, clock and tag.
const PONG_BYTES: usize = 2 + 1 + 8 + 8 + 16;

/// One peer asks as fast as it can; another peer gets its answers in time throughout.
#[test]
fn a_flood_of_one_peer_does_not_hold_up_another() {
    let victim = engine(&[]);
    let other = engine(&[]);
    let handle = other.connect(victim.address(), Some(PATIENCE)).unwrap();
    let (mut peer, _lanes) = session(&victim);
    let flood = peer.seal_all(std::iter::repeat_n(&Message::Ping { nonce: 1 }, PINGS));
    let (mut tell, mut answers) = (peer.raw(), peer.raw());
    let answered = AtomicUsize::new(0);
    let mut times: Vec<Duration> = Vec::new();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        // A peer whose connection was ended can't send; the count of answers shows it.
        scope.spawn(|| drop(tell.write_all(&flood)));
        scope.spawn(|| {
            let mut sink = vec![0; 1 << 20];
            while let Ok(count @ 1..) = answers.read(&mut sink) {
                answered.fetch_add(count, Ordering::SeqCst);
            }
        });
        while answered.load(Ordering::SeqCst) < PINGS * PONG_BYTES && begun.elapsed() < PATIENCE {
            let asked = Instant::now();
            other.probe(handle, Some(PATIENCE)).unwrap();
            times.push(asked.elapsed());
        }
        let _ = peer.raw().shutdown(std::net::Shutdown::Both);
    });
    assert!(answered.into_inner() >= PINGS * PONG_BYTES, "not all was answered");
    times.sort_unstable();
    let (middle, most) = (times[times.len() / 2], times[times.len() - 1]);
    println!("{} probes beside a flood: {middle:?} in the middle, {most:?} at most", times.len());
    assert!(times.len() >= 10, "{} probes while {PINGS} pings came: {most:?}", times.len());
    assert!(middle < Duration::from_millis(20), "{middle:?}");
}

/// Any number of regions that an engine can have is accepted; more announcements end the session.
#[test]
fn regions_that_make_no_sense_cost_only_themselves() {
    let engine = engine(&[]);
    let (mut peer, _lanes) = session(&engine);
    let all = [(0, 1, 1), (1, 0, 0), (2, u64::MAX, 2), (3, 4096, 4096), (3, 8192, 4096)];
    peer.send(&regions(&all.map(|(id, address, length)| (RegionId::from_raw(id), address, length))));
    peer.sync();
    let handle = engine.peers().unwrap()[0];
    let known = engine.peer_regions(handle).unwrap();
    assert_eq!(known.len(), 1, "{known:?}");
}
