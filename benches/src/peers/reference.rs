//! The raw references of this program, as the comparison starts them.

use std::path::Path;

use super::rows::WALK_BYTES;
use crate::raw::same_host::{SameHostConfig, SharedEngine, VmEngine};
use crate::raw::{RawConfig, RawEngine};
use crate::workload::Engine;

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
        let tcp = RawConfig::compared(program, WALK_BYTES, RawConfig::CONGESTION_CONTROL);
        Ok(match self {
            Reference::Tcp => Box::new(RawEngine::start_best(&tcp)?),
            Reference::Vm { threads } => Box::new(VmEngine::start(&same_host(threads))?),
            Reference::Shared { threads } => Box::new(SharedEngine::start(&same_host(threads))?),
        })
    }
}
