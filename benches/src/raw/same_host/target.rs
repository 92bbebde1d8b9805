//! The passive process: holds memory, fills it before a run and checks it afterwards. In between it
//! sleeps. It ends when its control pipe does.

use std::io::{BufRead, Write};
use std::os::fd::AsRawFd;

use super::wire::{Kind, Place};
use crate::child::write_line;
use crate::memory::Memory;
use crate::raw::passive;

/// What the parent passes on the command line.
#[derive(Clone, Debug)]
pub struct SameHostTargetOptions {
    pub kind: Kind,
    pub memory_bytes: usize,
}

/// Serves one parent, over the given control pipe, until it closes the pipe.
pub fn serve(options: &SameHostTargetOptions, from: impl BufRead, mut to: impl Write) -> anyhow::Result<()> {
    let (mut memory, file) = match options.kind {
        Kind::Own => (Memory::new(options.memory_bytes)?, None),
        Kind::Shared => {
            let (memory, file) = Memory::shared(options.memory_bytes)?;
            (memory, Some(file))
        }
    };
    let place = Place { address: memory.address() as u64, fd: file.as_ref().map(|file| file.as_raw_fd()) };
    write_line(&mut to, &place)?;
    passive::serve(&mut memory, from, to)
}
