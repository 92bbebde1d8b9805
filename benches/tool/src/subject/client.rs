//! The active end: connects to a server, agrees on the terms, and runs the workloads.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context};
use ferry::types::PeerId;
use ferry::{Engine as Ferry, Error, PathInfo, Status};

use super::channel::Channel;
use super::drive::Route;
use super::registered::Registered;
use super::setup::{describe, Setup};
use super::wire::{Area, Command, Flight, Manner, Outcome, OwnHalf, Preparation, Reply, VERSION};
use crate::cpu::{own_cpu_seconds, Pinned};
use crate::layout::mix;
use crate::memory::{spoil, MEMORY_BYTES_MAX};
use crate::walk::{End, Walk};
use crate::workload::{CpuSeconds, Described, Engine, LatencyWorkload, Limit, Sample, Workload};

const GONE: &str = "no answer; the server may have served another client and ended";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For filling and checking the largest memory, on a slow machine.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// The server's regions follow its welcome on another connection.
const REGION_TIMEOUT: Duration = Duration::from_secs(5);

pub struct Client {
    pub(super) channel: Channel,
    pub(super) peer: PeerId,
    pub(super) outward: Registered,
    /// For the server's own transfers (`-b`, `--pingpong`).
    pub(super) inward: Option<Registered>,
    pub(super) remote: Area,
    pub(super) seed: u64,
    pub(super) manner: Manner,
    flight: Flight,
    /// The devices of this end's and the server's memory; `None`: host memory.
    devices: [Option<Described>; 2],
    /// Damages a byte before each check: a test of the check.
    spoil: bool,
    /// Last, so that memory and queue are dropped before the engine.
    pub(super) engine: Ferry,
}

impl Client {
    /// Connects to the server at `address`, which must accept the terms. `memory_bytes` is what the largest workload
    /// walks. UNAVAILABLE if no allowed transport reaches the server.
    pub fn connect(
        setup: &Setup,
        address: &str,
        manner: Manner,
        terms: Vec<(String, String)>,
        memory_bytes: usize,
    ) -> anyhow::Result<Client> {
        ensure!(
            memory_bytes <= MEMORY_BYTES_MAX,
            "the test would walk {memory_bytes} bytes, and {MEMORY_BYTES_MAX} are the most: make -s or -l smaller"
        );
        let device = setup.device.location();
        ensure!(device.is_none() || !manner.pingpong, "--pingpong polls its memory, not a device's");
        let engine = setup.open()?;
        let described = setup.described(engine.config())?;
        let mut channel = Channel::new(&engine)?;
        let peer = engine.connect(address, Some(CONNECT_TIMEOUT))?;
        refuse_without_path(&engine, peer)?;
        let alloc = || Registered::new(&engine, manner.memory, device, memory_bytes);
        let outward = alloc().context("memory for the test")?;
        let inward = (manner.bidirectional || manner.pingpong).then(alloc).transpose();
        let inward = inward.context("memory for the server's own transfers")?;
        let area = inward.as_ref().map(Registered::area);
        let hello = Command::Hello { version: VERSION, manner, terms, memory_bytes, inward: area };
        channel.send(peer, &hello).context(GONE)?;
        let (remote, there) = match channel.receive(peer, ANSWER_TIMEOUT).context(GONE)? {
            Reply::Welcome { inward, device } => (inward, device),
            Reply::Refused { reason } => bail!("the server refuses: {reason}"),
            other => bail!("the server answers with {other:?}"),
        };
        let client = Client {
            channel,
            peer,
            outward,
            inward,
            remote,
            seed: mix(u64::from(std::process::id()) ^ remote.region),
            manner,
            flight: Flight { threads: 1, in_flight: manner.tx_depth },
            devices: [described, there],
            spoil: false,
            engine,
        };
        client.await_region()?;
        Ok(client)
    }

    pub fn engine(&self) -> &Ferry {
        &self.engine
    }

    pub fn flight(&self) -> Flight {
        self.flight
    }

    /// Sets how later throughput runs are submitted.
    pub fn set_flight(&mut self, flight: Flight) {
        self.flight = flight;
    }

    /// Sets whether, over RDMA, later WRITEs are done before they are known to be visible.
    pub fn set_acked_only(&mut self, acked_only: bool) {
        self.manner.acked_only = acked_only;
    }

    /// Damages one byte before each later check, which must find it.
    pub fn spoil_checks(&mut self) {
        self.spoil = true;
    }

    /// Returns the paths to the server that are chosen, or those that are not, each with the reason.
    fn paths(&self, chosen: bool) -> String {
        let paths = self.engine.peer_paths(self.peer).unwrap_or_default();
        let text = |path: &PathInfo| format!("{} ({})", path.transport.name(), path.why);
        paths.iter().filter(|path| path.chosen == chosen).map(text).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn route(&self) -> Route<'_> {
        let (engine, peer, acked_only) = (&self.engine, self.peer, self.manner.acked_only);
        Route { engine, peer, local: self.outward.area(), remote: self.remote, acked_only }
    }

    /// Returns a seed that no run had before.
    pub(super) fn new_seed(&mut self) -> u64 {
        self.seed = mix(self.seed.wrapping_add(1));
        self.seed
    }

    pub(super) fn prepare_both(
        &mut self,
        workload: &Workload,
        own: Option<OwnHalf>,
        cpu: Option<usize>,
    ) -> anyhow::Result<(Walk, u64)> {
        let workload = workload.validated()?;
        ensure!(workload.walk_bytes <= self.outward.length(), "the workload walks more than there is memory");
        let (seed, validate) = (self.new_seed(), self.manner.validate);
        let preparation = Preparation { workload, seed, validate, own, cpu };
        self.channel.send(self.peer, &Command::Prepare(preparation))?;
        let walk = Walk::new(workload);
        if validate {
            walk.fill(End::Initiator, &mut self.outward, seed)?;
            if let Some(inward) = &mut self.inward {
                walk.fill(End::Target, inward, mix(seed))?;
            }
        }
        self.expect_ready()?;
        Ok((walk, seed))
    }

    /// Makes both ends check the received data.
    pub(super) fn finish(
        &mut self,
        walk: &Walk,
        seed: u64,
        transfers: u64,
        patience: Duration,
    ) -> anyhow::Result<Outcome> {
        let outcome = self.finish_there(transfers, patience)?;
        if self.spoil && walk.origin() == End::Target {
            spoil(&mut self.outward, 0)?;
        }
        if self.manner.validate {
            walk.check(End::Initiator, &self.outward, seed, transfers).context("at the client")?;
            if let Some(inward) = &self.inward {
                let checked = walk.check(End::Target, inward, mix(seed), outcome.own_transfers);
                checked.context("at the client, of -b")?;
            }
        }
        Ok(outcome)
    }

    /// Makes the server check the received data.
    pub(super) fn finish_there(&mut self, transfers: u64, patience: Duration) -> anyhow::Result<Outcome> {
        self.channel.send(self.peer, &Command::Finish { transfers, spoil: self.spoil })?;
        match self.reply(patience)? {
            Reply::Finished(Outcome { mismatch: Some(mismatch), .. }) => bail!("{mismatch}"),
            Reply::Finished(outcome) => Ok(outcome),
            other => bail!("the server answers a run with {other:?}"),
        }
    }

    pub(super) fn expect_ready(&mut self) -> anyhow::Result<()> {
        match self.reply(ANSWER_TIMEOUT)? {
            Reply::Ready => Ok(()),
            other => bail!("the server is not ready: {other:?}"),
        }
    }

    fn reply(&mut self, patience: Duration) -> anyhow::Result<Reply> {
        match self.channel.receive(self.peer, patience)? {
            Reply::Failed { reason } => bail!("the server: {reason}"),
            reply => Ok(reply),
        }
    }

    fn await_region(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + REGION_TIMEOUT;
        loop {
            let known = self.engine.peer_regions(self.peer)?;
            if known.iter().any(|region| region.region.raw() == self.remote.region) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the server's region never became known here");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A server that does not receive this notices when the session ends.
        let _ = self.channel.send(self.peer, &Command::Bye);
    }
}

impl Engine for Client {
    fn name(&self) -> &str {
        "ferry"
    }

    /// Returns the paths to the server, chosen or not, each with the reason, and the settings that differ from ferry's
    /// defaults.
    fn path(&self) -> String {
        let [taken, others] = [true, false].map(|chosen| self.paths(chosen));
        format!("{taken}; not used: {others}; {}", describe(self.engine.config()))
    }

    fn path_taken(&self) -> String {
        self.paths(true)
    }

    fn devices(&self) -> [Option<Described>; 2] {
        self.devices.clone()
    }

    fn tell(&mut self, lines: &str) -> anyhow::Result<()> {
        self.channel.send(self.peer, &Command::Table { lines: lines.to_owned() })
    }

    /// Nothing is tuned: one configuration serves every workload.
    fn prepare(&mut self, _: &Workload) -> anyhow::Result<()> {
        Ok(())
    }

    fn settings(&self, _: &Workload) -> String {
        let Flight { threads, in_flight } = self.flight;
        let threads = if threads == 1 { "one thread".to_owned() } else { format!("{threads} threads") };
        format!("{in_flight} in flight from {threads}")
    }

    fn throughput(&mut self, workload: &Workload, limit: Limit) -> anyhow::Result<Sample> {
        let half = OwnHalf { flight: self.flight, limit, acked_only: self.manner.acked_only };
        let own = self.manner.bidirectional.then_some(half);
        let (walk, seed) = self.prepare_both(workload, own, None)?;
        let cpu_before = own_cpu_seconds();
        if own.is_some() {
            self.channel.send(self.peer, &Command::Go)?;
        }
        let driven = self.route().drive(&walk, self.flight, limit)?;
        let cpu_initiator = own_cpu_seconds() - cpu_before;
        let patience = Duration::from_secs_f64(driven.seconds) * 2 + ANSWER_TIMEOUT;
        let outcome = self.finish(&walk, seed, driven.transfers, patience)?;
        let cpu_seconds = CpuSeconds { initiator: cpu_initiator, target: outcome.cpu_seconds };
        let transfers = driven.transfers + outcome.own_transfers;
        Ok(Sample::of(workload, transfers, driven.seconds.max(outcome.own_seconds), cpu_seconds))
    }

    fn latency(&mut self, workload: &LatencyWorkload) -> anyhow::Result<Vec<u64>> {
        let LatencyWorkload { samples, spin, cpus, .. } = *workload;
        let opened = Duration::from_micros(self.engine.config().spin_us);
        ensure!(spin.is_none_or(|spin| spin == opened), "the engine was opened to spin {opened:?}");
        let single = workload.single(self.outward.length());
        let (walk, seed) = self.prepare_both(&single, None, cpus.map(|[_, target]| target))?;
        let pinned = cpus.map(|[initiator, _]| Pinned::process_to(initiator)).transpose()?;
        let nanoseconds = self.route().time_each(&walk, samples)?;
        drop(pinned);
        self.finish(&walk, seed, samples as u64, ANSWER_TIMEOUT)?;
        Ok(nanoseconds)
    }

    fn round_trips(&mut self, bytes: usize, samples: usize) -> anyhow::Result<Vec<u64>> {
        self.channel.send(self.peer, &Command::Echo { count: samples })?;
        self.expect_ready()?;
        let mut nanoseconds = Vec::with_capacity(samples);
        let mut sent = vec![0; bytes];
        for number in 0..samples as u64 {
            let count = bytes.min(8);
            sent[..count].copy_from_slice(&number.to_le_bytes()[..count]);
            let start = Instant::now();
            self.channel.send_bytes(self.peer, &sent)?;
            let back = self.channel.receive_bytes(self.peer, ANSWER_TIMEOUT)?;
            nanoseconds.push(start.elapsed().as_nanos() as u64);
            ensure!(*back == *sent, "notification {number} came back changed");
        }
        Ok(nanoseconds)
    }

    fn ping_pongs(&mut self, bytes: usize, rounds: usize) -> anyhow::Result<Vec<u64>> {
        self.time_ping_pongs(bytes, rounds)
    }
}

/// Fails with the reasons when no allowed transport reaches the server: nothing falls back.
fn refuse_without_path(engine: &Ferry, peer: PeerId) -> anyhow::Result<()> {
    let paths = engine.peer_paths(peer)?;
    if paths.iter().any(|path| path.chosen) {
        return Ok(());
    }
    let wanted = paths.iter().filter(|path| engine.config().transports.allows(path.transport));
    let reasons: Vec<_> = wanted.map(|path| format!("{}: {}", path.transport.name(), path.why)).collect();
    let text = format!("no allowed transport reaches the server: {}", reasons.join("; "));
    Err(Error::new(Status::Unavailable, text).into())
}

/// Returns ferry's error, if it is that a path or a device is missing: the run is not at fault.
pub fn unavailable(error: &anyhow::Error) -> Option<&Error> {
    error.downcast_ref::<Error>().filter(|error| error.status == Status::Unavailable)
}
