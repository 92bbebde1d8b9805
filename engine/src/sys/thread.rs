//! The threads of an engine. They belong to the engine that whoever starts them works for (`health`), which counts
//! them, and hears of their panics. Whenever they start, they block the signals and run on the CPUs that the thread
//! which opened the engine did then (`origin`).

use super::health;
use super::origin::undisturbed;
use crate::status::{Error, Status};
use std::io;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// Starts a thread that ends with its engine, if it is one of an engine.
pub fn spawn(name: impl Into<String>, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let builder = Builder::new().name(name.into());
    let Some(health) = health::ambient() else { return builder.spawn(body) };
    health.begins();
    let own = health.clone();
    let body = move || {
        own.origin.take_on();
        own.run(body)
    };
    undisturbed(|| builder.spawn(body)).inspect_err(|_| health.ends())
}

/// A thread that an open engine needs could not be started: LIMIT, with the cause.
pub fn not_started(what: &str, error: &io::Error) -> Error {
    Error { status: Status::Limit, ..Error::system(format!("starting {what}"), error) }
}

/// The same for one that touches no registered memory and runs the program's code, which nobody can stop. When the
/// engine is broken and over, it goes on with `after`.
pub fn spawn_apart(
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
        None => builder.spawn(body),
    }
}

/// A helper that whoever started it waits for; its panic is that thread's.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    body: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    let health = health::ambient();
    let builder = Builder::new().name(name.into());
    builder.spawn_scoped(scope, move || match health {
        Some(health) => health.within(body),
        None => body(),
    })
}
