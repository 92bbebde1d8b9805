//! Random numbers of a plan and of the application's threads. All of them come from the seed.

pub struct Draw(fastrand::Rng);

impl Draw {
    /// `stream` tells the streams of one seed apart.
    pub fn new(seed: u64, stream: u64) -> Draw {
        let mut mixed = fastrand::Rng::with_seed(seed.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ stream << 32);
        Draw(fastrand::Rng::with_seed(mixed.u64(..)))
    }

    /// Returns a number from `least` to `most`, both included.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        self.0.u64(least..=most)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0.usize(..bound)
    }

    pub fn percent(&mut self, percent: u32) -> bool {
        self.0.u32(..100) < percent
    }

    /// Returns a number from `least`, which is not 0, to `most`: each doubling is equally likely.
    pub fn log_uniform(&mut self, least: u64, most: u64) -> u64 {
        let doublings = u64::from((most / least).max(1).ilog2());
        let from = least << self.between(0, doublings);
        self.between(from, from * 2 - 1).clamp(least, most)
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}
