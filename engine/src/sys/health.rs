//! Whether an engine is sound. After a panic inside an engine none of its state can be relied on: data that the thread
//! was writing under its locks is half written.
//!
//! ```text
//! sound ── a panic, marked before the locks of its thread are released ──▶ broken ──▶ over
//! broken   every thread stops at its next lock, calls answer PANIC, memory stays in use
//! over     nothing of the engine moves any more, here or under a lease: memory can be freed
//! ```
//! `lock` marks the engine and stops threads, `thread` starts and ends the threads that are counted here, and `api`
//! enters through `call`. An `Undertaker`, also from `api`, takes the engine from broken to over. A thread-local
//! variable says which engine a thread works for, so that a lock need not know its engine.

use super::atomic::{fence, AtomicBool, AtomicUsize, Ordering};
use super::bare::thread::{current, panicking, ThreadId};
use super::bare::{Condvar, Mutex, MutexGuard, PoisonError};
use super::clock;
use super::hook::{Hook, Point, ARE_CALLED};
use super::local::{local, process_local};
use super::once::OnceLock;
use super::origin::Origin;
use crate::status::{Error, Result, Status};
use std::any::Any;
use std::cell::Cell;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause between two alarms while threads have yet to stop: a thread that was about to sleep misses the first alarm.
const ALARM_PAUSE: Duration = Duration::from_millis(2);
const ALARM_PAUSE_MAX: Duration = Duration::from_millis(100);

process_local! {
    /// Broken engines of this process. Locks check this count; only if it is not zero do they check the engine of the
    /// thread.
    static BROKEN: AtomicUsize = AtomicUsize::new(0);
}

local! {
    static HERE: Cell<Here> = const { Cell::new(Here::NOWHERE) };
}

/// The engine for which this thread runs code now.
#[derive(Clone, Copy)]
struct Here {
    /// Null, or alive as long as the scope that set it.
    health: *const Health,
    /// The thread continues although the engine is broken, because it tears the engine down.
    exempt: bool,
    /// The thread's current job, for the text of a panic.
    doing: &'static str,
}

impl Here {
    const NOWHERE: Here = Here { health: std::ptr::null(), exempt: false, doing: "starting" };
}

/// The payload that unwinds a thread that stops. No panic hook runs for it, and nothing is printed.
struct Stop;

/// Takes a broken engine to its end. Called under no lock.
pub trait Undertaker: Send + Sync {
    /// Wakes threads that sleep for events that will not come, and shuts all that can be shut at once. Called
    /// repeatedly.
    fn rouse(&self);
    /// Returns once nothing of the engine moves any more and everything posted is over. An error means that this can't
    /// be known.
    fn bury(&self, health: &Health) -> Result<()>;
}

/// Always in an `Arc`: only `new` makes one.
pub struct Health {
    /// Ordered with the locks, which are released after it was set.
    broken: AtomicBool,
    story: OnceLock<Story>,
    panic_text: OnceLock<String>,
    state: Mutex<HealthState>,
    changed: Condvar,
    alarms: Mutex<Alarms>,
    undertaker: Mutex<Option<Arc<dyn Undertaker>>>,
    /// The signal mask and CPUs of the thread that opened the engine.
    pub(super) origin: Origin,
    /// Called by each thread that works for the engine.
    pub hook: Hook<Point>,
}

struct Story {
    id: ThreadId,
    thread: String,
    doing: &'static str,
}

#[derive(Default)]
struct HealthState {
    /// Counted threads that have not ended.
    threads: usize,
    /// Something moves that can't be stopped.
    hopeless: bool,
    phase: Phase,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    Burying,
    Over,
    /// The end can't be proven any more.
    Stuck,
}

#[derive(Default)]
struct Alarms {
    next: u64,
    list: Vec<(u64, &'static (dyn Fn() + Sync))>,
}

impl Health {
    #[allow(clippy::new_ret_no_self)]
    pub fn new() -> Arc<Health> {
        Arc::new(Health {
            broken: AtomicBool::new(false),
            story: OnceLock::new(),
            panic_text: OnceLock::new(),
            state: Mutex::default(),
            changed: Condvar::new(),
            alarms: Mutex::default(),
            undertaker: Mutex::new(None),
            origin: Origin::of_this_thread(),
            hook: Hook::default(),
        })
    }

    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Returns OK, or PANIC with the thread that panicked and its job.
    pub fn check(&self) -> Result<()> {
        if self.is_broken() {
            Err(self.error())
        } else {
            Ok(())
        }
    }

    pub fn error(&self) -> Error {
        let (thread, doing) = self.story.get().map_or(("a thread", "working"), |it| (&it.thread, it.doing));
        let panic_text = self.panic_text.get().map_or(String::new(), |panic_text| format!(": {panic_text}"));
        Error::new(Status::Panic, format!("a bug in ferry: {thread} panicked while {doing}{panic_text}"))
    }

    /// Marks the engine as broken. Takes no lock: it may be called under any lock.
    fn mark(&self) {
        let thread = current();
        let name = thread.name().filter(|name| name.starts_with("ferry-"));
        let name = name.unwrap_or("a thread of the program");
        let _ = self.story.set(Story { id: thread.id(), thread: name.to_owned(), doing: HERE.get().doing });
        if !self.broken.swap(true, Ordering::SeqCst) {
            BROKEN.with(|broken| broken.fetch_add(1, Ordering::SeqCst));
        }
    }

    /// Handles a panic that was caught on this thread, whose locks are released. Wakes all waiting threads.
    fn panicked(&self, payload: Box<dyn Any + Send>) {
        if !payload.is::<Stop>() {
            self.mark();
            let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            if self.story.get().is_some_and(|story| story.id == current().id()) {
                let _ = self.panic_text.set(text.unwrap_or_else(|| "no text".into()));
            }
        }
        discard(payload);
        self.rouse();
    }

    /// Runs `body` for this engine. Threads started inside belong to this engine, too.
    pub fn within<T>(&self, body: impl FnOnce() -> T) -> T {
        let _scope = Scope::enter(Here { health: self, exempt: false, ..HERE.get() });
        body()
    }

    /// Runs a call of the program. Returns PANIC if the engine is broken or breaks during the call; the call's
    /// unfinished work is left as it is.
    pub fn call<T>(&self, doing: &'static str, body: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check()?;
        let scope = Scope::enter(Here { health: self, exempt: false, doing });
        // Unwind safety: `broken` says that state may be half changed, and that state is not used again.
        let result = catch_unwind(AssertUnwindSafe(body));
        match result {
            Ok(result) => result,
            Err(payload) => {
                self.panicked(payload);
                drop(scope);
                Err(self.error())
            }
        }
    }

    /// Runs a counted thread from its beginning to its end.
    pub(super) fn run(&self, body: impl FnOnce()) {
        let _scope = Scope::enter(Here { health: self, ..Here::NOWHERE });
        if let Err(payload) = catch_unwind(AssertUnwindSafe(body)) {
            self.panicked(payload);
        }
        self.ends();
    }

    /// Runs a thread that touches no registered memory and need not end before the engine is over. If the thread stops
    /// by a panic, it waits until the engine is over, and then runs `after`.
    pub(super) fn run_apart(&self, body: impl FnOnce(), after: impl FnOnce()) {
        let _scope = Scope::enter(Here { health: self, ..Here::NOWHERE });
        if let Err(payload) = catch_unwind(AssertUnwindSafe(body)) {
            self.panicked(payload);
            exempt(|| {
                if self.wait_over(None).is_ok() {
                    after();
                }
            });
        }
    }

    pub(super) fn begins(&self) {
        self.state().threads += 1;
    }

    /// Notes that a counted thread has ended or was not started. The first one of a broken engine tears the engine
    /// down.
    pub(super) fn ends(&self) {
        self.state().threads -= 1;
        self.changed.notify_all();
        if self.is_broken() && self.claim() {
            self.bury();
        }
    }

    /// Notes that something of the engine moves that can't be stopped, so the engine is never over.
    fn never_ends(&self) {
        self.state().hopeless = true;
    }

    fn claim(&self) -> bool {
        let mut state = self.state();
        let ours = state.phase == Phase::Open;
        if ours {
            state.phase = Phase::Burying;
        }
        ours
    }

    fn bury(&self) {
        exempt_in(self, || {
            let undertaker = lock(&self.undertaker).clone();
            self.rouse();
            let buried = undertaker
                .map_or(Ok(Ok(())), |undertaker| catch_unwind(AssertUnwindSafe(|| undertaker.bury(self))));
            let phase = if matches!(buried, Ok(Ok(()))) { Phase::Over } else { Phase::Stuck };
            self.state().phase = phase;
            self.changed.notify_all();
            self.rouse();
        });
    }

    /// For the undertaker: returns when every counted thread has ended. Fails if a thread left something that moves.
    pub fn wait_threads(&self) -> Result<()> {
        let mut pause = ALARM_PAUSE;
        while self.state().threads > 0 {
            self.rouse();
            let state = self.state();
            if state.threads > 0 {
                drop(self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner));
            }
            pause = (pause * 2).min(ALARM_PAUSE_MAX);
        }
        if self.state().hopeless {
            Err(self.error())
        } else {
            Ok(())
        }
    }

    /// Wakes all threads that sleep for this engine.
    pub fn rouse(&self) {
        exempt_in(self, || {
            lock(&self.alarms).list.iter().for_each(|(_, wake)| wake());
            let undertaker = lock(&self.undertaker).clone();
            if let Some(undertaker) = undertaker {
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| undertaker.rouse())) {
                    discard(payload);
                }
            }
        });
    }

    /// Sets the undertaker for the case that the engine breaks; None once the engine has closed normally.
    pub fn set_undertaker(&self, undertaker: Option<Arc<dyn Undertaker>>) {
        let before = std::mem::replace(&mut *lock(&self.undertaker), undertaker);
        drop(before);
    }

    /// Waits until a broken engine is over. Returns BUSY after the deadline, and PANIC if the end can't be proven.
    pub fn wait_over(&self, deadline: Option<Instant>) -> Result<()> {
        while self.is_broken() {
            let state = self.state();
            match state.phase {
                Phase::Over => return Ok(()),
                Phase::Stuck => return Err(self.error()),
                // No thread is left to do it.
                Phase::Open if state.threads == 0 => {
                    drop(state);
                    if self.claim() {
                        self.bury();
                    }
                    continue;
                }
                Phase::Open | Phase::Burying => {}
            }
            let left = deadline.map(|at| at.saturating_duration_since(clock::now()));
            match left {
                Some(Duration::ZERO) => {
                    let text = format!("{}; work that it had begun is not over yet", self.error().message);
                    return Err(Error::new(Status::Busy, text));
                }
                Some(left) => {
                    drop(self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner))
                }
                None => drop(self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)),
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, HealthState> {
        lock(&self.state)
    }
}

impl Drop for Health {
    fn drop(&mut self) {
        if self.is_broken() {
            BROKEN.with(|broken| broken.fetch_sub(1, Ordering::SeqCst));
        }
    }
}

/// The data under the locks of this file is consistent at each step, so poisoning is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A payload may panic when dropped; the payload of that second panic is leaked.
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second);
    }
}

/// Restores the thread's earlier note when dropped.
struct Scope {
    before: Here,
}

impl Scope {
    #[inline]
    fn enter(here: Here) -> Scope {
        Scope { before: HERE.replace(here) }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        HERE.set(self.before);
    }
}

/// Returns the engine that this thread works for.
fn here<'a>() -> Option<&'a Health> {
    // SAFETY: the scope that put it there borrows it until it has put back what was there before; every function
    // here that has a scope runs a closure in it, and what this returns stays inside the function that asked.
    unsafe { HERE.get().health.as_ref() }
}

/// Notes this thread's current job, for the text of a panic.
pub fn doing(what: &'static str) {
    HERE.set(Here { doing: what, ..HERE.get() });
}

/// Stops this thread if its engine is broken: unwinds to the thread's beginning or to its current call. Does nothing
/// if the thread already unwinds, because destructors need its locks.
#[inline]
pub fn check() {
    pass(Point::Lock);
    if BROKEN.with(|broken| broken.load(Ordering::Relaxed)) != 0 {
        stop();
    }
}

/// Calls the hook of this thread's engine.
#[inline]
pub fn pass(point: Point) {
    if ARE_CALLED && !HERE.get().exempt {
        here().into_iter().for_each(|health| health.hook.call(&point));
    }
}

/// Like `check`, for a thread that has just announced itself without a lock. The fence guarantees that either this
/// thread stops, or a thread that looks for it after the engine broke sees it.
#[inline]
pub fn check_seen() {
    fence(Ordering::SeqCst);
    check();
}

#[cold]
fn stop() {
    if !HERE.get().exempt && !panicking() && here().is_some_and(Health::is_broken) {
        resume_unwind(Box::new(Stop));
    }
}

/// Marks the engine: what this thread held in its panic, a lock or its work, is about to be released.
#[cold]
pub(super) fn releases_in_panic() {
    if let Some(health) = here() {
        health.mark();
    }
}

/// Returns the error for a request that this thread's engine will not serve: the engine is broken, perhaps only by the
/// panic that this thread is in.
pub fn why_stopped() -> Option<Error> {
    if panicking() {
        here().into_iter().for_each(Health::mark);
    }
    here().filter(|health| health.is_broken()).map(Health::error)
}

/// Runs the program's code, which does not belong to the engine.
pub fn outside<T>(body: impl FnOnce() -> T) -> T {
    let _scope = Scope::enter(Here { doing: HERE.get().doing, ..Here::NOWHERE });
    body()
}

/// Runs the last steps of a thread that may have stopped.
pub fn exempt<T>(body: impl FnOnce() -> T) -> T {
    let _scope = Scope::enter(Here { exempt: true, ..HERE.get() });
    body()
}

fn exempt_in<T>(health: &Health, body: impl FnOnce() -> T) -> T {
    let _scope = Scope::enter(Here { health, exempt: true, ..HERE.get() });
    body()
}

/// Notes that this thread has begun something for its engine that can't be stopped: the engine, once broken, is never
/// over.
pub fn never_ends() {
    here().into_iter().for_each(Health::never_ends);
}

/// Runs `body`, which may sleep until `wake` is called. `wake` may be called at any time, repeatedly once the engine
/// breaks, and must neither wait nor lock.
pub fn woken_by<T>(wake: &(dyn Fn() + Sync), body: impl FnOnce() -> T) -> T {
    let Some(health) = here() else { return body() };
    // SAFETY: `Alarm` removes it from the list before the reference ends, under the lock that is held while it is
    // called.
    let wake: &'static (dyn Fn() + Sync) =
        unsafe { std::mem::transmute::<&(dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(wake) };
    let mut alarms = lock(&health.alarms);
    let id = alarms.next;
    alarms.next += 1;
    alarms.list.push((id, wake));
    drop(alarms);
    let _alarm = Alarm { health, id };
    body()
}

struct Alarm<'a> {
    health: &'a Health,
    id: u64,
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        lock(&self.health.alarms).list.retain(|(id, _)| *id != self.id);
    }
}

/// Returns the engine to which threads started now belong.
pub(super) fn ambient() -> Option<Arc<Health>> {
    let health = HERE.get().health;
    if health.is_null() {
        return None;
    }
    // SAFETY: alive, as in `here`, and in an `Arc`, because every one is.
    unsafe {
        Arc::increment_strong_count(health);
        Some(Arc::from_raw(health))
    }
}
