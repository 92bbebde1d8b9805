//! The references of the same-host path: the least that a program can do to move bytes between two processes of one
//! machine.
//!
//! `vm` lets the kernel copy between the two address spaces; `shared` maps the target's memory and copies itself. Both
//! move whole transfers from several threads without messages to the target, which only prepares and checks its
//! memory. The target is a child of this same binary, like the target of the TCP reference.

mod shared;
mod target;
mod vm;

use std::io;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{ensure, Context};
use ferry::sys::socket::IoVec;
use serde::{Deserialize, Serialize};

use super::reference::{on_threads, Reference, Way};
use crate::child::ChildProcess;
use crate::dispense::Dispenser;
use crate::memory::{private, Memory};
use crate::role::Role;
use crate::walk::Walk;
use crate::workload::{LatencyWorkload, Workload};

pub use target::{serve, SameHostTargetOptions};

/// Memory that only its owner maps.
pub type VmEngine = Reference<SameHost<vm::Vm>>;
/// Memory that both processes map.
pub type SharedEngine = Reference<SameHost<shared::Shared>>;

/// The kind of both ends' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Anonymous and private, like an application's own memory.
    Own,
    /// A memory file that others can map, like memory that ferry allocates.
    Shared,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Own => "own",
            Kind::Shared => "shared",
        }
    }

    fn map(self, bytes: usize) -> io::Result<Memory> {
        match self {
            Kind::Own => private(bytes),
            Kind::Shared => Memory::shared(bytes),
        }
    }
}

/// The place of the target's memory, as the target's first line states it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Place {
    pub address: u64,
    /// The memory file's descriptor, if it is one.
    pub fd: Option<i32>,
}

/// The access of an initiator's thread to the target's memory.
pub trait Mover: Sized + Sync {
    /// The engine's name.
    const NAME: &'static str;
    const KIND: Kind;
    /// Settings worth trying for a workload; the first serves workloads that were not prepared.
    const SETTINGS: &'static [usize];

    /// `pid` is the target, which has `bytes` of memory at `place`.
    fn reach(pid: u32, place: Place, bytes: usize) -> io::Result<Self>;

    /// Moves all of transfer `number` and returns when the data is in place.
    fn carry(
        &self,
        walk: &Walk,
        memory: &Memory,
        number: u64,
        setting: usize,
        scratch: &mut Scratch,
    ) -> io::Result<()>;

    fn describe(setting: usize) -> String;
}

/// A thread's lists, reused from transfer to transfer.
#[derive(Default)]
pub struct Scratch {
    here: Vec<IoVec>,
    there: Vec<IoVec>,
    pieces: Vec<shared::Piece>,
}

#[derive(Clone, Debug)]
pub struct SameHostConfig {
    /// The ferry-bench binary: the running one, except in tests.
    pub program: PathBuf,
    /// Memory on each side: no workload may walk more.
    pub memory_bytes: usize,
    /// Threads that move transfers, each its own.
    pub threads: usize,
}

pub struct SameHost<M> {
    mover: M,
    threads: usize,
}

impl<M: Mover> Reference<SameHost<M>> {
    pub fn start(config: &SameHostConfig) -> anyhow::Result<Reference<SameHost<M>>> {
        let SameHostConfig { ref program, memory_bytes, threads } = *config;
        ensure!(threads > 0, "at least one thread moves the data");
        let memory = M::KIND.map(memory_bytes).context("the initiator's memory")?;
        let options = SameHostTargetOptions { kind: M::KIND, memory_bytes };
        let mut child = ChildProcess::start(program, &Role::SameHostTarget(options))?;
        let place = child.reply().context("the raw target")?;
        let mover = M::reach(child.pid(), place, memory_bytes);
        let mover = mover.context("reaching the raw target's memory")?;
        Ok(Reference::new(SameHost { mover, threads }, child, memory))
    }
}

impl<M: Mover> Way for SameHost<M> {
    type Setting = usize;
    type Run = (usize, Scratch);
    type Told = ();

    fn name(&self) -> &'static str {
        M::NAME
    }

    fn path(&self) -> String {
        format!("{} memory, {} threads", M::KIND.name(), self.threads)
    }

    fn settings(&self) -> Vec<usize> {
        M::SETTINGS.to_vec()
    }

    fn usual(&self) -> usize {
        M::SETTINGS[0]
    }

    fn describe(&self, setting: usize, _: &Workload) -> String {
        let threads = match self.threads {
            1 => "one thread".to_owned(),
            count => format!("{count} threads"),
        };
        format!("{threads}, {}", M::describe(setting))
    }

    fn ready(
        &self,
        _: &Workload,
        setting: usize,
        _: Option<&LatencyWorkload>,
    ) -> anyhow::Result<((usize, Scratch), ())> {
        Ok(((setting, Scratch::default()), ()))
    }

    fn drive(
        &self,
        walk: &Walk,
        memory: &Memory,
        (setting, _): &mut (usize, Scratch),
        dispenser: &Dispenser,
    ) -> io::Result<Instant> {
        let setting = *setting;
        on_threads(self.threads, |_| {
            let mut scratch = Scratch::default();
            while let Some(number) = dispenser.take() {
                self.mover.carry(walk, memory, number, setting, &mut scratch)?;
            }
            Ok(())
        })
    }

    fn carry(
        &self,
        walk: &Walk,
        memory: &Memory,
        (setting, scratch): &mut (usize, Scratch),
        number: u64,
    ) -> io::Result<()> {
        self.mover.carry(walk, memory, number, *setting, scratch)
    }
}
