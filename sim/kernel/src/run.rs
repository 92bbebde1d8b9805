//! One run: makes the world, resumes one task after the other until the first has ended, and tells what happened.

use crate::explore::Script;
use crate::memory::{self, Observer};
use crate::net::Faults;
use crate::process::ProcessId;
use crate::task::{recycle, State};
use crate::timer::Event;
use crate::trace::Story;
use crate::world::{self, is_running, with, World};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The options of a run besides its seed.
pub struct Options {
    /// A point switches once in so many. By default each seed draws its own, from 2 to 256.
    pub switch_one_in: Option<u32>,
    /// How many of a million switches put the task aside for a while. By default each seed draws its own.
    pub naps_ppm: Option<u32>,
    /// How long naps are.
    pub nap_ns: (u64, u64),
    /// A run that takes more steps or more virtual time ends with a failure.
    pub steps_max: u64,
    pub time_max_ns: u64,
    pub stack_bytes: usize,
    /// How many of a million waits for a condition end without cause.
    pub spurious_ppm: u32,
    /// Copies between processes reach registered memory and that of the arena alone; otherwise also memory whose owner
    /// the kernel does not know, such as the heap.
    pub strict_copies: bool,
    /// The names of tasks that must not wait for pages that come late.
    pub impatient: &'static [&'static str],
    pub faults: Faults,
    pub story: Story,
    /// Sees each access of the kernel to registered memory. Must not wait, and runs where nothing switches.
    pub observer: Option<Observer>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            switch_one_in: None,
            naps_ppm: None,
            nap_ns: (1_000, 100_000_000),
            steps_max: 100_000_000,
            time_max_ns: 3_600_000_000_000,
            stack_bytes: 512 << 10,
            spurious_ppm: 1_000,
            strict_copies: true,
            impatient: &[],
            faults: Faults::default(),
            story: Story::None,
            observer: None,
        }
    }
}

/// The result of a run. Two runs of one seed, one program and one set of options have the same.
#[derive(Debug)]
pub struct Outcome {
    pub seed: u64,
    /// The hash of all events.
    pub hash: u64,
    pub events: u64,
    pub steps: u64,
    pub switches: u64,
    pub naps: u64,
    pub end_ns: u64,
    pub failures: Vec<String>,
    /// How often each moment of `moment` was reached; those that were not are missing.
    pub moments: Vec<(&'static str, u64)>,
    /// With `Story::Keep`, the events as sentences.
    pub story: String,
}

impl Outcome {
    /// Panics with the seed, the failures and the story if the run failed.
    pub fn check(self) -> Outcome {
        assert!(
            self.failures.is_empty(),
            "seed {} failed:\n  {}\n{}",
            self.seed,
            self.failures.join("\n  "),
            self.story
        );
        self
    }
}

/// Records that the run failed. It goes on.
pub fn fail(text: impl Into<String>) {
    with(|world| world.fail(text.into()));
}

/// Runs `body` as the first task of a new world, in a process of its own on a host of its own. When it ends, all other
/// tasks are taken away without unwinding. A world at a time in each operating system's process: calls from other
/// threads wait.
pub fn run<'a>(seed: u64, options: Options, body: impl FnOnce() + 'a) -> Outcome {
    run_with(seed, options, None, body).0
}

/// Like `run`. A script decides the switches in place of the seed, and is returned with the choices that were made.
pub(crate) fn run_with<'a>(
    seed: u64,
    options: Options,
    script: Option<Script>,
    body: impl FnOnce() + 'a,
) -> (Outcome, Script) {
    static ONE: Mutex<()> = Mutex::new(());
    static SERIAL: AtomicU64 = AtomicU64::new(1);
    assert!(!is_running(), "a simulation runs on this thread already");
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let world = World::new(seed, options, script, SERIAL.fetch_add(1, Ordering::Relaxed));
    let scene = Scene(Box::into_raw(Box::new(world)));
    world::set(scene.0);
    with(|world| {
        let host = world.add_host("outside");
        let process = world.add_process(host, "test");
        // SAFETY: what the body borrows outlives this call, and the world ends before it.
        unsafe { world.add_task(process, "body", Box::new(body)) }.expect("no memory for the first stack");
    });
    while turn() {}
    let script = with(|world| world.script.take().unwrap_or_default());
    let outcome = with(|world| Outcome {
        seed,
        hash: world.trace.hash(),
        events: world.trace.events(),
        steps: world.steps,
        switches: world.switches,
        naps: world.naps,
        end_ns: world.now,
        failures: std::mem::take(&mut world.failures),
        moments: std::mem::take(&mut world.moments),
        story: world.trace.take_story(),
    });
    (outcome, script)
}

/// The world that exists; ends when it is dropped.
struct Scene(*mut World);

impl Drop for Scene {
    fn drop(&mut self) {
        // First, so that values dropped below find no world.
        world::set(std::ptr::null_mut());
        // SAFETY: made by `run` from a box; no task runs, and the pointer was the last way to it.
        let mut world = unsafe { Box::from_raw(self.0) };
        for task in &mut world.tasks {
            if let Some(stack) = task.stack.take() {
                recycle(*stack);
            }
            std::mem::take(&mut task.locals).forget();
        }
        for process in &mut world.processes {
            std::mem::take(&mut process.statics).forget();
        }
        world.arena.clear();
        world.devices.memory.clear();
    }
}

/// Lets one task run until it gives way. Returns false when the run is over.
fn turn() -> bool {
    let next = with(|world| {
        if world.ending {
            return None;
        }
        let chosen = world.take_runnable();
        chosen.map(|at| {
            world.current = at;
            world.switches += 1;
            let task = &mut world.tasks[at];
            task.state = State::Running;
            (at, task.stack.take())
        })
    });
    let Some((at, Some(mut stack))) = next else { return advance() };
    let ended = stack.resume(()).as_return().is_some();
    with(|world| {
        if !ended && world.tasks[at].state != State::Dead {
            world.tasks[at].stack = Some(stack);
            return true;
        }
        recycle(*stack);
        world.bury_task(at);
        // The first task is the body.
        at != 0
    })
}

/// Moves the time to the next event, because no task can run. Returns false if the run is over.
fn advance() -> bool {
    let goes_on = with(|world| {
        if world.ending {
            return false;
        }
        let Some(at) = world.timers.next() else {
            world.fail(format!("deadlock: {}", world.tasks_told()));
            return false;
        };
        world.now = world.now.max(at);
        world.check_bounds();
        !world.ending
    });
    if goes_on {
        fire_due();
    }
    goes_on
}

/// Fires all events that are due.
pub(crate) fn fire_due() {
    if with(|world| world.no_switch > 0) {
        return;
    }
    while let Some(event) = with(|world| world.timers.due(world.now)) {
        match event {
            Event::Wait(ticket) => with(|world| world.time_is_over(ticket)),
            Event::Net(arrival) => {
                with(|world| {
                    world.no_switch += 1;
                    world.arrive(arrival);
                    world.no_switch -= 1;
                });
                memory::tell();
            }
            Event::Nic(due) => {
                with(|world| {
                    world.no_switch += 1;
                    world.nic_due(due);
                    world.no_switch -= 1;
                });
                memory::tell();
            }
            Event::Device(due) => {
                with(|world| {
                    world.no_switch += 1;
                    world.device_due(due);
                    world.no_switch -= 1;
                });
                memory::tell();
            }
            Event::Call(act) => {
                with(|world| world.no_switch += 1);
                act();
                with(|world| world.no_switch -= 1);
                memory::tell();
            }
        }
    }
    with(|world| world.alarm = world.timers.next().unwrap_or(u64::MAX));
}

impl World {
    /// Takes the task that runs next: the one that was chosen, or any.
    fn take_runnable(&mut self) -> Option<usize> {
        loop {
            let at = match self.next.take() {
                Some(chosen) => chosen,
                None if self.runnable.is_empty() => return None,
                None => {
                    let chosen = self.any(self.runnable.len());
                    self.runnable.swap_remove(chosen)
                }
            };
            if !self.park_if_frozen(at) {
                return Some(at);
            }
        }
    }

    /// True if no task of the process may run now.
    pub(crate) fn is_frozen(&self, process: ProcessId) -> bool {
        let process = &self.processes[process.0 as usize];
        process.stopped || self.hosts[process.host.0 as usize].clock.suspended_at.is_some()
    }

    fn park_if_frozen(&mut self, at: usize) -> bool {
        let process = self.tasks[at].process;
        let frozen = self.is_frozen(process);
        if frozen {
            self.tasks[at].state = State::Parked;
            self.process(process).parked.push(at);
        }
        frozen
    }
}
