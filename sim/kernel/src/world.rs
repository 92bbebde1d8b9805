//! The state of one run, and the way to it: a pointer in a thread-local variable. Only one world exists in an
//! operating system's process at a time (`run`), and all its tasks run on one thread, so a short borrow that contains
//! no switch is exclusive. `with` is that borrow; no code inside may call the public functions of this crate.

use crate::arena::{self, Arena};
use crate::device::Devices;
use crate::explore::Script;
use crate::fd::Files;
use crate::memory::Memory;
use crate::net::Net;
use crate::nic::Nics;
use crate::pages::Hole;
use crate::process::{Host, Process, ProcessId};
use crate::rng::Rng;
use crate::run::Options;
use crate::task::{Offer, State, Task};
use crate::timer::{Event, Timers};
use crate::trace::Trace;
use crate::unix::Locals;
use std::cell::Cell;
use std::ptr;

thread_local! {
    static WORLD: Cell<*mut World> = const { Cell::new(ptr::null_mut()) };
}

/// The most failures that a run keeps.
const FAILURES_MAX: usize = 64;
/// A point takes from 1 ns to this, a power of two.
const POINT_NS_MAX: u64 = 8;

pub(crate) struct World {
    // The fields that each point uses come first.
    pub now: u64,
    /// The time of the earliest event, or 0 if the next point must look at its task's state.
    pub alarm: u64,
    pub steps: u64,
    /// A point switches if 32 random bits are below this.
    switch_below: u32,
    pub rng: Rng,
    pub tasks: Vec<Task>,
    pub current: usize,
    pub runnable: Vec<usize>,
    /// Chosen by the task that gave way.
    pub next: Option<usize>,

    pub free_tasks: Vec<usize>,
    pub tasks_begun: u64,
    pub timers: Timers,
    /// Above 0 nothing may switch: events are being fired, or an observer looks.
    pub no_switch: u32,
    /// Tasks that are suspended while they unwind.
    pub unwinding: u32,
    /// The run ends at the next look of the scheduler.
    pub ending: bool,
    pub switches: u64,
    pub naps: u64,
    pub naps_ppm: u32,
    pub failures: Vec<String>,
    /// Decides the switches in place of `rng`.
    pub script: Option<Script>,
    /// Decides faults.
    pub fate: Rng,
    /// Gives programs their random numbers.
    pub draws: Rng,
    pub hosts: Vec<Host>,
    pub processes: Vec<Process>,
    pub files: Files,
    pub net: Net,
    pub nics: Nics,
    pub devices: Devices,
    pub locals: Locals,
    pub memory: Memory,
    pub arena: Arena,
    /// Pages that are not as they should be.
    pub holes: Vec<Hole>,
    pub trace: Trace,
    /// How often each moment was reached.
    pub moments: Vec<(&'static str, u64)>,
    pub options: Options,
    /// Tells this world's objects from those of an earlier one.
    pub serial: u64,
    #[cfg(debug_assertions)]
    borrowed: bool,
}

impl World {
    pub fn new(seed: u64, mut options: Options, script: Option<Script>, serial: u64) -> World {
        let mut rng = Rng::new(seed, 1);
        let one_in = options.switch_one_in.unwrap_or_else(|| rng.log_uniform(2, 256) as u32).max(1);
        let drawn = if rng.chance(250_000) { 0 } else { rng.log_uniform(100, 20_000) as u32 };
        World {
            now: 0,
            alarm: u64::MAX,
            steps: 0,
            // With a script every point asks.
            switch_below: if script.is_some() { u32::MAX } else { u32::MAX / one_in },
            rng,
            tasks: Vec::new(),
            current: 0,
            runnable: Vec::new(),
            next: None,
            free_tasks: Vec::new(),
            tasks_begun: 0,
            timers: Timers::default(),
            no_switch: 0,
            unwinding: 0,
            ending: false,
            switches: 0,
            naps: 0,
            naps_ppm: options.naps_ppm.unwrap_or(drawn),
            failures: Vec::new(),
            script,
            fate: Rng::new(seed, 2),
            draws: Rng::new(seed, 3),
            hosts: Vec::new(),
            processes: Vec::new(),
            files: Files::default(),
            net: Net::new(options.faults.clone()),
            nics: Nics::new(seed),
            devices: Devices::new(seed),
            locals: Locals::default(),
            memory: Memory::new(options.observer.take()),
            arena: Arena::new(&arena::HOSTS),
            holes: Vec::new(),
            trace: Trace::new(options.story),
            moments: Vec::new(),
            options,
            serial,
            #[cfg(debug_assertions)]
            borrowed: false,
        }
    }

    /// Chooses one of this many tasks.
    pub fn any(&mut self, of: usize) -> usize {
        match &mut self.script {
            Some(script) => script.choose(of),
            None => self.rng.index(of),
        }
    }

    /// Counts a step. True if the slow path must be taken; `switch` says that the task gives way.
    #[inline]
    fn tick(&mut self) -> (bool, bool) {
        let drawn = self.rng.next();
        self.steps += 1;
        self.now += 1 + (drawn & (POINT_NS_MAX - 1));
        let switch = (drawn >> 32) as u32 <= self.switch_below;
        (switch || self.now >= self.alarm, switch)
    }

    pub fn plan(&mut self, at: u64, event: Event) {
        self.alarm = self.alarm.min(at);
        self.timers.plan(at, event);
    }

    /// Records what makes the run a failure.
    pub fn fail(&mut self, text: String) {
        if self.failures.len() < FAILURES_MAX {
            self.note("failure", &[], |_| format!("FAILURE: {text}"));
            self.failures.push(text);
        }
    }

    /// Ends the run with a failure if it has used up its steps or its time.
    pub fn check_bounds(&mut self) {
        if self.ending {
            return;
        }
        let (steps, ms) = (self.options.steps_max, self.options.time_max_ns / 1_000_000);
        if self.steps >= steps {
            self.fail(format!("the run has taken its {steps} steps: {}", self.tasks_told()));
            self.ending = true;
        } else if self.now >= self.options.time_max_ns {
            self.fail(format!("the run has used its {ms} ms of virtual time: {}", self.tasks_told()));
            self.ending = true;
        }
    }

    /// Tells what each task does, for failures.
    pub fn tasks_told(&self) -> String {
        let alive = self.tasks.iter().filter(|task| task.is_alive());
        let mut told: Vec<String> = alive
            .map(|task| {
                let process = &self.processes[task.process.0 as usize];
                let doing = match task.state {
                    State::Blocked => format!("waits for {}", task.wait),
                    State::Parked => "is frozen".to_owned(),
                    _ => "runs".to_owned(),
                };
                format!("{}/{} {doing}", process.name, task.name)
            })
            .collect();
        told.sort();
        told.join("; ")
    }

    pub fn process(&mut self, id: ProcessId) -> &mut Process {
        &mut self.processes[id.0 as usize]
    }

    /// Returns the process of the task that runs.
    pub fn here(&self) -> ProcessId {
        self.tasks.get(self.current).map_or(ProcessId(0), |task| task.process)
    }
}

/// Makes `world` the one that this thread runs; null for none. Returns the one before.
pub(crate) fn set(world: *mut World) -> *mut World {
    WORLD.replace(world)
}

/// True while a world runs on this thread. Outside, locks work as spin locks, atomics as std's, and points do nothing.
#[inline]
pub fn is_running() -> bool {
    !WORLD.get().is_null()
}

/// Borrows the world for a moment in which nothing switches.
#[inline]
pub(crate) fn with<R>(act: impl FnOnce(&mut World) -> R) -> R {
    match try_with(act) {
        Some(result) => result,
        None => panic!("no simulation runs on this thread"),
    }
}

/// Like `with`; None outside of a simulation.
#[inline]
pub(crate) fn try_with<R>(act: impl FnOnce(&mut World) -> R) -> Option<R> {
    let world = WORLD.get();
    if world.is_null() {
        return None;
    }
    // SAFETY: `run` set the pointer and keeps the world until it has set another. The world belongs to this thread, and
    // `act` neither switches nor comes here again (checked in debug builds), so nobody else refers to the world.
    unsafe {
        #[cfg(debug_assertions)]
        let _borrow = Borrow::new(&raw mut (*world).borrowed);
        Some(act(&mut *world))
    }
}

/// Detects that the kernel calls itself.
#[cfg(debug_assertions)]
struct Borrow(*mut bool);

#[cfg(debug_assertions)]
impl Borrow {
    fn new(borrowed: *mut bool) -> Borrow {
        // SAFETY: a field of the world, which outlives the borrow.
        let before = unsafe { borrowed.replace(true) };
        assert!(!before, "the simulated kernel called itself");
        Borrow(borrowed)
    }
}

#[cfg(debug_assertions)]
impl Drop for Borrow {
    fn drop(&mut self) {
        // SAFETY: as in `new`.
        unsafe { self.0.write(false) };
    }
}

/// A place where another task may run. Also moves the clock by a few nanoseconds.
#[inline]
pub fn point() {
    if let Some((true, switch)) = try_with(World::tick) {
        crate::task::give_way(if switch { Offer::Switch } else { Offer::Look });
    }
}
