//! The passive process: registers memory, connects its queue pairs, then fills and checks. In between it sleeps; the
//! device does the rest. It ends when its control pipe is closed.

use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};

use super::end::End;
use super::{Address, Place, Port};
use crate::child::{read_line, write_line};
use crate::memory::private;
use crate::raw::passive;

/// The target posts nothing, but a queue needs room.
const REQUESTS: usize = 1;

/// The options with which the parent starts the target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VerbsTargetOptions {
    pub port: Port,
    pub memory_bytes: usize,
}

/// Serves one parent, over the given control pipe, until the parent closes the pipe.
pub fn serve(options: &VerbsTargetOptions, mut from: impl BufRead, mut to: impl Write) -> anyhow::Result<()> {
    let mut memory = private(options.memory_bytes)?;
    // Declared after the memory, and so dropped before it.
    let end = End::open(&options.port, REQUESTS, REQUESTS)?;
    let region = end.register(&memory)?;
    let place = Place { address: memory.address() as u64, rkey: region.rkey(), queues: end.addresses() };
    write_line(&mut to, &place)?;
    let Some(others) = read_line::<Vec<Address>>(&mut from)? else { return Ok(()) };
    end.connect(&others)?;
    write_line(&mut to, &others.len())?;
    passive::serve(&mut memory, from, to, |_, _, ()| Ok(()))
}
