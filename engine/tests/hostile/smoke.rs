//! Checks the tools: a hostile peer that behaves as a correct engine, in both directions, and a proxy that holds bytes
//! and releases them.

use crate::hostile::{Hostile, Who, PATIENCE};
use crate::proxy::{Passing, Proxy, Verdict, Way};
use crate::support::{alloc, engine, Attacked};
use ferry::internals::session::message::Message;
use ferry::internals::transport::tcp::wire::{Descriptor, Header, Kind};
use ferry::types::Op;
use ferry::State;

#[test]
fn a_peer_that_dials_writes_and_is_acknowledged() {
    let engine = engine(&[]);
    let memory = alloc(&engine, 4096);
    let mut peer = Hostile::dial(engine.address(), &Who::new());
    let mut lanes = peer.up();
    let target = Descriptor { address: memory.address() + 8, region: memory.region(), length: 5 };
    let header = Header { kind: Kind::Write, sequence: 1, ..lanes[1].header() };
    assert!(lanes[1].send(header, &[target], b"", b"hello"));
    let answer = lanes[1].receive().unwrap();
    assert_eq!((answer.header.kind, answer.header.sequence, answer.extra), (Kind::Ack, 1, vec![]));
    let mut found = [0; 14];
    memory.read(0, &mut found);
    assert_eq!(&found, b"\0\0\0\0\0\0\0\0hello\0");
    peer.send(&Message::Ping { nonce: 9 });
    peer.receive_until(|message| matches!(message, Message::Pong { nonce: 9, .. }).then_some(()));
}

#[test]
fn a_peer_that_is_dialed_takes_a_write() {
    let mut all = Attacked::new(&[]);
    let memory = alloc(&all.engine, 4096);
    memory.write(0, b"payload");
    let transfer = all.submit(Op::Write, &memory, 7);
    let frame = all.lanes[0].receive().unwrap();
    assert_eq!((frame.header.kind, &frame.payload[..]), (Kind::Write, &b"payload"[..]));
    let ack = Header { sequence: frame.header.sequence, ..all.lanes[0].header() };
    assert!(all.lanes[0].send(ack, &[], b"", b""));
    assert_eq!(transfer.wait(Some(PATIENCE)).unwrap().state, State::Done);
}

#[test]
fn what_the_proxy_holds_comes_when_it_is_released() {
    let (a, b) = (engine(&[]), engine(&[]));
    let proxy = Proxy::with_judge(b.address(), |passing: &mut Passing| match passing {
        Passing { greeting: Some(lane), way: Way::Back, at: 0, .. } if lane.slot == 0 => Verdict::Hold,
        _ => Verdict::Pass,
    });
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| a.connect(&proxy.address, Some(PATIENCE)).unwrap());
        let lane = proxy.wait_for("the welcome is held", |seen| seen.holds(Way::Back));
        assert!(!connecting.is_finished(), "the express lane is not there yet");
        assert_eq!(lane.greeting.map(|greeting| greeting.slot), Some(0));
        proxy.release(lane.connection, Way::Back);
        let peer = connecting.join().unwrap();
        assert_eq!(a.peer_info(peer).unwrap().state, ferry::PeerState::Up);
    });
}
