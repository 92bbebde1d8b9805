//! Many engines in one process, each with one peer: the engine that the parent names. They connect at the parent's
//! command and stay until the parent ends.

use std::io::{self, Read};
use std::thread;
use std::time::Duration;

use anyhow::{bail, Context};
use ferry::Engine;
use ferry_bench::child::{read_line, write_line};
use ferry_bench::subject::Setup;
use serde::{Deserialize, Serialize};

/// Concurrent connects in each process. A handshake is work for both ends; more would only queue.
const CONNECTING_MAX: usize = 8;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// The messages between parent and crowd, in this order.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum CrowdReply {
    Opened,
    Connect,
    Connected,
}

pub fn serve_crowd(setup: &Setup, address: &str, peers: usize) -> anyhow::Result<()> {
    // Nobody dials these engines, so a listener each would only cost a descriptor.
    let setup = setup.clone().with("listen_address", "");
    let engines = (0..peers).map(|_| setup.open()).collect::<anyhow::Result<Vec<_>>>()?;
    let (mut from, mut to) = (io::stdin().lock(), io::stdout().lock());
    write_line(&mut to, &CrowdReply::Opened)?;
    let Some(CrowdReply::Connect) = read_line(&mut from)? else { return Ok(()) };
    connect(&engines, address)?;
    write_line(&mut to, &CrowdReply::Connected)?;
    // The parent sends nothing more; when its pipe ends, this process ends with all its engines.
    match from.read(&mut [0])? {
        0 => std::process::exit(0),
        _ => bail!("the parent sent input after its last command"),
    }
}

fn connect(engines: &[Engine], address: &str) -> anyhow::Result<()> {
    let part = engines.len().div_ceil(CONNECTING_MAX).max(1);
    thread::scope(|scope| {
        let dial = |engine: &Engine| engine.connect(address, Some(CONNECT_TIMEOUT)).map(drop);
        let parts = engines.chunks(part);
        let workers: Vec<_> = parts.map(|part| scope.spawn(move || part.iter().try_for_each(dial))).collect();
        let mut ends = workers.into_iter().map(|worker| worker.join().expect("a dialer does not panic"));
        ends.try_for_each(|end| end)
    })
    .context("connecting")
}
