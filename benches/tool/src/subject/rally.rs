//! Both ends of a ping-pong run, from its terms to its check; `pingpong` has the single rounds.

use std::time::Instant;

use anyhow::{bail, Context};

use super::client::{Client, ANSWER_TIMEOUT};
use super::drive::{Driven, Route};
use super::pingpong::Player;
use super::server::Session;
use super::wire::{Command, PingPong, Reply};
use crate::cpu::own_cpu_seconds;
use crate::layout::mix;
use crate::memory::spoil;

impl Client {
    /// Returns the nanoseconds of each of `rounds` WRITEs of `bytes`, seen by the server's application in its memory,
    /// and its WRITE back, seen here. The terms of the session must include ping-pong.
    pub fn time_ping_pongs(&mut self, bytes: usize, rounds: usize) -> anyhow::Result<Vec<u64>> {
        let (seed, validate, acked_only) = (self.new_seed(), self.manner.validate, self.manner.acked_only);
        let slots = PingPong::slots(bytes, self.outward.length().min(self.remote.bytes));
        let terms = PingPong { bytes, rounds: rounds as u64, slots, acked_only, validate, seed };
        let terms = terms.validated(self.outward.length())?;
        let inward = self.inward.as_mut().context("no memory was agreed upon for the server's WRITEs")?;
        terms.clear(inward)?;
        self.channel.send(self.peer, &Command::PingPong(terms))?;
        self.expect_ready()?;
        let inward = self.inward.as_ref().context("it was there before")?;
        let (engine, local) = (&self.engine, self.outward.area());
        let route = Route { engine, peer: self.peer, local, remote: self.remote, acked_only };
        let mut player = Player::new(terms, route, &mut self.outward, inward, seed)?;
        let mut nanoseconds = Vec::with_capacity(rounds);
        for round in 1..=terms.rounds {
            let start = Instant::now();
            player.send(round)?;
            player.await_mark(round)?;
            nanoseconds.push(start.elapsed().as_nanos() as u64);
        }
        player.finish()?;
        self.finish_there(terms.rounds, ANSWER_TIMEOUT)?;
        if let Some(inward) = self.inward.as_ref().filter(|_| validate) {
            terms.check(inward, mix(seed)).context("at the client")?;
        }
        Ok(nanoseconds)
    }
}

impl Session<'_> {
    /// Answers every round's WRITE with a WRITE; returns the data's error, if any.
    pub(super) fn ping_pong(&mut self, terms: PingPong) -> anyhow::Result<Option<String>> {
        let (outward, remote) = self.outward.as_mut().context("no memory was agreed upon for --pingpong")?;
        let terms = terms.validated(self.inward.length().min(remote.bytes))?;
        terms.clear(&mut self.inward)?;
        let (engine, peer, acked_only) = (self.engine, self.peer, terms.acked_only);
        let route = Route { engine, peer, local: outward.area(), remote: *remote, acked_only };
        let mut player = Player::new(terms, route, outward, &self.inward, mix(terms.seed))?;
        self.channel.send(peer, &Reply::Ready)?;
        let (cpu_before, start) = (own_cpu_seconds(), Instant::now());
        for round in 1..=terms.rounds {
            player.await_mark(round)?;
            player.send(round)?;
        }
        player.finish()?;
        let own = Driven { transfers: terms.rounds, seconds: start.elapsed().as_secs_f64() };
        let cpu_seconds = own_cpu_seconds() - cpu_before;
        let Command::Finish { spoil: spoiled, .. } = self.receive()? else {
            bail!("the client did not end the ping-pong");
        };
        if spoiled {
            spoil(&mut self.inward, terms.last_offset())?;
        }
        let checked = if terms.validate { terms.check(&self.inward, terms.seed) } else { Ok(()) };
        self.report(cpu_seconds, own, checked)
    }
}
