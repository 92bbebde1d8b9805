//! `process_vm_writev` and `process_vm_readv`: the kernel copies between two address spaces.

use std::io;

use super::wire::{Kind, Place};
use super::{Scratch, Way};
use crate::memory::Memory;
use crate::walk::Walk;
use crate::workload::Operation;

pub struct Vm {
    pid: libc::pid_t,
    address: u64,
}

impl Way for Vm {
    const NAME: &'static str = "raw process_vm";
    const KIND: Kind = Kind::Own;
    /// Buffers of each side in one call.
    const SETTINGS: &'static [usize] = &[64, 16, 1_024];

    fn reach(pid: u32, place: Place, _bytes: usize) -> io::Result<Vm> {
        Ok(Vm { pid: pid as libc::pid_t, address: place.address })
    }

    fn carry(
        &self,
        walk: &Walk,
        memory: &Memory,
        number: u64,
        setting: usize,
        scratch: &mut Scratch,
    ) -> io::Result<()> {
        let Scratch { here, there, .. } = scratch;
        here.clear();
        there.clear();
        let bytes = walk.workload().block_bytes;
        let remote = self.address as *mut u8;
        for (own, other) in walk.offsets(number) {
            // Never dereferenced here: addresses of this process and of the target's, for the kernel.
            push(here, memory.address().wrapping_add(own), bytes);
            push(there, remote.wrapping_add(other), bytes);
        }
        let calls = here.chunks(setting).zip(there.chunks(setting));
        calls.into_iter().try_for_each(|(here, there)| self.call(walk.workload().operation, here, there))
    }

    fn describe(setting: usize) -> String {
        format!("{setting} blocks a call")
    }
}

impl Vm {
    fn call(&self, operation: Operation, here: &[libc::iovec], there: &[libc::iovec]) -> io::Result<()> {
        let call = match operation {
            Operation::Write => libc::process_vm_writev,
            Operation::Read => libc::process_vm_readv,
        };
        let counts = (here.len() as libc::c_ulong, there.len() as libc::c_ulong);
        // SAFETY: `here` lies in our own memory, which a walk stays within and which outlives the run;
        // nobody has a reference to its bytes meanwhile. The kernel checks the target's addresses.
        let moved = unsafe { call(self.pid, here.as_ptr(), counts.0, there.as_ptr(), counts.1, 0) };
        let wanted: usize = here.iter().map(|piece| piece.iov_len).sum();
        match moved {
            -1 => Err(io::Error::last_os_error()),
            moved if moved as usize == wanted => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the kernel stopped in the middle")),
        }
    }
}

fn push(list: &mut Vec<libc::iovec>, base: *mut u8, bytes: usize) {
    list.push(libc::iovec { iov_base: base.cast(), iov_len: bytes });
}
