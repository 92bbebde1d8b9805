//! False answers: acknowledgements and data for frames that were not sent, or READs that were not asked.

use crate::hostile::{HostileListener, Who, PATIENCE};
use crate::support::{alloc, connect, engine, eventually, Attacked, MIB, REMOTE, REMOTE_REGION};
use ferry::internals::notify::push;
use ferry::internals::session::message::Message;
use ferry::internals::transport::tcp::wire::{flags, Header, Kind};
use ferry::notify::{Event, EventBody, WHAT_TRANSFERS};
use ferry::types::{Op, PeerId, Request};
use ferry::{Fence, Memory, PeerState, State, Status, Transfer, TransferOptions};
use std::time::{Duration, Instant};

/// The sockets hold less than a frame.
const SMALL_BUFFERS: (&str, &str) = ("socket_buffer_bytes", "65536");

fn pattern(seed: u64) -> Vec<u8> {
    (0..MIB as u64 / 8).flat_map(|word| (seed << 32 | word).to_le_bytes()).collect()
}

/// Asserts that the lane ends without a change to the transfer; then the peer behaves, and the transfer is DONE with
/// its data.
fn assert_ends_the_lane(mut all: Attacked, transfer: &Transfer) {
    let lost = || all.engine.stats().unwrap().counts.lanes_lost;
    eventually("something comes of it", || lost() > 0 || transfer.state() != State::Pending);
    assert_eq!(transfer.state(), State::Pending, "the answer was believed");
    all.replace_lane(1);
    let frame = all.lanes[1].receive().unwrap();
    assert!(frame.payload == pattern(1), "other bytes than those that were submitted");
    let ack = Header { sequence: frame.header.sequence, ..all.lanes[1].header() };
    assert!(all.lanes[1].send(ack, &[], b"", b""));
    assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
}

#[test]
fn an_acknowledgement_of_what_is_not_wholly_sent_ends_the_lane() {
    let mut all = Attacked::new(&[SMALL_BUFFERS]);
    let memory = alloc(&all.engine, MIB);
    memory.write(0, &pattern(1));
    let transfer = all.submit(Op::Write, &memory, MIB);
    // The first bytes have arrived; the last can't have, since nobody reads.
    let mut first = [0; 16];
    assert_eq!(all.lanes[1].socket.peek(&mut first).unwrap(), 16);
    let header = Header { sequence: 1, ..all.lanes[1].header() };
    assert!(all.lanes[1].send(header, &[], b"", b""));
    assert_ends_the_lane(all, &transfer);
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_ends_the_lane() {
    for sequence in [0, 2, u64::MAX] {
        let mut all = Attacked::new(&[]);
        let memory = alloc(&all.engine, MIB);
        memory.write(0, &pattern(1));
        let transfer = all.submit(Op::Write, &memory, MIB);
        assert_eq!(all.lanes[1].receive().unwrap().header.sequence, 1);
        let header = Header { sequence, ..all.lanes[1].header() };
        assert!(all.lanes[1].send(header, &[], b"", b""));
        assert_ends_the_lane(all, &transfer);
    }
}

#[test]
fn an_acknowledgement_said_twice_ends_the_lane() {
    let mut all = Attacked::new(&[]);
    let memory = alloc(&all.engine, MIB);
    memory.write(0, &pattern(1));
    let transfer = all.submit(Op::Write, &memory, MIB);
    assert_eq!(all.lanes[1].receive().unwrap().header.sequence, 1);
    let header = Header { sequence: 1, ..all.lanes[1].header() };
    assert!(all.lanes[1].send(header, &[], b"", b""));
    assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
    assert!(all.lanes[1].send(header, &[], b"", b""));
    all.lanes[1].receive_end();
}

#[test]
fn data_that_nobody_asked_for_ends_the_lane() {
    let mut all = Attacked::new(&[]);
    let header = Header { kind: Kind::Data, sequence: 1, ..all.lanes[1].header() };
    assert!(all.lanes[1].send(header, &[], b"", b"data"));
    all.lanes[1].receive_end();
    all.replace_lane(1);
    let memory = alloc(&all.engine, MIB);
    let transfer = all.submit(Op::Read, &memory, MIB);
    let asked = all.lanes[1].receive().unwrap().header;
    assert_eq!((asked.kind, asked.sequence), (Kind::Read, 1));
    let header = Header { kind: Kind::Data, sequence: 2, ..all.lanes[1].header() };
    // The header suffices: the lane may end before the whole frame is sent.
    let _ = all.lanes[1].send(header, &[], b"", &pattern(1));
    all.lanes[1].receive_end();
    assert_eq!(transfer.state(), State::Pending);
    all.replace_lane(1);
    assert_is_answered(&mut all, &transfer, 1);
    let mut found = vec![0; MIB];
    memory.read(0, &mut found);
    assert!(found == pattern(1));
}

/// Asserts that the transfer stays as it is for a while.
fn assert_stays_pending(transfer: &Transfer) {
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(50) {
        assert_eq!(transfer.state(), State::Pending, "the peer may still read its memory");
        std::thread::yield_now();
    }
}

/// Submits a READ of a MiB. Returns its memory, itself, and the sequence of its request, which lane 1 has received.
fn asked(all: &mut Attacked) -> (Memory, Transfer, u64) {
    let memory = alloc(&all.engine, MIB);
    let transfer = all.submit(Op::Read, &memory, MIB);
    let sequence = all.lanes[1].receive().unwrap().header.sequence;
    (memory, transfer, sequence)
}

/// Answers a READ, which is DONE then. Returns its sequence.
fn assert_is_answered(all: &mut Attacked, transfer: &Transfer, seed: u64) -> u64 {
    let sequence = all.lanes[1].receive().unwrap().header.sequence;
    assert!(all.lanes[1].answer(sequence, &pattern(seed)));
    assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
    sequence
}

/// Waits until the memory has the answer's bytes.
fn wait_until_filled(memory: &Memory, seed: u64) {
    let mut found = vec![0; MIB];
    eventually("the memory is filled", || {
        memory.read(0, &mut found);
        found == pattern(seed)
    });
}

/// Somebody on the way repeats bytes of an answer: the memory is full before the peer has sent the last of it.
#[test]
fn an_answer_is_not_final_before_its_end() {
    let mut all = Attacked::new(&[]);
    let (memory, transfer, sequence) = asked(&mut all);
    let header = Header { sequence, ..all.lanes[1].header() };
    assert!(all.lanes[1].send(Header { kind: Kind::Data, ..header }, &[], b"", &pattern(1)));
    wait_until_filled(&memory, 1);
    assert_stays_pending(&transfer);
    assert!(all.lanes[1].send(Header { kind: Kind::DataEnd, ..header }, &[], b"", b""));
    assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
}

#[test]
fn an_answer_that_is_not_followed_by_its_end_ends_the_lane() {
    let mut all = Attacked::new(&[]);
    let memory = alloc(&all.engine, MIB);
    let transfer = all.submit(Op::Read, &memory, MIB);
    for nth in 1..=4 {
        let sequence = all.lanes[1].receive().unwrap().header.sequence;
        let header = Header { sequence, ..all.lanes[1].header() };
        assert!(all.lanes[1].send(Header { kind: Kind::Data, ..header }, &[], b"", &pattern(nth)));
        wait_until_filled(&memory, nth);
        let end = Header { kind: Kind::DataEnd, ..header };
        let (wrong, extra) = match nth {
            1 => (Header { sequence: sequence + 1, ..end }, &b""[..]),
            2 => (end, &b"x"[..]),
            3 => (Header { kind: Kind::Write, sequence: 1, ..end }, &b""[..]),
            _ => (Header { kind: Kind::Data, ..end }, &b""[..]),
        };
        assert!(all.lanes[1].send(wrong, &[], extra, b""));
        all.lanes[1].receive_end();
        eventually("the lane is lost", || all.engine.stats().unwrap().counts.lanes_lost == nth);
        assert_eq!(transfer.state(), State::Pending);
        all.replace_lane(1);
    }
    assert_is_answered(&mut all, &transfer, 9);
    wait_until_filled(&memory, 9);
}

#[test]
fn an_end_without_an_answer_ends_the_lane() {
    let mut all = Attacked::new(&[]);
    let (_memory, transfer, sequence) = asked(&mut all);
    let end = Header { kind: Kind::DataEnd, sequence, ..all.lanes[1].header() };
    assert!(all.lanes[1].send(end, &[], b"", b""));
    all.lanes[1].receive_end();
    assert_eq!(transfer.state(), State::Pending);
    all.replace_lane(1);
    assert_is_answered(&mut all, &transfer, 1);
}

/// A READ with a checksum whose answer was altered on the way is CORRUPT, but only when the peer has sent all of it.
#[test]
fn an_altered_answer_is_corrupt_at_its_end() {
    let mut all = Attacked::new(&[]);
    let memory = alloc(&all.engine, MIB);
    let request = |at: u64| Request {
        local: memory.address() + at,
        remote: REMOTE + at,
        length: MIB as u64 / 2,
        remote_region: REMOTE_REGION,
    };
    let options = TransferOptions { checksum: true, ..TransferOptions::default() };
    let peer = PeerId::from_raw(all.handle);
    let transfer =
        all.engine.submit(peer, Op::Read, &[request(0), request(MIB as u64 / 2)], &options).unwrap();
    let asked = all.lanes[1].receive().unwrap();
    assert_eq!(asked.header.flags, flags::CHECKSUM);
    let answer = Header {
        kind: Kind::Data,
        flags: flags::CHECKSUM,
        sequence: asked.header.sequence,
        checksum: crc32fast::hash(&pattern(1)),
        ..all.lanes[1].header()
    };
    let mut altered = pattern(1);
    altered[MIB - 1] ^= 1;
    assert!(all.lanes[1].send(answer, &[], b"", &altered));
    assert_stays_pending(&transfer);
    let end = Header { kind: Kind::DataEnd, ..answer };
    assert!(all.lanes[1].send(end, &[], b"", b""));
    let result = transfer.wait(Some(PATIENCE)).unwrap();
    assert_eq!((result.status, result.fence), (Status::Corrupt, Fence::Confirmed), "{result:?}");
    assert_eq!(result.bytes_confirmed, 0);
    // The lane lives, and the next READ is answered on it.
    let transfer = all.submit(Op::Read, &memory, MIB);
    let sequence = assert_is_answered(&mut all, &transfer, 1);
    assert_eq!(sequence, answer.sequence + 1);
    assert_eq!(all.engine.stats().unwrap().counts.lanes_lost, 0);
}

/// While a test holds the queue, no event can enter it, so a transfer that reports there must not be final, even if
/// all its data has arrived.
#[test]
fn a_transfer_is_not_final_before_its_event_is_queued() {
    let mut all = Attacked::new(&[]);
    let memory = alloc(&all.engine, 4096);
    let queue = all.engine.queue(WHAT_TRANSFERS, 2).unwrap();
    let request =
        Request { local: memory.address(), remote: REMOTE, length: 8, remote_region: REMOTE_REGION };
    let options = TransferOptions { queue: Some(queue.clone()), ..TransferOptions::default() };
    let transfer = all.engine.submit(PeerId::from_raw(all.handle), Op::Write, &[request], &options).unwrap();
    let frame = all.lanes[0].receive().unwrap();
    let event = Event { peer: PeerId::NONE, body: EventBody::PeerUp { again: false }, credit: None };
    let pushed = push(&queue, event, || {
        let ack = Header { sequence: frame.header.sequence, ..all.lanes[0].header() };
        assert!(all.lanes[0].send(ack, &[], b"", b""));
        // The counter rises just before the event.
        eventually("it ends", || all.engine.stats().unwrap().counts.transfers_done == 1);
        let since = Instant::now();
        while since.elapsed() < Duration::from_millis(50) {
            assert_eq!(transfer.state(), State::Pending, "final, and no event of it can be drained");
            std::thread::yield_now();
        }
    });
    pushed.unwrap();
    assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
    let mut events = Vec::new();
    assert_eq!(queue.drain(&mut events, 8), 2);
}

/// A probe on a connection that is lost, or without a connection, gets no answer: it is repeated on the next
/// connection, so that a caller without a limit does not wait for ever.
#[test]
fn a_probe_outlives_the_connection_that_it_was_asked_on() {
    let engine = engine(&[("reconnect_timeout_ms", "60000"), ("connect_timeout_ms", "60000")]);
    let (engine, listener) = (&engine, HostileListener::open(Who::new()));
    let (mut first, _lanes, peer) = connect(engine, &listener);
    std::thread::scope(|scope| {
        let asked = scope.spawn(move || engine.probe(peer, None));
        while !matches!(first.receive_any(), Some(Message::Ping { .. })) {}
        let (association, known) = (first.association, first.known);
        drop(first);
        while engine.peer_info(peer).unwrap().state != PeerState::Down {
            std::thread::yield_now();
        }
        let later = scope.spawn(move || engine.probe(peer, None));
        // The control loop takes the command before any input of the new connection.
        engine.probe(peer, Some(Duration::from_millis(20))).unwrap_err();
        let mut second = listener.accept();
        (second.association, second.known) = (association, known);
        let _lanes = second.up();
        let end = Instant::now() + PATIENCE;
        while !(asked.is_finished() && later.is_finished()) {
            assert!(Instant::now() < end, "nobody asked again");
            second.sync();
        }
        assert!(asked.join().unwrap().is_ok() && later.join().unwrap().is_ok());
    });
}
