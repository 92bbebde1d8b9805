//! The page that explains a plan.

use ferry_kv::layout::{Arrangement, Group, GroupKind, Layout};
use ferry_kv::plan::Plan;

use crate::named::{layers, layout, of_rank};

const NHD: Arrangement = Arrangement::BlockPairTokenHead;

#[test]
fn the_page_tells_shapes_traffic_and_pieces() {
    let layers = layers(4, 8);
    let (source, target) = (layout(4, 1, 16, NHD, &layers), layout(2, 1, 32, NHD, &layers));
    let page = Plan::between(&source, &target).unwrap().explain();
    let expected = "\
model \"llama\", revision \"main\", cache \"bf16\", rope \"default\"
source: 4 ranks: tp 4, pp 1
target: 2 ranks: tp 2, pp 1

group 0, group 0 of the source: full, blocks of 16 tokens to 32; 4 layers of 8 heads, 2 x 128 elements of 2 bytes

source rank -> target rank: bytes of 1000 tokens
0 -> 0: 4096000, of 4 layers
1 -> 0: 4096000, of 4 layers
2 -> 1: 4096000, of 4 layers
3 -> 1: 4096000, of 4 layers

layers of the target's rank 0 in pieces, as its memory and that of the source's rank 0 lie
8 x 2 heads of 16 tokens: 32 pieces of 512 bytes; merged: element, head; one by one: token, pair
";
    assert_eq!(page, expected);
}

#[test]
fn the_page_tells_windows_states_and_context_ranks() {
    let side = |tp_size, stages, changed: fn(&mut Layout)| {
        let mut layout = layout(tp_size, 1, 16, NHD, &layers(3, 4));
        layout.shard.pp_size = stages;
        layout.groups.push(Group { kind: GroupKind::Window { tokens: 100 }, block_tokens: 16 });
        layout.groups.push(Group { kind: GroupKind::State, block_tokens: 1 });
        layout.layers.iter_mut().zip(0..).for_each(|(layer, group)| layer.group = group);
        changed(&mut layout);
        of_rank(&layout, 0, NHD)
    };
    let (source, target) = (side(1, 1, |_| ()), side(1, 1, |_| ()));
    let page = Plan::between(&source, &target).unwrap().explain();
    let row = 4 * 2 * 128 * 2;
    let traffic =
        format!("0 -> 0: {}, of 3 layers, and {row} for each block of states\n", row * (1000 + 100));
    assert!(page.contains(&traffic), "{page}");
    assert!(page.contains("group 1, group 1 of the source: window of 100 tokens, blocks of 16"), "{page}");
    assert!(page.contains("1 x 4 heads of 1 tokens: 1 pieces of 2048 bytes"), "{page}");
    // Four context ranks of the source, whose turns are 8 tokens: 250 tokens of each.
    let divided = |layout: &mut Layout| {
        layout.layers.truncate(1);
        layout.groups.truncate(1);
        (layout.shard.pcp_size, layout.shard.turn_tokens) = (4, 8);
    };
    let whole = |layout: &mut Layout| {
        layout.layers.truncate(1);
        layout.groups.truncate(1);
        layout.layers[0].stage = 1;
    };
    let page = Plan::between(&side(1, 1, divided), &side(1, 2, whole)).unwrap().explain();
    assert!(page.contains("source: 4 ranks: tp 1, pp 1, pcp 4, dcp 1, in turns of 8 tokens\n"), "{page}");
    for (rank, tokens) in [256, 248, 248, 248].into_iter().enumerate() {
        assert!(page.contains(&format!("{rank} -> 1: {}, of 1 layers\n", row * tokens)), "{page}");
    }
    assert!(page.contains("pieces: unknown, since these two ranks hold no layer in common"), "{page}");
}

#[test]
fn the_page_shows_whole_turns_and_not_all_ranks() {
    let side = |tp_size, turn_tokens| {
        let mut layout = layout(tp_size, 1, 16, NHD, &layers(1, 70));
        layout.shard.turn_tokens = turn_tokens;
        layout.shard.pcp_size = 2;
        of_rank(&layout, 0, NHD)
    };
    let page = Plan::between(&side(70, 4), &side(1, 8)).unwrap().explain();
    assert!(page.contains("140 x 1 heads of 4 tokens: 8 pieces of 256 bytes"), "{page}");
    let lines = |text: &str| page.lines().filter(|line| line.contains(text)).count();
    assert_eq!((lines(" -> "), lines("... 280 in all")), (1 + 64, 1), "{page}");
    // Equal turns lie together on both sides: the 16 tokens of a block.
    let page = Plan::between(&side(1, 4), &side(1, 4)).unwrap().explain();
    assert!(page.contains("1 x 70 heads of 16 tokens: 1 pieces of"), "{page}");
}
