//! The simulated side of `sys::mapping`: memory of the kernel's arena, at the same addresses in each run. All processes
//! have shared memory at one address.

use super::{memfd, racing};
use crate::sys::atomic::AtomicU64;
use crate::sys::fd::{AsFd, BorrowedFd, OwnedFd};
use ferry_sim_kernel::arena;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

#[derive(Debug)]
pub struct Mapping {
    address: NonNull<u8>,
    length: usize,
    memfd: Option<Arc<OwnedFd>>,
    /// The memory is freed when this is dropped. Memory behind a descriptor stays until the run is over.
    is_own: bool,
}

// SAFETY: a mapping is owned like a Vec; access to its bytes is the owner's business.
unsafe impl Send for Mapping {}
// SAFETY: shared references give out only the address.
unsafe impl Sync for Mapping {}

fn at(address: u64, length: usize, is_own: bool) -> io::Result<Mapping> {
    let address = NonNull::new(address as *mut u8);
    let address = address.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
    Ok(Mapping { address, length, memfd: None, is_own })
}

impl Mapping {
    pub fn private(length: usize) -> io::Result<Mapping> {
        at(arena::map(length)?, length, true)
    }

    pub fn shared(length: usize) -> io::Result<Mapping> {
        let fd = memfd::create(c"ferry-memory", length)?;
        let mut mapping = Mapping::of(fd.as_fd(), length, true)?;
        mapping.memfd = Some(Arc::new(fd));
        Ok(mapping)
    }

    pub fn of(fd: BorrowedFd<'_>, length: usize, _writable: bool) -> io::Result<Mapping> {
        at(arena::map_shared(fd)?, length, false)
    }

    /// No simulated process forks.
    pub fn keep_from_children(&self) {}

    pub fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    pub fn length(&self) -> usize {
        self.length
    }

    pub fn memfd(&self) -> Option<&Arc<OwnedFd>> {
        self.memfd.as_ref()
    }

    pub fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(
            offset.checked_add(into.len()).is_some_and(|end| end <= self.length),
            "read leaves the memory"
        );
        // SAFETY: in bounds (checked above) of the arena's memory; `into` is elsewhere.
        unsafe { racing::copy_out(self.address().add(offset), into) };
    }

    pub fn write(&self, offset: usize, from: &[u8]) {
        assert!(
            offset.checked_add(from.len()).is_some_and(|end| end <= self.length),
            "write leaves the memory"
        );
        // SAFETY: as in `read`.
        unsafe { racing::copy_in(self.address().add(offset), from) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_own && ferry_sim_kernel::is_running() {
            arena::free(self.address() as u64);
        }
    }
}

#[derive(Debug)]
pub struct SharedWords(Mapping);

impl SharedWords {
    pub fn new(count: usize, _theirs_read_only: bool) -> io::Result<(SharedWords, OwnedFd)> {
        let fd = memfd::create(c"ferry-grants", count * size_of::<u64>())?;
        Ok((SharedWords::of(&fd, count, true)?, fd))
    }

    pub fn of(fd: &OwnedFd, count: usize, writable: bool) -> io::Result<SharedWords> {
        let length = count * size_of::<u64>();
        memfd::check(fd.as_fd(), length)?;
        Mapping::of(fd.as_fd(), length, writable).map(SharedWords)
    }

    pub fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.0.length / size_of::<u64>(), "no such word");
        // SAFETY: inside the mapping (checked above), aligned because pages are, and never accessed but as an atomic.
        unsafe { AtomicU64::from_ptr(self.0.address().cast::<u64>().add(index)) }
    }
}
