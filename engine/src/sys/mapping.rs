//! Memory from the kernel, page-aligned and zeroed: what `api::memory` hands out.

use std::io;
use std::ptr::NonNull;

#[derive(Debug)]
pub struct Mapping {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping is owned like a Vec; access to its bytes is the owner's business.
unsafe impl Send for Mapping {}
// SAFETY: shared references give out only the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub fn new(length: usize) -> io::Result<Mapping> {
        // SAFETY: a fresh anonymous mapping, at an address of the kernel's choice.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range was mapped above. Huge pages are a wish; a refusal changes nothing.
        unsafe { libc::madvise(address, length, libc::MADV_HUGEPAGE) };
        let address =
            NonNull::new(address.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Mapping { address, length })
    }

    pub fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    pub fn length(&self) -> usize {
        self.length
    }

    /// Copies out. Bytes that a peer writes meanwhile are old or new, each on its own.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(
            offset.checked_add(into.len()).is_some_and(|end| end <= self.length),
            "read leaves the memory"
        );
        // SAFETY: in bounds (checked above) of a live mapping; no reference to the bytes is formed.
        unsafe { std::ptr::copy_nonoverlapping(self.address().add(offset), into.as_mut_ptr(), into.len()) };
    }

    /// Copies in.
    pub fn write(&self, offset: usize, from: &[u8]) {
        assert!(
            offset.checked_add(from.len()).is_some_and(|end| end <= self.length),
            "write leaves the memory"
        );
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.address().add(offset), from.len()) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; the owner lets go of it here.
        unsafe { libc::munmap(self.address().cast(), self.length) };
    }
}
