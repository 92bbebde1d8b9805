//! Tasks: what threads are here. Each has a stack of its own (`corosensei`) and runs until it gives way at a point,
//! waits, or ends. `run` has the loop that resumes them; `wait` has their waits.

use crate::clock;
use crate::local::Table;
use crate::process::ProcessId;
use crate::timer::Event;
use crate::wait::{block_until, ticket, wake, Ticket};
use crate::world::{is_running, point, try_with, with, World};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, Yielder};
use std::any::Any;
use std::cell::RefCell;
use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Result;
use std::time::Duration;

pub(crate) type Stack = Coroutine<(), (), (), DefaultStack>;

/// How many nanoseconds pass when a task yields its CPU, or spins once.
const YIELD_NS: (u64, u64) = (200, 1_000);
const SPIN_NS: (u64, u64) = (10, 60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The slot is free.
    Gone,
    Runnable,
    Running,
    Blocked,
    /// Runnable, but its process is stopped or its host suspended.
    Parked,
    /// Killed while it ran. Its stack is taken away when it gives way.
    Dead,
}

pub(crate) struct Task {
    pub generation: u32,
    /// Counts the waits that are over.
    pub waits: u32,
    pub state: State,
    pub process: ProcessId,
    pub number: u64,
    pub name: Rc<str>,
    pub stack: Option<Box<Stack>>,
    yielder: *const Yielder<(), ()>,
    pub wait: &'static str,
    /// When the wait ends, by the monotonic clock of the host.
    pub deadline: Option<u64>,
    /// The last wait ended by a wake, not by its deadline.
    pub woken: bool,
    /// An `unpark` that no `park` has taken.
    token: bool,
    parked: Option<Ticket>,
    pub joiners: Vec<Ticket>,
    pub locals: Table,
}

impl Task {
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, State::Gone | State::Dead)
    }
}

thread_local! {
    /// Stacks of tasks that have ended, for the next ones; all of one size.
    static STACKS: RefCell<(usize, Vec<DefaultStack>)> = const { RefCell::new((0, Vec::new())) };
}

fn stack(bytes: usize) -> io::Result<DefaultStack> {
    let pooled = STACKS.with_borrow_mut(|(size, stacks)| {
        if *size != bytes {
            stacks.clear();
            *size = bytes;
        }
        stacks.pop()
    });
    pooled.map_or_else(|| DefaultStack::new(bytes), Ok)
}

/// Takes the stack of a task that has ended or never runs again.
pub(crate) fn recycle(mut coroutine: Stack) {
    // SAFETY: the frames on the stack are forgotten, as after a longjmp: nothing runs on them again, and nothing that
    // outlives the task relies on their destructors (`process::kill` and the crate's head say so to programs).
    unsafe { coroutine.force_reset() };
    let stack = coroutine.into_stack();
    STACKS.with_borrow_mut(|(_, stacks)| stacks.push(stack));
}

/// The id of a task. It never names another task, even when its task has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId {
    index: u32,
    generation: u32,
}

impl World {
    /// Adds a task that may run from now on.
    ///
    /// # Safety
    /// All that `body` borrows is alive until the world ends.
    pub(crate) unsafe fn add_task<'a>(
        &mut self,
        process: ProcessId,
        name: &str,
        body: Box<dyn FnOnce() + 'a>,
    ) -> io::Result<TaskId> {
        let stack = stack(self.options.stack_bytes)?;
        let index = self.free_tasks.pop().unwrap_or(self.tasks.len());
        // SAFETY: passed on to the caller.
        let coroutine = unsafe {
            Coroutine::with_stack_unchecked(stack, |yielder: &Yielder<(), ()>, ()| life(yielder, body))
        };
        self.tasks_begun += 1;
        let generation = self.tasks.get(index).map_or(0, |task| task.generation);
        let task = Task {
            generation,
            waits: 0,
            state: State::Runnable,
            process,
            number: self.tasks_begun,
            name: name.into(),
            stack: Some(Box::new(coroutine)),
            yielder: std::ptr::null(),
            wait: "",
            deadline: None,
            woken: false,
            token: false,
            parked: None,
            joiners: Vec::new(),
            locals: Table::new(),
        };
        match self.tasks.get_mut(index) {
            Some(place) => *place = task,
            None => self.tasks.push(task),
        }
        self.runnable.push(index);
        Ok(TaskId { index: index as u32, generation })
    }

    /// Frees the slot of a task and wakes those that wait for its end.
    pub(crate) fn bury_task(&mut self, index: usize) {
        let task = &mut self.tasks[index];
        task.state = State::Gone;
        task.generation += 1;
        // Not dropped: values of a killed task are memory of a dead process. Values of an ended task are gone
        // already.
        std::mem::take(&mut task.locals).forget();
        for joiner in std::mem::take(&mut task.joiners) {
            self.wake(joiner);
        }
        self.free_tasks.push(index);
    }

    pub(crate) fn is_alive(&self, id: TaskId) -> bool {
        let task = &self.tasks[id.index as usize];
        task.generation == id.generation && task.is_alive()
    }

    /// Chooses one of the tasks that can run in place of this one; None to stay.
    fn successor(&mut self, offer: Offer) -> Option<usize> {
        let others = self.runnable.len();
        if others == 0 {
            return None;
        }
        match (&mut self.script, offer) {
            (Some(script), Offer::Switch) => script.preempt(others),
            _ => Some(self.any(others)),
        }
    }

    /// Puts the running task back among the runnable ones and goes on with the one at `chosen`.
    fn pass_on(&mut self, chosen: usize) {
        self.next = Some(std::mem::replace(&mut self.runnable[chosen], self.current));
        self.tasks[self.current].state = State::Runnable;
    }
}

/// The whole life of a task, on its own stack.
fn life(yielder: &Yielder<(), ()>, body: Box<dyn FnOnce() + '_>) {
    let at = with(|world| {
        let at = world.current;
        world.tasks[at].yielder = yielder;
        at
    });
    let result = catch_unwind(AssertUnwindSafe(body));
    if let Err(payload) = result {
        note_panic(&*payload);
    }
    let locals = with(|world| std::mem::take(&mut world.tasks[at].locals));
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(locals))) {
        note_panic(&*payload);
    }
}

/// A panic that nothing caught is a failure of the run.
fn note_panic(payload: &(dyn Any + Send)) {
    let text =
        payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("no text").to_owned();
    with(|world| {
        let task = &world.tasks[world.current];
        let process = &world.processes[task.process.0 as usize];
        world.fail(format!("{}/{} panicked: {text}", process.name, task.name));
    });
}

/// Lets the loop of `run` go on. Returns when the loop resumes this task.
pub(crate) fn suspend() {
    let unwinding = panicking();
    let yielder = with(|world| {
        world.unwinding += u32::from(unwinding);
        world.tasks[world.current].yielder
    });
    // SAFETY: the yielder lies at the root of the running task's stack, which lives as long as the task; `life` stored
    // it before anything could suspend.
    unsafe { (*yielder).suspend(()) };
    if unwinding {
        with(|world| world.unwinding -= 1);
    }
}

/// Why a task comes to the slow path of a point.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offer {
    /// Only to look at what is due, and at its own state.
    Look,
    /// Another task may run.
    Switch,
    /// The task gives its CPU away.
    Yield,
}

enum Next {
    Stay,
    Switch,
    Nap(u64),
    /// The run is over, or the task's process dead or frozen.
    Leave,
}

/// The slow path of a point: fires what is due, and lets another task run if the offer says so.
#[cold]
pub(crate) fn give_way(offer: Offer) {
    crate::run::fire_due();
    let next = with(|world| {
        world.check_bounds();
        if world.no_switch > 0 {
            return Next::Stay;
        }
        let task = &world.tasks[world.current];
        if world.ending || task.state == State::Dead || world.is_frozen(task.process) {
            return Next::Leave;
        }
        if offer == Offer::Look || world.unwinding > 0 || std::thread::panicking() {
            return Next::Stay;
        }
        if world.rng.chance(world.naps_ppm) {
            let (least, most) = world.options.nap_ns;
            return Next::Nap(world.rng.log_uniform(least, most));
        }
        let Some(chosen) = world.successor(offer) else { return Next::Stay };
        world.pass_on(chosen);
        Next::Switch
    });
    match next {
        Next::Stay => (),
        Next::Switch => suspend(),
        Next::Nap(ns) => {
            with(|world| {
                world.naps += 1;
                world.note("nap", &[ns], |_| format!("is put aside for {ns} ns"));
            });
            block_until("the end of a nap", Some(clock::deadline(Duration::from_nanos(ns))));
        }
        Next::Leave => leave(),
    }
}

/// Gives way although the task may never run again: it is dead, frozen, or the run is over.
pub(crate) fn leave() {
    with(|world| {
        let at = world.current;
        if world.tasks[at].state == State::Running {
            world.tasks[at].state = State::Runnable;
            world.runnable.push(at);
        }
    });
    suspend();
}

/// True while this task unwinds. A task that must wait while it unwinds lets others run, which do not unwind although
/// the operating system's thread does: so programs ask here and not `std::thread::panicking`. A second task that panics
/// meanwhile is not seen.
pub fn panicking() -> bool {
    std::thread::panicking() && try_with(|world| world.unwinding == 0).unwrap_or(true)
}

/// Starts a task in the process of this one. EAGAIN if the process may start no more (`ProcessId::fail_spawns_after`).
pub fn spawn<T: 'static>(name: &str, body: impl FnOnce() -> T + 'static) -> io::Result<JoinHandle<T>> {
    spawn_in(with(|world| world.here()), name, body)
}

pub(crate) fn spawn_in<T: 'static>(
    process: ProcessId,
    name: &str,
    body: impl FnOnce() -> T + 'static,
) -> io::Result<JoinHandle<T>> {
    // SAFETY: `body` borrows nothing.
    unsafe { spawn_unchecked(process, name, body) }
}

/// # Safety
/// All that `body` borrows and returns is alive until the task has ended or will never run again.
pub(crate) unsafe fn spawn_unchecked<'a, T: 'a>(
    process: ProcessId,
    name: &str,
    body: impl FnOnce() -> T + 'a,
) -> io::Result<JoinHandle<T>> {
    point();
    let slot = Arc::new(Mutex::new(None));
    let result = slot.clone();
    let whole = Box::new(move || {
        let ended = catch_unwind(AssertUnwindSafe(body));
        if let Err(payload) = &ended {
            note_panic(&**payload);
        }
        *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
    });
    let id = with(|world| {
        world.may_spawn(process)?;
        // SAFETY: passed on to the caller.
        unsafe { world.add_task(process, name, whole) }
    })?;
    Ok(JoinHandle { id, slot })
}

/// The handle of a task, with which another waits for its end. The task runs on if the handle is dropped.
#[derive(Debug)]
pub struct JoinHandle<T> {
    id: TaskId,
    slot: Arc<Mutex<Option<Result<T>>>>,
}

impl<T> JoinHandle<T> {
    /// Waits for the end of the task. An error is its panic, or says that it was killed.
    pub fn join(self) -> Result<T> {
        self.id.wait_for_end();
        let ended = self.slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        ended.unwrap_or_else(|| Err(Box::new("the task was killed")))
    }

    pub fn is_finished(&self) -> bool {
        point();
        with(|world| !world.is_alive(self.id))
    }

    /// Returns the task's name for `unpark`.
    pub fn thread(&self) -> TaskId {
        self.id
    }
}

impl TaskId {
    fn wait_for_end(self) {
        point();
        let own = ticket();
        let waits = with(|world| {
            let alive = world.is_alive(self);
            if alive {
                world.tasks[self.index as usize].joiners.push(own);
            }
            alive
        });
        if waits {
            block_until("the end of a task", None);
        }
    }

    /// Lets the task's `park` return, now or the next time.
    pub fn unpark(self) {
        point();
        let parked = with(|world| {
            if !world.is_alive(self) {
                return None;
            }
            let task = &mut world.tasks[self.index as usize];
            task.token = true;
            task.parked.take()
        });
        parked.map(wake);
    }
}

/// Waits for an `unpark` of this task.
pub fn park() {
    park_for(None);
}

pub fn park_timeout(timeout: Duration) {
    park_for(Some(timeout));
}

fn park_for(timeout: Option<Duration>) {
    point();
    let own = ticket();
    let at = with(|world| world.current);
    if !with(|world| std::mem::take(&mut world.tasks[at].token)) {
        with(|world| world.tasks[at].parked = Some(own));
        block_until("an unpark", timeout.map(clock::deadline));
        with(|world| (world.tasks[at].parked, world.tasks[at].token) = (None, false));
    }
}

/// Returns the running task.
pub fn current() -> TaskId {
    with(|world| TaskId { index: world.current as u32, generation: world.tasks[world.current].generation })
}

/// Returns the name of the running task; None outside of a simulation.
pub fn name() -> Option<Rc<str>> {
    try_with(|world| world.tasks[world.current].name.clone())
}

pub fn sleep(duration: Duration) {
    point();
    block_until("the end of a sleep", Some(clock::deadline(duration)));
}

/// Lets another task run, if one can.
pub fn yield_now() {
    pass_time(YIELD_NS, true);
}

/// One round of a loop that polls.
pub fn spin() {
    pass_time(SPIN_NS, false);
}

fn pass_time((least, most): (u64, u64), switch: bool) {
    if is_running() {
        with(|world| world.now += world.rng.between(least, most));
        point();
        if switch {
            give_way(Offer::Yield);
        }
    }
}

/// Calls `act` when this much virtual time has passed, outside of every task: it must not wait.
pub fn after(delay: Duration, act: impl FnOnce() + 'static) {
    with(|world| {
        let at = world.now.saturating_add(delay.as_nanos() as u64);
        world.plan(at, Event::Call(Box::new(act)));
    });
}
