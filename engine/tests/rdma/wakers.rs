//! Executors that run a task on the thread that wakes it: the task may submit to the same peer there, and wait,
//! whichever thread settled its transfer.

use crate::common::inline::{waker, Next};
use crate::guest::{enter, leads_over, memories, pair};
use crate::support::*;
use ferry::internals::complete::register_waker;
use ferry::types::{Op, PeerId, Request, TransferId};
use ferry::{Engine, Memory, TransferOptions};
use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A transfer of this size takes a while.
const ALL: usize = MIB;
const SMALL: usize = 64;
/// A single round may meet the settling thread too early, or too late.
const ROUNDS: usize = 50;

struct Setting {
    a: Engine,
    peer: PeerId,
    local: Memory,
    remote: Memory,
    _b: Engine,
}

impl Setting {
    /// No thread spins: a thread that waits for another thread's completions leaves them to that thread.
    fn new() -> Setting {
        let (a, b, peer) = pair(&[("spin_us", "0")]);
        leads_over(&a, peer, &["rva0", "rvb0"]);
        let (local, remote) = memories(&a, &b, peer, ALL, 5);
        Setting { a, peer, local, remote, _b: b }
    }

    fn one(&self) -> [Request; 1] {
        [request(&self.local, &self.remote, 0, SMALL)]
    }

    fn all(&self) -> [Request; 1] {
        [request(&self.local, &self.remote, 0, ALL)]
    }

    /// Returns the task's next step: another transfer, with a notification if `notify`.
    fn next(&self, notify: bool) -> Arc<Next> {
        let (a, peer, all) = (self.a.clone(), self.peer, self.all());
        Next::new(move || {
            let notify = notify.then_some(&b"next"[..]);
            let options = TransferOptions { notify, ..options() };
            a.submit(peer, Op::Write, &all, &options).unwrap().wait(Some(BOUND)).map(|result| result.status)
        })
    }

    /// Submits a transfer whose completion raises no event, with a task to be woken: the state of a future in the
    /// middle of its first poll.
    fn unattended(&self, next: &Arc<Next>) -> TransferId {
        let core = self.a.submit_core(self.peer, Op::Write, &self.one(), &options().awaited()).unwrap();
        register_waker(&core, &waker(next));
        if core.is_final() {
            waker(next).wake();
        }
        core.handle
    }

    /// Asserts that the transfer's task is woken, whichever thread settles the transfer, and that the task ends.
    #[track_caller]
    fn ends(&self, first: TransferId, next: &Next) {
        self.a.wait(&self.a.transfer(first).unwrap(), Some(BOUND)).unwrap();
        next.assert_done();
        self.a.release(first).unwrap();
    }
}

/// The thread that posts the next transfer settles earlier ones first.
#[test]
fn a_task_woken_by_a_posting_thread_may_wait_there() {
    let Some(_guest) = enter("wakers::a_task_woken_by_a_posting_thread_may_wait_there") else { return };
    let setting = Setting::new();
    let mut inside = 0;
    for _ in 0..ROUNDS {
        let next = setting.next(false);
        let first = setting.unattended(&next);
        let before = next.has_run();
        let second = setting.a.submit(setting.peer, Op::Write, &setting.one(), &options().awaited()).unwrap();
        inside += usize::from(next.has_run() && !before);
        second.wait_done().unwrap();
        setting.ends(first, &next);
    }
    println!("{inside} of {ROUNDS} ran inside submit");
    assert!(inside > 0);
}

/// A thread that waits for another transfer settles this one.
#[test]
fn a_task_woken_by_a_waiting_thread_may_wait_there() {
    let Some(_guest) = enter("wakers::a_task_woken_by_a_waiting_thread_may_wait_there") else { return };
    let setting = Setting::new();
    for _ in 0..ROUNDS {
        let next = setting.next(false);
        let second = setting.a.submit(setting.peer, Op::Write, &setting.one(), &options().awaited()).unwrap();
        let first = setting.unattended(&next);
        second.wait_done().unwrap();
        setting.ends(first, &next);
    }
}

/// The device's thread settles: a WRITE, and a notification, which that thread takes in.
#[test]
fn a_task_woken_by_the_devices_thread_may_wait_there() {
    let Some(_guest) = enter("wakers::a_task_woken_by_the_devices_thread_may_wait_there") else { return };
    let setting = Setting::new();
    for notify in [false, true] {
        let mut woken = 0;
        for _ in 0..ROUNDS {
            let next = setting.next(notify);
            let notify = notify.then_some(&b"first"[..]);
            let options = TransferOptions { notify, ..options() };
            let first = setting.a.submit(setting.peer, Op::Write, &setting.all(), &options).unwrap();
            let mut first = pin!(first.into_future());
            match first.as_mut().poll(&mut Context::from_waker(&waker(&next))) {
                Poll::Ready(result) => drop(result.unwrap()),
                Poll::Pending => {
                    next.assert_done();
                    woken += 1;
                }
            }
        }
        println!("notify {notify:?}: {woken} of {ROUNDS} were woken");
        assert!(woken > 0);
    }
}
