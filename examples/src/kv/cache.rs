//! A paged cache in registered memory: one region per layer, K's pool of blocks and then V's.
//!
//! ```text
//! region "kv.layer.07":  [ K block 0 | K block 1 | … | K block pool-1 | V block 0 | … | V block pool-1 ]
//! the sequence's block i is the pool's block table[i], in K and in V of every layer
//! ```

use super::geometry::{Geometry, HALVES};
use super::pattern::{self, Mismatches, Place, UNTOUCHED};
use ferry::blocks::Layer;
use ferry::status::Result;
use ferry::{Engine, Memory, RegionOptions, RemoteRegionInfo};

/// The blocks of a cache that the sequence uses.
pub struct Paging {
    pub pool_blocks: usize,
    /// The pool's id of each block of the sequence.
    pub table: Vec<i32>,
}

pub struct Cache {
    geometry: Geometry,
    paging: Paging,
    layers: Vec<Memory>,
}

/// Returns the name under which a peer finds a layer.
pub fn region_name(layer: usize) -> String {
    format!("kv.layer.{layer:02}")
}

impl Cache {
    /// Allocates and registers the pool, and marks every block as one that no transfer may touch.
    pub fn new(engine: &Engine, geometry: Geometry, paging: Paging) -> Result<Cache> {
        let bytes = HALVES * paging.pool_blocks * geometry.block_bytes();
        let allocate = |layer| {
            engine.alloc(bytes, &RegionOptions { name: region_name(layer), ..RegionOptions::default() })
        };
        let layers = (0..geometry.layers).map(allocate).collect::<Result<Vec<Memory>>>()?;
        let cache = Cache { geometry, paging, layers };
        let all: Vec<(u32, usize)> = (0..cache.paging.pool_blocks).map(|id| (id as u32, id)).collect();
        for layer in 0..cache.layers.len() {
            cache.fill_blocks(UNTOUCHED, layer, &all);
        }
        Ok(cache)
    }

    pub fn table(&self) -> &[i32] {
        &self.paging.table
    }

    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Returns the payload of one layer of the sequence.
    pub fn layer_bytes(&self) -> u64 {
        (HALVES * self.paging.table.len() * self.geometry.block_bytes()) as u64
    }

    /// Writes the pass's pattern into the sequence's blocks; stands for the computation of prefill.
    pub fn fill(&self, pass: u8) {
        let blocks = self.sequence();
        (0..self.layers.len()).for_each(|layer| self.fill_blocks(pass, layer, &blocks));
    }

    /// Checks every word of a layer: the sequence's blocks must have the pass's pattern, the other blocks
    /// must be untouched.
    pub fn check(&self, pass: u8, layer: usize) -> Mismatches {
        let mut wrong = self.check_blocks(pass, layer, &self.sequence());
        let mut is_used = vec![false; self.paging.pool_blocks];
        self.paging.table.iter().for_each(|&id| is_used[id as usize] = true);
        let others: Vec<(u32, usize)> =
            (0..is_used.len()).filter(|&id| !is_used[id]).map(|id| (id as u32, id)).collect();
        wrong.add(self.check_blocks(UNTOUCHED, layer, &others));
        wrong
    }

    /// Checks the first word of every block of a layer; cheap enough to run between transfers.
    pub fn glance(&self, pass: u8, layer: usize) -> Mismatches {
        let mut wrong = Mismatches::default();
        for half in 0..HALVES {
            for (block, id) in self.sequence() {
                let mut first = [0; 8];
                self.layers[layer].read(self.offset(half, id), &mut first);
                wrong.add(pattern::check(&first, place(pass, layer, half, block)));
            }
        }
        wrong
    }

    /// Returns the tables of a layer for `submit_blocks`, here and at the peer: one entry for K, one for V.
    pub fn both_sides(&self, layer: usize, remote: &RemoteRegionInfo) -> [Layer; HALVES] {
        let memory = &self.layers[layer];
        let block_bytes = self.geometry.block_bytes() as u64;
        let (local_half, remote_half) = (memory.length() as u64 / 2, remote.length / 2);
        std::array::from_fn(|half| Layer {
            local_base: memory.address() + half as u64 * local_half,
            remote_base: remote.address + half as u64 * remote_half,
            local_stride: block_bytes,
            remote_stride: block_bytes,
            block_bytes,
            remote_region: remote.region,
        })
    }

    /// Returns pairs (block of the sequence, id in the pool).
    fn sequence(&self) -> Vec<(u32, usize)> {
        self.paging.table.iter().enumerate().map(|(block, &id)| (block as u32, id as usize)).collect()
    }

    fn offset(&self, half: usize, id: usize) -> usize {
        (half * self.paging.pool_blocks + id) * self.geometry.block_bytes()
    }

    fn fill_blocks(&self, pass: u8, layer: usize, blocks: &[(u32, usize)]) {
        let mut bytes = vec![0; self.geometry.block_bytes()];
        for half in 0..HALVES {
            for &(block, id) in blocks {
                pattern::fill(&mut bytes, place(pass, layer, half, block));
                self.layers[layer].write(self.offset(half, id), &bytes);
            }
        }
    }

    fn check_blocks(&self, pass: u8, layer: usize, blocks: &[(u32, usize)]) -> Mismatches {
        let mut bytes = vec![0; self.geometry.block_bytes()];
        let mut wrong = Mismatches::default();
        for half in 0..HALVES {
            for &(block, id) in blocks {
                self.layers[layer].read(self.offset(half, id), &mut bytes);
                wrong.add(pattern::check(&bytes, place(pass, layer, half, block)));
            }
        }
        wrong
    }
}

fn place(pass: u8, layer: usize, half: usize, block: u32) -> Place {
    Place { pass, layer: layer as u8, half: half as u8, block, word: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::geometry::block_table;
    use ferry::Config;

    const SMALL: Geometry =
        Geometry { layers: 2, kv_heads: 2, head_size: 16, element_bytes: 2, block_tokens: 16 };

    fn cache(engine: &Engine) -> Cache {
        Cache::new(engine, SMALL, Paging { pool_blocks: 12, table: block_table(12, 8, 5) }).unwrap()
    }

    #[test]
    fn the_check_finds_an_old_pass_a_strayed_block_and_a_touched_neighbour() {
        let engine = Engine::open(Config::default()).unwrap();
        let cache = cache(&engine);
        cache.fill(1);
        for layer in 0..2 {
            assert_eq!(cache.check(1, layer), Mismatches::default());
            assert_eq!(cache.glance(1, layer), Mismatches::default());
        }
        let words = SMALL.block_bytes() as u64 / 8;
        assert_eq!(cache.check(2, 0).words, 2 * 8 * words);
        assert_eq!(cache.glance(2, 0).words, 2 * 8);

        let unused = (0..12).find(|id| !cache.table().contains(id)).unwrap() as usize;
        cache.layers[1].write(cache.offset(1, unused) + 8, &[0; 8]);
        let wrong = cache.check(1, 1);
        assert_eq!((wrong.words, wrong.first.unwrap().0.pass), (1, UNTOUCHED));
    }
}
