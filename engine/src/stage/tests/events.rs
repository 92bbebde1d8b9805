//! Transfers that start after the program's own work on a device, and streams that wait for transfers.

use super::*;
use crate::complete::transfer::Strike;
use crate::complete::Fence;
use crate::notify::Wakers;
use std::future::Future;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Wake, Waker};

fn after(event: u64) -> TransferOptions<'static> {
    TransferOptions { start: Some((MemoryKind::Cuda, Start::Event(event))), ..options() }
}

/// Nothing moves before the event, whether the transfer is small or large and whose memory it uses. ORDERED
/// transfers behind it wait, too.
#[test]
fn a_transfer_starts_after_its_event() {
    for transports in ["tcp", "local"] {
        let two = Two::new(&[("transports", transports)]);
        for (round, (device, bytes)) in [(None, 8), (None, 4 * MIB), (Some(0), MIB)].into_iter().enumerate() {
            let (local, remote) = (two.place(&two.a, device, bytes), two.place(&two.b, device, bytes));
            let untouched = remote.read(0, bytes);
            local.write(0, &pattern(5, bytes));
            let event = (round + 100) as u64 + two.peer.raw();
            let requests = [request(&local, &remote, (0, 0), bytes)];
            let first = TransferOptions { ordered: true, ..after(event) };
            let second = TransferOptions { ordered: true, ..options() };
            let first = two.a.submit(two.peer, Op::Write, &requests, &first).unwrap();
            let second = two.a.submit(two.peer, Op::Write, &requests, &second).unwrap();
            let free = two.place(&two.b, None, 8);
            let own = two.place(&two.a, None, 8);
            two.done(Op::Write, &[request(&own, &free, (0, 0), 8)]);
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!((first.state(), second.state()), (State::Pending, State::Pending));
            assert!(remote.read(0, bytes) == untouched);
            two.fake.events.lock().unwrap().push(event);
            assert_eq!(first.wait(Some(BOUND)).unwrap().state, State::Done);
            assert_eq!(second.wait(Some(BOUND)).unwrap().state, State::Done);
            check(&requests, Op::Write, &local, &remote);
        }
    }
}

#[test]
fn an_event_that_does_not_come_or_fails_ends_the_transfer() {
    let two = Two::new(&[("transports", "tcp")]);
    let (local, remote) = (two.place(&two.a, None, MIB), two.place(&two.b, None, MIB));
    remote.write(0, &pattern(1, MIB));
    let requests = [request(&local, &remote, (0, 0), MIB)];
    let late = TransferOptions { deadline: Deadline::After(Duration::from_millis(30)), ..after(9) };
    let started = Instant::now();
    assert_eq!(two.run(Op::Write, &requests, &late).0.state, State::TimedOut);
    assert!(started.elapsed() < Duration::from_secs(1));
    let cancelled = two.a.submit(two.peer, Op::Write, &requests, &after(9)).unwrap();
    cancelled.cancel().unwrap();
    assert_eq!(cancelled.wait(Some(BOUND)).unwrap().state, State::Cancelled);
    let (failed, _) = two.run(Op::Write, &requests, &after(fake::FAILED));
    assert_eq!((failed.state, failed.status), (State::Failed, Status::System));
    // The event fires too late for the struck transfers.
    two.fake.events.lock().unwrap().push(9);
    std::thread::sleep(Duration::from_millis(20));
    assert!(remote.read(0, MIB) == pattern(1, MIB));
}

/// The thread that waits for the event drops a struck transfer, perhaps before the strike removes it from the queue.
#[test]
fn what_is_struck_while_it_waits_for_its_event_never_starts() {
    let two = Two::new(&[("transports", "tcp")]);
    let (local, remote) = (two.place(&two.a, None, 16), two.place(&two.b, None, 16));
    remote.write(0, &pattern(1, 16));
    let held = [request(&local, &remote, (0, 0), 8)];
    let transfer = two.a.submit_core(two.peer, Op::Write, &held, &after(8)).unwrap();
    let peer = two.a.whole().peers.get(two.peer).unwrap();
    assert!(transfer.strike(Strike { status: Status::Cancelled, os_error: 0 }, &mut Wakers::default()));
    peer.start(&transfer);
    // On the same lane, behind what was started.
    two.done(Op::Write, &[request(&local, &remote, (8, 8), 8)]);
    assert!(remote.read(0, 8) == pattern(1, 8) && !transfer.is_final());
    peer.abandon(&transfer, transfer.units(), Fence::Confirmed, &mut peer.after());
    assert_eq!(transfer.state(), State::Cancelled);
}

#[test]
fn a_stream_waits_until_the_transfer_is_final_however_it_ends() {
    let two = Two::new(&[("transports", "tcp")]);
    let (local, remote) = (two.place(&two.a, None, MIB), two.place(&two.b, None, MIB));
    let requests = [request(&local, &remote, (0, 0), MIB)];
    let waits = |stream: u64| two.fake.streams.lock().unwrap().contains(&stream);
    let held = |stream: u64, event: u64| {
        let transfer = two.a.submit_core(two.peer, Op::Write, &requests, &after(event)).unwrap();
        // SAFETY: the fake's streams are numbers.
        unsafe { two.a.hold_stream(&transfer, MemoryKind::Cuda, stream) }.unwrap();
        assert!(waits(stream));
        transfer
    };
    let done = held(1, 21);
    two.fake.events.lock().unwrap().push(21);
    until("the stream goes on", || !waits(1));
    assert_eq!(done.state(), State::Done);
    let cancelled = held(2, 22);
    two.a.cancel(&cancelled).unwrap();
    until("the stream goes on", || !waits(2));
    // SAFETY: as above.
    unsafe { two.a.hold_stream(&done, MemoryKind::Cuda, 3) }.unwrap();
    assert!(!waits(3), "of a transfer that is final already");
    let _closed = held(4, 24);
    two.a.close(Some(BOUND)).unwrap();
    assert!(!waits(4));
}

/// The device's thread runs the program's task, whose panic is its own.
#[test]
fn a_task_that_panics_at_its_point_breaks_nothing() {
    struct Panics(AtomicBool);
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
            panic!("a task");
        }
    }
    let two = Two::new(&[("transports", "tcp")]);
    let task = Arc::new(Panics(AtomicBool::new(false)));
    let mut point = std::pin::pin!(two.a.reached(MemoryKind::Cuda, Start::Event(77)).unwrap());
    let waker = Waker::from(task.clone());
    assert!(point.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    two.fake.events.lock().unwrap().push(77);
    until("the task is woken", || task.0.load(Ordering::SeqCst));
    assert!(point.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    let (local, remote) = (two.place(&two.a, Some(0), MIB), two.place(&two.b, None, MIB));
    two.done(Op::Write, &[request(&local, &remote, (0, 0), MIB)]);
    two.a.check_health().unwrap();
}

/// The program may destroy its event once the transfer is final.
#[test]
fn a_transfer_is_not_final_while_its_event_is_looked_at() {
    let two = Two::new(&[("transports", "tcp")]);
    let (local, remote) = (two.place(&two.a, None, 8), two.place(&two.b, None, 8));
    let held = [request(&local, &remote, (0, 0), 8)];
    let transfer = two.a.submit_core(two.peer, Op::Write, &held, &after(31)).unwrap();
    two.fake.look_waits.store(true, Ordering::SeqCst);
    until("the event is looked at", || two.fake.looking.load(Ordering::SeqCst) == 1);
    std::thread::scope(|scope| {
        scope.spawn(|| two.a.cancel(&transfer));
        std::thread::sleep(Duration::from_millis(50));
        let is_final = transfer.is_final();
        two.fake.look_waits.store(false, Ordering::SeqCst);
        assert!(!is_final);
    });
    assert_eq!(two.a.wait(&transfer, Some(BOUND)).unwrap().state, State::Cancelled);
}
