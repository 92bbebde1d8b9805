//! Memory from the kernel, page-aligned: what `api::memory` hands out, and what processes of one host
//! share (`region::grants`, `transport::local`).

use super::{memfd, racing};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::Arc;

/// A mapped range; unmapped when it is dropped.
#[derive(Debug)]
pub struct Mapping {
    address: NonNull<u8>,
    length: usize,
    /// What others can map too.
    memfd: Option<Arc<OwnedFd>>,
}

// SAFETY: a mapping is owned like a Vec; access to its bytes is the owner's business.
unsafe impl Send for Mapping {}
// SAFETY: shared references give out only the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of this process alone.
    pub fn private(length: usize) -> io::Result<Mapping> {
        let mapping =
            map(length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        mapping.wish_huge_pages();
        Ok(mapping)
    }

    /// Zeroed memory behind a sealed memfd, all of it allocated: whoever maps it finds every page there.
    /// In huge pages where the system gives them to shared memory that asks.
    pub fn shared(length: usize) -> io::Result<Mapping> {
        let fd = memfd::create(c"ferry-memory", length)?;
        memfd::seal(&fd)?;
        let mut mapping = map(length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd.as_raw_fd())?;
        mapping.wish_huge_pages();
        mapping.populate(&fd)?;
        mapping.memfd = Some(Arc::new(fd));
        Ok(mapping)
    }

    /// The first `length` bytes of a memfd that `memfd::check` has passed.
    pub fn of(fd: BorrowedFd<'_>, length: usize, writable: bool) -> io::Result<Mapping> {
        let rights = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let mapping = map(length, rights, libc::MAP_SHARED | libc::MAP_NORESERVE, fd.as_raw_fd())?;
        mapping.wish_huge_pages();
        Ok(mapping)
    }

    /// A wish; a refusal changes nothing.
    fn wish_huge_pages(&self) {
        // SAFETY: the range is mapped, and the advice does not change what is in it.
        unsafe { libc::madvise(self.address().cast(), self.length, libc::MADV_HUGEPAGE) };
    }

    fn populate(&self, fd: &OwnedFd) -> io::Result<()> {
        // SAFETY: the range is mapped; this faults its pages in, as writing zeros would.
        if unsafe { libc::madvise(self.address().cast(), self.length, libc::MADV_POPULATE_WRITE) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
        // Before Linux 5.14: allocates the same pages, without huge ones.
        // SAFETY: no memory of ours is involved; the length fitted ftruncate.
        if unsafe { libc::fallocate(fd.as_raw_fd(), 0, 0, self.length as libc::off_t) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    pub fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    pub fn length(&self) -> usize {
        self.length
    }

    /// What another process can map, if it can.
    pub fn memfd(&self) -> Option<&Arc<OwnedFd>> {
        self.memfd.as_ref()
    }

    /// Copies out. Of what others write meanwhile each aligned eight bytes are old or new (see `racing`).
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(
            offset.checked_add(into.len()).is_some_and(|end| end <= self.length),
            "read leaves the memory"
        );
        // SAFETY: in bounds (checked above) of a live mapping, to which nobody has a reference: `into` is elsewhere.
        unsafe { racing::copy_out(self.address().add(offset), into) };
    }

    /// Copies in. Who reads meanwhile sees each aligned eight bytes old or new.
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
        // SAFETY: mapped by `map`; the owner lets go of it here.
        unsafe { libc::munmap(self.address().cast(), self.length) };
    }
}

fn map(length: usize, rights: libc::c_int, flags: libc::c_int, fd: libc::c_int) -> io::Result<Mapping> {
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), length, rights, flags, fd, 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let address = NonNull::new(address.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
    Ok(Mapping { address, length, memfd: None })
}

/// Words that processes share. What they mean is `region::door`'s.
#[derive(Debug)]
pub struct SharedWords(Mapping);

impl SharedWords {
    /// New words, all 0, and the descriptor by which another process maps them. Pages that nobody
    /// touches take no memory. With `theirs_read_only` the other process can't map them writable.
    pub fn new(count: usize, theirs_read_only: bool) -> io::Result<(SharedWords, OwnedFd)> {
        let fd = memfd::create(c"ferry-grants", count * size_of::<u64>())?;
        let words = SharedWords::map(&fd, count, true)?;
        if theirs_read_only {
            memfd::seal_writes(&fd)?;
        } else {
            memfd::seal(&fd)?;
        }
        Ok((words, fd))
    }

    /// Words of another process. An error unless they are there to stay.
    pub fn of(fd: &OwnedFd, count: usize, writable: bool) -> io::Result<SharedWords> {
        use std::os::fd::AsFd;
        memfd::check(fd.as_fd(), count * size_of::<u64>())?;
        SharedWords::map(fd, count, writable)
    }

    fn map(fd: &OwnedFd, count: usize, writable: bool) -> io::Result<SharedWords> {
        let rights = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        Ok(SharedWords(map(count * size_of::<u64>(), rights, flags, fd.as_raw_fd())?))
    }

    /// Panics beyond the end, as a slice would. Words mapped read-only must only be loaded.
    pub fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.0.length / size_of::<u64>(), "no such word");
        // SAFETY: inside the mapping (checked above), aligned because pages are, and never accessed but
        // as an atomic on either side. The memfd's size is sealed, so the page is there.
        unsafe { AtomicU64::from_ptr(self.0.address().cast::<u64>().add(index)) }
    }
}
