//! Peers that stand where others stood: what they say of the process before them counts as far as they are proven and
//! of its host.

use crate::hostile::{Door, Hostile, HostileLane, Who, PATIENCE};
use crate::support::{alloc, engine, eventually, regions, REMOTE, REMOTE_REGION};
use ferry::complete::{Fence, State};
use ferry::peer::PeerState;
use ferry::session::handshake::AuthPolicy;
use ferry::session::message::Message;
use ferry::sys::host::Process;
use ferry::types::{Op, PeerId, Request};
use ferry::{Engine, Memory, Transfer, TransferOptions};
use std::net::TcpStream;

const LEASE: (&str, &str) = ("lease_ms", "1500");
/// Over the lease before the peer is given up.
const MANY_TRIES: (&str, &str) = ("reconnect_timeout_ms", "60000");
const UNPROVEN: [(&str, &str); 3] =
    [("secret", ""), ("same_user", "false"), ("allow_unauthenticated", "true")];

/// At a place and of a host, as all in one test are.
fn who(pid: u32) -> Who {
    let mut who = Who::new();
    who.0.place = Some([5; 16]);
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

/// Its word that the first process has ended.
fn ended() -> Message {
    Message::Ended { pid: 10, started: 4 }
}

/// From another address of this host than 127.0.0.1.
fn dial_from_elsewhere(engine: &Engine, who: &Who) -> Hostile {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let from: std::net::SocketAddr = "127.0.0.2:0".parse().unwrap();
    socket.bind(&from.into()).unwrap();
    let to: std::net::SocketAddr = engine.address().parse().unwrap();
    socket.connect(&to.into()).unwrap();
    Hostile::over(TcpStream::from(socket), who)
}

/// An engine that has posted something to the process with number 10, which does not answer.
struct Posted {
    engine: Engine,
    handle: PeerId,
    door: Door,
    peer: Hostile,
    _lanes: Vec<HostileLane>,
    _memory: Memory,
    transfer: Transfer,
}

impl Posted {
    fn to(who: Who, settings: &[(&str, &str)]) -> Posted {
        let (engine, door) = (engine(&[&[LEASE, MANY_TRIES], settings].concat()), Door::open(who));
        let memory = alloc(&engine, 4096);
        let (peer, mut lanes, handle) = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| engine.connect(&door.address, Some(PATIENCE)).unwrap());
            let mut peer = door.accept();
            let lanes = peer.up();
            peer.say(&regions(&[(REMOTE_REGION, REMOTE, 1 << 20)]));
            peer.sync();
            (peer, lanes, connecting.join().unwrap())
        });
        eventually("all lanes stand", || engine.peer_info(handle).unwrap().lanes == lanes.len());
        let request =
            Request { local: memory.address(), remote: REMOTE, length: 8, remote_region: REMOTE_REGION };
        let transfer = engine.submit(handle, Op::Write, &[request], &TransferOptions::default()).unwrap();
        assert!(lanes[0].hear().is_some(), "it is posted");
        Posted { engine, handle, door, peer, _lanes: lanes, _memory: memory, transfer }
    }

    fn state(&self) -> PeerState {
        self.engine.peer_info(self.handle).unwrap().state
    }

    /// Another peer says that the process has ended.
    #[track_caller]
    fn ends(self, other: &mut Hostile) -> Fence {
        eventually("the peer is lost", || self.state() == PeerState::Lost);
        other.say(&ended());
        other.sync();
        let result = self.transfer.wait(Some(PATIENCE)).unwrap();
        assert_eq!(result.state, State::Failed);
        result.fence
    }
}

/// What all of the others differ from.
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

/// Clones of one machine are alike in all but their IP addresses.
#[test]
fn a_peer_at_another_address_takes_nobody_s_place() {
    let posted = Posted::to(who(10), &[]);
    let mut other = dial_from_elsewhere(&posted.engine, &who(11));
    let _lanes = other.up();
    other.say(&ended());
    other.sync();
    assert_eq!(posted.state(), PeerState::Up);
    assert!(posted.transfer.result().is_none());
}

/// It has been reached at another address before it answers at this one.
#[test]
fn a_peer_of_another_address_tells_of_no_process_here() {
    let mut posted = Posted::to(who(10), &[]);
    let mut next = who(11);
    next.0.place = None;
    // Of two sessions the one that this engine dialed stays.
    next.0.engine_id = [0; 16];
    let mut other = dial_from_elsewhere(&posted.engine, &next);
    let _lanes = other.up();
    posted.door.hand_over_to(next);
    drop(posted.peer.raw().shutdown(std::net::Shutdown::Both));
    let mut again = posted.door.accept();
    again.start();
    assert_eq!(posted.ends(&mut other), Fence::Lease);
}

/// Processes of this host are told to those who are proven alone.
#[test]
fn only_the_proven_hear_of_processes() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    for is_proven in [true, false] {
        let engine = engine(if is_proven { &[] } else { &UNPROVEN });
        let who = if is_proven { Who::new() } else { unproven(Who::new()) };
        let mut peer = Hostile::dial(engine.address(), &who);
        let _lanes = peer.up();
        peer.say_all(&[Message::HasEnded { pid, started: 1 }, Message::Ping { nonce: 5 }]);
        let told = peer.hear_until(|message| match message {
            Message::Ended { pid: which, .. } => Some(*which == pid),
            Message::Pong { nonce: 5, .. } => Some(false),
            _ => None,
        });
        assert_eq!(told, is_proven);
    }
}
