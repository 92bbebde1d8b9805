//! The size of a KV cache: the numbers of a model, and of a sequence.

/// The shape of a model's attention layers, as far as a transfer needs it.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    pub layers: usize,
    pub kv_heads: usize,
    pub head_size: usize,
    pub element_bytes: usize,
    pub block_tokens: usize,
}

/// Llama-3.1-8B, bfloat16, blocks of 16 tokens as in vLLM.
pub const LLAMA_3_1_8B: Geometry =
    Geometry { layers: 32, kv_heads: 8, head_size: 128, element_bytes: 2, block_tokens: 16 };

/// Tables of blocks per layer: one for K, one for V.
pub const HALVES: usize = 2;

impl Geometry {
    /// Returns the bytes of one block of K or V.
    pub fn block_bytes(&self) -> usize {
        self.block_tokens * self.kv_heads * self.head_size * self.element_bytes
    }

    /// Returns the number of blocks for a sequence of this many tokens.
    pub fn blocks(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_tokens)
    }
}

/// Returns blocks `0..used` of a pool of `pool` in an order that depends on the seed, like the blocks that an
/// allocator hands out after some use.
pub fn block_table(pool: usize, used: usize, seed: u64) -> Vec<i32> {
    let mut ids: Vec<i32> = (0..pool as i32).collect();
    let mut state = seed;
    for last in (1..pool).rev() {
        // xorshift64*: any permutation works if it is the same in each run.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let draw = state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        ids.swap(last, (draw as usize) % (last + 1));
    }
    ids.truncate(used);
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_has_four_kibibytes_per_token_and_layer() {
        assert_eq!(LLAMA_3_1_8B.block_bytes(), 32 << 10);
        assert_eq!(LLAMA_3_1_8B.block_bytes() * HALVES / LLAMA_3_1_8B.block_tokens, 4 << 10);
        assert_eq!((LLAMA_3_1_8B.blocks(4096), LLAMA_3_1_8B.blocks(4097)), (256, 257));
    }

    #[test]
    fn tables_are_permutations_and_differ_by_seed() {
        let (a, b) = (block_table(300, 300, 1), block_table(300, 300, 2));
        assert_ne!(a, b);
        for mut table in [a, b] {
            table.sort_unstable();
            assert_eq!(table, (0..300).collect::<Vec<i32>>());
        }
        assert_eq!(block_table(300, 256, 1).len(), 256);
    }
}
