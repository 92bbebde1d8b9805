//! The target's part in a run: it fills its memory before and checks it afterwards. `reference` has the other side of
//! that conversation, which goes over the child's standard input and output.

use std::io::{self, stdin, stdout};

use anyhow::{bail, ensure};
use ferry_bench::child::{read_line, write_line};
use ferry_bench::memory::Memory;
use ferry_bench::walk::{End, Walk};
use ferry_bench::workload::Workload;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// From the initiator, one JSON object per line.
#[derive(Debug, Serialize, Deserialize)]
pub enum Command<T> {
    /// Prepare the memory for a run; answered by `Ready`.
    Prepare { workload: Workload, seed: u64, told: T },
    /// After the run: check that the data of its `transfers` transfers is in place.
    Check { transfers: u64 },
}

/// The target's answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    Ready,
    Right,
    Failed { reason: String },
}

/// One end's memory in a run, and the walk through it.
#[derive(Clone, Copy)]
pub struct Ground<'a> {
    pub walk: &'a Walk,
    pub memory: &'a Memory,
}

/// Sends the parent a line.
pub fn tell_parent(message: &impl Serialize) -> io::Result<()> {
    write_line(&mut stdout().lock(), message)
}

/// Serves the parent until it closes this process's input. `take_part` is the target's work during a run.
pub fn serve<T: DeserializeOwned>(
    memory: &mut Memory,
    take_part: impl Fn(Ground, T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut from = stdin().lock();
    while let Some(command) = read_line(&mut from)? {
        let Command::Prepare { workload, seed, told } = command else { bail!("a check came before a run") };
        let workload = workload.validated()?;
        ensure!(workload.walk_bytes <= memory.length(), "the run exceeds this target's memory");
        let walk = Walk::new(workload);
        walk.fill(End::Target, memory, seed)?;
        tell_parent(&Reply::Ready)?;
        let served = take_part(Ground { walk: &walk, memory }, told);
        let Some(Command::<T>::Check { transfers }) = read_line(&mut from)? else { return Ok(()) };
        let checked = served.and_then(|()| walk.check(End::Target, memory, seed, transfers));
        let reply = match checked {
            Ok(()) => Reply::Right,
            Err(error) => Reply::Failed { reason: format!("{error:#}") },
        };
        tell_parent(&reply)?;
    }
    Ok(())
}
