//! `process_vm_writev` and `process_vm_readv`: the kernel copies between two address spaces.

use std::io;

use ferry::sys::socket::IoVec;
use ferry::sys::vm;

use super::{Kind, Mover, Place, Scratch};
use crate::memory::Memory;
use crate::walk::Walk;
use crate::workload::Operation;

pub struct Vm {
    pid: i32,
    address: u64,
}

impl Mover for Vm {
    const NAME: &'static str = "raw process_vm";
    const KIND: Kind = Kind::Own;
    /// Buffers of each side in one call.
    const SETTINGS: &'static [usize] = &[64, 16, 1_024];

    fn reach(pid: u32, place: Place, _bytes: usize) -> io::Result<Vm> {
        Ok(Vm { pid: pid as i32, address: place.address })
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
        for (own, other) in walk.offsets(number) {
            here.push(IoVec::new(memory.address() as u64 + own as u64, bytes));
            there.push(IoVec::new(self.address + other as u64, bytes));
        }
        for (here, there) in here.chunks(setting).zip(there.chunks(setting)) {
            // SAFETY: `here` lies in our own memory, which a walk stays within and which outlives the run; no
            // reference to its bytes exists meanwhile. The kernel checks the target's addresses.
            let moved = unsafe {
                match walk.workload().operation {
                    Operation::Write => vm::write(self.pid, here, there),
                    Operation::Read => vm::read(self.pid, here, there),
                }
            }?;
            if moved != here.len() * bytes {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the kernel copied only a part"));
            }
        }
        Ok(())
    }

    fn describe(setting: usize) -> String {
        format!("{setting} blocks a call")
    }
}
