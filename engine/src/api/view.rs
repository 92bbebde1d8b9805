//! A checked view of allocated memory: a range of a `Memory` (memory.rs) whose bounds are checked once, with an error
//! in place of a panic. It copies, because peers may use the same bytes at any time.

use super::Memory;
use crate::status::{Error, Result, Status};
use std::fmt;
use std::ops::{Bound, RangeBounds};

/// A range of a [`Memory`], inside of it.
///
/// ```no_run
/// # fn view(memory: &ferry::Memory) -> ferry::status::Result<()> {
/// let page = memory.view(4096..8192)?; // INVALID if the memory ends before
/// page.view(..5)?.write(b"hello")?; // INVALID if the lengths differ
/// assert_eq!(page.view(..5)?.to_vec()?, b"hello");
/// let local = page.address(); // for a request of page.length() bytes
/// # Ok(()) }
/// ```
#[derive(Clone, Copy)]
pub struct MemoryView<'a> {
    memory: &'a Memory,
    offset: usize,
    length: usize,
}

impl fmt::Debug for MemoryView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryView { memory, offset, length } = self;
        f.debug_struct("MemoryView")
            .field("memory", memory)
            .field("offset", offset)
            .field("length", length)
            .finish()
    }
}

impl Memory {
    /// Returns a view of these bytes. INVALID if the range ends before it starts, or beyond the memory.
    pub fn view(&self, range: impl RangeBounds<usize>) -> Result<MemoryView<'_>> {
        MemoryView { memory: self, offset: 0, length: self.length() }.view(range)
    }
}

impl<'a> MemoryView<'a> {
    /// Returns a view of a part of this view. INVALID if the range ends before it starts, or beyond the view.
    pub fn view(&self, range: impl RangeBounds<usize>) -> Result<MemoryView<'a>> {
        // None: the bound lies beyond what a usize holds.
        let start = match range.start_bound() {
            Bound::Included(start) => Some(*start),
            Bound::Excluded(before) => before.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.checked_add(1),
            Bound::Excluded(end) => Some(*end),
            Bound::Unbounded => Some(self.length),
        };
        match (start, end) {
            (Some(start), Some(end)) if start <= end && end <= self.length => {
                Ok(MemoryView { memory: self.memory, offset: self.offset + start, length: end - start })
            }
            _ => Err(Error::invalid(format!(
                "range: {:?} to {:?} is no part of {} bytes",
                range.start_bound(),
                range.end_bound(),
                self.length
            ))),
        }
    }

    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the address of the first byte, for requests of at most `length` bytes.
    pub fn address(&self) -> u64 {
        self.memory.address() + self.offset as u64
    }

    /// Copies all bytes of the view out. Concurrent access as for [`Memory::read`]. INVALID if the lengths differ.
    pub fn read(&self, into: &mut [u8]) -> Result<()> {
        self.check(into.len(), "into")?;
        self.memory.read(self.offset, into);
        Ok(())
    }

    /// Copies bytes over the whole view. Concurrent access as for [`Memory::write`]. INVALID if the lengths differ.
    pub fn write(&self, from: &[u8]) -> Result<()> {
        self.check(from.len(), "from")?;
        self.memory.write(self.offset, from);
        Ok(())
    }

    /// Returns a copy of the bytes. NO_MEMORY if there is none for the copy.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let reserved = bytes.try_reserve_exact(self.length);
        reserved.map_err(|_| {
            Error::new(Status::NoMemory, format!("no memory for a copy of {} bytes", self.length))
        })?;
        bytes.resize(self.length, 0);
        self.memory.read(self.offset, &mut bytes);
        Ok(bytes)
    }

    fn check(&self, length: usize, what: &str) -> Result<()> {
        if length != self.length {
            return Err(Error::invalid(format!("{what} has {length} bytes, the view {}", self.length)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Engine, RegionOptions};

    fn memory(length: usize) -> Memory {
        let mut config = Config::default();
        config.set("listen_address", "").unwrap();
        Engine::open(config).unwrap().alloc(length, &RegionOptions::default()).unwrap()
    }

    #[test]
    fn a_view_has_the_bytes_of_its_range() {
        let memory = memory(64);
        memory.write(0, &std::array::from_fn::<u8, 64, _>(|at| at as u8));
        let view = memory.view(8..24).unwrap();
        assert_eq!((view.length(), view.address()), (16, memory.address() + 8));
        assert_eq!(view.to_vec().unwrap(), (8..24).collect::<Vec<u8>>());
        let inner = view.view(4..=7).unwrap();
        inner.write(&[90; 4]).unwrap();
        let mut whole = [0; 64];
        memory.view(..).unwrap().read(&mut whole).unwrap();
        let expected = std::array::from_fn(|at| if (12..16).contains(&at) { 90 } else { at as u8 });
        assert_eq!(whole, expected);
    }

    #[test]
    fn what_leaves_the_memory_is_an_error() {
        let memory = memory(64);
        let invalid = |result: Result<MemoryView<'_>>| result.err().unwrap().status == Status::Invalid;
        assert_eq!(memory.view(64..64).unwrap().length(), 0);
        assert_eq!(memory.view(..=63).unwrap().length(), 64);
        assert!(invalid(memory.view(..65)));
        assert!(invalid(memory.view(..=64)));
        assert!(invalid(memory.view(65..)));
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = 9..8;
        assert!(invalid(memory.view(reversed)));
        assert!(invalid(memory.view(..=usize::MAX)));
        let view = memory.view(32..).unwrap();
        assert!(invalid(view.view(..33)));
        assert_eq!(view.view(32..).unwrap().length(), 0);
        let error = view.read(&mut [0; 31]).unwrap_err();
        assert_eq!((error.status, &*error.message), (Status::Invalid, "into has 31 bytes, the view 32"));
        assert_eq!(view.write(&[0; 33]).unwrap_err().status, Status::Invalid);
        assert_eq!(memory.view(..).unwrap().to_vec().unwrap(), [0; 64]);
    }
}
