//! The threads of an engine. A new thread belongs to the engine that its starter works for (`health`). The engine
//! counts its threads and handles their panics.

use super::health;
use std::io;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// Starts a thread. If its starter works for an engine, that engine counts the thread until it ends.
pub fn spawn(name: impl Into<String>, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let builder = Builder::new().name(name.into());
    let Some(health) = health::ambient() else { return builder.spawn(body) };
    health.begins();
    let own = health.clone();
    builder.spawn(move || own.run(body)).inspect_err(|_| health.ends())
}

/// Starts a thread that touches no registered memory and runs the program's code, which can't be stopped. Once a
/// broken engine is over, the thread runs `after`.
pub fn spawn_apart(
    name: impl Into<String>,
    body: impl FnOnce() + Send + 'static,
    after: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let builder = Builder::new().name(name.into());
    match health::ambient() {
        Some(health) => builder.spawn(move || health.run_apart(body, after)),
        None => builder.spawn(body),
    }
}

/// Starts a helper that its starter waits for. A panic of the helper is the starter's.
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
