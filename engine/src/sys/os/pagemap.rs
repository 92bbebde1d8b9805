//! Tells which pages of a process are in its memory, from /proc. An access to another page may wait for as long as the
//! page takes to come (swap, NFS, FUSE, userfaultfd).

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bits of an entry of /proc/PID/pagemap: the page is in memory, and userfaultfd write-protects it.
const PRESENT: u64 = 1 << 63;
const GUARDED: u64 = 1 << 57;
const ENTRY_BYTES: usize = size_of::<u64>();
/// Entries of one call.
const ENTRIES: usize = 256;

pub struct Pagemap {
    /// None if the kernel does not tell.
    file: Option<File>,
    page_bytes: u64,
}

impl Pagemap {
    /// `pid`: of another process; None for this one. The answers are about the program that the process runs now.
    pub fn of(pid: Option<i32>) -> Pagemap {
        let path = pid.map_or("/proc/self/pagemap".to_owned(), |pid| format!("/proc/{pid}/pagemap"));
        Pagemap { file: File::open(path).ok(), page_bytes: super::memory::page_bytes() as u64 }
    }

    /// Returns whether all pages of a range are in memory. None if the kernel does not tell.
    pub fn has(&self, address: u64, length: u64) -> Option<bool> {
        let first = address / self.page_bytes;
        let count = address.checked_add(length)?.div_ceil(self.page_bytes) - first;
        Some(self.count(first, count)? == count)
    }

    /// Returns how many pages from the page of this number on are in memory, up to one that is not, or to `most`. None
    /// if the kernel does not tell.
    pub fn count(&self, first: u64, most: u64) -> Option<u64> {
        let file = self.file.as_ref()?;
        let mut count = 0;
        while count < most {
            let mut entries = [0u8; ENTRIES * ENTRY_BYTES];
            let wanted = &mut entries[..(most - count).min(ENTRIES as u64) as usize * ENTRY_BYTES];
            // Reads nothing beyond the end of the process's address space, and nothing when the program is gone.
            let told = file.read_at(wanted, (first + count) * ENTRY_BYTES as u64).ok()? / ENTRY_BYTES;
            if told == 0 {
                return (count > 0).then_some(count);
            }
            let is_there = |entry: &&[u8]| {
                let bits = u64::from_ne_bytes((*entry).try_into().unwrap_or_default());
                bits & (PRESENT | GUARDED) == PRESENT
            };
            let there = wanted.chunks_exact(ENTRY_BYTES).take(told).take_while(is_there).count();
            count += there as u64;
            if there < told {
                break;
            }
        }
        Some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mapping::Mapping;

    #[test]
    fn a_page_is_there_when_it_was_touched() {
        let pagemap = Pagemap::of(None);
        let (page, pages) = (pagemap.page_bytes, 100);
        let memory = Mapping::private((pages * page) as usize).unwrap();
        let at = memory.address() as u64;
        // SAFETY: this mapping, to which no reference exists. Its pages go.
        let gone =
            unsafe { libc::madvise(at as *mut libc::c_void, (pages * page) as usize, libc::MADV_DONTNEED) };
        assert_eq!(gone, 0);
        assert_eq!(pagemap.has(at, pages * page), Some(false));
        (0..pages).filter(|nth| *nth != 70).for_each(|nth| memory.write((nth * page) as usize, &[1]));
        for (from, length, is_there) in [
            (0, 70 * page, true),
            (5, 70 * page, false),
            (70 * page, 1, false),
            (71 * page - 1, 2, false),
            (71 * page, 29 * page, true),
        ] {
            assert_eq!(pagemap.has(at + from, length), Some(is_there), "{from} {length}");
        }
        let child = Pagemap::of(Some(std::process::id() as i32));
        assert_eq!(child.has(at, page), Some(true));
        assert_eq!(Pagemap::of(Some(-1)).has(at, page), None);
    }
}
