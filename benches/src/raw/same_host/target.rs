//! The passive process: holds memory, fills it before a run and checks it afterwards. In between it
//! sleeps. It ends when its control pipe does.

use std::io::{BufRead, Write};
use std::os::fd::AsRawFd;

use anyhow::{bail, ensure};

use super::wire::{Command, Kind, Place, Reply};
use crate::child::{read_line, write_line};
use crate::memory::Memory;
use crate::walk::{End, Walk};

/// What the parent passes on the command line.
#[derive(Clone, Debug)]
pub struct SameHostTargetOptions {
    pub kind: Kind,
    pub memory_bytes: usize,
}

/// Serves one parent, over the given control pipe, until it closes the pipe.
pub fn serve(
    options: &SameHostTargetOptions,
    mut from: impl BufRead,
    mut to: impl Write,
) -> anyhow::Result<()> {
    let (mut memory, file) = match options.kind {
        Kind::Own => (Memory::new(options.memory_bytes)?, None),
        Kind::Shared => {
            let (memory, file) = Memory::shared(options.memory_bytes)?;
            (memory, Some(file))
        }
    };
    let place = Place { address: memory.address() as u64, fd: file.as_ref().map(|file| file.as_raw_fd()) };
    write_line(&mut to, &Reply::Holding(place))?;
    while let Some(command) = read_line(&mut from)? {
        let Command::Prepare { workload, seed } = command else { bail!("a check without a run") };
        let workload = workload.validated()?;
        ensure!(workload.walk_bytes <= memory.bytes(), "the run exceeds this target's memory");
        let walk = Walk::new(workload);
        walk.fill(End::Target, &mut memory, seed);
        write_line(&mut to, &Reply::Ready)?;
        let Some(Command::Check { transfers }) = read_line(&mut from)? else { return Ok(()) };
        let reply = match walk.check(End::Target, &memory, seed, transfers) {
            Ok(()) => Reply::Right,
            Err(mismatch) => Reply::Failed { reason: mismatch.to_string() },
        };
        write_line(&mut to, &reply)?;
    }
    Ok(())
}
