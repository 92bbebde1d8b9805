//! The callback thread of an engine: gives the events of queues that have a callback to that
//! callback, one at a time, and one queue after the other. `hub` starts and stops it, `queue` tells
//! it that there is something to do.
//!
//! The thread notes which queue it turns to before it looks for that queue's callback. Whoever takes
//! a callback away does so first and then waits for the queue's turn to end: either the thread found
//! the old callback, and the wait covers its run, or it finds none.

use super::event::Event;
use super::guard;
use super::queue::Queue;
use crate::status::{Error, Result, Status};
use crate::sys::health::{self, Health};
use crate::sys::lock::{Condvar, Mutex};
use crate::sys::thread;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;

/// What an application is called back with. Runs on ferry's callback thread, never under a lock; it
/// may submit, and may change or unset callbacks. A panic in it ends that call and nothing else.
pub type Callback = Arc<dyn Fn(&Event) + Send + Sync>;

#[derive(Default)]
pub(super) struct Dispatcher {
    state: Mutex<State>,
    /// The thread waits for `ready` or `closing`.
    work: Condvar,
    /// Others wait for the end of a turn, or of the thread.
    turned: Condvar,
    health: OnceLock<Arc<Health>>,
}

#[derive(Default)]
struct State {
    /// Queues to turn to, each at most once (`scheduled` in the queue sees to that).
    ready: VecDeque<Weak<Queue>>,
    /// Handle of the queue whose turn it is; 0 is no handle.
    running: u64,
    /// Counts turns, so that a waiter is not held up by the same queue's next one.
    turn: u64,
    closing: bool,
    /// The thread has been started and has not reached its end.
    alive: bool,
    thread: Option<JoinHandle<()>>,
}

thread_local! {
    /// On a callback thread: its dispatcher, by address, and the queue whose turn it is. What runs on
    /// that thread and is not this file's is user code: a callback, or what is dropped after it.
    static INSIDE: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
}

impl Dispatcher {
    pub fn set_health(&self, health: Arc<Health>) {
        let _ = self.health.set(health);
    }

    /// Starts the thread unless it runs. SYSTEM when it cannot be started, CLOSED after `stop`.
    pub fn start(self: &Arc<Dispatcher>) -> Result<()> {
        let mut state = self.state.lock();
        if state.closing {
            return Err(Error::new(Status::Closed, "the engine is closing"));
        }
        if state.alive {
            return Ok(());
        }
        let (this, later) = (self.clone(), self.clone());
        // The engine that is broken is not waited with: a callback may take its time. What it has left for callbacks
        // in the end is given to them.
        let start =
            || thread::spawn_apart("ferry-callback", move || this.run(), move || later.run_to_the_end());
        let thread = match self.health.get() {
            Some(health) => health.within(start),
            None => start(),
        };
        state.thread = Some(thread.map_err(|error| Error::system("start the callback thread", &error))?);
        state.alive = true;
        Ok(())
    }

    /// Has the thread turn to `queue`.
    pub fn schedule(&self, queue: Weak<Queue>) {
        let mut state = self.state.lock();
        if !state.closing {
            state.ready.push_back(queue);
            self.work.notify_one();
        }
    }

    /// Whether the calling thread is inside a callback of this dispatcher.
    pub fn is_inside(&self) -> bool {
        INSIDE.get().0 == self.address()
    }

    /// Whether the calling thread is inside the callback of this queue.
    pub fn is_inside_of(&self, queue: u64) -> bool {
        INSIDE.get() == (self.address(), queue)
    }

    /// Returns when the turn of `queue` that is running now, if any, has ended. At once inside a
    /// callback, which would wait for itself.
    pub fn wait_for_turn(&self, queue: u64) {
        if self.is_inside() {
            return;
        }
        let mut state = self.state.lock();
        let turn = state.turn;
        while state.running == queue && state.turn == turn {
            state = self.turned.wait(state);
        }
    }

    /// Ends the thread after the turn that is running and waits for it; inside a callback the end
    /// comes when that has returned.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.closing = true;
        state.ready.clear();
        self.work.notify_one();
        if self.is_inside() {
            return;
        }
        let thread = state.thread.take();
        // Of several that stop, one joins; the others wait for the thread's last step.
        while state.alive {
            state = self.turned.wait(state);
        }
        drop(state);
        // The thread catches every panic, so there is none to learn of.
        let _ = thread.map(JoinHandle::join);
    }

    fn run(&self) {
        health::woken_by(&|| self.work.notify_all(), || self.serve());
    }

    /// Of an engine that is over: nobody is left to hear of a panic.
    fn run_to_the_end(&self) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.serve()));
        self.ended();
    }

    fn ended(&self) {
        self.state.lock().alive = false;
        self.turned.notify_all();
    }

    fn serve(&self) {
        let _stopping = Stopping(self);
        INSIDE.set((self.address(), 0));
        health::doing("calling back");
        while let Some(queue) = self.next_queue() {
            INSIDE.set((self.address(), queue.handle()));
            let again = take_turn(&queue);
            INSIDE.set((self.address(), 0));
            self.end_turn(&queue, again);
            // Perhaps the last reference, and then events and credits go with it.
            guard(|| drop(queue));
        }
        self.ended();
    }

    fn next_queue(&self) -> Option<Arc<Queue>> {
        let mut state = self.state.lock();
        loop {
            if state.closing {
                return None;
            }
            match state.ready.pop_front() {
                Some(queue) => {
                    if let Some(queue) = queue.upgrade() {
                        state.running = queue.handle();
                        return Some(queue);
                    }
                }
                None => state = self.work.wait(state),
            }
        }
    }

    fn end_turn(&self, queue: &Arc<Queue>, again: bool) {
        let mut state = self.state.lock();
        state.running = 0;
        state.turn += 1;
        if again && !state.closing {
            // Behind the others: a busy queue does not starve them.
            state.ready.push_back(Arc::downgrade(queue));
        }
        drop(state);
        self.turned.notify_all();
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// However the thread stops, nobody waits for the turn it was in.
struct Stopping<'a>(&'a Dispatcher);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        INSIDE.set((0, 0));
        let mut state = self.0.state.lock();
        state.running = 0;
        state.turn += 1;
        drop(state);
        self.0.turned.notify_all();
    }
}

/// One event for one callback. Event and callback are dropped before the turn ends, so that nothing
/// of a callback is left when unsetting it has returned. False when the queue had nothing to do.
fn take_turn(queue: &Queue) -> bool {
    let Some((callback, event)) = queue.take_turn() else { return false };
    guard(|| callback(&event));
    guard(|| drop(event));
    guard(|| drop(callback));
    true
}
