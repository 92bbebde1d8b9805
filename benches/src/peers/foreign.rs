//! Memory of an agent, filled and checked by this process: one pattern and one check serve every engine, in any
//! language, and no engine checks itself.
//!
//! Uses `/proc/PID/mem`, which a parent may open even if `process_vm_*` is forbidden.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

use anyhow::Context;

use crate::memory::Store;

/// A range of another process's memory. Keeps failures, because `Store` has no errors: a caller must check `intact`
/// after copying.
pub struct ForeignMemory {
    memory: File,
    base: u64,
    failure: Mutex<Option<io::Error>>,
}

impl ForeignMemory {
    pub fn open(pid: u32, base: u64) -> anyhow::Result<ForeignMemory> {
        let path = format!("/proc/{pid}/mem");
        let memory = OpenOptions::new().read(true).write(true).open(&path);
        let memory = memory.with_context(|| format!("opening {path}, to check what arrived"))?;
        Ok(ForeignMemory { memory, base, failure: Mutex::new(None) })
    }

    /// Returns the same process's memory from another base on.
    pub fn at(&self, base: u64) -> anyhow::Result<ForeignMemory> {
        Ok(ForeignMemory { memory: self.memory.try_clone()?, base, failure: Mutex::new(None) })
    }

    /// Fails if any byte could not be copied since the last call.
    pub fn intact(&self) -> anyhow::Result<()> {
        let failure = self.failure.lock().expect("no holder of this lock panics").take();
        failure.map_or(Ok(()), |error| Err(error).context("reaching an agent's memory"))
    }

    fn note(&self, result: io::Result<()>) {
        if let Err(error) = result {
            self.failure.lock().expect("no holder of this lock panics").get_or_insert(error);
        }
    }
}

impl Store for ForeignMemory {
    fn copy_in(&mut self, offset: usize, from: &[u8]) {
        self.note(self.memory.write_all_at(from, self.base + offset as u64));
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        self.note(self.memory.read_exact_at(into, self.base + offset as u64));
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
        memory.copy_in(8, &[7; 8]);
        let mut copy = [0; 16];
        memory.copy_out(0, &mut copy);
        memory.intact().expect("mapped");
        assert_eq!((&copy[..8], &copy[8..]), (&[1; 8][..], &[7; 8][..]));
        assert_eq!(std::hint::black_box(&mut bytes)[8], 7);
    }

    #[test]
    fn memory_that_is_not_there_is_an_error_once() {
        let memory = ForeignMemory::open(std::process::id(), 0).expect("own memory");
        memory.copy_out(0, &mut [0; 8]);
        assert!(memory.intact().is_err());
        assert!(memory.intact().is_ok());
    }
}
