//! Queues with callbacks: ferry's callback thread brings the events, in place of threads that drain. Callbacks also do
//! what they may, such as submitting, and what is refused there, such as waiting. The ledger knows which queues have a
//! callback and which one runs: one at a time, and none of a queue whose callback is unset.

use crate::actor::{Actor, Flight};
use crate::ledger::{Ledger, LifeId};
use crate::program::Program;
use ferry::notify::{Callback, Event, Queue};
use ferry::status::{Result, Status};
use ferry_sim_kernel::{moment, task};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The name of an engine's callback thread.
const THREAD: &str = "ferry-callback";
pub const SUBMITS: &str = "a callback submits";
pub const WAITS: &str = "a callback tries to wait";
pub const UNSET: &str = "a callback is unset while it runs";

/// The state of one life's callbacks.
#[derive(Default)]
pub struct Calls {
    /// Queues whose callback is set, or is being set or unset, by their handles.
    set: BTreeSet<u64>,
    /// The queue whose callback runs.
    running: Option<u64>,
}

/// A value for the callback thread.
struct Solo<F>(F);

// SAFETY: one thread of the operating system runs all tasks of a world, and the value stays in its world.
unsafe impl<F> Send for Solo<F> {}
// SAFETY: as above.
unsafe impl<F> Sync for Solo<F> {}

impl<F: Fn(&Event)> Solo<F> {
    fn call(&self, event: &Event) {
        (self.0)(event);
    }
}

impl Program {
    /// True if the callback of this queue is set.
    pub fn is_called_back(&self, queue: &Queue) -> bool {
        self.world.book.with(|ledger| ledger.lives[self.life].calls.set.contains(&queue.handle().raw()))
    }

    /// Sets the callback of a queue. Without a thread for it the queue goes on without.
    pub fn call_back(&self, queue: &Queue, take: impl Fn(&Event) + 'static) {
        let (handle, book, life) = (queue.handle(), self.world.book.clone(), self.life);
        book.with(|ledger| ledger.lives[life].calls.set.insert(handle.raw()));
        let within = book.clone();
        let solo = Solo(move |event: &Event| {
            within.with(|ledger| ledger.call_begins(life, handle.raw()));
            take(event);
            within.with(|ledger| ledger.lives[life].calls.running = None);
        });
        let callback: Callback = Arc::new(move |event| solo.call(event));
        if let Err(error) = self.engine.hub().and_then(|hub| hub.set_callback(handle, Some(callback))) {
            book.with(|ledger| {
                ledger.lives[life].calls.set.remove(&handle.raw());
                if !matches!(error.status, Status::System | Status::Closed) {
                    ledger.fail(format!("setting a callback failed: {error}"));
                }
            });
        }
    }

    /// Unsets the callback of a queue, from a thread of the application: no call of it runs afterwards.
    pub fn unset_callback(&self, queue: &Queue) {
        let (handle, book) = (queue.handle(), &self.world.book);
        let runs = || book.with(|ledger| ledger.lives[self.life].calls.running == Some(handle.raw()));
        if runs() {
            moment::reached(UNSET);
        }
        if let Err(error) = self.engine.hub_of_closed().and_then(|hub| hub.set_callback(handle, None)) {
            book.with(|ledger| ledger.fail(format!("unsetting a callback failed: {error}")));
        }
        self.callback_is_gone(queue);
    }

    /// Unsetting a callback, or closing the engine, has returned.
    pub fn callback_is_gone(&self, queue: &Queue) {
        let handle = queue.handle().raw();
        self.world.book.with(|ledger| {
            let calls = &mut ledger.lives[self.life].calls;
            calls.set.remove(&handle);
            if calls.running == Some(handle) {
                ledger.fail(format!("a callback of {} runs although it is gone", ledger.named(self.life)));
            }
        });
    }
}

impl Ledger {
    fn call_begins(&mut self, life: LifeId, queue: u64) {
        let calls = &mut self.lives[life].calls;
        let (before, is_set) = (calls.running.replace(queue), calls.set.contains(&queue));
        let wrong = match () {
            () if before.is_some() => "while another runs",
            () if !is_set => "although it is unset",
            () if task::name().as_deref() != Some(THREAD) => "on another thread",
            () => return,
        };
        self.fail(format!("a callback of {} runs {wrong}", self.named(life)));
    }
}

/// The actor inside the callback of a thread's queue. Its transfers become those of the thread.
pub struct Guest {
    actor: RefCell<Actor>,
    flights: Rc<RefCell<Vec<Flight>>>,
}

impl Guest {
    pub fn new(actor: Actor, flights: Rc<RefCell<Vec<Flight>>>) -> Guest {
        Guest { actor: RefCell::new(actor), flights }
    }

    /// An event has come.
    pub fn take(&self, event: &Event) {
        let actor = &mut *self.actor.borrow_mut();
        actor.learn(event);
        if actor.draw.percent(30) {
            task::sleep(Duration::from_micros(actor.draw.log_uniform(1, 3_000)));
        }
        if !actor.program.is_leaving() && actor.draw.percent(30) {
            actor.transfer_inside();
        }
        let flights = actor.take_flights();
        if let Some(flight) = flights.last().filter(|_| actor.draw.percent(50)) {
            wait_inside(actor, flight);
        }
        self.flights.borrow_mut().extend(flights);
        if actor.draw.percent(3) {
            // Takes effect with the next event. The thread sets it again.
            let (engine, handle) = (&actor.program.engine, actor.queue.handle());
            if let Err(error) = engine.hub_of_closed().and_then(|hub| hub.set_callback(handle, None)) {
                actor.expect(&error, &[]);
            }
            let life = actor.program.life;
            actor.program.world.book.with(|ledger| ledger.lives[life].calls.set.remove(&handle.raw()));
        }
    }
}

/// Calls that wait are refused.
fn wait_inside(actor: &Actor, flight: &Flight) {
    let engine = &actor.program.engine;
    moment::reached(WAITS);
    let waited = engine.wait(&flight.core, Some(Duration::from_millis(1))).map(|_| ());
    let closed = engine.close(Some(Duration::ZERO));
    let is_final = flight.core.is_final();
    let is_busy = |result: &Result<()>| matches!(result, Err(error) if error.status == Status::Busy);
    let may_return = is_busy(&waited) || (is_final && waited.is_ok());
    if !may_return || !is_busy(&closed) {
        let text = format!("inside a callback a wait gives {waited:?}, and a close {closed:?}");
        actor.program.world.book.with(|ledger| ledger.fail(text));
    }
}
