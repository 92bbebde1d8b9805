//! Copies between the memory of two processes of one host (`process_vm_readv`). A copy takes time: it goes piece by
//! piece, others run between two pieces, and the end of the other process ends it.

use crate::arena;
use crate::device;
use crate::fd::errno;
use crate::memory;
use crate::net::{Cursor, IoVec};
use crate::process::ProcessId;
use crate::world::{point, with, World};
use std::io;

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

    fn copy_piece(&mut self, from: (ProcessId, u64), to: (ProcessId, u64), length: usize) {
        let here = self.here();
        self.touch(here, from.0, from.1, length as u64, false, "copy");
        self.touch(here, to.0, to.1, length as u64, true, "copy");
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

/// Returns how many bytes were copied. Fewer than all if the other process's memory is neither registered there nor of
/// the arena (see `Options::strict_copies`), memory is a device's, or the process ends meanwhile. ESRCH: no such
/// process; EFAULT: no byte could be copied.
fn copy(pid: i32, local: &[IoVec], remote: &[IoVec], write: bool) -> io::Result<usize> {
    point();
    let (here, there) = with(|world| {
        let here = world.here();
        let host = world.process(here).host;
        let found = world.processes.iter().position(|it| it.alive && it.host == host && it.pid as i32 == pid);
        found.map_or_else(|| errno(libc::ESRCH), |at| Ok((here, ProcessId(at as u32))))
    })?;
    let (mut near, mut far) = (Cursor::new(local), Cursor::new(remote));
    let wanted = near.left().min(far.left());
    let mut done = 0;
    while done < wanted {
        if done > 0 {
            point();
        }
        let count = with(|world| {
            if !world.process(there).alive {
                return 0;
            }
            let most = world.piece_bytes().min(wanted - done);
            let mut count = 0;
            while let (Some(own), Some(other)) = (near.peek(), far.peek()) {
                let length = own.length.min(other.length).min(most - count);
                let length = world.reach(there, other.address, length as u64) as usize;
                if length == 0 || device::has(own.address) {
                    break;
                }
                match write {
                    true => world.copy_piece((here, own.address), (there, other.address), length),
                    false => world.copy_piece((there, other.address), (here, own.address), length),
                }
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
