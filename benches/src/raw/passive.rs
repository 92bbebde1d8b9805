//! The target's part in a run: it fills its memory before and checks it afterwards. Contains both sides of that
//! conversation, over the child's standard input and output.

use std::io::{BufRead, Write};

use anyhow::{bail, ensure, Context};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::child::{read_line, write_line, ChildProcess};
use crate::layout::mix;
use crate::memory::Memory;
use crate::walk::{End, Walk};
use crate::workload::Workload;

/// From the initiator, one JSON object per line.
#[derive(Debug, Serialize, Deserialize)]
enum Command<T> {
    /// Prepare the memory for a run; answered by `Ready`.
    Prepare { workload: Workload, seed: u64, told: T },
    /// After the run: check that the data of its `transfers` transfers is in place.
    Check { transfers: u64 },
}

/// The target's answers.
#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Ready,
    Right,
    Failed { reason: String },
}

/// Serves one parent until it closes its end. `take_part` is the target's work during a run.
pub fn serve<T: DeserializeOwned>(
    memory: &mut Memory,
    mut from: impl BufRead,
    mut to: impl Write,
    take_part: impl Fn(&Walk, &Memory, T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    while let Some(command) = read_line(&mut from)? {
        let Command::Prepare { workload, seed, told } = command else { bail!("a check came before a run") };
        let workload = workload.validated()?;
        ensure!(workload.walk_bytes <= memory.length(), "the run exceeds this target's memory");
        let walk = Walk::new(workload);
        walk.fill(End::Target, memory, seed);
        write_line(&mut to, &Reply::Ready)?;
        let served = take_part(&walk, memory, told);
        let Some(Command::<T>::Check { transfers }) = read_line(&mut from)? else { return Ok(()) };
        let checked = served.and_then(|()| Ok(walk.check(End::Target, memory, seed, transfers)?));
        let reply = match checked {
            Ok(()) => Reply::Right,
            Err(error) => Reply::Failed { reason: format!("{error:#}") },
        };
        write_line(&mut to, &reply)?;
    }
    Ok(())
}

/// The target, as the initiator sees it.
pub struct Passive {
    child: ChildProcess,
    seed: u64,
}

impl Passive {
    /// `child` has sent everything that comes before its first run.
    pub fn new(child: ChildProcess) -> Passive {
        let seed = mix(u64::from(child.pid()));
        Passive { child, seed }
    }

    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Makes both ends fill their memory with data that no run had before. The workload fits the memory.
    pub fn prepare(
        &mut self,
        workload: &Workload,
        memory: &mut Memory,
        told: impl Serialize,
    ) -> anyhow::Result<Walk> {
        self.seed = mix(self.seed.wrapping_add(1));
        let command = Command::Prepare { workload: *workload, seed: self.seed, told };
        self.child.tell(&command).context("telling the raw target")?;
        let walk = Walk::new(*workload);
        walk.fill(End::Initiator, memory, self.seed);
        match self.child.reply().context("the raw target")? {
            Reply::Ready => Ok(walk),
            other => bail!("the raw target is not ready: {other:?}"),
        }
    }

    /// Makes both ends check the data of the run.
    pub fn check(&mut self, walk: &Walk, memory: &Memory, transfers: u64) -> anyhow::Result<()> {
        self.child.tell(&Command::<()>::Check { transfers }).context("telling the raw target")?;
        match self.child.reply().context("the raw target")? {
            Reply::Right => {}
            Reply::Failed { reason } => bail!("the raw target: {reason}"),
            other => bail!("the raw target answered a check with {other:?}"),
        }
        walk.check(End::Initiator, memory, self.seed, transfers).context("the raw initiator")
    }
}
