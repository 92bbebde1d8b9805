//! The server's side of one client: memory, runs, checks. `server` chooses the client.

use std::time::Duration;

use anyhow::{bail, ensure, Context};
use ferry::Engine;

use super::channel::Channel;
use super::drive::{Driven, Route};
use super::registered::Registered;
use super::wire::{Area, Command, Outcome, OwnHalf, Preparation, Reply};
use crate::cpu::{own_cpu_seconds, Pinned};
use crate::layout::mix;
use crate::memory::spoil;
use crate::walk::{End, Walk};
use ferry::types::PeerId;

/// A client checks its data, prints, and may be stopped for a look; none of that takes hours.
pub(super) const CLIENT_SILENCE_MAX: Duration = Duration::from_secs(6 * 3_600);

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
    pub fn serve(&mut self) -> anyhow::Result<()> {
        let mut wrong = None;
        loop {
            let served = match self.channel.receive(self.peer, CLIENT_SILENCE_MAX)? {
                Command::Prepare(preparation) => self.run(&preparation),
                Command::PingPong(terms) => self.ping_pong(terms),
                Command::Echo { count } => self.echo(count).map(|()| None),
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

    /// Serves one run, from its preparation to its check; returns the data's error, if any.
    fn run(&mut self, preparation: &Preparation) -> anyhow::Result<Option<String>> {
        let Preparation { workload, seed, validate, own, cpu } = *preparation;
        let walk = Walk::new(workload.validated()?);
        ensure!(workload.walk_bytes <= self.inward.length(), "the run exceeds the memory agreed upon");
        if validate {
            walk.fill(End::Target, &mut self.inward, seed);
            self.inward.intact()?;
            if let Some((outward, _)) = &mut self.outward {
                walk.fill(End::Initiator, outward, mix(seed));
                outward.intact()?;
            }
        }
        let _pinned = cpu.map(Pinned::process_to).transpose()?;
        self.channel.send(self.peer, &Reply::Ready)?;
        let cpu_before = own_cpu_seconds();
        let driven = own.map(|half| self.run_own_half(&walk, half)).transpose()?;
        let Command::Finish { transfers, spoil: spoiled } =
            self.channel.receive(self.peer, CLIENT_SILENCE_MAX)?
        else {
            bail!("the client did not end the run");
        };
        let cpu_seconds = own_cpu_seconds() - cpu_before;
        if spoiled && walk.origin() == End::Initiator {
            spoil(&mut self.inward, 0);
        }
        let mismatch = match validate {
            true => self.check(&walk, seed, transfers, driven)?,
            false => None,
        };
        let own_transfers = driven.map_or(0, |driven| driven.transfers);
        let own_seconds = driven.map_or(0.0, |driven| driven.seconds);
        let outcome = Outcome { cpu_seconds, mismatch: mismatch.clone(), own_transfers, own_seconds };
        self.channel.send(self.peer, &Reply::Finished(outcome))?;
        Ok(mismatch)
    }

    fn run_own_half(&mut self, walk: &Walk, half: OwnHalf) -> anyhow::Result<Driven> {
        let Command::Go = self.channel.receive(self.peer, CLIENT_SILENCE_MAX)? else {
            bail!("the client did not start the bidirectional run");
        };
        let (outward, remote) = self.outward.as_ref().context("no memory was agreed upon for -b")?;
        let (engine, peer, acked_only) = (self.engine, self.peer, half.acked_only);
        let route = Route { engine, peer, local: outward.area(), remote: *remote, acked_only };
        route.drive(walk, half.flight, half.limit).context("the server's half")
    }

    fn check(
        &self,
        walk: &Walk,
        seed: u64,
        transfers: u64,
        driven: Option<Driven>,
    ) -> anyhow::Result<Option<String>> {
        let theirs = walk.check(End::Target, &self.inward, seed, transfers);
        let own = match (&self.outward, driven) {
            (Some((outward, _)), Some(driven)) => {
                walk.check(End::Initiator, outward, mix(seed), driven.transfers)
            }
            _ => Ok(()),
        };
        // First check that the device copies for the comparison succeeded.
        self.inward.intact()?;
        self.outward.as_ref().map_or(Ok(()), |(outward, _)| outward.intact())?;
        Ok(theirs.and(own).err().map(|mismatch| format!("at the server: {mismatch}")))
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
