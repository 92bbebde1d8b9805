//! Registers ranges of files and of block devices: see docs/files.md.

use super::memory::RegionOptions;
use super::Engine;
use crate::command::Command;
use crate::context::Context;
use crate::region::RegionSpec;
use crate::status::{Error, Result};
use crate::transport::file::OpenFile;
use crate::types::{MemoryKind, RegionId};
use std::os::fd::AsFd;

/// A registered range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRegion {
    pub region: RegionId,
    /// The address of the range's first byte, for requests here and of peers. Nothing is mapped there.
    pub address: u64,
}

impl Engine {
    /// Registers `length` bytes of a file or of a block device, from `offset` on, and announces the region to every
    /// peer. Peers READ and WRITE it as memory, and this engine's transfers may name it as local memory. The range of
    /// a file may lie beyond its end: a WRITE extends the file, a READ there fails with SYSTEM and ENODATA.
    ///
    /// The engine opens the file anew, with the rights of `file`, which may be closed afterwards. `unregister` or
    /// closing the engine closes it.
    ///
    /// INVALID: not a file or a block device, open with O_APPEND, or a wrong range. ACCESS: not open for what
    /// `options.access` lets peers do. UNAVAILABLE: the setting file_io asks for io_uring, which the kernel refuses.
    pub fn register_file(
        &self,
        file: impl AsFd,
        offset: u64,
        length: u64,
        options: &RegionOptions,
    ) -> Result<FileRegion> {
        self.call("registering a file", || {
            let context = self.context()?;
            if options.location.is_some_and(|stated| stated.kind != MemoryKind::File) {
                return Err(Error::invalid("options.kind: a file is memory of the kind file"));
            }
            let opened = self.inner.files.open(file.as_fd(), (offset, length), options.access)?;
            self.announce(context, &opened, length, options)
                .inspect_err(|_| self.inner.files.close(opened.base))
        })
    }

    fn announce(
        &self,
        context: &Context,
        opened: &OpenFile,
        length: u64,
        options: &RegionOptions,
    ) -> Result<FileRegion> {
        self.inner.drivers.worker(opened.location)?;
        let spec = RegionSpec {
            address: opened.base,
            length,
            access: options.access,
            name: options.name.clone(),
            location: opened.location,
            ..RegionSpec::default()
        };
        let region = context.registry.register(&[spec])?.remove(0).id;
        context.commands.push(Command::RegionsAdded(vec![region]));
        Ok(FileRegion { region, address: opened.base })
    }
}

#[cfg(test)]
impl Engine {
    pub fn files(&self) -> &crate::transport::file::Files {
        &self.inner.files
    }
}
