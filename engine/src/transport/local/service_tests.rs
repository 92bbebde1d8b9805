//! An event costs only the sessions that it concerns, however many there are. The thread is not started; the tests call
//! its turns.

use super::*;
use crate::handle::Tag;
use crate::peer::tests::{peer_with, session_with};
use crate::region::grants::Grant;
use crate::region::RegionSpec;
use crate::sys::mapping::Mapping;
use crate::sys::{pause, thread};
use crate::transport::local::copier::Copier;
use crate::transport::local::process::Process;
use crate::transport::local::proof::LOOK_PATIENCE;
use crate::transport::local::session::Admitted;

const PEERS: u64 = 1000;

/// Returns a service with this many sessions that wait for their acceptors' messages.
fn service() -> Arc<LocalService> {
    let settings = LocalSettings { threads: 1, spin_ns: 0, any_tracer: false, listen: true };
    let grants = Arc::new(Grants::new().unwrap());
    let registry = Arc::new(Registry::new(Tag::from_random(1), Some(grants.clone())));
    let service = LocalService::new(settings, registry, grants, Arc::default()).unwrap();
    for handle in 1..=PEERS {
        service.begin(session_with(peer_with(handle), handle % 2 == 0));
    }
    service
}

/// Does one turn of the thread. Returns how many sessions it looked after.
fn turn(service: &Arc<LocalService>) -> u64 {
    let before = service.served.load(Ordering::Relaxed);
    service.clone().turn(clock::monotonic_ns(), &[]);
    service.served.load(Ordering::Relaxed) - before
}

/// Returns how long the thread may sleep.
fn left(service: &LocalService) -> Option<Duration> {
    let now = clock::monotonic_ns();
    service.lock().next_due(now).map(|at| Duration::from_nanos(at.saturating_sub(now)))
}

#[test]
fn an_event_costs_the_sessions_that_it_concerns() {
    let service = service();
    assert_eq!(turn(&service), PEERS, "each has just begun");
    assert_eq!(turn(&service), 0);
    assert!(left(&service).is_some_and(|left| left > PATIENCE / 2), "nothing is to be done");
    let nobody = unix::listen_abstract(unix::PACKETS.into()).unwrap().1;
    service.message(PeerId::from_raw(4), &nobody);
    assert_eq!(left(&service), Some(Duration::ZERO));
    assert_eq!(turn(&service), 1);
    service.end(PeerId::from_raw(7));
    assert_eq!(turn(&service), 0);
    assert!(
        service.lock().by_id.len() as u64 == PEERS - 2,
        "the one that came, and the one that ended, are forgotten"
    );
}

#[test]
fn regions_that_go_are_told_of_by_the_thread_in_turns() {
    let service = service();
    turn(&service);
    let ids: Vec<RegionId> = (0..20).map(RegionId::from_raw).collect();
    service.regions_removed(&ids);
    assert_eq!(service.lock().gone, ids, "the caller has told nobody");
    let mut turns = 0;
    while left(&service) == Some(Duration::ZERO) {
        turns += 1;
        turn(&service);
    }
    assert_eq!(turns, 20_u64.div_ceil(5), "4,096 sessions in a turn");
    assert!(service.lock().gone.is_empty());
}

/// PEER_LOST is not delivered while a thread of this process copies for a READ from the peer, although no process of
/// the peer copies here.
#[test]
fn a_lost_peer_is_not_quiet_while_this_process_copies() {
    let (service, peer) = (service(), PeerId::from_raw(3));
    let (tally, copier) = Copier::own(&service.grants, std::process::id());
    let admitted = Admitted { tally, process: copier.process.clone() };
    let path = LocalPath::new(peer_with(3), copier, 1, 0, Box::new(|| ()));
    let mut sessions = service.lock();
    sessions.all.get_mut(&peer).unwrap().admitted = Some(admitted);
    sessions.open.insert(peer, (path.clone(), String::new()));
    drop(sessions);
    assert!(path.gate.enter());
    service.end(peer);
    for _ in 0..3 {
        assert!(!service.is_quiet(peer));
        let again = service.lock().draining_times.first().unwrap();
        service.clone().turn(again, &[]);
    }
    assert_eq!(service.unrest(peer).as_deref(), Some("this process has not ended a copy here"));
    path.gate.leave();
    let again = service.lock().draining_times.first().unwrap();
    service.clone().turn(again, &[]);
    assert!(service.is_quiet(peer));
    assert_eq!(service.lock().draining_times.first(), None, "nothing is left of it");
    assert!(!path.gate.enter(), "and nothing begins any more");
}

/// The acceptor may copy before the dialer has its answer. If it dies then, it copies no more, though the dialer never
/// had a path to it.
#[test]
fn a_process_that_died_in_a_copy_is_quiet_without_a_path() {
    let (service, peer) = (service(), PeerId::from_raw(3));
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let pid = child.id() as i32;
    let memory = Mapping::private(4096).unwrap();
    let spec = RegionSpec { address: memory.address() as u64, length: 4096, ..RegionSpec::default() };
    let region = service.registry.register(&[spec]).unwrap()[0].id;
    let (tally, fd) = service.grants.admit(pid).unwrap();
    let grant = Grant::new(service.grants.board(), &fd).unwrap();
    std::mem::forget(grant.enter(region).unwrap());
    let process = Arc::new(Process::numbered(pid, pid));
    service.lock().all.get_mut(&peer).unwrap().admitted = Some(Admitted { tally, process });
    service.end(peer);
    let turn_again = || {
        // A process that was seen is believed to live for a millisecond.
        let later = clock::monotonic_ns() + 10_000_000;
        while clock::monotonic_ns() < later {
            std::hint::spin_loop();
        }
        service.clone().turn(later, &[]);
    };
    turn_again();
    assert!(!service.is_quiet(peer), "the process lives, and copies");
    child.kill().unwrap();
    child.wait().unwrap();
    turn_again();
    assert!(service.is_quiet(peer));
    assert_eq!(service.lock().draining_times.first(), None, "nothing is left of it");
}

/// The attempt to establish the path ends, and the control loop learns why.
#[test]
fn a_process_that_cannot_be_watched_settles_its_path() {
    let (service, peer) = (service(), PeerId::from_raw(3));
    let (_tally, copier) = Copier::own(&service.grants, std::process::id());
    // epoll takes a descriptor once.
    service.poller.add(copier.process.pidfd().as_raw_fd(), 1 << 40, READ).unwrap();
    let mut sessions = service.lock();
    let session = sessions.all.get_mut(&peer).unwrap();
    session.copier = Some(copier);
    let commands = session.session_info.peer.engine().commands.clone();
    service.settle(&mut sessions, peer);
    drop(sessions);
    let is_told = |command: &Command| match command {
        Command::PathSettled { peer: of, why: Some(why), .. } => *of == peer && why.contains("watched"),
        _ => false,
    };
    assert!(commands.take().iter().any(is_told));
}

/// A look that ends holds no descriptors behind its engine; one that waits for a page that never comes holds up nobody.
#[test]
fn the_end_waits_for_looks_but_not_for_ever() {
    let service = service();
    let (held, ends) = (Arc::new(()), Arc::new(AtomicBool::new(false)));
    for (peer, waits) in [(1, false), (2, true)] {
        let (held, ends) = (held.clone(), ends.clone());
        let look = move || {
            pause::sleep(Duration::from_millis(50));
            while waits && !ends.load(Ordering::Acquire) {
                pause::sleep(Duration::from_millis(1));
            }
            drop(held);
        };
        let look = thread::spawn_outside("ferry-proof", look).unwrap();
        service.lock().proving.insert(PeerId::from_raw(peer), look);
    }
    let begun = clock::now();
    service.stop();
    assert!(clock::now() - begun < 2 * LOOK_PATIENCE + PATIENCE);
    assert_eq!(Arc::strong_count(&held), 2, "the one that ends has ended");
    ends.store(true, Ordering::Release);
}
