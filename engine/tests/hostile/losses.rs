//! The cause of a lost lane is reported: in the paths of its peer, in the metrics by cause, and in the results of
//! transfers. A frame that fails a check is never reported as a reset, although a reset follows.

use crate::hostile::{Hostile, HostileLane, Who};
use crate::support::{alloc, engine, eventually, Attacked, REMOTE, REMOTE_REGION};
use ferry::internals::session::message::Message;
use ferry::internals::transport::tcp::wire::{Descriptor, Header, Kind};
use ferry::notify::{EventBody, WHAT_PEERS, WHAT_TRANSFERS};
use ferry::types::{Op, PeerId, RegionId, Request, Transport};
use ferry::{Engine, State, Status, TransferOptions};
use std::io::Write;
use std::time::Duration;

/// Returns the state of TCP in the paths to the only peer.
fn tcp(engine: &Engine) -> String {
    let peer = engine.peers().unwrap()[0];
    let paths = engine.peer_paths(peer).unwrap();
    paths.into_iter().find(|path| path.transport == Transport::Tcp).unwrap().why
}

/// Returns the losses that this side did not cause: with this cause, and in all.
fn count(engine: &Engine, cause: &str) -> (u64, u64) {
    let metrics = engine.metrics().unwrap();
    let lines = metrics.lines().filter_map(|line| line.strip_prefix("ferry_losses_total{cause=\""));
    let counts: Vec<(&str, u64)> = lines
        .map(|line| line.split_once("\"} ").unwrap())
        .map(|(it, count)| (it, count.parse().unwrap()))
        .collect();
    let sum =
        |is: &dyn Fn(&str) -> bool| counts.iter().filter(|(it, _)| is(it)).map(|(_, count)| count).sum();
    (sum(&|it| it == cause), sum(&|it| it != "ours"))
}

/// Lets `spoil` end a lane of the peer, and checks the report. The lane that `spoil` returns stays open meanwhile.
fn told(spoil: impl FnOnce(HostileLane) -> Option<HostileLane>, what: &str, cause: &str) {
    let engine = engine(&[]);
    let mut peer = Hostile::dial(engine.address(), &Who::new());
    let mut lanes = peer.up();
    let lane = lanes.swap_remove(1);
    // The engine has taken in the lanes.
    peer.sync();
    assert!(!tcp(&engine).contains("last lost"), "{}", tcp(&engine));
    assert_eq!(count(&engine, cause), (0, 0));
    let ends = (lane.socket.peer_addr().unwrap(), lane.socket.local_addr().unwrap());
    let expected = format!("TCP lane {}, {} to {}: {what}", lane.id, ends.0, ends.1);
    let _kept = spoil(lane);
    eventually("the loss is told", || tcp(&engine).contains(&expected));
    assert_eq!(count(&engine, cause), (1, 1), "{}", engine.metrics().unwrap());
}

#[test]
fn a_forged_frame_is_told_as_forged() {
    let forge = |mut lane: HostileLane| {
        let mut frame = lane.frame(lane.header(), &[], b"", b"");
        frame[0] ^= 1;
        lane.socket.write_all(&frame).unwrap();
        // The engine must report the first failure, not the reset that follows.
        let _ = lane.socket.write_all(&frame);
        Some(lane)
    };
    told(forge, "the MAC of a frame is wrong", "forged");
}

#[test]
fn a_replayed_frame_is_told_as_forged() {
    let replay = |mut lane: HostileLane| {
        let header = Header { kind: Kind::Read, sequence: 1, ..lane.header() };
        let nowhere = Descriptor { address: 8, region: RegionId::NONE, length: 8 };
        let frame = lane.frame(header, &[nowhere], b"", b"");
        lane.socket.write_all(&frame).unwrap();
        let _ = lane.socket.write_all(&frame);
        Some(lane)
    };
    told(replay, "a frame was repeated, left out or moved", "forged");
}

#[test]
fn a_damaged_frame_is_told_with_the_check_that_it_failed() {
    let damage = |mut lane: HostileLane| {
        let mut frame = lane.frame(lane.header(), &[], b"", b"");
        frame[24] ^= 1;
        lane.socket.write_all(&frame).unwrap();
        Some(lane)
    };
    told(damage, "a frame does not begin with the magic number", "damaged");
}

#[test]
fn a_lane_that_the_peer_closes_is_told_as_closed() {
    let close = |lane: HostileLane| {
        lane.socket.shutdown(std::net::Shutdown::Write).unwrap();
        Some(lane)
    };
    told(close, "the peer closed the connection", "closed");
}

#[test]
fn a_reset_is_told_with_its_errno() {
    let reset = |lane: HostileLane| {
        // Without lingering, closing resets the connection.
        socket2::SockRef::from(&lane.socket).set_linger(Some(Duration::ZERO)).unwrap();
        None
    };
    told(reset, "receiving: Connection reset by peer", "system");
}

/// A transfer that ends because its peer is lost states the cause, with the errno; so does the peer's event.
#[test]
fn what_a_lost_peer_leaves_undone_says_why() {
    let mut all = Attacked::new(&[("reconnect_timeout_ms", "100")]);
    let queue = all.engine.queue(WHAT_PEERS, 16).unwrap();
    let memory = alloc(&all.engine, 4096);
    let transfer = all.submit(Op::Write, &memory, 4096);
    assert!(all.lanes[0].receive().is_some());
    let mut forged = all.peer.seal_all([&Message::Ping { nonce: 1 }]);
    *forged.last_mut().unwrap() ^= 1;
    all.peer.raw().write_all(&forged).unwrap();
    let engine = &all.engine;
    let error = transfer.wait_done().unwrap_err();
    assert_eq!(error.status, Status::PeerLost, "{error}");
    let why = "the MAC of a message is wrong";
    assert!(
        error.message.contains("last lost: control connection, ") && error.message.contains(why),
        "{error}"
    );
    let mut events = Vec::new();
    eventually("the loss is told", || {
        queue.drain(&mut events, 16);
        events
            .iter()
            .any(|event| matches!(&event.body, EventBody::PeerLost { why: it, .. } if it.contains(why)))
    });
    assert_eq!(count(engine, "forged").0, 1);
}

#[test]
fn a_peer_lost_by_a_reset_is_told_with_its_errno() {
    let engine = engine(&[("reconnect_timeout_ms", "0")]);
    let queue = engine.queue(WHAT_PEERS, 16).unwrap();
    let mut peer = Hostile::dial(engine.address(), &Who::new());
    let lanes = peer.up();
    peer.sync();
    // Without lingering, closing resets the connection.
    socket2::SockRef::from(&peer.raw()).set_linger(Some(Duration::ZERO)).unwrap();
    drop(peer);
    let mut events = Vec::new();
    eventually("the loss is told", || {
        queue.drain(&mut events, 16);
        events.iter().any(|event| match &event.body {
            EventBody::PeerLost { os_error, why, .. } => {
                assert_eq!(*os_error, libc::ECONNRESET, "{why}");
                assert!(why.contains("Connection reset by peer"), "{why}");
                true
            }
            _ => false,
        })
    });
    drop(lanes);
}

/// The event of a loss comes after the events of all transfers that were queued for that peer, however many turns
/// ending them took: on one queue those events stand before the loss's.
#[test]
fn a_loss_is_told_after_the_transfers_that_it_ended() {
    const COUNT: usize = 5000;
    let mut all = Attacked::new(&[]);
    let queue = all.engine.queue(WHAT_PEERS | WHAT_TRANSFERS, 2 * COUNT).unwrap();
    let memory = alloc(&all.engine, 8);
    let one = Request { local: memory.address(), remote: REMOTE, length: 8, remote_region: REMOTE_REGION };
    // One after the other: the first is posted and gets no answer, the others wait for the first.
    let options =
        || TransferOptions { ordered: true, queue: Some(queue.clone()), ..TransferOptions::default() };
    let submit = || all.engine.submit(PeerId::from_raw(all.handle), Op::Write, &[one], &options()).unwrap();
    let transfers: Vec<_> = (0..COUNT).map(|_| submit()).collect();
    let mut events = Vec::new();
    all.peer.send(&Message::Bye { status: Status::Closed as i32 });
    let lost = |body: &EventBody| matches!(body, EventBody::PeerLost { .. });
    eventually("the loss is told", || {
        queue.drain(&mut events, 2 * COUNT);
        events.iter().any(|event| lost(&event.body))
    });
    let before = events.iter().position(|event| lost(&event.body)).unwrap();
    let ended = |body: &EventBody| matches!(body, EventBody::Transfer { .. });
    let ended = events[..before].iter().filter(|event| ended(&event.body)).count();
    assert!(ended >= COUNT - 1, "{ended} of {COUNT} had ended before the loss was told");
    let failed = |transfer: &ferry::Transfer| transfer.result().map(|result| result.state);
    assert!(transfers[1..].iter().all(|it| matches!(failed(it), Some(State::Failed | State::Cancelled))));
}
