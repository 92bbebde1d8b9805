//! The callback thread of an engine. It passes the events of queues that have a callback to the callbacks, one event at
//! a time, with the queues in turn. `hub` starts and stops the thread; `queue` schedules a queue that has events.
//!
//! The thread records which queue's turn it is before it looks for that queue's callback. A thread that removes a
//! callback removes it first and then waits for the end of the queue's turn. Then either the callback thread found the
//! old callback, and the wait covers its run, or it found none.

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

/// The application's callback. Runs on the callback thread, under no lock. A callback may submit, and may set or unset
/// callbacks. A panic in a callback ends only that call.
pub type Callback = Arc<dyn Fn(&Event) + Send + Sync>;

#[derive(Default)]
pub(super) struct Dispatcher {
    state: Mutex<State>,
    /// The thread waits for `ready` or `closing`.
    work: Condvar,
    /// Other threads wait here for the end of a turn, or of the thread.
    turned: Condvar,
    health: OnceLock<Arc<Health>>,
}

#[derive(Default)]
struct State {
    /// Queues with events, each at most once (ensured by the queue's `scheduled`).
    ready: VecDeque<Weak<Queue>>,
    /// Handle of the queue whose turn it is; 0 is no handle.
    running: u64,
    /// Counts turns, so that a waiter does not also wait for the queue's next turn.
    turn: u64,
    closing: bool,
    /// The thread was started and has not reached its end.
    alive: bool,
    thread: Option<JoinHandle<()>>,
}

thread_local! {
    /// On a callback thread: the address of its dispatcher, and the queue whose turn it is. User code on that thread (a
    /// callback, or an object dropped after it) sees these values.
    static INSIDE: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
}

impl Dispatcher {
    pub fn set_health(&self, health: Arc<Health>) {
        let _ = self.health.set(health);
    }

    /// Starts the thread unless it runs already. SYSTEM if the thread cannot be started, CLOSED after `stop`.
    pub fn start(self: &Arc<Dispatcher>) -> Result<()> {
        let mut state = self.state.lock();
        if state.closing {
            return Err(Error::new(Status::Closed, "the engine is closing"));
        }
        if state.alive {
            return Ok(());
        }
        let (this, later) = (self.clone(), self.clone());
        // The teardown of a broken engine does not wait for this thread, because a callback may take long. The thread
        // then delivers the remaining events.
        let start =
            || thread::spawn_apart("ferry-callback", move || this.run(), move || later.run_to_the_end());
        let thread = match self.health.get() {
            Some(health) => health.within(start),
            None => start(),
        };
        state.thread = Some(thread.map_err(|error| Error::system("starting the callback thread", &error))?);
        state.alive = true;
        Ok(())
    }

    /// Schedules a turn for `queue`.
    pub fn schedule(&self, queue: Weak<Queue>) {
        let mut state = self.state.lock();
        if !state.closing {
            state.ready.push_back(queue);
            self.work.notify_one();
        }
    }

    /// True if the calling thread is inside a callback of this dispatcher.
    pub fn is_inside(&self) -> bool {
        INSIDE.get().0 == self.address()
    }

    /// True if the calling thread is inside the callback of this queue.
    pub fn is_inside_of(&self, queue: u64) -> bool {
        INSIDE.get() == (self.address(), queue)
    }

    /// Waits for the end of the turn of `queue` that is running now, if any. Inside a callback returns at once, because
    /// the thread would wait for itself.
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

    /// Ends the thread after the present turn, and waits for the thread. Inside a callback does not wait; the thread
    /// ends after that callback has returned.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.closing = true;
        state.ready.clear();
        self.work.notify_one();
        if self.is_inside() {
            return;
        }
        let thread = state.thread.take();
        // If several threads call this, one joins the thread; the others wait for the thread's last step.
        while state.alive {
            state = self.turned.wait(state);
        }
        drop(state);
        // The thread catches every panic, so the join reports none.
        let _ = thread.map(JoinHandle::join);
    }

    fn run(&self) {
        health::woken_by(&|| self.work.notify_all(), || self.serve());
    }

    /// Delivers the remaining events of a broken engine after its teardown. A panic is reported to nobody.
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
            // This may drop the last reference, and with it events and credits, which are user code.
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
            // The queue goes behind the others, so that a busy queue does not starve them.
            state.ready.push_back(Arc::downgrade(queue));
        }
        drop(state);
        self.turned.notify_all();
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// Ends the present turn if the thread unwinds, so that no thread waits for that turn.
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

/// Passes one event to the callback; false if the queue had none, or has no callback. Event and callback are dropped
/// before the turn ends, so that nothing of a callback is left when unsetting it has returned.
fn take_turn(queue: &Queue) -> bool {
    let Some((callback, event)) = queue.take_turn() else { return false };
    guard(|| callback(&event));
    guard(|| drop(event));
    guard(|| drop(callback));
    true
}
