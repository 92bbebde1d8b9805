//! The layouts of the tests, and where each byte of a sequence lies in them.

use std::ops::Range;

use ferry_kv::handoff::Blocks;
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

/// A shape of an instance: ranks of tensor and pipeline parallelism, tokens of a block, and whether the layer in the
/// middle is a window.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub tp: u32,
    pub pp: u32,
    pub block: u32,
    pub arrangement: Arrangement,
    pub window: Option<u32>,
}

pub fn layouts(shape: Shape, first_node: usize) -> Vec<Layout> {
    (0..shape.tp * shape.pp).map(|rank| layout(shape, rank, address(first_node + rank as usize))).collect()
}

pub fn layout(shape: Shape, rank: u32, address: u64) -> Layout {
    let ranks = Shard {
        tp_rank: 0,
        tp_size: shape.tp,
        pp_rank: 0,
        pp_size: shape.pp,
        pcp_rank: 0,
        pcp_size: 1,
        dcp_size: 1,
        turn_tokens: 1,
    };
    let shard = ranks.at(rank);
    let mut groups = vec![Group { kind: GroupKind::Full, block_tokens: shape.block }];
    groups.extend(
        shape.window.map(|tokens| Group { kind: GroupKind::Window { tokens }, block_tokens: shape.block }),
    );
    let key =
        ModelKey { model: "test".into(), revision: "1".into(), cache: "u8".into(), rope: "none".into() };
    let mut layout = Layout { key, shard, groups, layers: Vec::new() };
    let mut at = address;
    for number in 0..3 {
        let group = u32::from(number == 1 && shape.window.is_some());
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
            tokens: shape.block,
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

/// Every byte that the rank holds of the tokens that its lists have.
pub fn cells(layout: &Layout, lists: &[Blocks], tokens: Range<u64>, sequence: u64) -> Vec<Cell> {
    let mut all = Vec::new();
    for (number, layer) in layout.layers.iter().enumerate() {
        let (Some(memory), list) = (layer.memory, &lists[layer.group as usize]) else { continue };
        let block = u64::from(layout.groups[layer.group as usize].block_tokens);
        let heads = layer.heads_of(&layout.shard);
        let end = list.first_token + list.ids.len() as u64 * block;
        for token in tokens.start.max(list.first_token)..tokens.end.min(end) {
            let at = token - list.first_token;
            let id = u64::from(list.ids[(at / block) as usize]);
            for (pair, head) in
                (0..u64::from(layer.pairs)).flat_map(|pair| heads.clone().map(move |h| (pair, h)))
            {
                for element in 0..u64::from(layer.elements) {
                    let strides = memory.strides;
                    let address = memory.address
                        + id * strides.block
                        + pair * strides.pair
                        + u64::from(head - heads.start) * strides.head
                        + (at % block) * strides.token
                        + element * strides.element;
                    let parts = [sequence, number as u64, pair, head.into(), token, element];
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
