//! The callback thread of an engine. It passes the events of queues that have a callback to the callbacks, one event at
//! a time, with the queues in turn, and wakes the tasks that wait for an event (`wake`). `hub` starts and stops the
//! thread; `queue` schedules a queue that has events.
//!
//! The thread records which queue's turn it is before it looks for that queue's callback. A thread that removes a
//! callback removes it first and then waits for the end of the queue's turn. Then either the callback thread found the
//! old callback, and the wait covers its run, or it found none.

use super::event::Event;
use super::guard;
use super::queue::Queue;
use crate::status::{Error, Result, Status};
use crate::sys::clock;
use crate::sys::health::Health;
use crate::sys::local::local;
use crate::sys::lock::Condvar;
use crate::sys::once::OnceLock;
use crate::sys::poller::Ready;
use crate::sys::thread::JoinHandle;
use crate::sys::turns::{self, Awaited, HasWork, Next, Turns};
use crate::types::{Monotonic, QueueId};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The application's callback. Runs on the callback thread, under no lock. A callback may submit, and may set or unset
/// callbacks. A panic in a callback ends only that call.
pub type Callback = Arc<dyn Fn(&Event) + Send + Sync>;

#[derive(Default)]
pub(super) struct Dispatcher {
    state: Arc<Awaited<DispatcherState>>,
    /// Other threads wait here for the end of a turn, or of the thread.
    turned: Condvar,
    health: OnceLock<Arc<Health>>,
}

#[derive(Default)]
struct DispatcherState {
    /// Queues with events, each at most once (ensured by the queue's `scheduled`).
    ready: VecDeque<Weak<Queue>>,
    /// Handle of the queue whose turn it is, or NONE.
    running: QueueId,
    /// Counts turns, so that a waiter does not also wait for the queue's next turn.
    turn: u64,
    closing: bool,
    /// The thread was started and has not reached its end.
    alive: bool,
    thread: Option<JoinHandle<()>>,
}

local! {
    /// On a callback thread: the address of its dispatcher, and the queue whose turn it is. User code on that thread (a
    /// callback, or an object dropped after it) sees these values.
    static INSIDE: Cell<(usize, QueueId)> = const { Cell::new((0, QueueId::NONE)) };
}

impl HasWork for DispatcherState {
    fn has_work(&self) -> bool {
        self.closing || !self.ready.is_empty()
    }
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
        let start = || {
            let first = move || Some(Caller::new(this, false));
            let after = move || Some(Caller::new(later, true));
            turns::start_apart("ferry-callback", "calling back", self.state.clone(), first, after)
        };
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
            self.state.wake_one();
        }
    }

    /// Forgets the queues that were scheduled.
    pub fn clear(&self) {
        self.state.lock().ready.clear();
    }

    /// True if the calling thread is inside a callback of this dispatcher.
    pub fn is_inside(&self) -> bool {
        INSIDE.get().0 == self.address()
    }

    /// True if the calling thread is inside the callback of this queue.
    pub fn is_inside_of(&self, queue: QueueId) -> bool {
        INSIDE.get() == (self.address(), queue)
    }

    /// Waits for the end of the turn of `queue` that is running now, if any. Inside a callback returns at once, because
    /// the thread would wait for itself.
    pub fn wait_for_turn(&self, queue: QueueId) {
        if self.is_inside() {
            return;
        }
        let mut state = self.state.lock();
        let turn = state.turn;
        while state.running == queue && state.turn == turn {
            state = self.turned.wait(state);
        }
    }

    /// Ends the thread after the present turn, and waits for the thread. Returns whether it has ended before the
    /// deadline. Inside a callback does not wait; the thread ends after that callback has returned.
    pub fn stop(&self, deadline: Option<Instant>) -> bool {
        let mut state = self.state.lock();
        state.closing = true;
        state.ready.clear();
        self.state.wake_one();
        if self.is_inside() {
            return true;
        }
        while state.alive {
            state = match deadline.map(|deadline| deadline.saturating_duration_since(clock::now())) {
                None => self.turned.wait(state),
                Some(Duration::ZERO) => return false,
                Some(left) => self.turned.wait_timeout(state, left).0,
            };
        }
        // If several threads call this, one joins the thread, which has taken its last step.
        let thread = state.thread.take();
        drop(state);
        // The thread catches every panic, so the join reports none.
        let _ = thread.map(JoinHandle::join);
        true
    }

    fn ended(&self) {
        self.state.lock().alive = false;
        self.turned.notify_all();
    }

    /// Returns the queue whose turn it is; None if there is none, or if the engine is closing, which the flag tells.
    fn next_queue(&self) -> (Option<Arc<Queue>>, bool) {
        let mut state = self.state.lock();
        while !state.closing {
            let Some(queue) = state.ready.pop_front() else { break };
            if let Some(queue) = queue.upgrade() {
                state.running = queue.handle();
                return (Some(queue), false);
            }
        }
        (None, state.closing)
    }

    fn end_turn(&self, queue: &Arc<Queue>, again: bool) {
        let mut state = self.state.lock();
        state.running = QueueId::NONE;
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

/// The state of the callback thread between its turns. Each turn serves one queue.
struct Caller {
    dispatcher: Arc<Dispatcher>,
    /// The engine is broken and over: no thread follows this one.
    is_last: bool,
}

impl Caller {
    fn new(dispatcher: Arc<Dispatcher>, is_last: bool) -> Caller {
        INSIDE.set((dispatcher.address(), QueueId::NONE));
        Caller { dispatcher, is_last }
    }
}

impl Turns for Caller {
    fn turn(&mut self, _: Monotonic, _: &[Ready]) -> Next {
        let dispatcher = &*self.dispatcher;
        let queue = match dispatcher.next_queue() {
            (Some(queue), _) => queue,
            (None, false) => return Next::WhenWoken,
            (None, true) => {
                dispatcher.ended();
                return Next::Over;
            }
        };
        INSIDE.set((dispatcher.address(), queue.handle()));
        let again = take_turn(&queue);
        INSIDE.set((dispatcher.address(), QueueId::NONE));
        dispatcher.end_turn(&queue, again);
        // This may drop the last reference, and with it events and credits, which are user code.
        guard(|| drop(queue));
        Next::Again
    }

    /// Ends the present turn, so that no thread waits for that turn.
    fn abandon(self: Box<Self>) {
        INSIDE.set((0, QueueId::NONE));
        let mut state = self.dispatcher.state.lock();
        state.running = QueueId::NONE;
        state.turn += 1;
        drop(state);
        self.dispatcher.turned.notify_all();
        if self.is_last {
            self.dispatcher.ended();
        }
    }
}

/// Wakes the tasks that wait, and passes one event to the callback; false if the queue had none, or has no callback.
/// Event and callback are dropped before the turn ends, so that nothing of a callback is left when unsetting it has
/// returned.
fn take_turn(queue: &Queue) -> bool {
    let (tasks, turn) = queue.take_turn();
    tasks.wake();
    let Some((callback, event)) = turn else { return false };
    guard(|| callback(&event));
    guard(|| drop(event));
    guard(|| drop(callback));
    true
}
