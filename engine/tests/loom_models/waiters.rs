//! A transfer's waiters: a lost wake-up is a deadlock or a failed assertion.

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::Arc as Shared;
use loom::thread;
use std::sync::Arc;
use std::task::{Wake, Waker};
use waiter::{wait_any, Waiter};

#[allow(dead_code)]
#[path = "../../src/notify/waiter.rs"]
mod waiter;

/// Stands for the engine's list of tasks, which a thread wakes when its locks are gone.
#[derive(Default)]
struct Wakers(Vec<Waker>);

impl Wakers {
    fn extend(&mut self, wakers: impl ExactSizeIterator<Item = Waker>) {
        self.0.extend(wakers);
    }
}

impl Drop for Wakers {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Waker::wake);
    }
}

fn guard(user_code: impl FnOnce()) {
    user_code();
}

#[derive(Default)]
struct Transfer {
    waiter: Waiter,
    done: AtomicBool,
}

impl Transfer {
    /// Relaxed, so that the model rests on the waiter's own fences and on nothing else.
    fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    fn finish(&self) {
        self.done.store(true, Ordering::Relaxed);
        self.waiter.notify_all(&mut Wakers::default());
    }
}

/// A thread that makes the transfer final.
fn finishing(transfer: &Shared<Transfer>) -> thread::JoinHandle<()> {
    let transfer = transfer.clone();
    thread::spawn(move || transfer.finish())
}

#[test]
fn a_sleeping_thread_is_woken() {
    loom::model(|| {
        let transfer = Shared::new(Transfer::default());
        let worker = finishing(&transfer);
        assert!(transfer.waiter.wait_until(|| transfer.is_done(), None));
        worker.join().unwrap();
    });
}

#[test]
fn a_registered_task_is_woken_or_sees_that_it_is_done() {
    loom::model(|| {
        let transfer = Shared::new(Transfer::default());
        let worker = finishing(&transfer);
        let woken = Arc::<Woken>::default();
        transfer.waiter.register(&woken.clone().into());
        let saw_done = transfer.is_done();
        worker.join().unwrap();
        assert!(saw_done || woken.0.load(Ordering::SeqCst));
    });
}

/// A task of which loom knows nothing: only the waiter's own order shows.
#[derive(Default)]
struct Woken(std::sync::atomic::AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn the_last_task_of_a_future_is_woken_or_sees_that_it_is_done() {
    loom::model(|| {
        let transfer = Shared::new(Transfer::default());
        let worker = finishing(&transfer);
        transfer.waiter.register(&Arc::<Woken>::default().into());
        let last = Arc::<Woken>::default();
        transfer.waiter.register(&last.clone().into());
        let saw_done = transfer.is_done();
        worker.join().unwrap();
        assert!(saw_done || last.0.load(Ordering::SeqCst));
    });
}

#[test]
fn a_future_that_is_dropped_meanwhile_leaves_nothing_behind() {
    loom::model(|| {
        let transfer = Shared::new(Transfer::default());
        let worker = finishing(&transfer);
        let task = Arc::<Woken>::default();
        transfer.waiter.register(&task.clone().into());
        transfer.waiter.forget();
        worker.join().unwrap();
        assert!(transfer.waiter.is_idle() && Arc::strong_count(&task) == 1);
    });
}

#[test]
fn one_that_waits_for_any_is_woken() {
    loom::model(|| {
        let transfers = Shared::new([Transfer::default(), Transfer::default()]);
        let worker = thread::spawn({
            let transfers = transfers.clone();
            move || transfers[1].finish()
        });
        let find = || transfers.iter().position(Transfer::is_done);
        assert_eq!(wait_any(transfers.iter().map(|transfer| &transfer.waiter), find, None), Some(1));
        worker.join().unwrap();
    });
}
