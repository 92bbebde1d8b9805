//! A model of engines and of a pool: each byte of a cache is a function of what it stands for, and a pool is a map.
//! One engine gets what another one puts, and each byte is compared; the model shares no formula with the planner.

use std::collections::HashMap;

use ferry_kv::layout::Sizes;
use ferry_kv::{Group, Layer, LayerMemory, ModelKey, Strides};

use super::*;

/// The address of a rank's memory, of which `memory[0]` is the byte.
pub(super) const START: u64 = 0x1000;

fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

pub(super) struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) % end
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// How an engine holds a model's cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    pub tp: u32,
    pub pp: u32,
    pub block_tokens: u32,
    pub arrangement: Arrangement,
    /// The layers of a block lie together, not the blocks of a layer.
    pub blocks_first: bool,
}

/// A model: (heads, pairs, elements, bytes of an element) of each layer. A layer of one kind of row is latent.
pub(super) type Rows = [(u32, u32, u32, u32)];

pub(super) struct Rank {
    pub layout: Layout,
    pub memory: Vec<u8>,
    /// The blocks of the sequence by group, and the position of their first token.
    pub lists: Vec<(Vec<u32>, u64)>,
}

/// Two chunks of a prompt, the fourth and the fifth.
pub(super) const CHUNKS: [Digest; 2] = [Digest([4; 32]), Digest([5; 32])];
pub(super) const FIRST: u64 = 3;

impl Rank {
    /// The rank `tp_rank` of the stage `pp_rank`, with untouched memory.
    pub fn new(side: &Side, rows: &Rows, cut: &Cut, tp_rank: u32, pp_rank: u32, random: &mut Random) -> Rank {
        let shard = Shard { tp_rank, tp_size: side.tp, pp_rank, pp_size: side.pp, ..Shard::default() };
        let groups = vec![Group::full(side.block_tokens), Group::latent(side.block_tokens)];
        let size = u64::from(side.block_tokens);
        let tokens = FIRST * u64::from(cut.chunk_tokens)..(FIRST + 2) * u64::from(cut.chunk_tokens);
        let first = tokens.start / size - random.below(tokens.start / size + 1);
        let count = tokens.end.div_ceil(size) - first + random.below(2);
        let blocks = count + 1 + random.below(3);
        let mut list = || {
            let mut free: Vec<u32> = (0..blocks as u32).collect();
            let ids = (0..count).map(|_| free.swap_remove(random.below(free.len() as u64) as usize));
            (ids.collect(), first * size)
        };
        let lists = vec![list(), list()];
        let mut end = START;
        let mut layers: Vec<Layer> = Vec::new();
        for (at, &(heads, pairs, elements, element_bytes)) in rows.iter().enumerate() {
            let stage = (at as u32 * side.pp) / rows.len() as u32;
            let sizes = Sizes {
                blocks: if side.blocks_first { 1 } else { blocks },
                pairs,
                heads: heads_of(heads, side.tp, tp_rank).len() as u32,
                tokens: side.block_tokens,
                elements,
                element_bytes,
            };
            let memory = LayerMemory { address: end, blocks, strides: Strides::of(side.arrangement, sizes) };
            let bytes = u64::from(pairs * sizes.heads * side.block_tokens * elements * element_bytes);
            let memory = (stage == pp_rank).then_some(memory);
            if memory.is_some() {
                end += bytes * if side.blocks_first { 1 } else { blocks + 1 };
            }
            let (name, group) = (format!("layers.{at}"), u32::from(pairs == 1));
            layers.push(Layer { name, group, stage, heads, pairs, elements, element_bytes, memory });
        }
        if side.blocks_first {
            let bytes = end - START;
            let own = layers.iter_mut().filter_map(|layer| layer.memory.as_mut());
            own.for_each(|memory| memory.strides.block = bytes);
            end = START + bytes * blocks;
        }
        let layout = Layout { key: ModelKey::new("llama", "", "", ""), shard, groups, layers };
        Rank { layout, memory: (START..end).map(|at| mix(at) as u8).collect(), lists }
    }

    /// Calls `each` with the place and the value of each byte that the rank holds of the chunks.
    fn walk(&self, cut: &Cut, mut each: impl FnMut(usize, u8)) {
        let chunk = u64::from(cut.chunk_tokens);
        let Shard { tp_rank, tp_size, .. } = self.layout.shard;
        for (number, layer) in self.layout.layers.iter().enumerate() {
            let Some(LayerMemory { address, strides, .. }) = layer.memory else { continue };
            let (ids, first) = &self.lists[layer.group as usize];
            let size = u64::from(self.layout.groups[layer.group as usize].block_tokens);
            for token in FIRST * chunk..(FIRST + 2) * chunk {
                let id = u64::from(ids[((token - first) / size) as usize]);
                for (nth, head) in (0..).zip(heads_of(layer.heads, tp_size, tp_rank)) {
                    for pair in 0..u64::from(layer.pairs) {
                        for element in 0..u64::from(layer.elements) {
                            let at = address
                                + id * strides.block
                                + pair * strides.pair
                                + nth * strides.head
                                + token % size * strides.token
                                + element * strides.element;
                            let row = mix((number as u64) << 48 ^ pair << 40 ^ u64::from(head) << 32 ^ token);
                            let bytes = mix(row ^ element).to_le_bytes();
                            for (byte, value) in
                                bytes.into_iter().take(layer.element_bytes as usize).enumerate()
                            {
                                each((at - START) as usize + byte, value);
                            }
                        }
                    }
                }
            }
        }
    }

    fn blocks(&self) -> Vec<BlockSlice<'_>> {
        self.lists.iter().map(|(ids, first_token)| BlockSlice { ids, first_token: *first_token }).collect()
    }

    pub fn values(&self, cut: &Cut) -> Result<Vec<Value>> {
        Parts::new(&self.layout, cut)?.values(&CHUNKS, FIRST, &self.blocks())
    }

    fn range(&(address, bytes): &(u64, u64)) -> std::ops::Range<usize> {
        (address - START) as usize..(address - START + bytes) as usize
    }
}

/// The heads of a rank, found head by head.
fn heads_of(heads: u32, tp_size: u32, tp_rank: u32) -> Vec<u32> {
    let holds = |head: &u32| {
        if tp_size > heads {
            tp_rank / (tp_size / heads) == *head
        } else {
            (tp_rank * heads / tp_size..(tp_rank + 1) * heads / tp_size).contains(head)
        }
    };
    (0..heads).filter(holds).collect()
}

fn ranks(side: &Side, rows: &Rows, cut: &Cut, random: &mut Random) -> Vec<Rank> {
    let mut all = Vec::new();
    for pp_rank in 0..side.pp {
        all.extend((0..side.tp).map(|tp_rank| Rank::new(side, rows, cut, tp_rank, pp_rank, random)));
    }
    all
}

/// One engine puts, the other one gets. Each byte of the other one is what it stands for, and no other byte is touched.
/// Returns how many pieces the values of the two had.
pub(super) fn pass(
    from: &Side,
    to: &Side,
    rows: &Rows,
    cut: &Cut,
    random: &mut Random,
) -> Result<[usize; 2]> {
    let mut pool: HashMap<Digest, Vec<u8>> = HashMap::new();
    let mut pieces = [0, 0];
    for mut rank in ranks(from, rows, cut, random) {
        let mut memory = std::mem::take(&mut rank.memory);
        rank.walk(cut, |at, byte| memory[at] = byte);
        for value in rank.values(cut)? {
            pieces[0] += value.memory.len();
            let bytes: Vec<u8> =
                value.memory.iter().flat_map(|piece| memory[Rank::range(piece)].to_vec()).collect();
            // A part that several ranks hold is one value.
            assert_eq!(*pool.entry(value.key).or_insert_with(|| bytes.clone()), bytes);
        }
    }
    for rank in ranks(to, rows, cut, random) {
        let (mut expected, mut memory) = (rank.memory.clone(), rank.memory.clone());
        rank.walk(cut, |at, byte| expected[at] = byte);
        for value in rank.values(cut)? {
            pieces[1] += value.memory.len();
            let mut bytes = pool.get(&value.key).expect("the other engine has put it").as_slice();
            for piece in &value.memory {
                let (first, rest) = bytes.split_at(piece.1 as usize);
                memory[Rank::range(piece)].copy_from_slice(first);
                bytes = rest;
            }
            assert!(bytes.is_empty(), "{} bytes of the value have no place", bytes.len());
        }
        let wrong = (0..memory.len()).find(|&at| memory[at] != expected[at]);
        assert_eq!(wrong, None, "rank {:?}", rank.layout.shard);
        let parts = Parts::new(&rank.layout, cut)?;
        // Chunk by chunk, and in the order of the keys of all parts.
        let values: Vec<Digest> = rank.values(cut)?.iter().map(|value| value.key).collect();
        let (keys, mut held) = (parts.keys(&CHUNKS).unwrap(), values.iter().peekable());
        let found = keys.iter().filter(|key| held.next_if_eq(key).is_some()).count();
        assert_eq!((found, values.len()), (2 * parts.held(), 2 * parts.held()));
        let all: std::collections::HashSet<Digest> = parts.keys(&CHUNKS).unwrap().into_iter().collect();
        assert_eq!((all.len(), all), (2 * parts.count(), pool.keys().copied().collect()));
    }
    Ok(pieces)
}
