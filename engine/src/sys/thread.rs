//! The threads of an engine. A new thread belongs to the engine that its starter works for (`health`). The engine
//! counts its threads and handles their panics. A thread blocks all signals but those of faults, has no real-time
//! policy, and runs on the CPUs that the thread which opened the engine had then (`origin`), whenever it is started.

use super::bare::thread::{Builder, Scope, ScopedJoinHandle};
use super::clock;
use super::health;
use super::origin::{schedule_as_others, undisturbed};
use super::pause;
use crate::status::{Error, Status};
use std::io;
use std::time::{Duration, Instant};

pub use super::bare::thread::{available_parallelism, panicking, scope, JoinHandle};

/// The pause between two checks whether a thread has ended.
const ENDS_PAUSE: Duration = Duration::from_micros(200);

/// Starts a thread. If its starter works for an engine, that engine counts the thread until it ends.
pub(super) fn spawn(
    name: impl Into<String>,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let builder = Builder::new().name(name.into());
    let Some(health) = health::ambient() else { return undisturbed(|| builder.spawn(body)) };
    health.begins();
    let own = health.clone();
    let body = move || {
        own.origin.take_on();
        own.run(body)
    };
    undisturbed(|| builder.spawn(body)).inspect_err(|_| health.ends())
}

/// Starts a thread that belongs to no engine. Libraries above this one use it too. The thread blocks all signals but
/// those of faults, as every thread of ferry does.
pub fn spawn_outside(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let builder = Builder::new().name(name.into());
    let body = move || {
        schedule_as_others();
        body();
    };
    undisturbed(|| builder.spawn(body))
}

/// A thread that an open engine needs could not be started: LIMIT, with the cause.
pub fn not_started(what: &str, error: &io::Error) -> Error {
    Error { status: Status::Limit, ..Error::system(format!("starting {what}"), error) }
}

/// Starts a thread that touches no registered memory and runs the program's code, which can't be stopped. Once a
/// broken engine is over, the thread runs `after`.
pub(super) fn spawn_apart(
    name: impl Into<String>,
    body: impl FnOnce() + Send + 'static,
    after: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let builder = Builder::new().name(name.into());
    match health::ambient() {
        Some(health) => undisturbed(|| {
            builder.spawn(move || {
                health.origin.take_on();
                health.run_apart(body, after)
            })
        }),
        None => undisturbed(|| builder.spawn(body)),
    }
}

/// Starts a helper that its starter waits for. A panic of the helper reaches the starter.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    body: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    let health = health::ambient();
    let builder = Builder::new().name(name.into());
    let body = move || match health {
        Some(health) => health.within(body),
        None => body(),
    };
    undisturbed(|| builder.spawn_scoped(scope, body))
}

/// True if the thread ends before the deadline; None: a join may wait. Polls, because the standard library has no join
/// with a timeout, and closing with a timeout is rare and short.
pub fn ends(thread: &JoinHandle<()>, deadline: Option<Instant>) -> bool {
    let Some(deadline) = deadline else { return true };
    while !thread.is_finished() {
        if clock::now() >= deadline {
            return false;
        }
        pause::sleep(ENDS_PAUSE);
    }
    true
}
