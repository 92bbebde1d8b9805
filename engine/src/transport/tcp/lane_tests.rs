//! Closing is local quiescence: a lane is not closed while a thread is at it.

use super::*;
use crate::sys::poller::PollerKind;
use crate::transport::tcp::worker::Workers;
use crate::{Config, Engine};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{channel, TryRecvError};
use std::time::Duration;

const BOUND: Duration = Duration::from_secs(20);

fn engine() -> Engine {
    let mut config = Config::default();
    config.set("transports", "tcp").unwrap();
    Engine::open(config).unwrap()
}

/// A lane to a peer of `a`, over a socket whose other end is kept.
fn lane(a: &Engine, b: &Engine) -> (Arc<Lane>, UnixStream) {
    let peer = a.connect(b.address(), Some(BOUND)).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let spec = LaneSpec {
        id: 99,
        slot: 1,
        socket: ours.into(),
        send_key: [1; 32],
        receive_key: [2; 32],
        peer_reads_max: 1,
        frame_bytes_max: 1 << 20,
    };
    let workers = Workers::new(1, PollerKind::Epoll, 0).unwrap();
    let peer = a.whole().peers.get(peer).unwrap();
    (Arc::new(Lane::new(spec, peer, a.whole().clone(), workers.of(0, 1).clone(), 77)), theirs)
}

/// Whoever holds a side's lock may be in a system call that writes or reads memory for the lane.
fn assert_close_waits_for<T>(side: impl FnOnce(&Lane) -> MutexGuard<'_, T>) {
    let (a, b) = (engine(), engine());
    let (lane, _other_end) = lane(&a, &b);
    let (told, closed) = channel();
    let guard = side(&lane);
    let closing = lane.clone();
    let thread = std::thread::spawn(move || told.send(closing.close().len()).unwrap());
    while !lane.is_closed() {
        std::thread::yield_now();
    }
    // Nothing tells that it does not come; what comes too soon comes now.
    let until_ns = clock::monotonic_ns() + 50_000_000;
    while clock::monotonic_ns() < until_ns {
        assert_eq!(closed.try_recv(), Err(TryRecvError::Empty), "closed, and a thread is still at it");
        std::thread::yield_now();
    }
    drop(guard);
    assert_eq!(closed.recv_timeout(BOUND), Ok(0));
    thread.join().unwrap();
}

#[test]
fn closing_waits_for_who_receives() {
    assert_close_waits_for(|lane| lock(&lane.rx));
}

#[test]
fn closing_waits_for_who_sends() {
    assert_close_waits_for(|lane| lock(&lane.tx));
}
