//! Marks of rounds: integers in registered memory that the other end writes while this end polls.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicU8, Ordering};

use super::registered::Registered;

/// Returns the bytes of the mark at the end of a message of `bytes`: as many as one aligned load can take.
pub fn mark_bytes(bytes: usize) -> usize {
    let fits = [8, 4, 2, 1].into_iter().find(|&width| width <= bytes);
    fits.expect("a message has at least one byte")
}

/// Returns `round` cut to a mark of `width` bytes.
pub fn mark(round: u64, width: usize) -> u64 {
    if width == 8 {
        round
    } else {
        round & ((1 << (8 * width)) - 1)
    }
}

/// Returns the little-endian integer of `width` bytes at `offset`, which is aligned to `width`, as it is in memory
/// now.
pub fn look(memory: &Registered, offset: usize, width: usize) -> u64 {
    let area = memory.area();
    let end = offset.checked_add(width);
    assert!(end.is_some_and(|end| end <= area.bytes), "within the memory");
    let address = (area.address as usize + offset) as *mut u8;
    assert!((address as usize).is_multiple_of(width), "aligned to its width");
    // A device, the kernel, another process, or ferry's lane thread on their behalf writes here, outside the
    // language's memory model. The best protection is an atomic: one load of the machine, neither torn nor cached nor
    // moved before the poll that precedes it; Acquire keeps later reads behind it.
    // SAFETY: in bounds and aligned (checked above), in memory that `memory` keeps mapped for the length of this
    // borrow, in which no code of this program writes to it.
    let value = unsafe {
        match width {
            1 => AtomicU8::from_ptr(address).load(Ordering::Acquire).into(),
            2 => u16::from_le(AtomicU16::from_ptr(address.cast()).load(Ordering::Acquire)).into(),
            4 => u32::from_le(AtomicU32::from_ptr(address.cast()).load(Ordering::Acquire)).into(),
            _ => u64::from_le(AtomicU64::from_ptr(address.cast()).load(Ordering::Acquire)),
        }
    };
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_the_largest_word_that_fits() {
        assert_eq!([1, 2, 3, 4, 7, 8, 9, 4_096].map(mark_bytes), [1, 2, 2, 4, 4, 8, 8, 8]);
        assert_eq!([1, 2, 4, 8].map(|width| mark(0x1_0000_0102, width)), [2, 0x102, 0x102, 0x1_0000_0102]);
    }
}
