//! Layouts for the tests of this module's files: one by hand, and any valid one.

use super::{Arrangement, Group, GroupKind, Layer, LayerMemory, Layout, ModelKey, Shard, Sizes, Strides};
use proptest::prelude::*;

/// A layer without memory, of rows of 128 bytes.
pub fn layer(name: &str, heads: u32) -> Layer {
    let name = name.to_string();
    Layer { name, group: 0, stage: 0, heads, pairs: 2, elements: 64, element_bytes: 2, memory: None }
}

pub fn key() -> ModelKey {
    let [model, revision, cache, rope] = ["llama", "main", "bf16", "default"].map(String::from);
    ModelKey { model, revision, cache, rope }
}

/// Rank 1 of 2 tensor parallel ranks on stage 0 of 2, whose two layers of 4 heads are in blocks of 16 tokens. The third
/// layer is on stage 1.
pub fn layout() -> Layout {
    let shard = Shard {
        tp_rank: 1,
        tp_size: 2,
        pp_rank: 0,
        pp_size: 2,
        pcp_rank: 0,
        pcp_size: 1,
        dcp_size: 1,
        turn_tokens: 1,
    };
    let mut layout = Layout {
        key: key(),
        shard,
        groups: vec![Group { kind: GroupKind::Full, block_tokens: 16 }],
        layers: (0..3).map(|number| layer(&format!("model.layers.{number}"), 4)).collect(),
    };
    layout.layers[2].stage = 1;
    place(&mut layout, Arrangement::BlockPairTokenHead, 10);
    layout
}

/// Gives memory to the layers of the layout's own stage.
pub fn place(layout: &mut Layout, arrangement: Arrangement, blocks: u64) {
    let (shard, groups) = (layout.shard, layout.groups.clone());
    for (index, layer) in layout.layers.iter_mut().enumerate() {
        let sizes = Sizes {
            blocks,
            pairs: layer.pairs,
            heads: layer.heads_of(&shard).len() as u32,
            tokens: groups[layer.group as usize].block_tokens,
            elements: layer.elements,
            element_bytes: layer.element_bytes,
        };
        let memory = LayerMemory {
            address: (index as u64 + 1) << 40,
            blocks,
            strides: Strides::of(arrangement, sizes),
        };
        layer.memory = (layer.stage == shard.pp_rank).then_some(memory);
    }
}

const ARRANGEMENTS: [Arrangement; 5] = [
    Arrangement::PairBlockTokenHead,
    Arrangement::PairBlockHeadToken,
    Arrangement::BlockPairTokenHead,
    Arrangement::BlockPairHeadToken,
    Arrangement::BlockHeadPairToken,
];

fn shards() -> impl Strategy<Value = Shard> {
    (0u32..4, 1u32..4, 1u32..4, 0u32..3, 1u32..20, any::<u32>()).prop_map(
        |(tp, pp_size, pcp_size, dcp, turn, rank)| {
            let tp_size = 1 << tp;
            let dcp_size = 1 << dcp.min(tp);
            let sizes = Shard {
                tp_rank: 0,
                tp_size,
                pp_rank: 0,
                pp_size,
                pcp_rank: 0,
                pcp_size,
                dcp_size,
                turn_tokens: turn,
            };
            sizes.at(rank % sizes.ranks())
        },
    )
}

fn groups(shard: Shard) -> impl Strategy<Value = Vec<Group>> {
    let kinds = if shard.context_ranks() > 1 { 3 } else { 4 };
    let group = (0..kinds, 1u32..10, 1u32..1000).prop_map(move |(kind, turns, tokens)| match kind {
        0 => Group { kind: GroupKind::Full, block_tokens: turns * shard.turn_tokens },
        1 => Group { kind: GroupKind::Window { tokens }, block_tokens: turns * shard.turn_tokens },
        2 => Group { kind: GroupKind::Latent, block_tokens: turns * shard.turn_tokens },
        _ => Group { kind: GroupKind::State, block_tokens: 1 },
    });
    proptest::collection::vec(group, 1..5)
}

fn layers(shard: Shard, groups: Vec<Group>) -> impl Strategy<Value = Vec<Layer>> {
    let layer = (any::<u32>(), any::<u32>(), any::<u32>(), 1u32..3, 1u32..600, 1u32..5, "[a-zé]{0,9}");
    proptest::collection::vec(layer, 1..12).prop_map(move |all| {
        let with_names = all.into_iter().enumerate();
        let layers =
            with_names.map(|(index, (group, stage, heads, pairs, elements, element_bytes, rest))| {
                let group = group % groups.len() as u32;
                let heads = match groups[group as usize].kind {
                    GroupKind::Latent => 1,
                    // Divides the ranks, and leaves as many replicas as divide the tokens.
                    _ if shard.dcp_size > 1 => 1 << (heads % (shard.tp_size / shard.dcp_size).ilog2().max(1)),
                    _ => shard.tp_size * (heads % 4) + shard.tp_size.min(2),
                };
                let name = format!("model.layers.{index}.{rest}");
                let stage = stage % shard.pp_size;
                Layer { name, group, stage, heads, pairs, elements, element_bytes, memory: None }
            });
        layers.collect()
    })
}

/// Any layout that `check` takes.
pub fn layouts() -> impl Strategy<Value = Layout> {
    let shards_and_groups = shards().prop_flat_map(|shard| (Just(shard), groups(shard)));
    let all = shards_and_groups.prop_flat_map(|(shard, groups)| {
        let memory = (0..ARRANGEMENTS.len(), 1u64..1000, prop_oneof![Just(0u64), 1u64..1000]);
        let key = proptest::array::uniform4("[ -~é]{0,30}");
        (Just(shard), layers(shard, groups.clone()), Just(groups), key, memory)
    });
    all.prop_map(|(shard, layers, groups, key, (arrangement, blocks, padding))| {
        let [model, revision, cache, rope] = key;
        let key = ModelKey { model, revision, cache, rope };
        let mut layout = Layout { key, shard, groups, layers };
        place(&mut layout, ARRANGEMENTS[arrangement], blocks);
        for memory in layout.layers.iter_mut().filter_map(|layer| layer.memory.as_mut()) {
            // The padding is the outermost dimension's, so that no bytes meet.
            memory.strides.block += if arrangement < 2 { 0 } else { padding };
            memory.address += padding;
        }
        layout
    })
}

proptest! {
    #[test]
    fn the_layouts_of_these_tests_make_sense(layout in layouts()) {
        prop_assert!(layout.check().is_ok(), "{:?}", layout.check());
    }
}

#[test]
fn the_layout_by_hand_makes_sense() {
    layout().check().unwrap();
}
