//! The passive process: holds memory, fills it before a run and checks it afterwards. In between it sleeps. It ends
//! when its control pipe is closed.

use std::io::{BufRead, Write};
use std::os::fd::AsRawFd;

use serde::{Deserialize, Serialize};

use super::{Kind, Place};
use crate::child::write_line;
use crate::raw::passive;

/// The options with which the parent starts the target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SameHostTargetOptions {
    pub kind: Kind,
    pub memory_bytes: usize,
}

/// Serves one parent, over the given control pipe, until the parent closes the pipe.
pub fn serve(options: &SameHostTargetOptions, from: impl BufRead, mut to: impl Write) -> anyhow::Result<()> {
    let mut memory = options.kind.map(options.memory_bytes)?;
    let fd = memory.memfd().map(|file| file.as_raw_fd());
    write_line(&mut to, &Place { address: memory.address() as u64, fd })?;
    passive::serve(&mut memory, from, to, |_, _, ()| Ok(()))
}
