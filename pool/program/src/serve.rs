//! Runs a node until a signal or a drain ends it.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use ferry_pool::{FileOptions, Pool, PoolOptions};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::metrics;
use crate::options::{quota, Serve};

/// How long requests that are being served may take when the node ends.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long after a signal, or a drain, the node begins to end.
const TURN: Duration = Duration::from_millis(50);

pub fn run(serve: &Serve) -> Result<()> {
    // Before anything is opened: a signal during the opening ends the node as one later does.
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("waiting for signals")?;
    let engine = serve.cluster.engine(&serve.listen, serve.advertise.as_deref())?;
    let options = PoolOptions {
        name: serve.name.clone(),
        memory_bytes: serve.memory,
        file: serve.file.clone().zip(serve.file_bytes).map(|(path, bytes)| FileOptions { path, bytes }),
        replicas: serve.replicas,
        quotas: serve.quotas.iter().map(|text| quota(text)).collect::<Result<_>>()?,
        ..serve.cluster.options()?
    };
    let pool = std::sync::Arc::new(Pool::open(&engine, options)?);
    if let Some(address) = &serve.metrics {
        let at = metrics::serve(address, pool.clone()).inspect_err(|_| drop(pool.close(Some(PATIENCE))))?;
        say(&format!("metrics: http://{at}/metrics"));
    }
    say(&format!("ferry-pool: node {} lends {} bytes at {}", pool.name(), serve.memory, engine.address()));
    let why = loop {
        if let Some(signal) = signals.pending().next() {
            break format!("on signal {signal}");
        }
        // Values that were to be moved, and that no node took, are served on.
        if pool.drained().is_some_and(|drained| drained.left == 0 || !drained.copies) {
            break "because it was drained".into();
        }
        std::thread::sleep(TURN);
    };
    say(&format!("ferry-pool: leaving {why}"));
    pool.close(Some(PATIENCE))?;
    engine.close(Some(PATIENCE))?;
    Ok(())
}

/// A node goes on and ends well when nobody reads what it says.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
