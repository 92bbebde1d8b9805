//! The content of every 8 bytes of a cache. Each word names its pass, layer, half, block of the sequence and
//! place in the block, so that the check finds misplaced blocks as well as damage. A new pass changes all
//! words, so that data of the last pass is not taken for it.
//!
//! ```text
//! 63    56 55    48 47    40 39              16 15          0
//! [ pass  ][ layer ][ half  ][     block       ][   word     ]
//! ```

use std::fmt;

/// The position of a word. `block` counts the sequence's blocks, not the pool's: the two ends keep the same
/// block under different ids. `half` is 0 for K, 1 for V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub pass: u8,
    pub layer: u8,
    pub half: u8,
    pub block: u32,
    pub word: u16,
}

/// The pass number of blocks that no transfer may touch; their `block` is the pool's.
pub const UNTOUCHED: u8 = 0xff;

impl Place {
    pub fn encode(self) -> u64 {
        u64::from(self.pass) << 56
            | u64::from(self.layer) << 48
            | u64::from(self.half) << 40
            | u64::from(self.block & 0xff_ffff) << 16
            | u64::from(self.word)
    }

    pub fn decode(word: u64) -> Place {
        Place {
            pass: (word >> 56) as u8,
            layer: (word >> 48) as u8,
            half: (word >> 40) as u8,
            block: (word >> 16) as u32 & 0xff_ffff,
            word: word as u16,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let half = match self.half {
            0 => "K",
            1 => "V",
            _ => "neither K nor V",
        };
        let (layer, block, word, pass) = (self.layer, self.block, self.word, self.pass);
        write!(f, "layer {layer} {half} block {block} word {word} of pass {pass}")
    }
}

/// The words that differ from their pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mismatches {
    pub words: u64,
    /// The first wrong word: its position, and the value found.
    pub first: Option<(Place, u64)>,
}

impl Mismatches {
    pub fn add(&mut self, other: Mismatches) {
        self.words += other.words;
        self.first = self.first.or(other.first);
    }

    /// Returns one sentence, or None if no word is wrong.
    pub fn explain(&self) -> Option<String> {
        let (place, found) = self.first?;
        let owner = Place::decode(found);
        Some(format!(
            "{} words are wrong; at {place} stands {found:#018x}, which would belong to {owner}",
            self.words
        ))
    }
}

/// Fills one block. `at.word` is ignored.
pub fn fill(block: &mut [u8], at: Place) {
    for (word, bytes) in block.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&Place { word: word as u16, ..at }.encode().to_le_bytes());
    }
}

/// Checks every word of one block.
pub fn check(block: &[u8], at: Place) -> Mismatches {
    let mut wrong = Mismatches::default();
    for (word, bytes) in block.chunks_exact(8).enumerate() {
        let place = Place { word: word as u16, ..at };
        let found = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        if found != place.encode() {
            wrong.add(Mismatches { words: 1, first: Some((place, found)) });
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Place = Place { pass: 3, layer: 31, half: 1, block: 255, word: 0 };

    fn block(at: Place) -> Vec<u8> {
        let mut bytes = vec![0; 32 << 10];
        fill(&mut bytes, at);
        bytes
    }

    #[test]
    fn places_round_trip() {
        for word in [0, 1, u16::MAX] {
            let place = Place { word, ..AT };
            assert_eq!(Place::decode(place.encode()), place);
        }
    }

    #[test]
    fn a_good_block_passes_and_every_flipped_bit_is_found() {
        let mut bytes = block(AT);
        assert_eq!(check(&bytes, AT), Mismatches::default());
        for bit in (0..bytes.len() * 8).step_by(997) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let wrong = check(&bytes, AT);
            assert_eq!(wrong.words, 1, "bit {bit}");
            assert_eq!(wrong.first.unwrap().0.word as usize, bit / 64);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_block_in_another_place_or_of_another_pass_is_found_and_named() {
        for other in [
            Place { block: 254, ..AT },
            Place { half: 0, ..AT },
            Place { layer: 30, ..AT },
            Place { pass: 2, ..AT },
        ] {
            let wrong = check(&block(other), AT);
            assert_eq!(wrong.words, 4096);
            assert!(wrong.explain().unwrap().contains(&format!("would belong to {other}")));
        }
        let mut shifted = block(AT);
        shifted.rotate_right(8);
        assert_eq!(check(&shifted, AT).words, 4096);
    }
}
