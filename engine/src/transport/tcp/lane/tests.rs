//! A lane is closed when every thread that uses it has left.

use super::*;
use crate::complete::{State, Transfer};
use crate::peer::tests::{peer, submit_plain, submit_with};
use crate::peer::transport::Parting;
use crate::peer::What;
use crate::sys::lock::MutexGuard;
use crate::sys::mapping::Mapping;
use crate::sys::pages::Pages;
use crate::sys::poller::PollerKind;
use crate::transport::tcp::incoming::acknowledge;
use crate::transport::tcp::wire::{Descriptor, Header, Kind};
use crate::transport::tcp::worker::Workers;
use crate::types::{Boottime, LaneId, Monotonic, Op, Request, Slice};
use crate::{Config, Deadline, Engine, RegionOptions, TransferOptions};
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
    let thread = std::thread::spawn(move || told.send(closing.close().records.len()).unwrap());
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

/// A thread that holds a side's lock may be in a system call that accesses memory for the lane, and never return.
fn assert_close_says_soon<T>(side: impl FnOnce(&Lane) -> MutexGuard<'_, T>) {
    let (a, b) = (engine(), engine());
    let (lane, _other_end) = lane(&a, &b);
    let guard = side(&lane);
    assert!(!lane.close().is_quiet && !lane.close().is_quiet);
    drop(guard);
    assert!(lane.close().is_quiet);
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
        self.records.set(self.lane.close().records.len()).unwrap();
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
fn a_lane_is_not_closed_while_a_thread_receives() {
    assert_close_says_soon(|lane| lane.rx.lock());
}

#[test]
fn a_lane_is_not_closed_while_a_thread_sends() {
    assert_close_says_soon(|lane| lane.tx.lock());
}

/// An acknowledgement covers all frames before it, so nothing may be received behind one that broke the stream.
#[test]
fn nothing_is_received_behind_what_broke_the_stream() {
    let (a, b) = (engine(), engine());
    let (lane, mut other_end) = lane(&a, &b);
    let mut after = lane.peer.after();
    std::io::Write::write_all(&mut other_end, &[0xff; 256]).unwrap();
    assert!(lane.rx.lock().run(&lane, By::Worker, &mut after).failed.is_some());
    assert!(!lane.failed.load(Ordering::SeqCst), "the thread that found it has not said so yet");
    std::io::Write::write_all(&mut other_end, &[0xff; 256]).unwrap();
    let turn = lane.rx.lock().run(&lane, By::Worker, &mut after);
    assert!(turn.bytes == 0 && turn.failed.is_none());
}

/// A WRITE with a notification, whose memory faults when its head is sent: the rest would complete it at the target.
#[test]
fn nothing_is_sent_behind_what_broke_the_stream() {
    const SLICES: u64 = 8;
    let a = engine();
    let (lane, mut other_end) = lane_of(&a, peer());
    lane.peer.clock.sample(clock::boottime_ns(), clock::boottime_ns());
    let memory = vec![7; (SLICES as usize) << 16];
    // The last slice stays where no memory can be.
    let transfer = submit_with(&lane.peer, 1, SLICES, |spec| {
        let at =
            |slice: &mut Slice| slice.local = memory.as_ptr() as u64 + u64::from(slice.first) * (64 << 10);
        spec.slices.iter_mut().take(SLICES as usize - 1).for_each(at);
    });
    other_end.set_nonblocking(true).unwrap();
    let mut received = Vec::new();
    let mut receive = || {
        let end = std::io::Read::read_to_end(&mut other_end, &mut received).unwrap_err();
        assert_eq!(end.kind(), std::io::ErrorKind::WouldBlock);
        received.len()
    };
    let mut after = lane.peer.after();
    let mut turn = || lane.tx.lock().run(&lane, &mut after);
    while matches!(turn(), TxTurn::Blocked) {
        receive();
    }
    let before = receive();
    assert!(before >> 16 == SLICES as usize - 1, "{before} bytes were sent");
    assert!(!lane.failed.load(Ordering::SeqCst), "the thread that found it has not said so yet");
    assert!(matches!(turn(), TxTurn::Failed(_)));
    assert_eq!(receive(), before);
    assert!(!transfer.is_pending());
}

#[test]
fn a_caller_that_is_woken_late_sleeps_again() {
    let (a, b) = (engine(), engine());
    let (lane, _other_end) = lane(&a, &b);
    lane.sleep_for_input(0, || false);
    // A waker that found the caller asleep raises the signal only now.
    lane.caller_wake.get().unwrap().raise();
    lane.sleep_for_input(u64::MAX, || false);
    let begin = clock::monotonic_ns();
    lane.sleep_for_input(20_000_000, || false);
    assert!(clock::monotonic_ns() >= begin + 20_000_000, "it does not sleep any more");
}

/// A thread that sends may still read the frames that the kernel does not have whole; one that receives may still write
/// the answer to the oldest READ. The other records do not wait for them.
#[test]
fn records_that_no_thread_can_touch_do_not_wait_for_one_that_is_stuck() {
    for is_sent_on in [true, false] {
        let (a, b) = (engine(), engine());
        let (lane, _other_end) = lane(&a, &b);
        let launch = |op| lane.flight.lock().launch(op, Monotonic::NEVER, What::Skip(0));
        let whole = launch(Op::Write);
        assert!(lane.flight.lock().end_send([whole, 0]).unwrap().is_empty());
        launch(Op::Write);
        launch(Op::Read);
        launch(Op::Read);
        let (tx, rx) = if is_sent_on { (Some(lane.tx.lock()), None) } else { (None, Some(lane.rx.lock())) };
        let closing = lane.close();
        assert_eq!((closing.records.len(), closing.is_quiet), (3, false));
        assert_eq!(lane.close().records.len(), 0, "each is returned once");
        drop((tx, rx));
        let closing = lane.close();
        assert_eq!((closing.records.len(), closing.is_quiet), (1, true));
    }
}

/// The thread that could not be waited for tells the control loop when it has left, and its worker when the lane is to
/// send its last answers.
#[test]
fn a_thread_that_leaves_tells_those_that_could_not_wait() {
    let (a, b) = (engine(), engine());
    let (lane, _other_end) = lane(&a, &b);
    let rx = lane.rx.lock();
    assert!(lane.part(Parting::Receives) && lane.is_parting());
    lane.kicked();
    assert!(lane.is_parting(), "another thread receives");
    drop(rx);
    lane.kicked();
    assert!(!lane.is_parting());
    assert!(lane.close().is_quiet);
    assert!(!lane.part(Parting::Sends), "a closed lane has nothing to send");
}

/// Otherwise the poller would report the lane's end to the worker until every lane of the session has parted.
#[test]
fn a_lane_whose_end_was_found_in_a_parting_is_left_alone() {
    let (a, b) = (engine(), engine());
    let (lane, other_end) = lane(&a, &b);
    drop(other_end);
    assert!(lane.part(Parting::Receives));
    lane.kicked();
    assert!(!lane.is_parting() && !lane.is_aside.load(Ordering::SeqCst));
    assert!(lane.drive_rx(By::Worker).is_held && lane.is_aside.load(Ordering::SeqCst));
    assert!(!lane.part(Parting::Sends), "nobody would take what it sends");
    assert!(lane.close().is_quiet);
}

/// Bytes that came with the head are placed before bytes that are still in the socket, whichever thread continues.
#[test]
fn a_caller_leaves_a_frame_to_the_worker_whose_page_is_not_there() {
    let (a, b) = (engine(), engine());
    let (lane, mut other_end) = lane(&a, &b);
    let page = crate::sys::memory::page_bytes();
    let memory = Mapping::private(2 * page).unwrap();
    // SAFETY: the mapping outlives the engine.
    let region = unsafe { a.register(memory.address(), 2 * page, &crate::RegionOptions::default()) }.unwrap();
    // SAFETY: this mapping, to which no reference exists. Its pages go.
    assert_eq!(unsafe { libc::madvise(memory.address().cast(), 2 * page, libc::MADV_DONTNEED) }, 0);
    let (mut sealer, mut sequence) = (Sealer::new([2; 32]), 0);
    let mut write = |offset: usize, byte: u8| {
        sequence += 1;
        let not_after_ns = clock::boottime_ns() + BOUND.as_nanos() as u64;
        let header = Header {
            kind: Kind::Write,
            descriptors: 1,
            payload_bytes: 64,
            sequence,
            not_after_ns,
            ..ACKNOWLEDGEMENT
        };
        let mut bytes = Vec::new();
        let address = memory.address() as u64 + offset as u64;
        sealer.seal(&header, &mut bytes, |out| Descriptor { address, region, length: 64 }.encode(out));
        bytes.extend([byte; 64]);
        std::io::Write::write_all(&mut other_end, &bytes).unwrap();
    };
    let found = |offset: usize| {
        let mut found = [0; 64];
        memory.read(offset, &mut found);
        found
    };
    let is_there = |offset: usize| {
        Pages::of(None).has(memory.address() as u64 + offset as u64, 64, clock::monotonic_ns(), &mut 1)
    };
    lane.worker.add(&lane).unwrap();
    assert!(lane.claim_input());
    write(0, 7);
    write(page, 8);
    for _ in 0..2 {
        let turn = lane.drive_rx(By::Caller);
        assert!(turn.leaves && !is_there(0), "{turn:?}");
    }
    // Later bytes wait in the socket.
    write(0, 9);
    assert!(lane.drive_rx(By::Caller).leaves && !is_there(0));
    lane.return_input(true);
    lane.kicked();
    assert_eq!((found(0), found(page)), ([9; 64], [8; 64]));
    // The caller itself takes a frame whose pages are there.
    assert!(lane.claim_input());
    write(64, 5);
    let turn = lane.drive_rx(By::Caller);
    assert!(turn.owes_answer && !turn.leaves);
    assert_eq!((found(64), found(0)), ([5; 64], [9; 64]));
    lane.close();
    a.close(Some(BOUND)).unwrap();
}

/// Calls are shorter while small transfers go on with any peer, at both ends. Notifications alone shorten none.
#[test]
fn calls_are_shorter_beside_small_transfers_of_another_peer() {
    let (a, b, c) = (engine(), engine(), engine());
    let (lanes, to_b) = ([lane(&a, &c).0, lane(&b, &c).0], a.connect(b.address(), Some(BOUND)).unwrap());
    let alloc = |engine: &Engine| engine.alloc(4096, &RegionOptions::default()).unwrap();
    let (here, there) = (alloc(&a), alloc(&b));
    let (local, remote, remote_region) = (here.address(), there.address(), there.region());
    let small = Request { local, remote, length: 64, remote_region };
    let all_may = |bytes: usize| lanes.iter().all(|lane| lane.call_bytes_max() == bytes);
    let eventually = |what: &str, is_so: &mut dyn FnMut() -> bool| {
        let until_ns = clock::monotonic_ns() + BOUND.as_nanos() as u64;
        while !is_so() {
            assert!(clock::monotonic_ns() < until_ns, "never: {what}");
        }
    };
    for op in [Op::Write, Op::Read] {
        eventually("silence", &mut || all_may(CALL_BYTES_MAX));
        eventually("small transfers", &mut || {
            let transfer = a.submit(to_b, op, &[small], &TransferOptions::default()).unwrap();
            assert_eq!(transfer.wait(Some(BOUND)).unwrap().state, State::Done, "{op:?}");
            all_may(GENTLE_CALL_BYTES_MAX)
        });
    }
    eventually("silence", &mut || all_may(CALL_BYTES_MAX));
    for _ in 0..20 {
        a.notify(to_b, b"a layer", Deadline::After(BOUND)).unwrap();
        assert!(all_may(CALL_BYTES_MAX), "beside notifications");
    }
}
