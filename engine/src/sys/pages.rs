//! Knows the pages that an access would not wait for: a thread of the program touches no other pages for a transfer. A
//! page that was seen lately is believed to be there, because asking the kernel costs as much as a small copy. So a
//! page that went away within `BELIEF_NS` is still waited for.

use super::atomic::{AtomicU64, Ordering};
use super::memory::page_bytes;
use super::once::OnceLock;
use super::pagemap::Pagemap;
use crate::types::Monotonic;
use std::fs::File;
use std::ops::Range;

const BELIEF_NS: u64 = 16_000_000;
/// Pages that are remembered, by the low bits of their numbers: 16 MiB of small ones.
const REMEMBERED: usize = 4096;
/// For a range of more pages the kernel is asked each time: the range takes longer to copy, and its pages would
/// displace the others.
const SMALL_PAGES: u64 = 32;
/// The pages of one question when an access continues from the page before.
const AHEAD: u64 = 256;
/// Bits of an entry for the time, in units of 2^20 ns; the others are the page's number.
const TIME_BITS: u32 = 24;
/// The most questions to the kernel for one piece. More would cost as much as leaving the piece to another thread.
pub const LOOKS_MAX: u32 = 4;

/// The pages of one process.
pub struct Pages {
    map: Pagemap,
    page_bytes: u64,
    /// Allocated with the first page: most peers have only mapped memory.
    seen: OnceLock<Box<[AtomicU64]>>,
    maps: OnceLock<Option<File>>,
}

impl Pages {
    /// `pid`: of another process; None for this one.
    pub fn of(pid: Option<i32>) -> Pages {
        Pages {
            map: Pagemap::of(pid),
            page_bytes: page_bytes() as u64,
            seen: OnceLock::new(),
            maps: OnceLock::new(),
        }
    }

    fn numbers(&self, address: u64, length: u64) -> Range<u64> {
        address / self.page_bytes..address.saturating_add(length).div_ceil(self.page_bytes)
    }

    /// Notes that a copy found the pages of the range present at this time.
    pub fn note(&self, address: u64, length: u64, now_ns: Monotonic) {
        let numbers = self.numbers(address, length);
        if numbers.end - numbers.start <= SMALL_PAGES {
            self.remember(numbers, now_ns);
        }
    }

    fn remember(&self, numbers: Range<u64>, now_ns: Monotonic) {
        let (seen, now_ns) = (self.seen(), now_ns.ns());
        numbers.for_each(|page| slot(seen, page).store(entry(page, now_ns), Ordering::Relaxed));
    }

    /// Returns whether a copy would wait for no page of the range, as far as the kernel tells. Each question to the
    /// kernel takes one of `looks`; false when none is left.
    pub fn has(&self, address: u64, length: u64, now_ns: Monotonic, looks: &mut u32) -> bool {
        let numbers = self.numbers(address, length);
        let (count, seen) = (numbers.end - numbers.start, self.seen());
        let believed = |page: u64| is_believed(slot(seen, page), page, now_ns.ns());
        let is_small = count <= SMALL_PAGES;
        if is_small && numbers.clone().all(believed) {
            return true;
        }
        let Some(left) = looks.checked_sub(1) else { return false };
        *looks = left;
        let goes_on = is_small && believed(numbers.start.wrapping_sub(1));
        let Some(there) = self.map.count(numbers.start, if goes_on { AHEAD } else { count }) else {
            return true; // a kernel that does not tell leaves no choice
        };
        if is_small {
            self.remember(numbers.start..numbers.start + there, now_ns);
        }
        there >= count
    }

    /// Returns whether the byte at this address is there now. None if the kernel does not tell.
    pub fn is_there(&self, address: u64) -> Option<bool> {
        self.map.has(address, 1)
    }

    /// Returns whether two addresses are in one page.
    pub fn are_one(&self, one: u64, other: u64) -> bool {
        one / self.page_bytes == other / self.page_bytes
    }

    /// Returns the list of this process's mappings; None if it can't be opened.
    pub fn maps(&self) -> Option<&File> {
        self.maps.get_or_init(|| File::open("/proc/self/maps").ok()).as_ref()
    }

    fn seen(&self) -> &[AtomicU64] {
        self.seen.get_or_init(|| (0..REMEMBERED).map(|_| AtomicU64::new(0)).collect())
    }
}

fn slot(seen: &[AtomicU64], page: u64) -> &AtomicU64 {
    &seen[page as usize % REMEMBERED]
}

fn is_believed(slot: &AtomicU64, page: u64, now_ns: u64) -> bool {
    let (seen, now) = (slot.load(Ordering::Relaxed), entry(page, now_ns));
    seen >> TIME_BITS == now >> TIME_BITS && now.wrapping_sub(seen) & TIME <= BELIEF_NS >> 20
}

const TIME: u64 = (1 << TIME_BITS) - 1;

fn entry(page: u64, now_ns: u64) -> u64 {
    page << TIME_BITS | (now_ns >> 20 & TIME)
}

#[cfg(all(test, not(feature = "sim")))]
mod tests {
    use super::*;
    use crate::sys::mapping::Mapping;

    #[test]
    fn a_page_is_believed_to_be_there_for_a_while_and_no_longer() {
        let (pages, page) = (Pages::of(None), page_bytes());
        let memory = Mapping::private(64 * page).unwrap();
        let (at, ms) = (memory.address() as u64, |ms: u64| Monotonic::from_ns(ms << 20));
        let go = || {
            // SAFETY: this mapping, to which no reference exists. Its pages go.
            assert_eq!(unsafe { libc::madvise(memory.address().cast(), 64 * page, libc::MADV_DONTNEED) }, 0);
        };
        let has =
            |length: usize, at_ms: u64, mut looks: u32| pages.has(at, length as u64, ms(at_ms), &mut looks);
        go();
        assert!(!has(1, 100, LOOKS_MAX));
        (0..64).for_each(|nth| memory.write(nth * page, &[1]));
        assert!(!has(page, 100, 0), "nothing is known, and nobody may be asked");
        assert!(has(page, 100, 1) && has(page, 115, 0) && !has(2 * page, 100, 0));
        go();
        assert!(has(page, 115, LOOKS_MAX), "it is believed");
        assert!(!has(page, 116, LOOKS_MAX) && !has(page, 99, LOOKS_MAX));
        // A copy renews the belief in its pages, except for a range that would displace all others.
        pages.note(at, page as u64, ms(130));
        assert!(has(page, 140, 0));
        pages.note(at, 64 * page as u64, ms(200));
        assert!(!has(page, 200, 0));
        // Another page with the same slot is not taken for that page.
        assert!(!pages.has(at + (REMEMBERED * page) as u64, 1, ms(140), &mut 0));
        let mut looks = LOOKS_MAX;
        assert!(!pages.has(at, 64 * page as u64, ms(300), &mut looks));
        assert_eq!(looks, LOOKS_MAX - 1);
    }

    #[test]
    fn a_walk_asks_for_the_pages_ahead() {
        let (pages, page) = (Pages::of(None), page_bytes());
        let memory = Mapping::private(64 * page).unwrap();
        (0..64).filter(|nth| *nth != 50).for_each(|nth| memory.write(nth * page, &[1]));
        let now = Monotonic::from_ns(100 << 20);
        let has = |nth: usize, mut looks: u32| {
            pages.has((memory.address() as usize + nth * page) as u64, page as u64, now, &mut looks)
        };
        assert!(has(3, 1) && !has(4, 0), "the first question is about its own page");
        assert!(has(4, 1) && (5..50).all(|nth| has(nth, 0)));
        assert!(!has(50, 1) && !has(51, 0), "what is not there ends it");
    }
}
