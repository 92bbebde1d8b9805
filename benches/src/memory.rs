//! Page-aligned, populated memory that the measured transfers run over.
//!
//! The reference's `Memory` is made as ferry's own allocations are (huge pages where the kernel has
//! them), so that neither side of a comparison is flattered by its pages.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;

use crate::walk::fill;

/// Memory that a run goes over. Its bytes are copied in and out and never borrowed, because a peer may
/// write to registered memory at any time.
pub trait Store: Sync {
    fn copy_in(&mut self, offset: usize, from: &[u8]);
    fn copy_out(&self, offset: usize, into: &mut [u8]);
}

impl Store for Memory {
    fn copy_in(&mut self, offset: usize, from: &[u8]) {
        self.as_mut_slice()[offset..offset + from.len()].copy_from_slice(from);
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        assert!(offset.checked_add(into.len()).is_some_and(|end| end <= self.bytes), "within the memory");
        // SAFETY: in bounds (checked above) of the live mapping, and no reference to the bytes is made.
        unsafe { std::ptr::copy_nonoverlapping(self.address().add(offset), into.as_mut_ptr(), into.len()) };
    }
}

impl Store for ferry::Memory {
    fn copy_in(&mut self, offset: usize, from: &[u8]) {
        self.write(offset, from);
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        self.read(offset, into);
    }
}

/// Or a multiple of it, everywhere.
const PAGE_BYTES: usize = 4 << 10;
/// More than this is not asked of the other end.
pub const MEMORY_BYTES_MAX: usize = 64 << 30;

/// Touches every page, so that no run pays for it.
pub fn populated(mut memory: ferry::Memory) -> ferry::Memory {
    let bytes = memory.length();
    fill(&mut memory, bytes, 0);
    memory
}

/// Damages the byte at `offset`. At 0, every workload's first transfer has it.
pub fn spoil(memory: &mut impl Store, offset: usize) {
    let mut byte = [0];
    memory.copy_out(offset, &mut byte);
    memory.copy_in(offset, &[byte[0] ^ 1]);
}

/// A mapping. Threads share it by pointer while a run is going on; its owner reads
/// and writes it as a slice in between, which the borrow checker keeps apart.
pub struct Memory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to no thread; it is freed once, by the one owner's drop.
unsafe impl Send for Memory {}
// SAFETY: through `&Memory` only the address can be had, never a reference to the bytes; whoever
// dereferences the address answers for it.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps and populates `bytes` (at least one) of zeroed memory that only this process has.
    pub fn new(bytes: usize) -> io::Result<Memory> {
        let mut memory = Memory::map(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        // Touched now, so that no run pays for it.
        memory.as_mut_slice().fill(0);
        Ok(memory)
    }

    /// The same of a new memory file, for others to map.
    pub fn shared(bytes: usize) -> io::Result<(Memory, File)> {
        // SAFETY: the name is a C string; the call returns a new descriptor or -1.
        let fd = unsafe { libc::memfd_create(c"ferry-bench".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: made just above, and nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(bytes as u64)?;
        let mut memory = Memory::of_file(&file, bytes)?;
        memory.as_mut_slice().fill(0);
        Ok((memory, file))
    }

    /// Maps the first `bytes` of somebody's memory file, which has as many, and touches its pages.
    pub fn of_file(file: &File, bytes: usize) -> io::Result<Memory> {
        let memory = Memory::map(bytes, libc::MAP_SHARED, file.as_raw_fd())?;
        let mut byte = [0];
        (0..bytes).step_by(PAGE_BYTES).for_each(|offset| memory.copy_out(offset, &mut byte));
        Ok(memory)
    }

    fn map(bytes: usize, flags: libc::c_int, fd: libc::c_int) -> io::Result<Memory> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: exactly the mapping made above. Huge pages are a wish; a refusal changes nothing.
        unsafe { libc::madvise(base, bytes, libc::MADV_HUGEPAGE) };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Memory { base, bytes })
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn address(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The whole mapping. `&mut` proves that no run is going on.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is `bytes` long and exclusively borrowed through `self`; of a memory file that
        // two processes map, each touches it in turn.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.bytes) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `map` made; no pointer to it outlives its owner's runs.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
