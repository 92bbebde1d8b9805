//! The simulated side of `transport::file`: the simulated kernel has no files, so none can be registered.

use crate::config::FileIo;
use crate::device::Library;
use crate::status::{Error, Result, Status};
use crate::types::{Access, Location, MemoryKind};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub struct OpenFile {
    pub base: u64,
    pub location: Location,
}

pub struct Files;

fn none() -> Error {
    Error::new(Status::Unavailable, "the simulated kernel has no files")
}

pub fn library(_files: Arc<Files>) -> Library {
    Library { kind: MemoryKind::File, is_loaded: Box::new(|| false), open: Box::new(|| Err(none())) }
}

impl Files {
    pub fn new(_io: FileIo) -> Files {
        Files
    }

    pub fn open(&self, _: BorrowedFd<'_>, _: (u64, u64), _: Access) -> Result<Arc<OpenFile>> {
        Err(none())
    }

    pub fn close(&self, _base: u64) {}

    pub fn close_all(&self) {}
}
