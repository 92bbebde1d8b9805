//! The raw references of this program, as the comparison starts them.

use std::path::Path;

use super::rows::WALK_BYTES;
use crate::raw::same_host::{SameHostConfig, SharedEngine, VmEngine};
use crate::raw::{RawConfig, RawEngine, SocketOptions};
use crate::workload::Engine;

/// The most connections that the TCP reference's search tries.
const CONNECTIONS: usize = 4;
/// What ferry takes by itself between ends on one host.
const CONGESTION_CONTROL: &str = "reno";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    Tcp,
    /// The kernel copies between address spaces, for so many threads.
    Vm {
        threads: usize,
    },
    /// So many threads copy into and out of the target's mapping.
    Shared {
        threads: usize,
    },
}

impl Reference {
    /// `program` is this binary: the other end is a child of it.
    pub fn start(self, program: &Path) -> anyhow::Result<Box<dyn Engine>> {
        let same_host =
            |threads| SameHostConfig { program: program.to_owned(), threads, memory_bytes: WALK_BYTES };
        Ok(match self {
            Reference::Tcp => Box::new(RawEngine::start(&tcp(program))?),
            Reference::Vm { threads } => Box::new(VmEngine::start(&same_host(threads))?),
            Reference::Shared { threads } => Box::new(SharedEngine::start(&same_host(threads))?),
        })
    }
}

fn tcp(program: &Path) -> RawConfig {
    let congestion_control = Some(CONGESTION_CONTROL.to_owned());
    RawConfig {
        program: program.to_owned(),
        connections: CONNECTIONS,
        memory_bytes: WALK_BYTES,
        socket: SocketOptions { buffer_bytes: None, congestion_control },
    }
}
