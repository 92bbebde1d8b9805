//! Random numbers of a world. All of them come from the seed, and arithmetic is on integers alone, so a seed means the
//! same on every machine. The scheduler, the faults and the programs each have a stream of their own: a program that
//! draws one more number does not change the schedule's numbers.

/// Chances are given in parts per million.
pub const MILLION: u32 = 1_000_000;

#[derive(Clone)]
pub(crate) struct Rng(fastrand::Rng);

impl Rng {
    /// `stream` tells the streams of one seed apart.
    pub fn new(seed: u64, stream: u64) -> Rng {
        let mut mixed = fastrand::Rng::with_seed(seed ^ stream.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        Rng(fastrand::Rng::with_seed(mixed.u64(..)))
    }

    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Returns a number below `bound`, which is not 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    #[inline]
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Returns a number from `least` to `most`, both included.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most.saturating_sub(least).saturating_add(1))
    }

    pub fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(u64::from(MILLION)) < u64::from(ppm)
    }

    /// Returns a number from `least`, which is not 0, to `most`: each doubling is equally likely.
    pub fn log_uniform(&mut self, least: u64, most: u64) -> u64 {
        let doublings = (most / least).max(1).ilog2();
        let from = least << self.below(u64::from(doublings) + 1);
        self.between(from, from.saturating_mul(2).saturating_sub(1)).clamp(least, most.max(least))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_bounds_and_reach_them() {
        let mut rng = Rng::new(1, 2);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[rng.between(3, 7) as usize - 3] = true;
        }
        assert_eq!(seen, [true; 5]);
        let mut octaves = [0; 17];
        for _ in 0..17_000 {
            let drawn = rng.log_uniform(1_000, 100_000_000);
            assert!((1_000..=100_000_000).contains(&drawn));
            octaves[(drawn / 1_000).ilog2() as usize] += 1;
        }
        assert!(octaves.iter().all(|count| *count > 700), "{octaves:?}");
        assert_eq!(rng.log_uniform(5, 5), 5);
        assert!(!rng.chance(0) && rng.chance(MILLION));
    }

    #[test]
    fn streams_of_one_seed_and_seeds_of_one_stream_differ() {
        let first = |seed, stream| Rng::new(seed, stream).next();
        assert!(first(1, 1) != first(1, 2) && first(1, 1) != first(2, 1) && first(7, 3) == first(7, 3));
    }
}
