//! Peers in the place of earlier processes: their reports about the earlier process count only if they are proven and
//! of its host.

use crate::hostile::{Hostile, HostileLane, HostileListener, Who, PATIENCE};
use crate::support::{alloc, connect_with_memory, engine, eventually, REMOTE, REMOTE_REGION};
use ferry::internals::session::handshake::AuthPolicy;
use ferry::internals::session::message::Message;
use ferry::internals::sys::host::Process;
use ferry::types::{EngineId, Op, PeerId, PlaceId, Request};
use ferry::{Engine, Fence, Memory, PeerState, State, Transfer, TransferOptions};
use std::net::TcpStream;

const LEASE: (&str, &str) = ("lease_ms", "1500");
/// The peer is given up only after the lease.
const MANY_TRIES: (&str, &str) = ("reconnect_timeout_ms", "60000");
const UNPROVEN: [(&str, &str); 3] =
    [("secret", ""), ("same_user", "false"), ("allow_unauthenticated", "true")];

/// Returns an identity with this pid; place and host are the same in all of one test.
fn who(pid: u32) -> Who {
    let mut who = Who::new();
    who.0.place = Some(PlaceId([5; 16]));
    who.0.process = Some(process(pid));
    who
}

fn process(pid: u32) -> Process {
    Process { boot: [1; 16], pids: 2, times: 3, pid, started: 4 }
}

fn unproven(mut who: Who) -> Who {
    who.0.auth = AuthPolicy { allow_unauthenticated: true, ..AuthPolicy::default() };
    who
}

/// Returns the message that the first process has ended.
fn ended() -> Message {
    Message::Ended { pid: 10, started: 4 }
}

/// Connects from an address of this host other than 127.0.0.1.
fn dial_from_elsewhere(engine: &Engine, who: &Who) -> Hostile {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let from: std::net::SocketAddr = "127.0.0.2:0".parse().unwrap();
    socket.bind(&from.into()).unwrap();
    let to: std::net::SocketAddr = engine.address().parse().unwrap();
    socket.connect(&to.into()).unwrap();
    Hostile::over(TcpStream::from(socket), who)
}

/// An engine that has posted frames to the process with number 10, which does not answer.
struct Posted {
    engine: Engine,
    handle: PeerId,
    listener: HostileListener,
    peer: Hostile,
    _lanes: Vec<HostileLane>,
    _memory: Memory,
    transfer: Transfer,
}

impl Posted {
    fn to(who: Who, settings: &[(&str, &str)]) -> Posted {
        let (engine, listener) =
            (engine(&[&[LEASE, MANY_TRIES], settings].concat()), HostileListener::open(who));
        let memory = alloc(&engine, 4096);
        let (peer, mut lanes, handle) = connect_with_memory(&engine, &listener, 1 << 20);
        let request =
            Request { local: memory.address(), remote: REMOTE, length: 8, remote_region: REMOTE_REGION };
        let transfer = engine.submit(handle, Op::Write, &[request], &TransferOptions::default()).unwrap();
        assert!(lanes[0].receive().is_some(), "it is posted");
        Posted { engine, handle, listener, peer, _lanes: lanes, _memory: memory, transfer }
    }

    fn state(&self) -> PeerState {
        self.engine.peer_info(self.handle).unwrap().state
    }

    /// Lets another peer report that the process has ended; returns the fence.
    #[track_caller]
    fn ends(self, other: &mut Hostile) -> Fence {
        eventually("the peer is lost", || self.state() == PeerState::Lost);
        other.send(&ended());
        other.sync();
        let result = self.transfer.wait(Some(PATIENCE)).unwrap();
        assert_eq!(result.state, State::Failed);
        result.fence
    }
}

/// The base case; each of the other tests changes a detail.
#[test]
fn a_proven_peer_at_the_same_place_and_address_is_believed() {
    let posted = Posted::to(who(10), &[]);
    let mut other = Hostile::dial(posted.engine.address(), &who(11));
    let _lanes = other.up();
    assert_eq!(posted.ends(&mut other), Fence::Dead);
}

#[test]
fn a_peer_that_has_proven_nothing_is_not_believed() {
    let posted = Posted::to(unproven(who(10)), &UNPROVEN);
    let mut other = Hostile::dial(posted.engine.address(), &unproven(who(11)));
    let _lanes = other.up();
    assert_eq!(posted.ends(&mut other), Fence::Lease);
}

/// Clones of one machine differ in their IP addresses only.
#[test]
fn a_peer_at_another_address_takes_nobody_s_place() {
    let posted = Posted::to(who(10), &[]);
    let mut other = dial_from_elsewhere(&posted.engine, &who(11));
    let _lanes = other.up();
    other.send(&ended());
    other.sync();
    assert_eq!(posted.state(), PeerState::Up);
    assert!(posted.transfer.result().is_none());
}

/// The process was reached at another address before a peer answers at this address.
#[test]
fn a_peer_of_another_address_tells_of_no_process_here() {
    let mut posted = Posted::to(who(10), &[]);
    let mut next = who(11);
    next.0.place = None;
    // If there are two sessions, the one that this engine dialed stays.
    next.0.engine_id = EngineId([0; 16]);
    let mut other = dial_from_elsewhere(&posted.engine, &next);
    let _lanes = other.up();
    posted.listener.hand_over_to(next);
    drop(posted.peer.raw().shutdown(std::net::Shutdown::Both));
    let mut again = posted.listener.accept();
    again.start();
    assert_eq!(posted.ends(&mut other), Fence::Lease);
}

/// Only proven peers are told of processes of this host.
#[test]
fn only_proven_peers_are_told_of_processes() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    for is_proven in [true, false] {
        let engine = engine(if is_proven { &[] } else { &UNPROVEN });
        let who = if is_proven { Who::new() } else { unproven(Who::new()) };
        let mut peer = Hostile::dial(engine.address(), &who);
        let _lanes = peer.up();
        peer.send_all(&[Message::HasEnded { pid, started: 1 }, Message::Ping { nonce: 5 }]);
        let told = peer.receive_until(|message| match message {
            Message::Ended { pid: which, .. } => Some(*which == pid),
            Message::Pong { nonce: 5, .. } => Some(false),
            _ => None,
        });
        assert_eq!(told, is_proven);
    }
}
