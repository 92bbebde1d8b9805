//! The registered memory of a node: a memfd that the node's process and the program that judges both map. So the
//! program sees the memory of all sides, also when a process has died. A restarted process registers the same bytes at
//! the same address.
//!
//! Every 8 bytes tell which operation they belong to, and where: `support::word` of a seed and a place.

use crate::support::word;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};

pub const BYTES: usize = 8 << 20;
/// Where each process maps its arena.
pub const AT: u64 = 0x6000_0000_0000;
/// The seed of all bytes that belong to no operation.
pub const CANARY: u64 = 0xff_ffff;

/// The seeds of an operation: its data, its source after its end, its target after its end.
pub fn data(id: u64) -> u64 {
    id * 3
}
pub fn spent(id: u64) -> u64 {
    id * 3 + 1
}
pub fn scrubbed(id: u64) -> u64 {
    id * 3 + 2
}

pub struct Arena {
    base: *mut u64,
}

// SAFETY: the mapping is shared with other processes anyway; every access is of a whole word, and volatile.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// Makes a file in memory.
pub fn memfd(bytes: usize) -> File {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"chaos".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "memfd_create: {}", io::Error::last_os_error());
    // SAFETY: the descriptor is new.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(bytes as u64).unwrap();
    file
}

impl Arena {
    /// Maps an arena, at `AT` in the process of a node.
    pub fn map(file: &File, fixed: bool) -> Arena {
        let (hint, flag) =
            if fixed { (AT as *mut _, libc::MAP_FIXED_NOREPLACE) } else { (std::ptr::null_mut(), 0) };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: replaces no mapping; the file is as long as the mapping.
        let base = unsafe { libc::mmap(hint, BYTES, access, libc::MAP_SHARED | flag, file.as_raw_fd(), 0) };
        assert_ne!(base, libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
        Arena { base: base.cast() }
    }

    pub fn word(&self, at: usize) -> u64 {
        assert!(at % 8 == 0 && at < BYTES);
        // SAFETY: inside the mapping, and aligned.
        unsafe { self.base.add(at / 8).read_volatile() }
    }

    /// Writes the words of `seed` for the places from `place` on.
    pub fn fill(&self, at: usize, bytes: usize, seed: u64, place: usize) {
        assert!(at % 8 == 0 && bytes % 8 == 0 && at + bytes <= BYTES);
        for offset in (0..bytes).step_by(8) {
            // SAFETY: inside the mapping, and aligned.
            unsafe { self.base.add((at + offset) / 8).write_volatile(word(seed, place + offset)) }
        }
    }

    /// Returns the first place whose bytes are none of the words of `seeds`; each byte may be of another word.
    pub fn stranger(&self, at: usize, bytes: usize, seeds: &[u64], place: usize) -> Option<usize> {
        (0..bytes).step_by(8).map(|offset| at + offset).find(|&here| {
            let found = self.word(here);
            let words = seeds.iter().map(|seed| word(*seed, place + here - at));
            if words.clone().any(|word| word == found) {
                return false;
            }
            (0..64).step_by(8).any(|bit| !words.clone().any(|word| (word ^ found) >> bit & 0xff == 0))
        })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nothing refers to it after its owner.
        unsafe { libc::munmap(self.base.cast(), BYTES) };
    }
}
