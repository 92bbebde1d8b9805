//! Registered memory. Programs name ranges of real memory; whoever reads or writes memory in the kernel's place says so
//! here, and the observer of the run hears of each access that touches a range.

use crate::device;
use crate::pages;
use crate::process::ProcessId;
use crate::world::{with, World};

/// One access to a part of one range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    pub ns: u64,
    /// The process whose memory it is.
    pub process: ProcessId,
    /// The label that `register` was given.
    pub label: u64,
    /// Where the access begins, from the start of the range, and how long it is.
    pub offset: u64,
    pub length: u64,
    pub write: bool,
    /// The cause of the access, such as "receive".
    pub by: &'static str,
    /// The process for which it was made.
    pub actor: ProcessId,
}

pub type Observer = Box<dyn FnMut(&Access)>;

/// A range that is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeId(u64);

struct Range {
    id: u64,
    process: ProcessId,
    label: u64,
    address: u64,
    length: u64,
    /// The address space of the process that has it.
    space: u32,
}

pub(crate) struct Memory {
    ranges: Vec<Range>,
    ranges_made: u64,
    observer: Option<Observer>,
    /// Accesses that the observer has yet to see.
    made: Vec<Access>,
}

impl Memory {
    pub fn new(observer: Option<Observer>) -> Memory {
        Memory { ranges: Vec::new(), ranges_made: 0, observer, made: Vec::new() }
    }

    /// Returns how many bytes from `address` on, at most `length`, lie in one range of the process.
    pub fn reach(&self, process: ProcessId, address: u64, length: u64) -> u64 {
        let own = self.ranges.iter().filter(|it| it.process == process && it.address <= address);
        own.map(|it| (it.address + it.length).saturating_sub(address).min(length)).max().unwrap_or(0)
    }

    /// True if a process has registered this address in another address space than that.
    pub fn is_of_another_space(&self, process: ProcessId, address: u64, space: u32) -> bool {
        let has =
            |it: &&Range| it.process == process && (it.address..it.address + it.length).contains(&address);
        self.ranges.iter().find(has).is_some_and(|range| range.space != space)
    }
}

/// Registers a range of memory of a process under a label. Ranges may overlap: an access is told for each.
pub fn register(process: ProcessId, label: u64, address: u64, length: u64) -> RangeId {
    with(|world| {
        world.memory.ranges_made += 1;
        let id = world.memory.ranges_made;
        let space = world.process(process).space;
        world.memory.ranges.push(Range { id, process, label, address, length, space });
        world.note("register", &[process.0.into(), label, length], |world| {
            format!("registers {length} bytes of {} as {label}", world.processes[process.0 as usize].name)
        });
        RangeId(id)
    })
}

/// Forgets a range. The memory of a killed process stays registered, so that late accesses to it are seen.
pub fn unregister(range: RangeId) {
    with(|world| {
        let Some(at) = world.memory.ranges.iter().position(|known| known.id == range.0) else { return };
        let gone = world.memory.ranges.swap_remove(at);
        world.note("unregister", &[gone.process.0.into(), gone.label], |world| {
            format!("unregisters {} of {}", gone.label, world.processes[gone.process.0 as usize].name)
        });
    });
}

/// Tells that `length` bytes from `address` on, of memory of `process`, are read or written now for the running task.
pub fn accessed(process: ProcessId, address: u64, length: u64, write: bool, by: &'static str) {
    with(|world| world.touch(world.here(), process, address, length, write, by));
    tell();
}

/// Like `accessed`, for another process than that of the running task.
pub fn accessed_for(
    actor: ProcessId,
    process: ProcessId,
    address: u64,
    length: u64,
    write: bool,
    by: &'static str,
) {
    with(|world| world.touch(actor, process, address, length, write, by));
    tell();
}

/// Waits for the late pages of a range as the kernel does in a copy. False if one of its pages is missing: EFAULT.
pub fn is_reachable(address: u64, length: usize, write: bool) -> bool {
    loop {
        match pages::reach(address, length, write) {
            Ok(count) if count == length => return true,
            // Others run while it waits for the next page, so the first ones are looked at again.
            Ok(count) if pages::reach(address + count as u64, 1, write).is_ok() => {}
            _ => return false,
        }
    }
}

/// Copies for the running task, as one step. The observer hears of the accesses to every process's ranges.
///
/// # Safety
/// `length` bytes are readable from `from` on and writable from `to` on, and they do not overlap.
pub unsafe fn copied(from: *const u8, to: *mut u8, length: usize, by: &'static str) {
    if with(|world| world.has_holes()) {
        pages::touch(from as u64, length, false, by);
        pages::touch(to as u64, length, true, by);
    }
    with(|world| {
        let here = world.here();
        for (address, write) in [(from as u64, false), (to as u64, true)] {
            if device::has(address) {
                world.fail(format!("a processor touches memory of a device ({by})"));
            }
            world.touch_of(None, here, address, length as u64, write, by);
        }
        // SAFETY: the caller's promise. One thread runs all tasks, so nobody writes meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(from, to, length) };
    });
    tell();
}

/// Passes the accesses that were made to the observer, which looks while nothing switches. True if there were any.
pub(crate) fn tell() -> bool {
    let told = with(|world| {
        let memory = &mut world.memory;
        if memory.made.is_empty() {
            return None;
        }
        let made = std::mem::take(&mut memory.made);
        // The observer is taken out while it looks: the next `tell` passes on the accesses that it causes itself.
        memory.observer.take().map(|observer| {
            world.no_switch += 1;
            (made, observer)
        })
    });
    let Some((made, mut observer)) = told else { return false };
    made.iter().for_each(&mut observer);
    with(|world| {
        world.no_switch -= 1;
        world.memory.observer = Some(observer);
    });
    true
}

impl World {
    /// Records an access to memory of `process` for `actor`, and keeps it for `tell`.
    pub(crate) fn touch(
        &mut self,
        actor: ProcessId,
        process: ProcessId,
        address: u64,
        length: u64,
        write: bool,
        by: &'static str,
    ) {
        self.touch_of(Some(process), actor, address, length, write, by);
    }

    /// Like `touch`; without a process, for the ranges of all of them.
    pub(crate) fn touch_of(
        &mut self,
        process: Option<ProcessId>,
        actor: ProcessId,
        address: u64,
        length: u64,
        write: bool,
        by: &'static str,
    ) {
        let end = address.saturating_add(length);
        for at in 0..self.memory.ranges.len() {
            let range = &self.memory.ranges[at];
            let (from, to) = (address.max(range.address), end.min(range.address + range.length));
            if process.is_some_and(|process| process != range.process) || from >= to {
                continue;
            }
            let process = range.process;
            let (label, offset, length) = (range.label, from - range.address, to - from);
            let access = Access { ns: self.now, process, label, offset, length, write, by, actor };
            self.note_access(&access);
            if self.memory.observer.is_some() || self.no_switch > 0 {
                self.memory.made.push(access);
            }
        }
    }

    /// Reads memory of a process for the kernel.
    pub(crate) fn read_memory(
        &mut self,
        process: ProcessId,
        address: u64,
        length: usize,
        by: &'static str,
    ) -> Vec<u8> {
        self.touch(process, process, address, length as u64, false, by);
        read(address, length)
    }

    /// Writes memory of a process for the kernel.
    pub(crate) fn write_memory(&mut self, process: ProcessId, address: u64, bytes: &[u8], by: &'static str) {
        self.touch(process, process, address, bytes.len() as u64, true, by);
        write(address, bytes);
    }

    fn note_access(&mut self, access: &Access) {
        let Access { process, label, offset, length, write, by, actor, .. } = *access;
        let numbers = [process.0.into(), label, offset, length, u64::from(write), actor.0.into()];
        self.note("access", &numbers, |world| {
            let [process, actor] = [process, actor].map(|id| &world.processes[id.0 as usize].name);
            let verb = if write { "writes" } else { "reads" };
            format!("{verb} {length} bytes at {offset} of range {label} of {process} ({by}, for {actor})")
        });
    }
}

/// Reads for a caller of the kernel, who has vouched for `length` readable bytes until its call, or its zero-copy send,
/// is over.
pub(crate) fn read(address: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    // SAFETY: the caller of the kernel has vouched for the bytes. One thread runs all tasks, so nobody writes
    // meanwhile.
    unsafe { std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), length) };
    bytes
}

/// Writes for a caller of the kernel, who has vouched for as many writable bytes until its call is over.
pub(crate) fn write(address: u64, bytes: &[u8]) {
    // SAFETY: as in `read`.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
}
