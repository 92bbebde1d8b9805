//! Closing a lane waits for every thread that uses it.

use super::*;
use crate::complete::{State, Transfer};
use crate::peer::tests::{peer, submit_plain};
use crate::peer::What;
use crate::sys::lock::MutexGuard;
use crate::sys::poller::PollerKind;
use crate::transport::tcp::incoming::acknowledge;
use crate::transport::tcp::wire::{Header, Kind};
use crate::transport::tcp::worker::Workers;
use crate::types::{Boottime, LaneId, Monotonic};
use crate::{Config, Engine};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{channel, TryRecvError};
use std::task::Wake;
use std::time::Duration;

const BOUND: Duration = Duration::from_secs(20);

fn engine() -> Engine {
    let mut config = Config::default();
    config.set("transports", "tcp").unwrap();
    Engine::open(config).unwrap()
}

/// Returns a lane to a peer of `a`, over a socket whose other end is returned too.
fn lane(a: &Engine, b: &Engine) -> (Arc<Lane>, UnixStream) {
    let peer = a.connect(b.address(), Some(BOUND)).unwrap();
    lane_of(a, a.whole().peers.get(peer).unwrap())
}

fn lane_of(a: &Engine, peer: Arc<Peer>) -> (Arc<Lane>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let spec = LaneSpec {
        id: LaneId::from_raw(99),
        slot: 1,
        socket: ours.into(),
        send_key: [1; 32],
        receive_key: [2; 32],
        peer_reads_max: 1,
        frame_bytes_max: 1 << 20,
    };
    let workers = Workers::new(1, PollerKind::Epoll, 0).unwrap();
    (Arc::new(Lane::new(spec, peer, a.whole().clone(), workers.of(0, 1).clone(), 77)), theirs)
}

/// Closes the lane on another thread, which must not finish before `go_on` is called. Returns the number of records.
fn assert_close_waits(lane: &Arc<Lane>, go_on: impl FnOnce()) -> usize {
    let (told, closed) = channel();
    let closing = lane.clone();
    let thread = std::thread::spawn(move || told.send(closing.close().len()).unwrap());
    while !lane.is_closed() {
        std::thread::yield_now();
    }
    // No event shows that the close waits, so the test allows time for a wrong end.
    let until_ns = clock::monotonic_ns() + 50_000_000;
    while clock::monotonic_ns() < until_ns {
        assert_eq!(closed.try_recv(), Err(TryRecvError::Empty), "closed while a thread uses the lane");
        std::thread::yield_now();
    }
    go_on();
    let records = closed.recv_timeout(BOUND).unwrap();
    thread.join().unwrap();
    records
}

/// A thread that holds a side's lock may be in a system call that accesses memory for the lane.
fn assert_close_waits_for<T>(side: impl FnOnce(&Lane) -> MutexGuard<'_, T>) {
    let (a, b) = (engine(), engine());
    let (lane, _other_end) = lane(&a, &b);
    let guard = side(&lane);
    assert_eq!(assert_close_waits(&lane, || drop(guard)), 0);
}

/// Posts a WRITE that the lane has sent whole and that is not acknowledged yet.
fn sent(lane: &Lane) -> Arc<Transfer> {
    let transfer = submit_plain(&lane.peer, 1, 8);
    let Some(Pulled::Slices { range, bytes, .. }) = lane.pull(lane.windows()) else {
        panic!("nothing is queued")
    };
    let what = What::Slices { transfer: transfer.clone(), range, bytes, notified: false };
    let mut flight = lane.flight.lock();
    let sequence = flight.launch(Op::Write, Monotonic::NEVER, what);
    assert!(flight.end_send([sequence, 0]).unwrap().is_empty());
    transfer
}

/// A thread has taken an acknowledgement and not applied it when the lane is closed: the fence must not precede the
/// outcome. Work that follows the outcome is done under no lock: a task can close the lane that woke it.
#[test]
fn closing_waits_for_a_thread_that_applies_outcomes() {
    let a = engine();
    let (lane, _other_end) = lane_of(&a, peer());
    let transfer = sent(&lane);
    let ((tell, taken), (go_on, wait)) = (channel(), channel::<()>());
    let once = Mutex::new(Some((tell, wait)));
    lane.peer.taken.set(move |_| {
        if let Some((tell, wait)) = once.lock().take() {
            tell.send(()).unwrap();
            let _ = wait.recv();
        }
    });
    let woken = Arc::new(Woken { lane: lane.clone(), records: OnceLock::new() });
    transfer.waiter.register_own(&woken.clone().into());
    std::thread::scope(|scope| {
        let ours = &lane;
        scope.spawn(move || {
            let mut after = ours.peer.after();
            assert!(acknowledge(ours, &ACKNOWLEDGEMENT, &[], &mut after).is_ok());
        });
        taken.recv_timeout(BOUND).unwrap();
        // The closure owns `go_on`, so a failed assertion also releases the thread.
        let go_on = move || go_on.send(()).unwrap();
        assert_eq!(assert_close_waits(&lane, go_on), 0, "its record was taken");
    });
    assert_eq!(transfer.result().unwrap().state, State::Done);
    assert_eq!(woken.records.get(), Some(&0), "the woken task could close the lane");
}

/// A task that closes the lane that woke it.
struct Woken {
    lane: Arc<Lane>,
    records: OnceLock<usize>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.records.set(self.lane.close().len()).unwrap();
    }
}

const ACKNOWLEDGEMENT: Header = Header {
    kind: Kind::Ack,
    flags: 0,
    descriptors: 0,
    payload_bytes: 0,
    extra_bytes: 0,
    sequence: 1,
    not_after_ns: Boottime::ZERO,
    clock_ns: Boottime::ZERO,
    checksum: 0,
};

#[test]
fn closing_waits_for_a_thread_that_receives() {
    assert_close_waits_for(|lane| lane.rx.lock());
}

#[test]
fn closing_waits_for_a_thread_that_sends() {
    assert_close_waits_for(|lane| lane.tx.lock());
}

/// An acknowledgement covers all frames before it, so nothing may be received behind one that broke the stream.
#[test]
fn nothing_is_received_behind_what_broke_the_stream() {
    let (a, b) = (engine(), engine());
    let (lane, mut other_end) = lane(&a, &b);
    let mut after = lane.peer.after();
    std::io::Write::write_all(&mut other_end, &[0xff; 256]).unwrap();
    assert!(lane.rx.lock().run(&lane, &mut after).failed.is_some());
    assert!(!lane.failed.load(Ordering::SeqCst), "the thread that found it has not said so yet");
    std::io::Write::write_all(&mut other_end, &[0xff; 256]).unwrap();
    let turn = lane.rx.lock().run(&lane, &mut after);
    assert!(turn.bytes == 0 && turn.failed.is_none());
}

#[test]
fn a_caller_that_is_woken_late_sleeps_again() {
    let (a, b) = (engine(), engine());
    let (lane, _other_end) = lane(&a, &b);
    lane.sleep_for_input(0, || false);
    // The waker found it asleep, and raises now.
    lane.caller_wake.get().unwrap().raise();
    lane.sleep_for_input(u64::MAX, || false);
    let begin = clock::monotonic_ns();
    lane.sleep_for_input(20_000_000, || false);
    assert!(clock::monotonic_ns() >= begin + 20_000_000, "it does not sleep any more");
}
