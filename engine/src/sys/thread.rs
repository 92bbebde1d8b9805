//! The threads of an engine. They belong to the engine that whoever starts them works for (`health`), which counts
//! them, and hears of their panics.

use super::health;
use std::io;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// Starts a thread that ends with its engine, if it is one of an engine.
pub fn spawn(name: impl Into<String>, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let builder = Builder::new().name(name.into());
    let Some(health) = health::ambient() else { return builder.spawn(body) };
    health.begins();
    let own = health.clone();
    builder.spawn(move || own.run(body)).inspect_err(|_| health.ends())
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
        Some(health) => builder.spawn(move || health.run_apart(body, after)),
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
