//! The passive process: registers memory, connects its queue pairs, then fills and checks. In between it
//! sleeps; the device does the rest. It ends when its control pipe does.

use std::io::{BufRead, Write};

use anyhow::{ensure, Context};

use super::device::{Device, Registered};
use super::queue::{Completions, Queue};
use super::{Address, Place, Port};
use crate::child::{read_line, write_line};
use crate::raw::passive;

/// It posts nothing, and needs room for that.
const REQUESTS: usize = 1;

/// Serves one parent, over the given control pipe, until it closes the pipe.
pub fn serve(
    port: &Port,
    memory_bytes: usize,
    mut from: impl BufRead,
    mut to: impl Write,
) -> anyhow::Result<()> {
    let device = Device::open(port)?;
    // Declared before the queue pairs, so that it goes after them.
    let mut registered = Registered::new(&device, memory_bytes)?;
    let completions = Completions::new(&device, REQUESTS)?;
    let queues = (0..port.queues).map(|_| Queue::new(&completions, port, REQUESTS));
    let queues = queues.collect::<anyhow::Result<Vec<_>>>()?;
    let place = Place {
        address: registered.memory.address() as u64,
        rkey: registered.rkey(),
        queues: queues.iter().map(Queue::address).collect(),
    };
    write_line(&mut to, &place)?;
    let Some(others) = read_line::<Vec<Address>>(&mut from)? else { return Ok(()) };
    ensure!(others.len() == queues.len(), "{} queue pairs for {}", others.len(), queues.len());
    for (queue, other) in queues.iter().zip(&others) {
        queue.connect(port, other).context("connecting a queue pair")?;
    }
    write_line(&mut to, &queues.len())?;
    passive::serve(&mut registered.memory, from, to)
}
