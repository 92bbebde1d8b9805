//! A page at a random address, by which copies recognise the memory of this program. A call that copies into or out of
//! another process (`vm`) finds its memory by a pid, which exec keeps. The kernel takes the memory once in a call and
//! goes through the ranges in order until one is missing. So a call that names the landmark first copies nothing unless
//! the memory has that page. `region::grants` tells its place to the peers; `transport::local` names it.

use crate::sys::random_u64;
use std::io;
use std::ptr::NonNull;

/// The place of a landmark, and its secret. A READ finds the secret; a WRITE stores `BYTES` after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// 0: there is no landmark.
    pub address: u64,
    pub secret: u64,
}

/// The bytes that a call moves to or from a landmark.
pub const BYTES: usize = size_of::<u64>();
/// Draws in each zone, before the next zone is tried.
const DRAWS: usize = 8;

/// Unmapped when dropped. A forked child does not have the page.
#[derive(Debug)]
pub struct Landmark {
    page: NonNull<u8>,
    bytes: usize,
    secret: u64,
}

// SAFETY: the page is written before it is shared, and afterwards only by other processes; this gives out its address.
unsafe impl Send for Landmark {}
// SAFETY: as above.
unsafe impl Sync for Landmark {}

impl Landmark {
    /// Maps the page, at an address that no other program is likely to use.
    pub fn new() -> io::Result<Landmark> {
        let bytes = page_bytes();
        let mut last = io::Error::from_raw_os_error(libc::ENOMEM);
        for zone in zones() {
            for _ in 0..DRAWS {
                let pages = (zone.1 - zone.0) / bytes as u64;
                match map(zone.0 + random_u64() % pages * bytes as u64, bytes) {
                    Ok(page) => return Ok(Landmark::in_page(page, bytes)),
                    Err(error) => last = error,
                }
            }
        }
        Err(last)
    }

    fn in_page(page: NonNull<u8>, bytes: usize) -> Landmark {
        let landmark = Landmark { page, bytes, secret: random_u64() | 1 };
        // SAFETY: the page was mapped by the caller, is aligned, and nothing else knows it yet.
        unsafe {
            libc::madvise(page.as_ptr().cast(), bytes, libc::MADV_DONTFORK);
            page.as_ptr().cast::<u64>().write(landmark.secret);
        }
        landmark
    }

    pub fn place(&self) -> Place {
        Place { address: self.page.as_ptr() as u64, secret: self.secret }
    }
}

impl Drop for Landmark {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`; nothing in this process refers to it.
        unsafe { libc::munmap(self.page.as_ptr().cast(), self.bytes) };
    }
}

/// Returns where to draw addresses, best first. In the first zone no program with 47 or more address bits has memory:
/// neither executables, heaps and libraries, nor Go, nor the sanitizers' shadows. The others are for smaller address
/// spaces, and for sanitizers, which allow no mappings elsewhere: they are nearer to this process's own memory.
fn zones() -> [(u64, u64); 3] {
    let on_the_stack = 0_u8;
    let here = (&raw const on_the_stack as u64 & !0xffff_ffff).max(1 << 32);
    [(0x4000 << 32, 0x5000 << 32), (here / 4, here / 2), (here - here / 64, here - here / 256)]
}

fn page_bytes() -> usize {
    // SAFETY: sysconf takes a number and no pointers.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as usize
}

fn map(at: u64, bytes: usize) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping, which replaces none.
    let page = unsafe { libc::mmap(at as *mut libc::c_void, bytes, rights, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if page as u64 != at {
        // An old kernel, or a sanitizer, takes the address as a hint.
        // SAFETY: mapped above, and unknown to others.
        unsafe { libc::munmap(page, bytes) };
        return Err(io::Error::from_raw_os_error(libc::EEXIST));
    }
    NonNull::new(page.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_landmark_is_where_it_says_until_it_is_dropped_and_no_two_are_in_one_place() {
        let (one, two) = (Landmark::new().unwrap(), Landmark::new().unwrap());
        let (place, other) = (one.place(), two.place());
        assert!(place.address != other.address && place.secret != other.secret && place.secret != 0);
        // SAFETY: mapped while `one` lives.
        assert_eq!(unsafe { *(place.address as *const u64) }, place.secret);
        assert!(map(place.address, page_bytes()).is_err(), "nothing is replaced");
        drop(one);
        let again = map(place.address, page_bytes()).unwrap();
        // SAFETY: mapped by this test.
        unsafe { libc::munmap(again.as_ptr().cast(), page_bytes()) };
    }

    /// A process with fewer bits of addresses, or under a sanitizer, has a landmark too.
    #[test]
    fn each_zone_has_room() {
        for (from, end) in zones() {
            assert!(from < end && from >= 1 << 24, "{from:#x} to {end:#x}");
        }
    }
}
