//! A transfer is struck after a thread has pulled a frame of it and before the thread posts the frame: no lane carries
//! the transfer when its drain is over, and it must still end.

use crate::peer::outbox::Pulled;
use crate::sys::clock;
use crate::types::{Op, PeerId, Request};
use crate::{Config, Deadline, Engine, Memory, RegionOptions, TransferOptions};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Mutex;
use std::thread::Thread;
use std::time::{Duration, Instant};

pub(super) const BOUND: Duration = Duration::from_secs(30);
const BYTES: usize = 512 << 10;
const DRAIN_MS: u64 = 20;

/// Stops the thread that has pulled the first frame of a transfer.
pub(super) struct Stop {
    taken: Receiver<()>,
    pub go_on: Sender<()>,
}

impl Stop {
    /// Stops the next thread that pulls data of this peer.
    pub fn next(engine: &Engine, peer: PeerId) -> Stop {
        Stop::next_of(engine, peer, |_| true)
    }

    /// Stops the next thread of the test that does so. The engine's own threads go on: one that is still sending takes
    /// over what a caller would post.
    pub fn next_caller(engine: &Engine, peer: PeerId) -> Stop {
        Stop::next_of(engine, peer, |thread| !thread.name().is_some_and(|name| name.starts_with("ferry-")))
    }

    fn next_of(engine: &Engine, peer: PeerId, is_it: fn(&Thread) -> bool) -> Stop {
        let ((tell, taken), (go_on, wait)) = (channel(), channel());
        let once = Mutex::new(Some((tell, wait)));
        engine.whole().peers.get(peer).unwrap().pulled.set(move |pulled| {
            if !is_it(&std::thread::current()) {
                return;
            }
            if let (Pulled::Slices { .. }, Some((tell, wait))) = (pulled, once.lock().unwrap().take()) {
                tell.send(()).unwrap();
                // The wait also ends with the test.
                let _: Result<(), _> = wait.recv();
            }
        });
        Stop { taken, go_on }
    }

    /// Returns whether the thread has been stopped since this was asked last.
    pub fn has_stopped(&self) -> bool {
        self.taken.try_recv().is_ok()
    }

    pub fn wait(&self) {
        self.taken.recv_timeout(BOUND).expect("nobody posts");
    }
}

pub(super) fn engine() -> Engine {
    let mut config = Config::default();
    for (key, value) in [
        ("transports", "tcp"),
        ("lanes", "1"),
        ("lease_ms", "400"),
        ("drain_ms", &DRAIN_MS.to_string()),
        // Nothing else ends the transfer early.
        ("progress_timeout_ms", "600000"),
    ] {
        config.set(key, value).unwrap();
    }
    Engine::open(config).unwrap()
}

fn write(engine: &Engine, peer: PeerId, from: &Memory, to: &Memory) -> crate::Transfer {
    let length = BYTES as u64;
    let request = Request { local: from.address(), remote: to.address(), length, remote_region: to.region() };
    let options = TransferOptions { deadline: Deadline::Never, ..TransferOptions::default() };
    engine.submit(peer, Op::Write, &[request], &options).unwrap()
}

/// Completes a first transfer, and waits until the loops have set up its lanes: after that, neither loop posts.
pub(super) fn stand(a: &Engine, b: &Engine, peer: PeerId, first: crate::Transfer) {
    first.wait_done().unwrap();
    let back = b.peers().unwrap()[0];
    for (engine, peer) in [(a, peer), (b, back)] {
        while engine.peer_info(peer).unwrap().lanes < 2 {
            std::thread::yield_now();
        }
        engine.probe(peer, Some(BOUND)).unwrap();
    }
}

#[test]
fn what_is_taken_and_posted_after_the_drain_ends_all_the_same() {
    let (a, b) = (engine(), engine());
    let peer = a.connect(b.address(), Some(BOUND)).unwrap();
    let back = b.peers().unwrap()[0];
    let options = RegionOptions::default();
    let (here, there) = (a.alloc(BYTES, &options).unwrap(), b.alloc(BYTES, &options).unwrap());
    stand(&a, &b, peer, write(&a, peer, &here, &there));
    let (ours, theirs) = (Stop::next(&a, peer), Stop::next(&b, back));
    // The target's thread is stopped inside its own send: it receives nothing more on this lane.
    let blocked = write(&b, back, &there, &here);
    theirs.wait();
    let transfer = write(&a, peer, &here, &there);
    ours.wait();
    transfer.cancel().unwrap();
    // Each answer takes at least one turn of the control loop: after two answers, the drain was checked.
    let over_ns = clock::monotonic_ns() + DRAIN_MS * 1_000_000;
    while clock::monotonic_ns() <= over_ns {
        a.probe(peer, Some(BOUND)).unwrap();
    }
    for _ in 0..2 {
        a.probe(peer, Some(BOUND)).unwrap();
    }
    assert!(transfer.result().is_none(), "no frame was posted");
    ours.go_on.send(()).unwrap();
    let started = Instant::now();
    let result = transfer.wait(Some(BOUND / 2));
    theirs.go_on.send(()).unwrap();
    result.unwrap_or_else(|error| panic!("after {:?}: {error}", started.elapsed()));
    blocked.cancel().unwrap();
    blocked.wait(Some(BOUND)).unwrap();
}
