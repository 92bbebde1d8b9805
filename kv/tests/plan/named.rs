//! Cases by name: who sends to whom, and how large the pieces are.

use ferry_kv::layout::{Arrangement, Group, GroupKind, Layer, LayerMemory, Layout, Shard, Sizes, Strides};
use ferry_kv::plan::{BlockSlice, Exchange, GroupBlocks, Loop, Plan, Strided};

use crate::model::key;

/// An instance of `tp` ranks by `pp` stages, seen from rank 0.
pub fn layout(
    tp_size: u32,
    pp_size: u32,
    block_tokens: u32,
    arrangement: Arrangement,
    layers: &[Layer],
) -> Layout {
    let shard = Shard {
        tp_rank: 0,
        tp_size,
        pp_rank: 0,
        pp_size,
        pcp_rank: 0,
        pcp_size: 1,
        dcp_size: 1,
        turn_tokens: 1,
    };
    let mut layout = Layout {
        key: key(),
        shard,
        groups: vec![Group { kind: GroupKind::Full, block_tokens }],
        layers: layers.to_vec(),
    };
    let count = layers.len() as u32;
    for (layer, number) in layout.layers.iter_mut().zip(0u32..) {
        layer.stage = number * pp_size / count;
    }
    of_rank(&layout, 0, arrangement)
}

/// The layout of another rank of the instance.
pub fn of_rank(layout: &Layout, rank: u32, arrangement: Arrangement) -> Layout {
    let shard = layout.shard.at(rank);
    let mut layout = Layout { shard, ..layout.clone() };
    for (layer, number) in layout.layers.iter_mut().zip(1u64..) {
        let Layer { pairs, elements, element_bytes, .. } = *layer;
        let tokens = layout.groups[layer.group as usize].block_tokens;
        let heads = layer.heads_of(&shard).len() as u32;
        let strides =
            Strides::of(arrangement, Sizes { blocks: 100, pairs, heads, tokens, elements, element_bytes });
        let memory = LayerMemory { address: number << 32, blocks: 100, strides };
        layer.memory = (layer.stage == shard.pp_rank).then_some(memory);
    }
    layout
}

pub fn layers(count: u32, heads: u32) -> Vec<Layer> {
    let layer = |number| Layer {
        name: format!("layers.{number}"),
        group: 0,
        stage: 0,
        heads,
        pairs: 2,
        elements: 128,
        element_bytes: 2,
        memory: None,
    };
    (0..count).map(layer).collect()
}

const NHD: Arrangement = Arrangement::BlockPairTokenHead;
const HND: Arrangement = Arrangement::BlockPairHeadToken;

fn sources(plan: &Plan, ranks: u32) -> Vec<Vec<u32>> {
    (0..ranks).map(|rank| plan.sources_of(rank).to_vec()).collect()
}

fn targets(plan: &Plan, ranks: u32) -> Vec<Vec<u32>> {
    (0..ranks).map(|rank| plan.targets_of(rank).to_vec()).collect()
}

fn between(source: (u32, u32), target: (u32, u32), layers: &[Layer]) -> Plan {
    let layout = |(tp, pp)| layout(tp, pp, 16, NHD, layers);
    Plan::between(&layout(source), &layout(target)).unwrap()
}

/// Source layer, source head, target head, heads.
fn pieces(exchange: &Exchange) -> Vec<(u32, u32, u32, u32)> {
    let piece = |piece: &ferry_kv::plan::LayerPiece| {
        assert_eq!(piece.source_layer, piece.target_layer);
        (piece.source_layer, piece.source_head, piece.target_head, piece.heads)
    };
    exchange.layers.iter().map(piece).collect()
}

#[test]
fn four_ranks_send_to_two() {
    let plan = between((4, 1), (2, 1), &layers(2, 8));
    assert_eq!(sources(&plan, 2), [vec![0, 1], vec![2, 3]]);
    assert_eq!(targets(&plan, 4), [[0], [0], [1], [1]]);
    assert_eq!(pieces(&plan.exchange(3, 1).unwrap()), [(0, 0, 2, 2), (1, 0, 2, 2)]);
    assert_eq!(pieces(&plan.exchange(3, 0).unwrap()), []);
}

#[test]
fn two_ranks_send_to_four() {
    let plan = between((2, 1), (4, 1), &layers(1, 8));
    assert_eq!(sources(&plan, 4), [[0], [0], [1], [1]]);
    assert_eq!(targets(&plan, 2), [vec![0, 1], vec![2, 3]]);
    assert_eq!(pieces(&plan.exchange(1, 3).unwrap()), [(0, 2, 0, 2)]);
}

#[test]
fn heads_that_do_not_divide_are_cut_where_either_side_cuts() {
    let plan = between((3, 1), (2, 1), &layers(1, 5));
    // The source has heads 0, 1 2, 3 4; the target has 0 1, 2 3 4.
    assert_eq!(sources(&plan, 2), [vec![0, 1], vec![1, 2]]);
    assert_eq!(pieces(&plan.exchange(1, 0).unwrap()), [(0, 0, 1, 1)]);
    assert_eq!(pieces(&plan.exchange(1, 1).unwrap()), [(0, 1, 0, 1)]);
}

#[test]
fn replicas_of_heads_share_the_load() {
    let plan = between((8, 1), (4, 1), &layers(6, 4));
    assert_eq!(sources(&plan, 4), [[0, 1], [2, 3], [4, 5], [6, 7]]);
    for source in 0..8 {
        assert_eq!(plan.exchange(source, source / 2).unwrap().layers.len(), 3, "rank {source}");
    }
    // Each of 8 target ranks gets its head once, all from other ranks in each layer.
    let plan = between((8, 1), (8, 1), &layers(2, 4));
    for layer in 0..2 {
        for target in 0..8 {
            let sends = |source: u32| {
                let exchange = plan.exchange(source, target).unwrap();
                exchange.layers.iter().filter(|piece| piece.target_layer == layer).count()
            };
            let senders: Vec<u32> = (0..8).filter(|&source| sends(source) > 0).collect();
            assert_eq!(senders, [target / 2 * 2 + (target + layer) % 2]);
        }
    }
}

#[test]
fn a_latent_cache_is_taken_from_all_ranks_in_turn() {
    let latent = |tp| {
        let mut layout = layout(tp, 1, 16, NHD, &[]);
        layout.groups[0].kind = GroupKind::Latent;
        layout.layers = layers(16, 1);
        layout.layers.iter_mut().for_each(|layer| layer.pairs = 1);
        of_rank(&layout, 0, NHD)
    };
    let plan = Plan::between(&latent(8), &latent(1)).unwrap();
    assert_eq!(plan.sources_of(0), [0, 1, 2, 3, 4, 5, 6, 7]);
    for source in 0..8 {
        assert_eq!(pieces(&plan.exchange(source, 0).unwrap()), [(source, 0, 0, 1), (source + 8, 0, 0, 1)]);
    }
}

#[test]
fn two_stages_send_to_four() {
    let plan = between((1, 2), (1, 4), &layers(8, 8));
    assert_eq!(sources(&plan, 4), [[0], [0], [1], [1]]);
    assert_eq!(pieces(&plan.exchange(1, 2).unwrap()), [(4, 0, 0, 8), (5, 0, 0, 8)]);
}

#[test]
fn a_rank_sends_nothing_if_no_one_needs_what_it_holds() {
    // Two replicas, one layer, one target: the second replica has no turn.
    let plan = between((2, 1), (1, 1), &layers(1, 1));
    assert_eq!(targets(&plan, 2), [vec![0], vec![]]);
    assert_eq!(plan.targets_of(2), []);
    assert_eq!(plan.sources_of(1), []);
    assert!(plan.explain().contains("rank 1 sends nothing"));
}

#[test]
fn a_rank_that_does_not_exist_is_refused() {
    let plan = between((2, 1), (1, 1), &layers(1, 1));
    let message = |source, target| plan.exchange(source, target).unwrap_err().message;
    assert_eq!(message(2, 0), "rank 2 of the source is beyond its 2 ranks");
    assert_eq!(message(1, 1), "rank 1 of the target is beyond its 1 ranks");
}

/// Lowers rank 0 to rank 0, of `tokens` tokens in blocks 0, 1, 2 and so on.
fn lower(source: &Layout, target: &Layout, tokens: u64) -> Vec<Strided> {
    let ids = |layout: &Layout| {
        (0..tokens.div_ceil(layout.groups[0].block_tokens.into()) as u32).collect::<Vec<_>>()
    };
    let (from, to) = (ids(source), ids(target));
    let blocks = [GroupBlocks {
        source: BlockSlice { ids: &from, first_token: 0 },
        target: BlockSlice { ids: &to, first_token: 0 },
    }];
    let exchange = Plan::between(source, target).unwrap().exchange(0, 0).unwrap();
    exchange.lower(source, target, &blocks, 0..tokens, 0..u32::MAX).unwrap()
}

#[test]
fn with_tokens_outside_heads_a_piece_is_the_heads_of_one_token() {
    let layers = layers(1, 8);
    let (source, target) = (layout(2, 1, 16, NHD, &layers), layout(1, 1, 16, NHD, &layers));
    let strided = lower(&source, &target, 32);
    assert_eq!(strided.len(), 1);
    assert_eq!(strided[0].bytes, 4 * 128 * 2);
    // The steps of tokens and pairs are one loop on the one side and on the other: 16 tokens are one pair's stride.
    assert_eq!(strided[0].inner, [Loop { count: 32, source_stride: 1024, target_stride: 2048 }]);
}

#[test]
fn with_heads_outside_tokens_a_piece_is_all_heads_of_a_block() {
    let layers = layers(1, 8);
    let (source, target) = (layout(2, 1, 16, HND, &layers), layout(1, 1, 16, HND, &layers));
    let strided = lower(&source, &target, 32);
    let bytes = 4 * 16 * 128 * 2;
    assert_eq!(strided[0].bytes, bytes);
    assert_eq!(strided[0].inner, [Loop { count: 2, source_stride: bytes, target_stride: 2 * bytes }]);
    // Half a block: the tokens of one head.
    let strided = lower(&source, &target, 8);
    assert_eq!(strided[0].bytes, 8 * 128 * 2);
}

#[test]
fn a_block_with_head_outside_pair_is_one_piece() {
    let arrangement = Arrangement::BlockHeadPairToken;
    let layers = layers(2, 8);
    let (source, target) = (layout(2, 1, 16, arrangement, &layers), layout(1, 1, 16, arrangement, &layers));
    let strided = lower(&source, &target, 48);
    assert_eq!(strided.len(), 1, "one geometry, one class");
    assert_eq!((strided[0].bytes, strided[0].inner.len()), (4 * 2 * 16 * 128 * 2, 0));
    assert_eq!((strided[0].layers.len(), strided[0].pieces()), (2, 6));
}

#[test]
fn equal_shards_move_whole_blocks_in_one_piece() {
    for arrangement in [NHD, HND, Arrangement::BlockHeadPairToken] {
        let layout = layout(2, 1, 16, arrangement, &layers(1, 8));
        let strided = lower(&layout, &layout, 32);
        assert_eq!((strided[0].bytes, strided[0].inner.len()), (2 * 16 * 4 * 128 * 2, 0));
    }
    let layout = layout(2, 1, 16, Arrangement::PairBlockTokenHead, &layers(1, 8));
    let strided = lower(&layout, &layout, 32);
    assert_eq!((strided[0].bytes, strided[0].inner.len()), (16 * 4 * 128 * 2, 1));
}

#[test]
fn equal_context_ranks_move_whole_blocks() {
    let mut layout = layout(1, 1, 16, NHD, &layers(1, 8));
    (layout.shard.pcp_size, layout.shard.turn_tokens) = (2, 1);
    let ids = [1, 2];
    let list = BlockSlice { ids: &ids, first_token: 0 };
    let exchange = Plan::between(&layout, &layout).unwrap().exchange(0, 0).unwrap();
    let lists = [GroupBlocks { source: list, target: list }];
    let strided = exchange.lower(&layout, &layout, &lists, 0..63, 0..1).unwrap();
    assert_eq!((strided.len(), strided[0].pieces(), strided[0].bytes), (1, 2, 2 * 16 * 8 * 128 * 2));
}

#[test]
fn loops_go_through_the_target_in_its_order() {
    let layers = layers(1, 8);
    let (source, target) = (layout(1, 1, 16, HND, &layers), layout(1, 1, 16, NHD, &layers));
    let strided = lower(&source, &target, 16);
    let row = 128 * 2;
    let step = |count, source_stride, target_stride| Loop { count, source_stride, target_stride };
    let pair = step(2, 8 * 16 * row, 8 * 16 * row);
    let (token, head) = (step(16, row, 8 * row), step(8, 16 * row, row));
    assert_eq!((strided[0].bytes, &strided[0].inner), (row, &vec![pair, token, head]));
    // The other way round the heads are further apart.
    let strided = lower(&target, &source, 16);
    let (head, token) = (step(8, row, 16 * row), step(16, 8 * row, row));
    assert_eq!((strided[0].bytes, &strided[0].inner), (row, &vec![pair, head, token]));
}

#[test]
fn blocks_of_other_sizes_are_cut_into_few_classes() {
    let layers = layers(1, 8);
    let classes = |source, target, tokens| {
        let (source, target) = (layout(1, 1, source, HND, &layers), layout(1, 1, target, HND, &layers));
        let mut found: Vec<_> = lower(&source, &target, tokens)
            .iter()
            .map(|strided| (strided.bytes / 256, strided.pairs.source.clone(), strided.pairs.target.clone()))
            .collect();
        found.sort();
        found
    };
    assert_eq!(classes(16, 32, 96), [(16, vec![0, 2, 4], vec![0, 1, 2]), (16, vec![1, 3, 5], vec![0, 1, 2])]);
    assert_eq!(classes(64, 32, 128), [(32, vec![0, 1], vec![0, 2]), (32, vec![0, 1], vec![1, 3])]);
    assert_eq!(classes(64, 16, 128).len(), 4);
    // The tail is one class more.
    assert_eq!(
        classes(16, 64, 70).iter().map(|(tokens, ..)| *tokens).collect::<Vec<_>>(),
        [6, 16, 16, 16, 16]
    );
}
