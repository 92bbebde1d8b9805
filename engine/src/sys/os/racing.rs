//! Copies from and to memory that others write or read at the same time: registered memory that ferry allocated, which
//! peers access at any time. No reference to such memory is formed, and each access is a relaxed atomic, so that
//! concurrent copies of this file are defined: each aligned eight bytes read are old or new. If the kernel, a device or
//! another process writes meanwhile, each byte is old or new. `guarded` has the copies for memory that may fault, and
//! `copy` those between mapped ranges, whose bytes are not looked at.

use std::sync::atomic::{AtomicU64, AtomicU8, Ordering::Relaxed};

#[cfg(test)]
pub use crate::sys::parts::for_each_part;
pub use crate::sys::parts::{try_each_part, Unread};

const WORD: usize = size_of::<u64>();
/// Words per loop iteration: enough to make a loop of atomics as fast as the cache.
const TURN: usize = 8;

/// Copies from shared memory.
///
/// # Safety
/// `into.len()` bytes from `from` on are mapped for reading until this returns, and `into` does not overlap them.
pub unsafe fn copy_out(from: *const u8, into: &mut [u8]) {
    let head = from.align_offset(WORD).min(into.len());
    let (first, rest) = into.split_at_mut(head);
    // SAFETY: the caller's promise, of the first bytes.
    unsafe { bytes_out(from, first) };
    let mut at = head;
    let mut turns = rest.chunks_exact_mut(TURN * WORD);
    for turn in turns.by_ref() {
        for (nth, bytes) in turn.chunks_exact_mut(WORD).enumerate() {
            // SAFETY: inside, by the caller's promise, and at a word's start.
            bytes.copy_from_slice(&unsafe { load(from.add(at + nth * WORD)) }.to_ne_bytes());
        }
        at += TURN * WORD;
    }
    let mut words = turns.into_remainder().chunks_exact_mut(WORD);
    for bytes in words.by_ref() {
        // SAFETY: as above.
        bytes.copy_from_slice(&unsafe { load(from.add(at)) }.to_ne_bytes());
        at += WORD;
    }
    // SAFETY: the caller's promise, of the last bytes.
    unsafe { bytes_out(from.add(at), words.into_remainder()) };
}

/// Copies to shared memory.
///
/// # Safety
/// `from.len()` bytes from `to` on are mapped for writing until this returns, and `from` does not overlap them.
pub unsafe fn copy_in(to: *mut u8, from: &[u8]) {
    let head = to.align_offset(WORD).min(from.len());
    let (first, rest) = from.split_at(head);
    // SAFETY: the caller's promise, of the first bytes.
    unsafe { bytes_in(to, first) };
    let mut at = head;
    let mut turns = rest.chunks_exact(TURN * WORD);
    for turn in turns.by_ref() {
        for (nth, bytes) in turn.chunks_exact(WORD).enumerate() {
            // SAFETY: inside, by the caller's promise, and at a word's start.
            unsafe { store(to.add(at + nth * WORD), bytes) };
        }
        at += TURN * WORD;
    }
    let mut words = turns.remainder().chunks_exact(WORD);
    for bytes in words.by_ref() {
        // SAFETY: as above.
        unsafe { store(to.add(at), bytes) };
        at += WORD;
    }
    // SAFETY: the caller's promise, of the last bytes.
    unsafe { bytes_in(to.add(at), words.remainder()) };
}

/// # Safety
/// A mapped, aligned word. A relaxed load of a word writes nothing, so the word may be read-only.
#[inline(always)]
unsafe fn load(from: *const u8) -> u64 {
    // SAFETY: the caller's promise; others in this process access it by atomics only, or the application answers for
    // them.
    unsafe { AtomicU64::from_ptr(from.cast_mut().cast()) }.load(Relaxed)
}

/// # Safety
/// A word that is mapped for writing, aligned; `bytes` has the length of a word.
#[inline(always)]
unsafe fn store(to: *mut u8, bytes: &[u8]) {
    let word = u64::from_ne_bytes(std::array::from_fn(|at| bytes[at]));
    // SAFETY: as in `load`.
    unsafe { AtomicU64::from_ptr(to.cast()) }.store(word, Relaxed);
}

/// # Safety
/// As for `copy_out`.
unsafe fn bytes_out(from: *const u8, into: &mut [u8]) {
    for (at, byte) in into.iter_mut().enumerate() {
        // SAFETY: as in `load`.
        *byte = unsafe { AtomicU8::from_ptr(from.add(at).cast_mut()) }.load(Relaxed);
    }
}

/// # Safety
/// As for `copy_in`.
unsafe fn bytes_in(to: *mut u8, from: &[u8]) {
    for (at, byte) in from.iter().enumerate() {
        // SAFETY: as in `load`.
        unsafe { AtomicU8::from_ptr(to.add(at)) }.store(*byte, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mapping::Mapping;
    use crate::sys::parts::PART_BYTES;
    use std::sync::atomic::AtomicBool;

    fn pattern(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at ^ at >> 8 ^ 0x5a) as u8).collect()
    }

    /// Tries every alignment, and every length around words, turns and parts.
    #[test]
    fn all_bytes_are_copied_and_no_others() {
        const AROUND: usize = 16;
        let lengths: Vec<usize> =
            (0..140).chain(PART_BYTES - 9..PART_BYTES + 9).chain([3 * PART_BYTES + 5]).collect();
        for length in lengths {
            for offset in 0..WORD {
                let from = pattern(length);
                let mut memory = vec![0xee; length + 2 * AROUND];
                let at = memory.as_mut_ptr().wrapping_add(AROUND + offset);
                let what = format!("{length} bytes at {offset}");
                // SAFETY: inside the vector, which nobody else names meanwhile.
                let (out, parts) = unsafe {
                    copy_in(at, &from);
                    let (mut out, mut parts) = (vec![0; length], Vec::new());
                    copy_out(at, &mut out);
                    for_each_part(at, length, |part| parts.extend_from_slice(part));
                    (out, parts)
                };
                assert!(out == from && parts == from, "{what}");
                let (before, after) = (&memory[..AROUND + offset], &memory[AROUND + offset + length..]);
                assert!(before.iter().chain(after).all(|byte| *byte == 0xee), "{what}");
                assert_eq!(memory[AROUND + offset..][..length], from, "{what}");
            }
        }
    }

    /// Words are read and written as a whole while another thread does the same.
    #[test]
    fn a_word_that_is_written_meanwhile_is_old_or_new() {
        const WORDS: usize = 1024;
        let memory = Mapping::private(WORDS * WORD).unwrap();
        let [old, new] = [[0x11u8; WORDS * WORD], [0xeeu8; WORDS * WORD]];
        memory.write(0, &old);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..2000 {
                    memory.write(0, if round % 2 == 0 { &new } else { &old });
                }
                over.store(true, std::sync::atomic::Ordering::SeqCst);
            });
            let mut seen = vec![0; WORDS * WORD];
            while !over.load(std::sync::atomic::Ordering::SeqCst) {
                memory.read(0, &mut seen);
                assert!(seen.chunks_exact(WORD).all(|word| word == &old[..WORD] || word == &new[..WORD]));
            }
        });
    }
}
