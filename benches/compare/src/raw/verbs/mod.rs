//! The reference over verbs: the least that a program can do to WRITE and READ lists of blocks over RC queue pairs, in
//! two processes of one machine with two devices.
//!
//! A list is one chain of work requests, posted at once and signalled once, at its end; a window of lists is under
//! way. Where ferry proves that WRITEs are visible by a READ behind them, each list here can have the same READ behind
//! it. The target registers its memory, sends its place, and sleeps.
//!
//! `end` is either process's part of its device, through ferry's bindings; `initiator` is the active process. The
//! target is here.

mod end;
mod initiator;

use std::io::stdin;

use ferry_bench::child::read_line;
use ferry_bench::memory::private;
use serde::{Deserialize, Serialize};

use super::reference::{await_parent, tell_parent};
use crate::role::Port;

use end::End;

pub use initiator::VerbsEngine;

/// The target posts nothing, but a queue needs room.
const TARGET_REQUESTS: usize = 1;

/// A queue pair's address for the other end.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Address {
    gid: [u8; 16],
    queue: u32,
    psn: u32,
    mtu: u32,
    /// READs that the queue pair can answer at one time.
    reads_answered: u8,
}

/// The target's first line.
#[derive(Debug, Serialize, Deserialize)]
struct Place {
    address: u64,
    rkey: u32,
    queues: Vec<Address>,
}

/// Serves the parent until it closes this process's input.
pub fn serve(port: &Port, memory_bytes: usize) -> anyhow::Result<()> {
    let memory = private(memory_bytes)?;
    // Declared after the memory, and so dropped before it.
    let end = End::open(port, TARGET_REQUESTS, TARGET_REQUESTS)?;
    let region = end.register(&memory)?;
    tell_parent(&Place { address: memory.address() as u64, rkey: region.rkey(), queues: end.addresses() })?;
    let Some(others) = read_line::<Vec<Address>>(&mut stdin().lock())? else { return Ok(()) };
    end.connect(&others)?;
    tell_parent(&others.len())?;
    await_parent()
}
