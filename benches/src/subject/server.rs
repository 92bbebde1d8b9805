//! The passive end: waits for one client, agrees with it on the terms, and serves it.

use std::io::{self, Read, Write};
use std::thread;

use anyhow::{bail, ensure, Context};
use ferry::Engine;

use super::channel::Channel;
use super::registered::Registered;
use super::session::Session;
use super::setup::Setup;
use super::terms::{accept, Term};
use super::wire::{Command, Listening, Reply, VERSION};
use crate::child::write_line;
use crate::device::find;
use crate::memory::MEMORY_BYTES_MAX;
use ferry::types::PeerId;

/// Serves one client and returns after the client's goodbye. First passes the address to `listening`.
pub fn serve(
    setup: &Setup,
    terms: &[Term],
    listening: impl FnOnce(&str) -> io::Result<()>,
) -> anyhow::Result<()> {
    let engine = setup.open()?;
    let mut channel = Channel::new(&engine)?;
    listening(engine.address())?;
    let (peer, hello) = channel.receive_first()?;
    let mut session = match welcome(&engine, &mut channel, peer, (setup, terms), hello) {
        Ok(session) => session,
        Err(error) => {
            let reason = format!("{error:#}");
            let _ = channel.send(peer, &Reply::Refused { reason });
            return Err(error);
        }
    };
    session.serve()
}

fn welcome<'a>(
    engine: &'a Engine,
    channel: &'a mut Channel,
    peer: PeerId,
    (setup, terms): (&Setup, &[Term]),
    hello: Command,
) -> anyhow::Result<Session<'a>> {
    let Command::Hello { version, manner, terms: stated, memory_bytes, inward: remote } = hello else {
        bail!("the client did not introduce itself");
    };
    ensure!(version == VERSION, "the client's ferry-bench speaks version {version}, this one {VERSION}");
    accept(terms, &stated).map_err(anyhow::Error::msg)?;
    ensure!((1..=MEMORY_BYTES_MAX).contains(&memory_bytes), "the client asks for {memory_bytes} bytes");
    let (origin, device) = (manner.memory, setup.device.location());
    ensure!(
        device.is_none() || !manner.pingpong,
        "--pingpong polls its memory, and the server's is a device's"
    );
    let described = device.map(|at| find(at, engine.config())).transpose();
    let described = described.with_context(|| setup.device.argument().unwrap_or_default())?;
    let alloc = || Registered::new(engine, origin, device, memory_bytes).context("memory for the client");
    let inward = alloc()?;
    let outward = remote.map(|area| alloc().map(|memory| (memory, area))).transpose()?;
    channel.send(peer, &Reply::Welcome { inward: inward.area(), device: described })?;
    Ok(Session { engine, channel, peer, inward, outward })
}

/// Serves as a child process: sends its parent the address, and ends when its parent does.
pub fn serve_child(setup: &Setup) -> anyhow::Result<()> {
    thread::spawn(|| {
        // The parent sends nothing more; when its pipe ends, this process ends.
        let _ = io::stdin().lock().read(&mut [0]);
        std::process::exit(0);
    });
    serve(setup, &[], |address| {
        write_line(&mut io::stdout().lock(), &Listening { address: address.to_owned() })?;
        io::stdout().flush()
    })
}
