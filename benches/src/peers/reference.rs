//! The raw references of this program, for the comparison.

use std::path::Path;

use super::rows::WALK_BYTES;
use crate::raw::same_host::{SameHostConfig, SharedEngine, VmEngine};
use crate::raw::{RawConfig, RawEngine};
use crate::workload::Engine;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    Tcp,
    /// The kernel copies between address spaces, called from this many threads.
    Vm {
        threads: usize,
    },
    /// This many threads copy into and out of the target's mapping.
    Shared {
        threads: usize,
    },
}

impl Reference {
    /// Starts the reference; `program` is this binary, whose child is the other end.
    pub fn start(self, program: &Path) -> anyhow::Result<Box<dyn Engine>> {
        let same_host =
            |threads| SameHostConfig { program: program.to_owned(), threads, memory_bytes: WALK_BYTES };
        let tcp = RawConfig::compared(program, WALK_BYTES, RawConfig::CONGESTION_CONTROL);
        Ok(match self {
            Reference::Tcp => Box::new(RawEngine::start_best(&tcp)?),
            Reference::Vm { threads } => Box::new(VmEngine::start(&same_host(threads))?),
            Reference::Shared { threads } => Box::new(SharedEngine::start(&same_host(threads))?),
        })
    }
}
