//! The passive end: waits for one client, agrees with it on the terms, and serves its runs.

use std::io::{self, Read, Write};
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure, Context};
use ferry::types::PeerId;
use ferry::Engine;

use super::channel::{understand, Channel};
use super::drive::{Driven, Route};
use super::registered::Registered;
use super::setup::Setup;
use super::terms::{accept, Term};
use super::wire::{Area, Command, Listening, Outcome, OwnHalf, Preparation, Reply, VERSION};
use crate::child::write_line;
use crate::cpu::{own_cpu_seconds, Pinned};
use crate::layout::mix;
use crate::memory::{spoil, MEMORY_BYTES_MAX};
use crate::walk::{End, Walk};

/// A client checks its data, prints, and may be stopped for a look; none of that takes hours.
const CLIENT_SILENCE_MAX: Duration = Duration::from_secs(6 * 3_600);

const BUSY: &str =
    "it is busy with another client; try again when that client has ended, or start another server with -p";

/// Serves one client and returns after the client's goodbye. First passes the address to `listening`. The client's
/// table goes to `out`.
pub fn serve(
    setup: &Setup,
    terms: &[Term],
    out: &mut dyn Write,
    listening: impl FnOnce(&str, &mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<()> {
    let engine = setup.open()?;
    let mut channel = Channel::new(&engine)?;
    listening(engine.address(), out)?;
    let (peer, hello) = channel.receive_first()?;
    channel.answer_others(&Reply::Refused { reason: BUSY.to_owned() })?;
    let mut session = match welcome(&engine, &mut channel, peer, (setup, terms), &hello) {
        Ok(session) => session,
        Err(error) => {
            let reason = format!("{error:#}");
            let _ = channel.send(peer, &Reply::Refused { reason });
            return Err(error);
        }
    };
    session.serve(out)
}

fn welcome<'a>(
    engine: &'a Engine,
    channel: &'a mut Channel,
    peer: PeerId,
    (setup, terms): (&Setup, &[Term]),
    hello: &[u8],
) -> anyhow::Result<Session<'a>> {
    let Command::Hello { version, manner, terms: stated, memory_bytes, inward: remote } = understand(hello)?
    else {
        bail!("the client did not introduce itself");
    };
    ensure!(version == VERSION, "the client's ferry-bench speaks version {version}, this one {VERSION}: install the same at both ends");
    accept(terms, &stated).map_err(anyhow::Error::msg)?;
    ensure!((1..=MEMORY_BYTES_MAX).contains(&memory_bytes), "the client asks for {memory_bytes} bytes");
    let (origin, device) = (manner.memory, setup.device.location());
    ensure!(
        device.is_none() || !manner.pingpong,
        "--pingpong polls its memory, and the server's is a device's"
    );
    let described = setup.described(engine.config())?;
    let alloc = || {
        Registered::new(engine, origin, device, memory_bytes)
            .context("memory for the client (-s or -l may be too large)")
    };
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
    // The parent reads one line alone; its own table is on its screen.
    serve(setup, &[], &mut io::sink(), |address, _| {
        write_line(&mut io::stdout().lock(), &Listening { address: address.to_owned() })?;
        io::stdout().flush()
    })
}

/// Removes what would command a terminal.
fn printable(lines: &str) -> String {
    lines.chars().filter(|letter| *letter == '\n' || !letter.is_control()).collect()
}

/// One client: memory, runs, checks.
pub struct Session<'a> {
    pub engine: &'a Engine,
    pub channel: &'a mut Channel,
    pub peer: PeerId,
    /// For the client's transfers.
    pub inward: Registered,
    /// For the server's own transfers, with the client's memory that they write.
    pub outward: Option<(Registered, Area)>,
}

impl Session<'_> {
    /// Serves the client until its goodbye. Fails if the client vanishes, or if its data was wrong.
    pub fn serve(&mut self, out: &mut dyn Write) -> anyhow::Result<()> {
        let mut wrong = None;
        loop {
            let served = match self.receive()? {
                Command::Prepare(preparation) => self.run(&preparation),
                Command::PingPong(terms) => self.ping_pong(terms),
                Command::Echo { count } => self.echo(count).map(|()| None),
                Command::Table { lines } => {
                    writeln!(out, "{}", printable(&lines))?;
                    Ok(None)
                }
                Command::Bye => break,
                other => bail!("an unexpected message: {other:?}"),
            };
            match served {
                Ok(mismatch) => wrong = wrong.or(mismatch),
                Err(error) => {
                    // Tells the client, if it is still there.
                    let reason = format!("{error:#}");
                    let _ = self.channel.send(self.peer, &Reply::Failed { reason });
                    return Err(error);
                }
            }
        }
        wrong.map_or(Ok(()), |mismatch| bail!("{mismatch}"))
    }

    pub(super) fn receive(&mut self) -> anyhow::Result<Command> {
        self.channel.receive(self.peer, CLIENT_SILENCE_MAX)
    }

    /// Serves one run, from its preparation to its check; returns the data's error, if any.
    fn run(&mut self, preparation: &Preparation) -> anyhow::Result<Option<String>> {
        let Preparation { workload, seed, validate, own, cpu } = *preparation;
        let walk = Walk::new(workload.validated()?);
        ensure!(workload.walk_bytes <= self.inward.length(), "the run exceeds the memory agreed upon");
        if validate {
            walk.fill(End::Target, &mut self.inward, seed)?;
            if let Some((outward, _)) = &mut self.outward {
                walk.fill(End::Initiator, outward, mix(seed))?;
            }
        }
        let _pinned = cpu.map(Pinned::process_to).transpose()?;
        self.channel.send(self.peer, &Reply::Ready)?;
        let cpu_before = own_cpu_seconds();
        let driven = own.map(|half| self.run_own_half(&walk, half)).transpose()?;
        let Command::Finish { transfers, spoil: spoiled } = self.receive()? else {
            bail!("the client did not end the run");
        };
        let cpu_seconds = own_cpu_seconds() - cpu_before;
        if spoiled && walk.origin() == End::Initiator {
            spoil(&mut self.inward, 0)?;
        }
        let own = driven.unwrap_or_default();
        let checked = if validate { self.check(&walk, seed, transfers, own.transfers) } else { Ok(()) };
        self.report(cpu_seconds, own, checked)
    }

    fn run_own_half(&mut self, walk: &Walk, half: OwnHalf) -> anyhow::Result<Driven> {
        let Command::Go = self.receive()? else {
            bail!("the client did not start the bidirectional run");
        };
        let (outward, remote) = self.outward.as_ref().context("no memory was agreed upon for -b")?;
        let (engine, peer, acked_only) = (self.engine, self.peer, half.acked_only);
        let route = Route { engine, peer, local: outward.area(), remote: *remote, acked_only };
        route.drive(walk, half.flight, half.limit).context("the server's half")
    }

    fn check(&self, walk: &Walk, seed: u64, transfers: u64, own_transfers: u64) -> anyhow::Result<()> {
        walk.check(End::Target, &self.inward, seed, transfers)?;
        self.outward
            .as_ref()
            .map_or(Ok(()), |(outward, _)| walk.check(End::Initiator, outward, mix(seed), own_transfers))
    }

    /// Tells the client the result of a run; returns the data's error, if any.
    pub(super) fn report(
        &self,
        cpu_seconds: f64,
        own: Driven,
        checked: anyhow::Result<()>,
    ) -> anyhow::Result<Option<String>> {
        let mismatch = checked.err().map(|mismatch| format!("at the server: {mismatch:#}"));
        let Driven { transfers: own_transfers, seconds: own_seconds } = own;
        let outcome = Outcome { cpu_seconds, mismatch: mismatch.clone(), own_transfers, own_seconds };
        self.channel.send(self.peer, &Reply::Finished(outcome))?;
        Ok(mismatch)
    }

    /// Sends notifications back as they arrive.
    fn echo(&mut self, count: usize) -> anyhow::Result<()> {
        self.channel.send(self.peer, &Reply::Ready)?;
        for _ in 0..count {
            let bytes = self.channel.receive_bytes(self.peer, CLIENT_SILENCE_MAX)?;
            self.channel.send_bytes(self.peer, &bytes)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_table_can_only_print() {
        assert_eq!(printable("a\tb\x1b[2J\r\n µs\x7f\u{9b}"), "ab[2J\n µs");
    }
}
