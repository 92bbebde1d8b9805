//! Pages that fail those that touch them: pages that are not there, as behind the end of a truncated file; pages that
//! cannot be written; and pages that come late, as from a swap device that hangs or a userfaultfd that nobody answers.
//! A call of the kernel that touches memory asks here first. A late page holds the task in its call, and a missing one
//! ends the call: with EFAULT, or with what came before the page. A processor that touches a missing page itself is
//! killed: SIGSEGV or SIGBUS, which fails the run.

use crate::fd::errno;
use crate::moment;
use crate::take_where;
use crate::wait::{block_until, ticket, Ticket};
use crate::world::{with, World};
use std::io;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    Missing,
    /// As memory of a file that was mapped for reading alone.
    ReadOnly,
    /// Whoever touches it waits until it is mended.
    Late,
}

pub(crate) struct Hole {
    from: u64,
    to: u64,
    page: Page,
    waiting: Vec<Ticket>,
}

/// The state of the pages at the beginning of a range.
pub(crate) enum Found {
    /// So many bytes, at least one, are as they should be.
    Bytes(usize),
    Fault,
    Late,
}

impl World {
    /// Looks at the pages of a range that a call is about to touch.
    pub(crate) fn find_pages(&self, address: u64, length: usize, write: bool) -> Found {
        let end = address + length as u64;
        let harms =
            |hole: &&Hole| hole.from < end && address < hole.to && (hole.page != Page::ReadOnly || write);
        let Some(first) = self.holes.iter().filter(harms).min_by_key(|hole| hole.from) else {
            return Found::Bytes(length);
        };
        match first.page {
            _ if first.from > address => Found::Bytes((first.from - address) as usize),
            Page::Late => Found::Late,
            Page::Missing | Page::ReadOnly => Found::Fault,
        }
    }

    pub(crate) fn has_holes(&self) -> bool {
        !self.holes.is_empty()
    }
}

/// Returns how many bytes of a range a call may touch. Waits for a page that comes late. EFAULT if there is none.
pub(crate) fn reach(address: u64, length: usize, write: bool) -> io::Result<usize> {
    loop {
        match with(|world| world.find_pages(address, length, write)) {
            Found::Bytes(count) => return Ok(count),
            Found::Fault => {
                with(|world| {
                    world.moment(moment::MISSING_PAGE);
                    world.note("no page", &[address], |_| "touches a page that is not there: EFAULT".into());
                });
                return errno(libc::EFAULT);
            }
            Found::Late => wait(address),
        }
    }
}

/// Waits until the page at this address is mended.
fn wait(address: u64) {
    let own = ticket();
    with(|world| {
        world.moment(moment::LATE_PAGE);
        world.note("late page", &[address], |_| "waits for a page".into());
        let name = world.tasks[world.current].name.clone();
        if world.options.impatient.contains(&&*name) {
            world.fail(format!("{name} waits for a page"));
        }
        if let Some(hole) = world.holes.iter_mut().find(|it| (it.from..it.to).contains(&address)) {
            hole.waiting.push(own);
        }
    });
    block_until("a page", None);
}

/// Waits for late pages that a processor touches. A missing one fails the run.
pub(crate) fn touch(address: u64, length: usize, write: bool, by: &'static str) {
    let mut done = 0;
    while done < length {
        match with(|world| world.find_pages(address + done as u64, length - done, write)) {
            Found::Bytes(count) => done += count,
            Found::Late => wait(address + done as u64),
            Found::Fault => {
                return with(|world| {
                    let name = world.processes[world.here().0 as usize].name.clone();
                    world.fail(format!(
                        "a processor of {name} touches a page that is not there ({by}): SIGSEGV"
                    ));
                });
            }
        }
    }
}

/// Returns whether a call would find all pages of a range at once.
pub fn are_there(address: u64, length: u64) -> bool {
    let found = with(|world| world.find_pages(address, length as usize, false));
    matches!(found, Found::Bytes(count) if count as u64 >= length)
}

/// Breaks the pages from `address` on. Whoever the memory belongs to, its bytes stay as they are.
pub fn harm(address: u64, length: u64, page: Page) {
    with(|world| {
        world.note("harm", &[address, length, page as u64], |_| {
            format!("{length} bytes at {address:#x} become {page:?}")
        });
        world.holes.push(Hole { from: address, to: address + length, page, waiting: Vec::new() });
    });
}

/// Mends the pages that begin at `address`: what waits for them goes on.
pub fn mend(address: u64) {
    with(|world| {
        world.note("mend", &[address], |_| format!("the pages at {address:#x} are mended"));
        for hole in take_where(&mut world.holes, |hole| hole.from == address).collect::<Vec<_>>() {
            for ticket in hole.waiting {
                world.wake(ticket);
            }
        }
    });
}
