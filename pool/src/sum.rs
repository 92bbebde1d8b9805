//! The checksum of values and of a file's table: CRC-64/NVME, which CPUs compute for 64 bytes per instruction.

use crc_fast::{CrcAlgorithm, Digest};

/// A sum that is being taken.
#[derive(Clone, Debug)]
pub struct Sum(Digest);

impl Default for Sum {
    fn default() -> Sum {
        Sum(Digest::new(CrcAlgorithm::Crc64Nvme))
    }
}

impl Sum {
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The sum of all bytes that were added.
    pub fn value(&self) -> u64 {
        self.0.finalize()
    }

    pub fn of(bytes: &[u8]) -> u64 {
        let mut sum = Sum::default();
        sum.add(bytes);
        sum.value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_published_one_however_the_bytes_are_cut() {
        assert_eq!(Sum::of(b"123456789"), 0xae8b_1486_0a79_9888);
        let bytes: Vec<u8> = (0..5000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for cut in [0, 1, 63, 64, 255, 256, 1000, 4999, 5000] {
            let mut sum = Sum::default();
            sum.add(&bytes[..cut]);
            sum.add(&bytes[cut..]);
            assert_eq!(sum.value(), Sum::of(&bytes), "cut at {cut}");
        }
    }
}
