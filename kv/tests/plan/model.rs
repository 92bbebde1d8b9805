//! A naive model of two instances: what every byte of every rank must be. It walks elements one by one and shares no
//! formula with the planner.

use std::collections::BTreeSet;
use std::ops::Range;

use ferry_kv::layout::{
    Arrangement, Group, GroupKind, Layer, LayerMemory, Layout, ModelKey, Shard, Sizes, Strides,
};
use ferry_kv::plan::{BlockSlice, GroupBlocks};

/// A rank's memory begins here.
pub const ADDRESS: u64 = 0x1000;

/// A source of numbers that a seed repeats.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) % end.max(1)
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

pub fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// How the layers of one instance lie in memory.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    pub arrangement: Arrangement,
    /// Elements left out behind each dimension.
    pub padding: u64,
}

/// One instance: its layout seen from rank 0, and where its sequence lies on each rank.
#[derive(Clone, Debug)]
pub struct Instance {
    pub ranks: Vec<Layout>,
    /// By rank and group.
    pub lists: Vec<Vec<(Vec<u32>, u64)>>,
    pub memory: Vec<Vec<u8>>,
}

/// A token is on this context rank, at this local position.
pub fn place_of(shard: &Shard, token: u64) -> (u64, u64) {
    let (turn, ranks) = (u64::from(shard.turn_tokens), u64::from(shard.pcp_size * shard.dcp_size));
    if ranks == 1 {
        return (0, token);
    }
    ((token / turn) % ranks, token / (turn * ranks) * turn + token % turn)
}

pub fn context_rank(shard: &Shard) -> u64 {
    u64::from(shard.pcp_rank * shard.dcp_size + shard.tp_rank % shard.dcp_size)
}

/// The heads of a layer that a rank holds, found head by head.
pub fn heads_of(heads: u32, shard: &Shard) -> Vec<u32> {
    let (size, rank) = (shard.tp_size, shard.tp_rank);
    let holds = |&head: &u32| {
        if size > heads {
            rank / (size / heads) == head
        } else {
            head >= rank * heads / size && head < (rank + 1) * heads / size
        }
    };
    (0..heads).filter(holds).collect()
}

/// The tokens of a range that a group moves.
pub fn moved_of(kind: GroupKind, tokens: &Range<u64>) -> Range<u64> {
    match kind {
        GroupKind::Window { tokens: window } => {
            tokens.start.max(tokens.end.saturating_sub(u64::from(window)))..tokens.end
        }
        _ => tokens.clone(),
    }
}

/// Returns the value of an element, whatever the rank. A State's token is the number of its block.
pub fn value(layer: &str, head: u32, pair: u32, token: u64, element: u32) -> u64 {
    let name = layer.bytes().fold(7, |sum, byte| mix(sum ^ u64::from(byte)));
    mix(mix(name ^ u64::from(head) << 32 ^ u64::from(pair) << 48) ^ token << 16 ^ u64::from(element))
}

/// Returns the byte of a place that nothing has written yet.
pub fn canary(rank: usize, at: usize) -> u8 {
    mix((rank as u64) << 40 ^ at as u64) as u8
}

impl Instance {
    /// Gives every rank memory and lists of blocks that hold `tokens` of a sequence, at random places. A State has
    /// `states` blocks.
    pub fn build(
        base: &Layout,
        placements: &[Placement],
        chunks: &[Range<u64>],
        states: u64,
        random: &mut Random,
    ) -> Instance {
        let mut instance = Instance { ranks: Vec::new(), lists: Vec::new(), memory: Vec::new() };
        for rank in 0..base.shard.ranks() {
            let mut layout = Layout { shard: base.shard.at(rank), ..base.clone() };
            let lists: Vec<_> = layout
                .groups
                .iter()
                .map(|group| list(group, &layout.shard, chunks, states, random))
                .collect();
            let mut end = ADDRESS;
            let (shard, groups) = (layout.shard, layout.groups.clone());
            for (layer, placement) in layout.layers.iter_mut().zip(placements) {
                layer.memory = None;
                if layer.stage != shard.pp_rank {
                    continue;
                }
                let blocks = lists[layer.group as usize].2 + random.below(2);
                let block_tokens = groups[layer.group as usize].block_tokens;
                let strides = strides(layer, &shard, block_tokens, blocks, placement);
                layer.memory = Some(LayerMemory { address: end, blocks, strides });
                end = layer.extent(&layout_of(base, shard, layer)).expect("has memory").end + random.below(5);
            }
            instance.memory.push((0..(end - ADDRESS) as usize).map(|at| canary(rank as usize, at)).collect());
            instance.lists.push(lists.into_iter().map(|(ids, first, _)| (ids, first)).collect());
            layout.check().expect("a valid layout");
            instance.ranks.push(layout);
        }
        instance
    }

    /// The lists of one exchange: `groups` has the source's group for each of the target's.
    pub fn blocks<'a>(
        source: &'a Instance,
        from: usize,
        target: &'a Instance,
        to: usize,
        groups: &[usize],
        with_states: bool,
    ) -> Vec<GroupBlocks<'a>> {
        let list = |(ids, first_token): &'a (Vec<u32>, u64)| BlockSlice { ids, first_token: *first_token };
        (0..groups.len())
            .map(|group| {
                if target.ranks[to].groups[group].kind == GroupKind::State && !with_states {
                    return GroupBlocks::default();
                }
                GroupBlocks {
                    source: list(&source.lists[from][groups[group]]),
                    target: list(&target.lists[to][group]),
                }
            })
            .collect()
    }

    /// Calls `each` with the place in the memory of a rank and the value of every byte that the rank holds of the
    /// tokens.
    pub fn walk(&self, rank: usize, tokens: &Range<u64>, with_states: bool, mut each: impl FnMut(usize, u8)) {
        let layout = &self.ranks[rank];
        for layer in layout.layers.iter().filter(|layer| layer.stage == layout.shard.pp_rank) {
            let group = layout.groups[layer.group as usize];
            let (ids, first_token) = &self.lists[rank][layer.group as usize];
            let places: Vec<(u64, u32, u64)> = if group.kind == GroupKind::State {
                let states = ids.iter().enumerate().filter(|_| with_states);
                states.map(|(number, &id)| (number as u64, id, 0)).collect()
            } else {
                let size = u64::from(group.block_tokens);
                let held = moved_of(group.kind, tokens).filter_map(|token| {
                    let (context, position) = place_of(&layout.shard, token);
                    (context == context_rank(&layout.shard)).then(|| (token, position - first_token))
                });
                held.map(|(token, at)| (token, ids[(at / size) as usize], at % size)).collect()
            };
            let memory = layer.memory.as_ref().expect("own stage");
            let LayerMemory { address, strides, .. } = memory;
            for (number, head) in (0u64..).zip(heads_of(layer.heads, &layout.shard)) {
                for pair in 0..layer.pairs {
                    for &(token, id, offset) in &places {
                        for element in 0..layer.elements {
                            let at = address
                                + u64::from(id) * strides.block
                                + u64::from(pair) * strides.pair
                                + number * strides.head
                                + offset * strides.token
                                + u64::from(element) * strides.element;
                            let bytes = value(&layer.name, head, pair, token, element).to_le_bytes();
                            for (byte, &is) in bytes.iter().take(layer.element_bytes as usize).enumerate() {
                                each((at - ADDRESS) as usize + byte, is);
                            }
                        }
                    }
                }
            }
        }
    }

    /// Writes what the ranks hold into their memory.
    pub fn fill(&mut self, tokens: &Range<u64>) {
        for rank in 0..self.ranks.len() {
            let mut memory = std::mem::take(&mut self.memory[rank]);
            self.walk(rank, tokens, true, |at, byte| memory[at] = byte);
            self.memory[rank] = memory;
        }
    }
}

fn layout_of(base: &Layout, shard: Shard, layer: &Layer) -> Layout {
    Layout { key: base.key.clone(), shard, groups: base.groups.clone(), layers: vec![layer.clone()] }
}

/// Returns random blocks for a group, the list's first token, and how many blocks the group's layers need.
fn list(
    group: &Group,
    shard: &Shard,
    chunks: &[Range<u64>],
    states: u64,
    random: &mut Random,
) -> (Vec<u32>, u64, u64) {
    let size = u64::from(group.block_tokens);
    let mut held = BTreeSet::new();
    for chunk in chunks {
        let tokens = moved_of(group.kind, chunk).map(|token| place_of(shard, token));
        held.extend(
            tokens.filter(|&(context, _)| context == context_rank(shard)).map(|(_, position)| position),
        );
    }
    let (first, count) = match (group.kind, held.first(), held.last()) {
        (GroupKind::State, ..) => (0, states),
        (_, Some(&first), Some(&last)) => {
            let first_block = random.below(first / size + 1);
            (first_block * size, last / size - first_block + 1 + random.below(2))
        }
        _ => (random.below(3) * size, random.below(2)),
    };
    let blocks = count + 1 + random.below(4);
    let mut free: Vec<u32> = (0..blocks as u32).collect();
    let ids = (0..count).map(|_| free.swap_remove(random.below(free.len() as u64) as usize)).collect();
    (ids, first, blocks)
}

/// The strides of an arrangement, with padding behind each dimension.
fn strides(layer: &Layer, shard: &Shard, tokens: u32, blocks: u64, placement: &Placement) -> Strides {
    let heads = heads_of(layer.heads, shard).len() as u32;
    let Layer { pairs, elements, element_bytes, .. } = *layer;
    let sizes = Sizes { blocks, pairs, heads, tokens, elements, element_bytes };
    let mut strides = Strides::of(placement.arrangement, sizes);
    if placement.padding == 0 {
        return strides;
    }
    let padding = placement.padding * u64::from(element_bytes);
    let mut inside = u64::from(element_bytes) + padding;
    strides.element = inside;
    inside = inside * u64::from(elements) + padding;
    let Strides { block, pair, head, token, .. } = &mut strides;
    let (pairs, heads, tokens) = (pairs.into(), heads.into(), tokens.into());
    let mut order: Vec<(&mut u64, u64)> =
        vec![(head, heads), (token, tokens), (pair, pairs), (block, blocks)];
    order.sort_by_key(|(stride, size)| (**stride, *size));
    for (stride, size) in order {
        *stride = inside;
        inside = inside * size + padding;
    }
    strides
}

pub fn key() -> ModelKey {
    let [model, revision, cache, rope] = ["llama", "main", "bf16", "default"].map(String::from);
    ModelKey { model, revision, cache, rope }
}
