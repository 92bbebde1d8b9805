//! Pairs blocks of the initiator's memory with blocks of the target's.
//!
//! Contiguous: block i with block i, so that neighbours can be merged into one request. Scattered: a seeded
//! permutation on both sides in which no two pairs can be merged, whatever order a planner sorts them into. Both
//! processes compute the same map from the same seed; the map never crosses the wire.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    Contiguous,
    Scattered,
}

/// Pairs of block ids, in submission order.
pub struct BlockMap {
    initiator: Vec<u32>,
    target: Vec<u32>,
}

/// Scans of the map for mergeable pairs before the fallback. Each scan leaves about one pair.
const REPAIRS_MAX: usize = 64;

impl BlockMap {
    pub fn new(layout: Layout, blocks: u32, seed: u64) -> BlockMap {
        let mut initiator: Vec<u32> = (0..blocks).collect();
        if layout == Layout::Contiguous {
            return BlockMap { target: initiator.clone(), initiator };
        }
        let mut random = Random::new(seed);
        let partner = unmergeable_partners(blocks, &mut random);
        random.shuffle(&mut initiator);
        let target = initiator.iter().map(|&id| partner[id as usize]).collect();
        BlockMap { initiator, target }
    }

    pub fn blocks(&self) -> usize {
        self.initiator.len()
    }

    /// Returns the block ids of pair `index`: the initiator's and the target's.
    pub fn pair(&self, index: usize) -> (u32, u32) {
        (self.initiator[index], self.target[index])
    }
}

/// Returns the target block of each initiator block, such that no two neighbours map to neighbours.
fn unmergeable_partners(blocks: u32, random: &mut Random) -> Vec<u32> {
    let mut partner: Vec<u32> = (0..blocks).collect();
    random.shuffle(&mut partner);
    for _ in 0..REPAIRS_MAX {
        let mut repaired = false;
        for id in 1..partner.len() {
            if partner[id] == partner[id - 1] + 1 {
                partner.swap(id, random.below(blocks) as usize);
                repaired = true;
            }
        }
        if !repaired {
            return partner;
        }
    }
    // A handful of blocks may stay mergeable; descending partners never merge.
    (0..blocks).rev().collect()
}

/// splitmix64: random enough for a shuffle, and the same on every machine.
pub struct Random {
    state: u64,
}

impl Random {
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// Returns a number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        (((self.next_u64() >> 32) * u64::from(bound)) >> 32) as u32
    }

    fn shuffle(&mut self, ids: &mut [u32]) {
        for last in (1..ids.len()).rev() {
            ids.swap(last, self.below(last as u32 + 1) as usize);
        }
    }
}

/// splitmix64's finaliser: spreads neighbouring seeds over all 64 bits.
pub fn mix(seed: u64) -> u64 {
    let z = (seed ^ (seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts pairs whose successor in the initiator's memory is also their successor in the target's.
    fn mergeable(map: &BlockMap) -> usize {
        let mut partner = vec![0; map.blocks()];
        for index in 0..map.blocks() {
            let (initiator, target) = map.pair(index);
            partner[initiator as usize] = target;
        }
        partner.windows(2).filter(|pair| pair[1] == pair[0] + 1).count()
    }

    #[test]
    fn scattered_pairs_never_merge_and_cover_every_block_once() {
        for blocks in [0, 1, 2, 3, 4, 5, 17, 1_024, 65_536] {
            for seed in 0..8 {
                let map = BlockMap::new(Layout::Scattered, blocks, seed);
                assert_eq!(mergeable(&map), 0, "{blocks} blocks, seed {seed}");
                for side in [&map.initiator, &map.target] {
                    let mut ids = side.clone();
                    ids.sort_unstable();
                    assert!(ids.into_iter().eq(0..blocks), "{blocks} blocks, seed {seed}");
                }
            }
        }
    }

    #[test]
    fn contiguous_pairs_all_merge() {
        assert_eq!(mergeable(&BlockMap::new(Layout::Contiguous, 1_024, 1)), 1_023);
    }

    #[test]
    fn one_seed_gives_one_map() {
        let [a, b, c] = [3, 3, 4].map(|seed| BlockMap::new(Layout::Scattered, 256, seed));
        assert_eq!(a.target, b.target);
        assert_ne!(a.target, c.target);
    }
}
