//! Memory that processes get from their kernel: whole pages, zeroed, at the same addresses in each run and in each
//! process of the operating system, so that an order by address repeats. No address is given twice in a run: a late
//! access to memory that was given back hits nobody else's, and `memory` sees it. Memory of devices (`device`) has an
//! area of its own, which no call of the kernel reaches.

use crate::fd::{errno, BorrowedFd, Kind, OwnedFd};
use crate::process::ProcessId;
use crate::world::{point, with};
use std::io;
use std::ops::Range;
use std::sync::OnceLock;

const PAGE_BYTES: u64 = 4096;

/// Addresses that are reserved once in a process of the operating system.
pub(crate) struct Area {
    base: u64,
    bytes: u64,
    is_reserved: OnceLock<bool>,
}

/// The memory of hosts.
pub(crate) static HOSTS: Area = Area::new(0x2000_0000_0000, 1 << 38);
/// The memory of devices.
pub(crate) static DEVICES: Area = Area::new(0x3000_0000_0000, 1 << 38);

impl Area {
    const fn new(base: u64, bytes: u64) -> Area {
        Area { base, bytes, is_reserved: OnceLock::new() }
    }

    pub fn has(&self, address: u64) -> bool {
        (self.base..self.base + self.bytes).contains(&address)
    }

    /// False if something else has the addresses.
    fn is_reserved(&self) -> bool {
        *self.is_reserved.get_or_init(|| {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let flags =
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
            let wanted = self.base as *mut libc::c_void;
            // SAFETY: a fresh mapping; it replaces none.
            let at = unsafe { libc::mmap(wanted, self.bytes as usize, rights, flags, -1, 0) };
            at == wanted
        })
    }
}

struct Block {
    process: ProcessId,
    address: u64,
    length: u64,
}

/// The memory that the arena has given in this run.
pub(crate) struct Arena {
    area: &'static Area,
    /// By address.
    blocks: Vec<Block>,
    next: u64,
}

impl Arena {
    pub fn new(area: &'static Area) -> Arena {
        Arena { area, blocks: Vec::new(), next: 0 }
    }

    pub fn allocate(&mut self, process: ProcessId, length: u64) -> Option<u64> {
        // A page between two blocks belongs to nobody.
        let taken = length.max(1).checked_next_multiple_of(PAGE_BYTES)?.checked_add(PAGE_BYTES)?;
        if taken > self.area.bytes - self.next || !self.area.is_reserved() {
            return None;
        }
        let address = self.area.base + self.next;
        self.next += taken;
        self.blocks.push(Block { process, address, length });
        Some(address)
    }

    fn free(&mut self, address: u64) {
        if let Ok(at) = self.blocks.binary_search_by_key(&address, |block| block.address) {
            self.blocks.remove(at);
        }
    }

    /// A process has another address space: none of its memory here is in it.
    pub fn forget(&mut self, process: ProcessId) {
        self.blocks.retain(|block| block.process != process);
    }

    /// Returns how many bytes from `address` on, at most `length`, the process has here.
    pub fn reach(&self, process: ProcessId, address: u64, length: u64) -> u64 {
        let behind = self.blocks.partition_point(|block| block.address <= address);
        let Some(block) = behind.checked_sub(1).map(|at| &self.blocks[at]) else { return 0 };
        if block.process == process {
            (block.address + block.length).saturating_sub(address).min(length)
        } else {
            0
        }
    }

    /// Makes all memory zeroes for the next run.
    pub fn clear(&mut self) {
        if self.next > 0 {
            let base = self.area.base as *mut libc::c_void;
            // SAFETY: these pages are the arena's, and its run is over.
            unsafe { libc::madvise(base, self.next as usize, libc::MADV_DONTNEED) };
        }
        *self = Arena::new(self.area);
    }
}

/// Returns the parts of a range whose pages were ever touched, as offsets: all other pages are zeroes, and to look at
/// them would cost a page fault each. The range begins at a page.
pub fn touched(address: u64, length: u64) -> Vec<Range<u64>> {
    let pages = length.div_ceil(PAGE_BYTES) as usize;
    let mut there = vec![0_u8; pages];
    // SAFETY: `there` has a byte for each page of the range.
    let told = unsafe { libc::mincore(address as *mut libc::c_void, length as usize, there.as_mut_ptr()) };
    assert_eq!(told, 0, "the arena is mapped: {}", io::Error::last_os_error());
    let mut parts: Vec<Range<u64>> = Vec::new();
    for page in (0..pages).filter(|page| there[*page] & 1 != 0) {
        let (from, to) = (page as u64 * PAGE_BYTES, length.min((page as u64 + 1) * PAGE_BYTES));
        match parts.last_mut().filter(|last| last.end == from) {
            Some(last) => last.end = to,
            None => parts.push(from..to),
        }
    }
    parts
}

/// Like `allocate`, for a program that bears to be refused. ENOMEM if the process may have no more memory.
pub fn map(length: usize) -> io::Result<u64> {
    point();
    with(|world| {
        let here = world.here();
        world.may_map(here)?;
        world.arena.allocate(here, length as u64).map_or_else(|| errno(libc::ENOMEM), Ok)
    })
}

/// Gives the running task's process whole pages of zeroes. None if there are no addresses left.
pub fn allocate(length: usize) -> Option<u64> {
    point();
    with(|world| {
        let here = world.here();
        world.arena.allocate(here, length as u64)
    })
}

/// Takes back what `allocate` gave. Its bytes stay as they are.
pub fn free(address: u64) {
    point();
    with(|world| world.arena.free(address));
}

/// Returns a descriptor of new memory, which other processes may have too, at the same address. It belongs to the
/// running task's process, and stays until the run is over.
pub fn share(length: usize) -> io::Result<OwnedFd> {
    point();
    with(|world| {
        let here = world.here();
        world.check_room(here, 1)?;
        world.may_map(here)?;
        match world.arena.allocate(here, length as u64) {
            Some(address) => world.open(here, Kind::Memory(address, length)),
            None => errno(libc::ENOMEM),
        }
    })
}

/// Maps memory behind a descriptor, and returns its address. ENOMEM if the process may have no more.
pub fn map_shared(fd: BorrowedFd<'_>) -> io::Result<u64> {
    with(|world| {
        let here = world.here();
        world.may_map(here)
    })?;
    shared(fd).map(|(address, _)| address)
}

/// Returns the address and the length of memory behind a descriptor. EINVAL if it is no such descriptor.
pub fn shared(fd: BorrowedFd<'_>) -> io::Result<(u64, usize)> {
    point();
    with(|world| match *world.kind(fd.file(world)?) {
        Kind::Memory(address, length) => Ok((address, length)),
        _ => errno(libc::EINVAL),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fd::AsFd;
    use crate::{process, run, Options};

    #[test]
    fn memory_is_zeroed_at_the_same_place_in_each_run_and_nobody_else_s() {
        let mut seen = Vec::new();
        for _ in 0..2 {
            run(1, Options::default(), || {
                let (one, other) = (allocate(5000).unwrap(), allocate(1).unwrap());
                // SAFETY: given just now, and longer than a word.
                let word = unsafe { &mut *(one as *mut u64) };
                assert_eq!(
                    (std::mem::replace(word, 7), one % PAGE_BYTES, other - one),
                    (0, 0, 3 * PAGE_BYTES)
                );
                let (own, foreign) = (process::current(), process::host("h").start("p"));
                let reach = |of, from| with(|world| world.arena.reach(of, from, 9000));
                assert_eq!([reach(own, one), reach(own, one + 4990), reach(own, one + 5000)], [5000, 10, 0]);
                assert_eq!((reach(foreign, one), reach(own, one - 1), reach(own, other)), (0, 0, 1));
                free(one);
                assert_eq!((reach(own, one), reach(own, other)), (0, 1));
                assert!(allocate(1).unwrap() > other && allocate(usize::MAX).is_none());
                seen.push(one);
            })
            .check();
        }
        assert_eq!(seen[0], seen[1]);
    }

    #[test]
    fn only_touched_pages_are_told() {
        run(1, Options::default(), || {
            let (bytes, page) = (9 * PAGE_BYTES - 5, PAGE_BYTES);
            let at = allocate(bytes as usize).unwrap();
            for offset in [page, 2 * page + 7, bytes - 1] {
                // SAFETY: given just now, and the offset lies in it.
                unsafe { *((at + offset) as *mut u8) = 1 };
            }
            assert_eq!(touched(at, bytes), [page..3 * page, 8 * page..bytes]);
        })
        .check();
    }

    #[test]
    fn shared_memory_is_at_one_address_for_all_that_have_its_descriptor() {
        run(1, Options::default(), || {
            let (fd, other) = (share(100).unwrap(), share(7).unwrap());
            let copy = fd.try_clone().unwrap();
            assert_eq!(shared(fd.as_fd()).unwrap(), shared(copy.as_fd()).unwrap());
            assert_ne!(shared(fd.as_fd()).unwrap(), shared(other.as_fd()).unwrap());
            let event = crate::eventfd::EventFd::new().unwrap();
            assert_eq!(shared(event.as_fd()).unwrap_err().raw_os_error(), Some(libc::EINVAL));
            assert_eq!(share(usize::MAX).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
        })
        .check();
    }
    #[test]
    fn a_process_that_may_have_no_more_memory_gets_enomem() {
        run(1, Options::default(), || {
            process::current().fail_mappings_after(Some(1));
            let fd = share(100).unwrap();
            let refused = [map(1).err(), share(1).err(), map_shared(fd.as_fd()).err()];
            assert!(refused.iter().flatten().all(|error| error.raw_os_error() == Some(libc::ENOMEM)));
            assert!(refused.iter().all(Option::is_some) && allocate(1).is_some());
            process::current().fail_mappings_after(None);
            assert_eq!(map_shared(fd.as_fd()).unwrap(), shared(fd.as_fd()).unwrap().0);
        })
        .check();
    }
}
