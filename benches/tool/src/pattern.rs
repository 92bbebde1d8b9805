//! Positional data: every 8 bytes encode the run that wrote them and their place.
//!
//! The 8 bytes at index `i` of a stream are `base(seed) + i × STEP`. STEP is odd, so no two positions have the same
//! value, and multiplying by its inverse finds the origin of a wrong value. Filling and checking are one addition per
//! value, which the compiler vectorises: they run at the speed of memory.

use std::fmt;

use crate::layout::mix;

/// 2^64 divided by the golden ratio: odd, and every byte of the word changes from one to the next.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
const WORD: usize = 8;
/// Bytes that are made and compared at once, in the cache.
const CHUNK: usize = 512;

/// The contents that one seed stands for.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    base: u64,
}

/// The first byte that differs from the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Position in the stream of the first wrong byte.
    pub position: u64,
    /// The aligned word around it, as far as it lies inside the checked bytes.
    pub expected: u64,
    pub found: u64,
    /// The place of the found value in this stream, if it belongs in the first 2^48 bytes.
    pub belongs_at: Option<u64>,
}

impl Pattern {
    pub fn new(seed: u64) -> Pattern {
        Pattern { base: mix(seed) }
    }

    fn word(self, index: u64) -> u64 {
        self.base.wrapping_add(index.wrapping_mul(STEP))
    }

    fn byte(self, position: u64) -> u8 {
        self.word(position / 8).to_le_bytes()[(position % 8) as usize]
    }

    /// Writes the stream's bytes `position ..` over all of `bytes`.
    pub fn fill(self, bytes: &mut [u8], position: u64) {
        let (head, words) = bytes.split_at_mut(head_bytes(position, bytes.len()));
        for (byte, at) in head.iter_mut().zip(position..) {
            *byte = self.byte(at);
        }
        let position = position + head.len() as u64;
        let mut word = self.word(position / 8);
        let mut chunks = words.chunks_exact_mut(WORD);
        for chunk in &mut chunks {
            chunk.copy_from_slice(&word.to_le_bytes());
            word = word.wrapping_add(STEP);
        }
        let tail = chunks.into_remainder();
        tail.copy_from_slice(&word.to_le_bytes()[..tail.len()]);
    }

    /// Compares `bytes` with the stream from `position` on; reports the first byte that differs.
    pub fn check(self, bytes: &[u8], position: u64) -> Result<(), Mismatch> {
        let mut expected = [0; CHUNK];
        for (found, at) in bytes.chunks(CHUNK).zip((position..).step_by(CHUNK)) {
            let expected = &mut expected[..found.len()];
            self.fill(expected, at);
            if found != expected {
                let same =
                    found.iter().zip(expected).take_while(|(found, expected)| found == expected).count();
                return Err(self.describe(bytes, position, at + same as u64));
            }
        }
        Ok(())
    }

    /// Describes the wrong byte at `wrong` of the stream, of which `bytes` are the part from `position` on.
    fn describe(self, bytes: &[u8], position: u64, wrong: u64) -> Mismatch {
        let expected = self.word(wrong / 8);
        let mut found = expected.to_le_bytes();
        for (byte, at) in found.iter_mut().zip(wrong / 8 * 8..) {
            // Bytes of the word outside the checked range are unknown; they keep the expected value.
            let inside = at.checked_sub(position).and_then(|offset| bytes.get(offset as usize));
            *byte = inside.copied().unwrap_or(*byte);
        }
        let found = u64::from_le_bytes(found);
        let index = found.wrapping_sub(self.base).wrapping_mul(inverse(STEP));
        let belongs_at = (index < 1 << 45).then(|| index * 8);
        Mismatch { position: wrong, expected, found, belongs_at }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { position, expected, found, belongs_at } = self;
        write!(f, "wrong data at byte {position}: expected {expected:016x}, found {found:016x}")?;
        match belongs_at {
            Some(origin) => write!(f, ", which belongs at byte {origin}"),
            None => write!(f, ", which is not of this run"),
        }
    }
}

impl std::error::Error for Mismatch {}

/// Returns the bytes before the first whole 8 bytes.
fn head_bytes(position: u64, length: usize) -> usize {
    (position.wrapping_neg() % 8).min(length as u64) as usize
}

/// Inverse of an odd number modulo 2^64: each Newton step doubles the number of correct bits, from 3.
const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut step = 0;
    while step < 5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(bytes: usize, position: u64) -> Vec<u8> {
        let mut buffer = vec![0; bytes];
        Pattern::new(7).fill(&mut buffer, position);
        buffer
    }

    #[test]
    fn what_is_filled_passes_at_every_alignment_and_length() {
        for position in 0..20 {
            for bytes in [0, 1, 7, 8, 9, 63, 511, 512, 513, 1_100] {
                let buffer = filled(bytes, position);
                assert_eq!(Pattern::new(7).check(&buffer, position), Ok(()), "{bytes} bytes at {position}");
            }
        }
    }

    #[test]
    fn pieces_filled_apart_are_one_stream() {
        let whole = filled(100, 3);
        let mut pieces = filled(41, 3);
        pieces.extend(filled(59, 44));
        assert_eq!(whole, pieces);
    }

    #[test]
    fn every_single_corrupted_byte_is_found_at_its_place() {
        for at in 0..1_100 {
            let mut buffer = filled(1_100, 5);
            buffer[at] ^= 0x10;
            let mismatch = Pattern::new(7).check(&buffer, 5).expect_err("a byte was changed");
            assert_eq!(mismatch.position, 5 + at as u64);
            assert_ne!(mismatch.expected, mismatch.found);
        }
    }

    #[test]
    fn a_swapped_block_is_found_and_named() {
        let mut buffer = filled(4_096, 0);
        let (left, right) = buffer.split_at_mut(2_048);
        left[1_024..].swap_with_slice(&mut right[..1_024]);
        let mismatch = Pattern::new(7).check(&buffer, 0).expect_err("two blocks were swapped");
        assert_eq!((mismatch.position, mismatch.belongs_at), (1_024, Some(2_048)));
    }

    #[test]
    fn data_of_another_run_is_found_and_not_named() {
        let mut buffer = filled(4_096, 0);
        Pattern::new(6).fill(&mut buffer[3_000..3_008], 3_000);
        let mismatch = Pattern::new(7).check(&buffer, 0).expect_err("eight bytes are stale");
        assert_eq!((mismatch.position, mismatch.belongs_at), (3_000, None));
    }

    #[test]
    fn a_stream_moved_by_one_byte_is_found() {
        let buffer = filled(4_096, 1);
        assert!(Pattern::new(7).check(&buffer, 0).is_err());
    }
}
