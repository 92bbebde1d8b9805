//! The layouts of the tests, and where each byte of a sequence lies in them.

use std::ops::Range;

use ferry_kv::handoff::BlockList;
use ferry_kv::layout::{
    Arrangement, Group, GroupKind, Layer, LayerMemory, Layout, ModelKey, Shard, Sizes, Strides,
};

/// A node's memory begins here.
pub fn address(node: usize) -> u64 {
    (node as u64 + 1) << 32
}

pub fn canary(node: usize, at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9).wrapping_add(node as u64 * 77) >> 3) as u8
}

pub const BLOCKS: u64 = 64;
const HEADS: u32 = 2;
const ELEMENTS: u32 = 3;

/// A shape of an instance: ranks of tensor, pipeline and context parallelism, tokens of a block, and the kind of the
/// group that the layer in the middle has for itself.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub tp: u32,
    pub pp: u32,
    pub pcp: u32,
    pub dcp: u32,
    pub turn: u32,
    pub block: u32,
    pub arrangement: Arrangement,
    pub middle: Option<GroupKind>,
}

impl Shape {
    /// Without context parallelism, and with one group.
    pub fn plain(tp: u32, pp: u32, block: u32) -> Shape {
        let arrangement = Arrangement::PairBlockTokenHead;
        Shape { tp, pp, pcp: 1, dcp: 1, turn: 1, block, arrangement, middle: None }
    }

    pub fn ranks(&self) -> u32 {
        self.tp * self.pp * self.pcp
    }
}

pub fn layouts(shape: Shape, first_node: usize) -> Vec<Layout> {
    (0..shape.ranks()).map(|rank| layout(shape, rank, address(first_node + rank as usize))).collect()
}

pub fn layout(shape: Shape, rank: u32, address: u64) -> Layout {
    let ranks = Shard {
        tp_rank: 0,
        tp_size: shape.tp,
        pp_rank: 0,
        pp_size: shape.pp,
        pcp_rank: 0,
        pcp_size: shape.pcp,
        dcp_size: shape.dcp,
        turn_tokens: shape.turn,
    };
    let shard = ranks.at(rank);
    let mut groups = vec![Group { kind: GroupKind::Full, block_tokens: shape.block }];
    groups.extend(shape.middle.map(|kind| {
        let block_tokens = if kind == GroupKind::State { 1 } else { shape.block };
        Group { kind, block_tokens }
    }));
    let key =
        ModelKey { model: "test".into(), revision: "1".into(), cache: "u8".into(), rope: "none".into() };
    let mut layout = Layout { key, shard, groups, layers: Vec::new() };
    let mut at = address;
    for number in 0..3 {
        let group = u32::from(number == 1 && shape.middle.is_some());
        let mut layer = Layer {
            name: format!("layers.{number}"),
            group,
            // The last stage has the last layer alone.
            stage: if number == 2 { shape.pp - 1 } else { 0 },
            heads: HEADS,
            pairs: 2,
            elements: ELEMENTS,
            element_bytes: 1,
            memory: None,
        };
        let sizes = Sizes {
            blocks: BLOCKS,
            pairs: 2,
            heads: layer.heads_of(&shard).len() as u32,
            tokens: layout.groups[group as usize].block_tokens,
            elements: ELEMENTS,
            element_bytes: 1,
        };
        let strides = Strides::of(shape.arrangement, sizes);
        if layer.stage == shard.pp_rank {
            layer.memory = Some(LayerMemory { address: at, blocks: BLOCKS, strides });
            at = layer.extent(&layout).expect("has memory").end;
        }
        layout.layers.push(layer);
    }
    layout
}

/// One byte of a sequence in one rank's memory.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub group: u32,
    pub layer: u32,
    pub token: u64,
    pub address: u64,
    pub value: u8,
}

/// How many of the first `token` tokens a rank holds.
pub fn held(shard: &Shard, token: u64) -> u64 {
    (0..token).filter(|token| holds(shard, *token)).count() as u64
}

fn holds(shard: &Shard, token: u64) -> bool {
    token / u64::from(shard.turn_tokens) % u64::from(shard.context_ranks()) == u64::from(shard.context_rank())
}

/// The tokens of a list that a rank holds: the token, the block, and the place in the block. The blocks of a State are
/// those of the last token.
fn places(layout: &Layout, group: u32, list: &BlockList, tokens: Range<u64>) -> Vec<(u64, u64, u64)> {
    let Group { kind, block_tokens } = layout.groups[group as usize];
    if kind == GroupKind::State {
        return list.ids.iter().map(|id| (tokens.end - 1, u64::from(*id), 0)).collect();
    }
    let (block, mut at) = (u64::from(block_tokens), held(&layout.shard, tokens.start));
    let mut all = Vec::new();
    for token in tokens.filter(|token| holds(&layout.shard, *token)) {
        let inside = at.checked_sub(list.first_token);
        let found = inside.and_then(|at| Some((at, *list.ids.get((at / block) as usize)?)));
        all.extend(found.map(|(at, id)| (token, u64::from(id), at % block)));
        at += 1;
    }
    all
}

/// Every byte that the rank holds of the tokens that its lists have. The bytes of a State are others after each token.
pub fn cells(layout: &Layout, lists: &[BlockList], tokens: Range<u64>, sequence: u64) -> Vec<Cell> {
    let mut all = Vec::new();
    for (number, layer) in layout.layers.iter().enumerate() {
        let (Some(memory), list) = (layer.memory, &lists[layer.group as usize]) else { continue };
        let is_state = layout.groups[layer.group as usize].kind == GroupKind::State;
        let heads = layer.heads_of(&layout.shard);
        for (nth, (token, id, at)) in
            places(layout, layer.group, list, tokens.clone()).into_iter().enumerate()
        {
            let nth = if is_state { nth as u64 } else { 0 };
            for (pair, head) in
                (0..u64::from(layer.pairs)).flat_map(|pair| heads.clone().map(move |h| (pair, h)))
            {
                for element in 0..u64::from(layer.elements) {
                    let strides = memory.strides;
                    let address = memory.address
                        + id * strides.block
                        + pair * strides.pair
                        + u64::from(head - heads.start) * strides.head
                        + at * strides.token
                        + element * strides.element;
                    let parts = [sequence, number as u64, pair, head.into(), token, element, nth];
                    let mixed = parts.iter().fold(17u64, |sum, part| {
                        (sum ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
                    });
                    let (layer, group) = (number as u32, layer.group);
                    all.push(Cell { group, layer, token, address, value: (mixed >> 24) as u8 });
                }
            }
        }
    }
    all
}
