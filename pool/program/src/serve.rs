//! Runs a node until a signal ends it.

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
    let ended = signals.forever().next();
    say(&format!("ferry-pool: leaving on signal {}", ended.unwrap_or_default()));
    pool.close(Some(PATIENCE))?;
    engine.close(Some(PATIENCE))?;
    Ok(())
}

/// A node goes on and ends well when nobody reads what it says.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
