//! Page-aligned memory from the kernel: memory that `api::memory` hands out, and memory that processes of one host
//! share (`region::grants`, `transport::local`).

use super::fd::OwnedFd;
use super::{memfd, memory, racing};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::Arc;

/// The bytes that are allocated at a time: a multiple of every page size.
const CHUNK_BYTES: usize = 256 << 20;

/// A mapped range, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    address: NonNull<u8>,
    length: usize,
    /// The memfd, if other processes can map the memory too.
    memfd: Option<Arc<OwnedFd>>,
}

// SAFETY: a mapping is owned like a Vec; access to its bytes is the owner's business.
unsafe impl Send for Mapping {}
// SAFETY: shared references give out only the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps zeroed memory for this process only.
    pub fn private(length: usize) -> io::Result<Mapping> {
        let mapping =
            map(length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        mapping.wish_huge_pages();
        Ok(mapping)
    }

    /// Maps zeroed memory behind a sealed memfd. All its pages are allocated, so no process that maps it lacks one.
    /// They are huge pages if the system gives those to shared memory on request.
    pub fn shared(length: usize) -> io::Result<Mapping> {
        let fd = memfd::create(c"ferry-memory", length)?;
        memfd::seal(&fd)?;
        let mut mapping = map(length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd.as_raw_fd())?;
        mapping.wish_huge_pages();
        mapping.populate(&fd, || memory::left().map(|left| left.bytes))?;
        mapping.memfd = Some(Arc::new(fd));
        Ok(mapping)
    }

    /// Maps the first `length` bytes of a memfd that passed `memfd::check`.
    pub fn of(fd: BorrowedFd<'_>, length: usize, writable: bool) -> io::Result<Mapping> {
        let rights = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let mapping = map(length, rights, libc::MAP_SHARED | libc::MAP_NORESERVE, fd.as_raw_fd())?;
        mapping.wish_huge_pages();
        mapping.keep_from_children();
        Ok(mapping)
    }

    /// Leaves the memory out of forked children, which would keep it allocated after the end of its process. Only for
    /// memory whose address the program does not have: a child of the program may read the program's memory.
    pub fn keep_from_children(&self) {
        // SAFETY: the range is mapped, and the advice does not change what is in it. No code in a child uses the
        // mapping: an engine that a child inherited is never dropped there.
        unsafe { libc::madvise(self.address().cast(), self.length, libc::MADV_DONTFORK) };
    }

    /// Asks for huge pages. A refusal changes nothing.
    fn wish_huge_pages(&self) {
        // SAFETY: the range is mapped, and the advice does not change what is in it.
        unsafe { libc::madvise(self.address().cast(), self.length, libc::MADV_HUGEPAGE) };
    }

    /// Allocates all pages, chunk by chunk. ENOMEM before a chunk for which no memory is left: the kernel would kill
    /// processes instead.
    fn populate(&self, fd: &OwnedFd, left: impl Fn() -> Option<u64>) -> io::Result<()> {
        for at in (0..self.length).step_by(CHUNK_BYTES) {
            let chunk = CHUNK_BYTES.min(self.length - at);
            if self.length > CHUNK_BYTES && left().is_some_and(|left| left < chunk as u64) {
                return Err(io::Error::from_raw_os_error(libc::ENOMEM));
            }
            self.populate_chunk(fd, at, chunk)?;
        }
        Ok(())
    }

    fn populate_chunk(&self, fd: &OwnedFd, at: usize, length: usize) -> io::Result<()> {
        // SAFETY: the range is mapped; this faults its pages in, as writing zeros would.
        if unsafe { libc::madvise(self.address().add(at).cast(), length, libc::MADV_POPULATE_WRITE) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
        // Before Linux 5.14: allocates the same pages, without huge ones.
        // SAFETY: no memory of ours is involved; the length fitted ftruncate.
        if unsafe { libc::fallocate(fd.as_raw_fd(), 0, at as libc::off_t, length as libc::off_t) } < 0 {
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

    /// Returns the memfd for other processes to map, if there is one.
    pub fn memfd(&self) -> Option<&Arc<OwnedFd>> {
        self.memfd.as_ref()
    }

    /// Copies out. Each aligned eight bytes that another thread or process writes meanwhile are old or new (see
    /// `racing`).
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(
            offset.checked_add(into.len()).is_some_and(|end| end <= self.length),
            "read leaves the memory"
        );
        // SAFETY: in bounds (checked above) of a live mapping, to which nobody has a reference: `into` is elsewhere.
        unsafe { racing::copy_out(self.address().add(offset), into) };
    }

    /// Copies in. A concurrent reader sees each aligned eight bytes old or new.
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

/// Words (u64) that processes share. `region::grants` defines their meaning.
#[derive(Debug)]
pub struct SharedWords(Mapping);

impl SharedWords {
    /// Returns new words, all 0, and the descriptor with which another process maps them. Untouched pages take no
    /// memory. With `theirs_read_only` the other process can't map them writable.
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

    /// Maps words of another process. Fails unless their memfd is large enough and can't shrink.
    pub fn of(fd: &OwnedFd, count: usize, writable: bool) -> io::Result<SharedWords> {
        use std::os::fd::AsFd;
        memfd::check(fd.as_fd(), count * size_of::<u64>())?;
        SharedWords::map(fd, count, writable)
    }

    fn map(fd: &OwnedFd, count: usize, writable: bool) -> io::Result<SharedWords> {
        let rights = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let mapping = map(count * size_of::<u64>(), rights, flags, fd.as_raw_fd())?;
        mapping.keep_from_children();
        Ok(SharedWords(mapping))
    }

    /// Panics beyond the end, as a slice does. Words mapped read-only must only be loaded.
    pub fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.0.length / size_of::<u64>(), "no such word");
        // SAFETY: inside the mapping (checked above), aligned because pages are, and never accessed but
        // as an atomic on either side. The memfd's size is sealed, so the page is there.
        unsafe { AtomicU64::from_ptr(self.0.address().cast::<u64>().add(index)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Other processes take memory meanwhile. The pages that were allocated are freed with the mapping.
    #[test]
    fn a_chunk_for_which_no_memory_is_left_is_not_allocated() {
        let fd = memfd::create(c"ferry-test", 3 * CHUNK_BYTES).unwrap();
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let mapping = map(3 * CHUNK_BYTES, rights, libc::MAP_SHARED, fd.as_raw_fd()).unwrap();
        let asked = Cell::new(0);
        let left = || {
            asked.set(asked.get() + 1);
            Some(if asked.get() == 1 { CHUNK_BYTES as u64 } else { CHUNK_BYTES as u64 - 1 })
        };
        let refused = mapping.populate(&fd, left).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENOMEM));
        // SAFETY: all-zero is a valid stat.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` lives on this stack for the duration of the call.
        assert_eq!(unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) }, 0);
        assert_eq!(stat.st_blocks as usize * 512, CHUNK_BYTES, "the first chunk is there, and no more");
    }
}
