//! Transfers and events as futures, under runtimes without knowledge of ferry: tokio with one thread and with several,
//! and tokio-uring.

mod common;

use common::data::{check, contents, prepare};
use common::inline::{waker, Next};
use common::{request, Pair, PATIENCE};
use ferry::limits::NOTIFY_CREDITS;
use ferry::notify::{EventBody, WHAT_NOTIFICATIONS, WHAT_TRANSFERS};
use ferry::types::{Op, RegionId, Request};
use ferry::{Deadline, State, Status, TransferOptions};
use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

const MIB: usize = 1 << 20;

fn plain() -> TransferOptions<'static> {
    TransferOptions::default()
}

/// Submits a thousand transfers, in both directions, each with its own range, and awaits them together.
async fn a_thousand(pair: &Pair) {
    const COUNT: usize = 1000;
    const LENGTH: usize = 3000;
    let (local, remote) = pair.memories(COUNT * LENGTH, COUNT * LENGTH);
    for op in [Op::Write, Op::Read] {
        let spans: Vec<_> = (0..COUNT).map(|n| (n * LENGTH, (COUNT - 1 - n) * LENGTH, LENGTH)).collect();
        let work = prepare(op, &local, &remote, &spans);
        let submit = |request: &Request| pair.a.submit(pair.b_at_a, op, &[*request], &plain()).unwrap();
        let transfers: Vec<_> = work.requests.iter().map(submit).collect();
        for transfer in transfers {
            assert_eq!(transfer.await.unwrap().bytes_confirmed, LENGTH as u64);
        }
        check("a thousand", &contents(if op == Op::Write { &remote } else { &local }), &work.expected);
    }
    assert_eq!(pair.a.stats().unwrap().transfers, 0, "an awaited transfer is released");
}

/// A task that polls once.
struct Polled;

impl Wake for Polled {
    fn wake(self: Arc<Polled>) {}
}

/// Runs transfers that are large, small, failing, and dropped while pending.
async fn all_kinds(pair: &Pair) {
    let (local, remote) = pair.memories(32 * MIB, 32 * MIB);
    let whole = [request(&local, 0, &remote, 0, 32 * MIB)];
    let result = pair.a.submit(pair.b_at_a, Op::Write, &whole, &plain()).unwrap().await.unwrap();
    assert_eq!(result.state, State::Done);
    let bad = Request {
        remote: remote.address() + (32 << 20),
        remote_region: RegionId::NONE,
        ..request(&local, 0, &remote, 0, 8)
    };
    let error = pair.a.submit(pair.b_at_a, Op::Write, &[bad], &plain()).unwrap().await.unwrap_err();
    assert_eq!((error.status, error.request_index), (Status::NotRegistered, Some(0)));
    let cancelled = pair.a.submit(pair.b_at_a, Op::Write, &whole, &plain()).unwrap();
    cancelled.cancel().unwrap();
    match cancelled.await {
        Ok(result) => assert_eq!(result.state, State::Done, "it was faster"),
        Err(error) => assert_eq!(error.status, Status::Cancelled),
    }
    // Polled once, then dropped: the transfer continues, and is forgotten when it is final.
    let task = Arc::new(Polled);
    {
        let mut future = pin!(pair.a.submit(pair.b_at_a, Op::Read, &whole, &plain()).unwrap().into_future());
        let _ = future.as_mut().poll(&mut Context::from_waker(&task.clone().into()));
    }
    assert_eq!(Arc::strong_count(&task), 1, "its task is not kept until the transfer is final");
    common::eventually("the dropped one is forgotten", || {
        drop(pair.a.submit(pair.b_at_a, Op::Write, &[request(&local, 0, &remote, 0, 8)], &plain()).unwrap());
        pair.a.stats().unwrap().transfers <= 1
    });
    assert!(pair.a.stats().unwrap().counts.transfers_cancelled <= 1);
}

fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

#[test]
fn tokio_with_one_thread() {
    let pair = Pair::new(&[]);
    current_thread().block_on(async {
        a_thousand(&pair).await;
        all_kinds(&pair).await;
    });
}

#[test]
fn tokio_with_several_threads() {
    let pair = Arc::new(Pair::new(&[]));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_time().build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..4)
            .map(|task| {
                let pair = pair.clone();
                tokio::spawn(async move {
                    if task == 0 {
                        // Transfers of the other tests would be counted here.
                        return;
                    }
                    let (local, remote) = pair.memories(64 << 10, 64 << 10);
                    for round in 0..200usize {
                        let at = round % 16 * 4096;
                        let work = [request(&local, at, &remote, at, 4096)];
                        pair.a.submit(pair.b_at_a, Op::Write, &work, &plain()).unwrap().await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        a_thousand(&pair).await;
        all_kinds(&pair).await;
    });
}

#[test]
fn tokio_uring() {
    let pair = Pair::new(&[]);
    tokio_uring::start(async {
        a_thousand(&pair).await;
        all_kinds(&pair).await;
    });
}

/// A future that loses a race is awaited again: the waker of its last poll counts.
#[test]
fn select_and_go_on() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(64 * MIB, 64 * MIB);
    let whole = [request(&local, 0, &remote, 0, 64 * MIB)];
    current_thread().block_on(async {
        let mut future = pin!(pair.a.submit(pair.b_at_a, Op::Write, &whole, &plain()).unwrap().into_future());
        let mut ticks = 0;
        let result = loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep(Duration::from_micros(100)), if ticks < 20 => ticks += 1,
                result = &mut future => break result,
            }
        };
        assert_eq!(result.unwrap().bytes_confirmed, 64 << 20);
        // Two at a time: awaits the first that is done, then the other.
        for _ in 0..50 {
            let one = [request(&local, 0, &remote, 0, 4096)];
            let submit = || pair.a.submit(pair.b_at_a, Op::Read, &one, &plain()).unwrap().into_future();
            let (mut first, mut second) = (pin!(submit()), pin!(submit()));
            tokio::select! {
                result = &mut first => { result.unwrap(); second.await.unwrap(); }
                result = &mut second => { result.unwrap(); first.await.unwrap(); }
            }
        }
    });
}

/// Moved to another task after its first poll: the future must not wake the old task.
#[test]
fn a_future_may_change_its_task() {
    let pair = Arc::new(Pair::new(&[]));
    let (local, remote) = pair.memories(32 * MIB, 32 * MIB);
    let whole = [request(&local, 0, &remote, 0, 32 * MIB)];
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    for _ in 0..10 {
        let mut future =
            Box::pin(pair.a.submit(pair.b_at_a, Op::Write, &whole, &plain()).unwrap().into_future());
        let first = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(result) = first {
            result.unwrap();
            continue;
        }
        let result = runtime.block_on(async { tokio::spawn(future).await.unwrap() });
        assert_eq!(result.unwrap().state, State::Done);
    }
}

/// An executor that runs a task on the thread that wakes the task: the task submits there, and waits.
#[test]
fn a_task_may_wait_where_it_is_woken() {
    let pair = Arc::new(Pair::new(&[]));
    let (local, remote) = pair.memories(4096, 4096);
    let one = [request(&local, 0, &remote, 0, 4096)];
    for _ in 0..100 {
        let engines = pair.clone();
        let next = Next::new(move || {
            let next = engines.a.submit(engines.b_at_a, Op::Write, &one, &plain()).unwrap();
            next.wait(Some(PATIENCE)).map(|result| result.status)
        });
        let mut first = pin!(pair.a.submit(pair.b_at_a, Op::Write, &one, &plain()).unwrap().into_future());
        match first.as_mut().poll(&mut Context::from_waker(&waker(&next))) {
            Poll::Ready(result) => drop(result.unwrap()),
            Poll::Pending => next.assert_done(),
        }
    }
}

/// Works without a runtime, with a plain block_on. A future and a thread can wait for the same transfer.
#[test]
fn a_thread_and_a_task_wait_for_the_same_transfer() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(16 * MIB, 16 * MIB);
    let whole = [request(&local, 0, &remote, 0, 16 * MIB)];
    for _ in 0..10 {
        let transfer = pair.a.submit(pair.b_at_a, Op::Write, &whole, &plain()).unwrap();
        let core = pair.a.transfer(transfer.handle()).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pair.a.wait(&core, Some(PATIENCE)).unwrap());
            let awaited = current_thread().block_on(async { transfer.await }).unwrap();
            assert_eq!(awaited, waiting.join().unwrap());
        });
    }
}

/// Tasks wait for events beside transfers, in a runtime with one thread: no event is lost, and the end of the engine
/// wakes the task.
#[test]
fn events_are_awaited() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(4096, 4096);
    let words = pair.b.queue(WHAT_NOTIFICATIONS, 8).unwrap();
    let ends = pair.a.queue(WHAT_TRANSFERS, 64).unwrap();
    let one = [request(&local, 0, &remote, 0, 64)];
    current_thread().block_on(async {
        for round in 0..500u64 {
            let bytes = round.to_le_bytes();
            let options = TransferOptions {
                notify: Some(&bytes),
                queue: Some(ends.clone()),
                user_data: round,
                ..TransferOptions::default()
            };
            drop(pair.a.submit(pair.b_at_a, Op::Write, &one, &options).unwrap());
            let (word, end) = tokio::join!(pair.b.event(&words), pair.a.event(&ends));
            assert_eq!(word.unwrap().body, EventBody::Notification { channel: 0, bytes: Box::from(bytes) });
            let EventBody::Transfer { user_data, status, .. } = end.unwrap().body else { panic!() };
            assert_eq!((user_data, status), (round, Status::Ok));
        }
        // A future that loses a race takes no event with it.
        for _ in 0..100 {
            let race = tokio::time::timeout(Duration::from_micros(10), pair.b.event(&words));
            assert!(race.await.is_err());
        }
        pair.a.notify(pair.b_at_a, b"kept", Deadline::Default).unwrap();
        let kept = pair.b.event(&words).await.unwrap();
        assert_eq!(kept.body, EventBody::Notification { channel: 0, bytes: Box::from(*b"kept") });
        let stay = pair.b.event(&words);
        let close = async { pair.b.close(Some(PATIENCE)).unwrap() };
        let (last, ()) = tokio::join!(stay, close);
        assert_eq!(last.unwrap_err().status, Status::Closed);
    });
}

/// A task that runs in its waker and closes the engine.
struct Closes(ferry::Engine, std::sync::mpsc::Sender<Result<(), Status>>);

impl Wake for Closes {
    fn wake(self: Arc<Self>) {
        let closed = self.0.close(Some(PATIENCE)).map_err(|error| error.status);
        self.1.send(closed).unwrap();
    }
}

/// The end of an engine wakes a task that closes the engine, too.
#[test]
fn a_task_that_runs_in_its_waker_may_close_the_engine() {
    let pair = Pair::new(&[]);
    let queue = pair.b.queue(WHAT_NOTIFICATIONS, 8).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let waker = Waker::from(std::sync::Arc::new(Closes(pair.b.clone(), sender)));
    let mut event = pin!(pair.b.event(&queue));
    assert!(event.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    // Runs on a thread of its own, so that two closes that wait for each other fail the test.
    let b = pair.b.clone();
    std::thread::spawn(move || b.close(Some(PATIENCE)).unwrap());
    assert_eq!(receiver.recv_timeout(PATIENCE).expect("the task closes"), Ok(()));
}

/// The close of an engine ends a transfer, whose task closes, too: inside the first close, which it can't wait for.
#[test]
fn a_task_that_runs_in_its_waker_inside_a_close_is_busy() {
    let pair = Pair::new(&[]);
    let (local, remote) = pair.memories(4096, 4096);
    let one = [request(&local, 0, &remote, 0, 64)];
    let word = TransferOptions { notify: Some(b"word"), deadline: Deadline::Never, ..plain() };
    // Nobody drains these, so the next one has no credit.
    for _ in 0..NOTIFY_CREDITS {
        pair.a.write(pair.b_at_a, &one, &word).unwrap();
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    let waker = Waker::from(Arc::new(Closes(pair.a.clone(), sender)));
    let mut end = pin!(pair.a.submit(pair.b_at_a, Op::Write, &one, &word).unwrap().into_future());
    assert!(end.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let a = pair.a.clone();
    let close = std::thread::spawn(move || a.close(Some(PATIENCE)).map_err(|error| error.status));
    assert_eq!(receiver.recv_timeout(PATIENCE).expect("the task goes on"), Err(Status::Busy));
    assert_eq!(close.join().unwrap(), Ok(()));
}
