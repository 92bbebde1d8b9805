//! Memory of a child process, filled and checked by this process: one pattern and one check serve every reference and
//! every engine, in any language, and none checks itself.
//!
//! Uses `/proc/PID/mem`, which a parent may open even if `process_vm_*` is forbidden.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use anyhow::Context;
use ferry_bench::memory::Store;

/// The memory of another process from an address on.
pub struct ForeignMemory {
    memory: File,
    base: u64,
}

impl ForeignMemory {
    pub fn open(pid: u32, base: u64) -> anyhow::Result<ForeignMemory> {
        let path = format!("/proc/{pid}/mem");
        let memory = OpenOptions::new().read(true).write(true).open(&path);
        let memory = memory.with_context(|| format!("opening {path}, to check what arrived"))?;
        Ok(ForeignMemory { memory, base })
    }
}

impl Store for ForeignMemory {
    fn copy_in(&mut self, offset: usize, from: &[u8]) -> anyhow::Result<()> {
        let copied = self.memory.write_all_at(from, self.base + offset as u64);
        copied.context("reaching another process's memory")
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) -> anyhow::Result<()> {
        let copied = self.memory.read_exact_at(into, self.base + offset as u64);
        copied.context("reaching another process's memory")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_way_to_the_same_bytes() {
        let mut bytes = [1u8; 64];
        let base = bytes.as_mut_ptr() as u64;
        let mut memory = ForeignMemory::open(std::process::id(), base).expect("own memory");
        memory.copy_in(8, &[7; 8]).expect("mapped");
        let mut copy = [0; 16];
        memory.copy_out(0, &mut copy).expect("mapped");
        assert_eq!((&copy[..8], &copy[8..]), (&[1; 8][..], &[7; 8][..]));
        assert_eq!(std::hint::black_box(&mut bytes)[8], 7);
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let mut memory = ForeignMemory::open(std::process::id(), 0).expect("own memory");
        assert!(memory.copy_out(0, &mut [0; 8]).is_err());
        assert!(memory.copy_in(0, &[0; 8]).is_err());
    }
}
