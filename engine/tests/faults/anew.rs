//! Restarted engines, and engines that only look alike: which engine counts as which peer, and when a process is known
//! to have ended.

use crate::child::Child;
use crate::support::*;
use ferry::notify::{EventBody, Queue, WHAT_PEERS};
use ferry::types::{Op, PeerId};
use ferry::{
    Deadline, Engine, Fence, Memory, PeerState, State, Status, Transfer, TransferOptions, TransferResult,
};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const BYTES: usize = 16 * MIB;
/// Far beyond the time of a test: a test that waits for the lease fails.
const LONG_LEASE: (&str, &str) = ("lease_ms", "60000");
/// The new process is found by connecting again: on a loaded machine it needs more than a second to listen.
const MANY_TRIES: (&str, &str) = ("reconnect_timeout_ms", "20000");

fn without_deadline() -> TransferOptions<'static> {
    TransferOptions { deadline: Deadline::Never, ..options() }
}

/// Forwards connections to a target that the test may change, also in the network namespace of another process.
struct Relay {
    address: String,
    goal: Arc<Mutex<(String, Option<String>)>>,
}

impl Relay {
    fn new(goal: &str, namespace: Option<String>) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let goal = Arc::new(Mutex::new((goal.to_owned(), namespace)));
        let next = goal.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let (goal, namespace) = next.lock().unwrap().clone();
                std::thread::spawn(move || {
                    if namespace.is_some_and(|path| enter(&path).is_err()) {
                        return;
                    }
                    let Ok(far) = TcpStream::connect(goal) else { return };
                    pump(near, far);
                });
            }
        });
        Relay { address, goal }
    }

    fn lead_to(&self, goal: &str) {
        *self.goal.lock().unwrap() = (goal.to_owned(), None);
    }
}

/// Copies in both directions, until one side ends.
fn pump(near: TcpStream, far: TcpStream) {
    let way = |mut from: TcpStream, mut to: TcpStream| {
        let _ = to.set_nodelay(true);
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(std::net::Shutdown::Both);
        let _ = from.shutdown(std::net::Shutdown::Both);
    };
    let (from, to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    std::thread::spawn(move || way(from, to));
    way(far, near);
}

/// Moves this thread alone into the namespace: its new connections belong there. Fails when no process is there any
/// more.
fn enter(namespace: &str) -> std::io::Result<()> {
    let namespace = std::fs::File::open(namespace)?;
    // SAFETY: no memory is involved; the descriptor lives during the call.
    match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Far more data than sockets hold, sent to a process that is then stopped: some of it is posted and not acknowledged.
struct Posted {
    _engine: Engine,
    events: Arc<Queue>,
    peer: PeerId,
    transfer: Transfer,
    memory: Memory,
}

impl Posted {
    fn to(child: &mut Child, address: &str, settings: &[(&str, &str)]) -> Posted {
        let (region, remote) = child.alloc(BYTES, 0);
        let engine = engine(settings);
        let events = engine.queue(WHAT_PEERS, 16).unwrap();
        let memory = alloc(&engine, BYTES);
        fill(&memory, 7);
        let peer = connect(&engine, address);
        let requests = rounds(memory.address(), remote, region, BYTES, 64);
        let transfer = engine.submit(peer, Op::Write, &requests, &without_deadline()).unwrap();
        wait_until("the first bytes land", || child.peek(remote, 8) != [0; 8]);
        child.stop();
        Posted { _engine: engine, events, peer, transfer, memory }
    }

    #[track_caller]
    fn ends_with(self, fence: Fence) -> TransferResult {
        let result = finish(&self.transfer);
        assert_eq!((result.state, result.status, result.fence), (State::Failed, Status::PeerLost, fence));
        drop(self.transfer);
        self.memory.free(Some(Duration::ZERO)).map_err(|(_, error)| error).unwrap();
        result
    }
}

/// The same machine-id, boot and address, which is any: two containers of one image. Each is behind a relay of its
/// own.
#[test]
fn clones_that_listen_at_any_address_are_never_taken_for_one_another() {
    let _turn = alone();
    if !is_root("clones_that_listen_at_any_address_are_never_taken_for_one_another", "make namespaces") {
        return;
    }
    let a = engine(&[]);
    let events = a.queue(WHAT_PEERS, 16).unwrap();
    let memory = alloc(&a, BYTES);
    fill(&memory, 7);
    let clone = || {
        let mut child = Child::start();
        let thread = child.number("own_network");
        let told = "192.0.2.9:7000";
        assert_eq!(child.ask(&format!("open listen_address=0.0.0.0:7000 advertise_address={told}")), told);
        let namespace = format!("/proc/{}/task/{thread}/ns/net", child.pid());
        let relay = Relay::new("127.0.0.1:7000", Some(namespace));
        (child, relay)
    };
    let ((mut first, relay), (mut second, other_relay)) = (clone(), clone());
    let ((region, remote), (region2, remote2)) = (first.alloc(BYTES, 0), second.alloc(BYTES, 0));
    let peer = connect(&a, &relay.address);
    let requests = rounds(memory.address(), remote, region, BYTES, 16);
    let transfer = a.submit(peer, Op::Write, &requests, &without_deadline()).unwrap();
    wait_until("the first bytes land", || first.peek(remote, 8) != [0; 8]);
    let peer2 = connect(&a, &other_relay.address);
    assert_ne!(peer, peer2);
    let result = finish(&transfer);
    assert_eq!((result.state, result.fence), (State::Done, Fence::Confirmed), "{result:?}");
    a.write(peer2, &rounds(memory.address(), remote2, region2, BYTES, 1), &options()).unwrap();
    for (child, at) in [(&first, remote), (&second, remote2)] {
        assert_eq!(misplaced(&child.peek(at, BYTES), 7, 0), None);
    }
    assert_eq!(a.peer_info(peer).unwrap().state, PeerState::Up);
    let mut seen = Vec::new();
    events.drain(&mut seen, 16);
    assert!(!seen.iter().any(|event| matches!(event.body, EventBody::PeerLost { .. })), "{seen:?}");
    let identity = |peer| a.peer_info(peer).unwrap().engine_id;
    assert_ne!(identity(peer), identity(peer2));
}

/// Its host says that the process is gone: the engine that was restarted there reports it.
#[test]
fn what_was_posted_to_a_process_that_was_started_anew_is_dead_on_its_hosts_word() {
    let _turn = alone();
    let started = Instant::now();
    let (mut child, address) = Child::engine("");
    let posted = Posted::to(&mut child, &address, &[LONG_LEASE, MANY_TRIES]);
    child.kill();
    let (_anew, again) = Child::engine(&format!("listen_address={address}"));
    assert_eq!(again, address);
    assert_eq!(wait_for_loss(&posted.events, posted.peer), Status::PeerLost);
    posted.ends_with(Fence::Dead);
    assert!(started.elapsed() < BOUND, "the lease was waited for");
}

/// A peer without a proof is not believed.
#[test]
fn the_claim_of_a_peer_that_proves_nothing_is_no_proof() {
    let _turn = alone();
    let open = "secret= same_user=false allow_unauthenticated=true";
    let (mut child, address) = Child::engine(open);
    let settings = [SAME_USER, ("same_user", "false"), ("allow_unauthenticated", "true")];
    let posted = Posted::to(&mut child, &address, &settings);
    child.kill();
    let (_anew, _) = Child::engine(&format!("{open} listen_address={address}"));
    assert_eq!(wait_for_loss(&posted.events, posted.peer), Status::PeerLost);
    posted.ends_with(Fence::Lease);
}

/// The first process is only stopped when another engine answers in its place: the peer is lost at once, but its
/// posted frames wait for the lease, although both engines are of one host and one user.
#[test]
fn a_process_that_lives_is_not_dead_because_another_answers_in_its_place() {
    let _turn = alone();
    let settings = "lease_ms=3000";
    let (mut child, address) = Child::engine(settings);
    let relay = Relay::new(&address, None);
    let posted =
        Posted::to(&mut child, &relay.address, &[("lease_ms", "3000"), ("progress_timeout_ms", "1000")]);
    let (mut other, there) = Child::engine(settings);
    relay.lead_to(&there);
    // The stopped peer's silence breaks the connection, and the redial reaches the other engine.
    assert_eq!(wait_for_loss(&posted.events, posted.peer), Status::PeerLost);
    assert!(!posted.transfer.state().is_final(), "lost at once, and not yet at an end");
    posted.ends_with(Fence::Lease);
    // The other engine was asked: it knew that the process was there.
    assert_eq!(other.ask("peers").split_whitespace().count(), 1);
}

/// The new pid namespace numbers processes differently: the new engine can't tell about the old process.
#[test]
fn a_restart_in_another_pid_namespace_ends_by_the_lease() {
    let _turn = alone();
    if !is_root("a_restart_in_another_pid_namespace_ends_by_the_lease", "make namespaces") {
        return;
    }
    let (mut child, address) = Child::engine("lease_ms=2000");
    let posted = Posted::to(&mut child, &address, &[("lease_ms", "2000")]);
    child.kill();
    let mut anew = Child::in_pid_namespace();
    assert_eq!(anew.ask(&format!("open listen_address={address}")), address);
    assert_eq!(wait_for_loss(&posted.events, posted.peer), Status::PeerLost);
    posted.ends_with(Fence::Lease);
}

/// The peer dialed us, so we can't dial it: another engine in its place proves the loss, long before the time to
/// reconnect is over.
#[test]
fn a_dialer_that_was_started_anew_is_lost_as_soon_as_it_comes_again() {
    let _turn = alone();
    let started = Instant::now();
    let b = engine(&[("reconnect_timeout_ms", "60000")]);
    let events = b.queue(WHAT_PEERS, 16).unwrap();
    let (mut child, address) = Child::engine("");
    child.number(&format!("connect {}", b.address()));
    let peer = b.peers().unwrap()[0];
    child.kill();
    let (mut anew, _) = Child::engine(&format!("listen_address={address}"));
    anew.number(&format!("connect {}", b.address()));
    assert_eq!(wait_for_loss(&events, peer), Status::PeerLost);
    assert!(started.elapsed() < BOUND);
    let info = b.peer_info(peer).unwrap();
    assert_eq!(info.state, PeerState::Lost);
    // Another engine at the same address is a separate peer.
    let now = b.peers().unwrap().into_iter().find(|other| *other != peer).unwrap();
    let next = b.peer_info(now).unwrap();
    assert_eq!((next.state, &next.address), (PeerState::Up, &info.address));
    assert_ne!(next.engine_id, info.engine_id);
}
