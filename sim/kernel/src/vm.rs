//! Copies between the memory of two processes of one host (`process_vm_readv`). A copy takes time: it goes piece by
//! piece, others run between two pieces, and the end of the other process ends the copy. A call uses the address space
//! that the other process has when the call begins. If that process has run exec since its memory was registered,
//! another program's memory is there: a copy from it reads filler bytes, and a copy into it fails the run.

use crate::arena;
use crate::device;
use crate::fd::errno;
use crate::memory;
use crate::moment;
use crate::net::{Cursor, IoVec};
use crate::pages;
use crate::process::{self, CopyEnd, ProcessId};
use crate::world::{point, with, World};
use std::io;

/// The byte that fills another program's memory.
const FOREIGN: u8 = 0x5c;

impl World {
    /// Returns how many bytes from `address` on, at most `length`, a copy finds in the memory of a process.
    fn reach(&self, process: ProcessId, address: u64, length: u64) -> u64 {
        if device::has(address) {
            return 0;
        }
        let registered = self.memory.reach(process, address, length);
        let unknown = if self.options.strict_copies || arena::HOSTS.has(address) { 0 } else { length };
        registered.max(self.arena.reach(process, address, length)).max(unknown)
    }

    /// `space`: the address space of the other process that the call has.
    fn copy_piece(
        &mut self,
        near: (ProcessId, u64),
        far: (ProcessId, u64),
        space: u32,
        length: usize,
        write: bool,
    ) {
        let here = self.here();
        let (from, to) = if write { (near, far) } else { (far, near) };
        let is_kept = self.process(far.0).space != space;
        if !is_kept && self.memory.is_of_another_space(far.0, far.1, space) {
            self.moment(moment::FOREIGN_PROGRAM);
            if write {
                let name = self.process(far.0).name.clone();
                return self.fail(format!("a copy writes into the program that {name} runs since its exec"));
            }
            self.touch(here, to.0, to.1, length as u64, true, "copy");
            return memory::write(to.1, &vec![FOREIGN; length]);
        }
        if !is_kept || write {
            self.touch(here, from.0, from.1, length as u64, false, "copy");
        }
        if !is_kept || !write {
            self.touch(here, to.0, to.1, length as u64, true, "copy");
        }
        memory::write(to.1, &memory::read(from.1, length));
    }
}

/// Copies from local vectors to remote ones, of the process of this host with this pid.
///
/// # Safety
/// Each local vector is readable memory until the call returns.
pub unsafe fn write(pid: i32, local: &[IoVec], remote: &[IoVec]) -> io::Result<usize> {
    copy(pid, local, remote, true)
}

/// Copies from remote vectors to local ones.
///
/// # Safety
/// Each local vector is writable memory that nothing refers to until the call returns.
pub unsafe fn read(pid: i32, local: &[IoVec], remote: &[IoVec]) -> io::Result<usize> {
    copy(pid, local, remote, false)
}

/// Returns how many bytes the pages of the next vectors allow, at both ends. Waits for a page that is late.
fn reach(near: &mut Cursor, far: &mut Cursor, write: bool) -> io::Result<usize> {
    match (near.peek(), far.peek()) {
        (Some(own), Some(other)) if with(|world| world.has_holes()) => {
            let length = own.length.min(other.length);
            let own = pages::reach(own.address, length, !write)?;
            Ok(own.min(pages::reach(other.address, length, write)?))
        }
        _ => Ok(usize::MAX),
    }
}

/// Returns how many bytes were copied. Fewer than all if the other process's memory is neither registered there nor of
/// the arena (see `Options::strict_copies`), memory is a device's, or the process ends meanwhile. ESRCH: no such
/// process; EFAULT: no byte could be copied.
fn copy(pid: i32, local: &[IoVec], remote: &[IoVec], write: bool) -> io::Result<usize> {
    point();
    let find = || {
        with(|world| {
            let host = world.process(world.here()).host;
            let is_it = |it: &process::Process| it.alive && it.host == host && it.pid as i32 == pid;
            world.processes.iter().position(is_it).map(|at| ProcessId(at as u32))
        })
    };
    let Some(there) = find() else { return errno(libc::ESRCH) };
    process::at_copy(there, CopyEnd::Other);
    let (here, space) = with(|world| (world.here(), world.process(there).space));
    let (mut near, mut far) = (Cursor::new(local), Cursor::new(remote));
    let wanted = near.left().min(far.left());
    let mut done = 0;
    while done < wanted {
        if done > 0 {
            point();
        }
        let Ok(pages) = reach(&mut near, &mut far, write) else { break };
        let count = with(|world| {
            if !world.process(there).alive {
                return 0;
            }
            let most = world.piece_bytes().min(wanted - done).min(pages);
            let mut count = 0;
            while let (Some(own), Some(other)) = (near.peek(), far.peek()) {
                let length = own.length.min(other.length).min(most - count);
                let length = world.reach(there, other.address, length as u64) as usize;
                if length == 0 || device::has(own.address) {
                    break;
                }
                world.copy_piece((here, own.address), (there, other.address), space, length, write);
                near.take(length);
                far.take(length);
                count += length;
            }
            count
        });
        memory::tell();
        if count == 0 {
            break;
        }
        done += count;
        process::at_copy(here, CopyEnd::Caller);
    }
    with(|world| {
        world.note("copy", &[there.0.into(), write.into(), done as u64], |world| {
            let verb = if write { "to" } else { "from" };
            format!("copies {done} of {wanted} bytes {verb} {}", world.processes[there.0 as usize].name)
        });
    });
    if done == 0 && wanted > 0 {
        errno(libc::EFAULT)
    } else {
        Ok(done)
    }
}
