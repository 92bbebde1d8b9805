//! Refusals of a plan and its lowering, with the sentence that says why.

use ferry::Status;
use ferry_kv::layout::{Arrangement, GroupKind, Layout};
use ferry_kv::plan::{BlockSlice, GroupBlocks, Plan};

use crate::named::{layers, layout, of_rank};

const NHD: Arrangement = Arrangement::BlockPairTokenHead;

fn base() -> Layout {
    layout(1, 1, 16, NHD, &layers(2, 4))
}

/// Plans from `base` with a change to itself with another change.
fn refusal(source: impl Fn(&mut Layout), target: impl Fn(&mut Layout)) -> (Status, String) {
    let (mut from, mut to) = (base(), base());
    source(&mut from);
    target(&mut to);
    let (from, to) = (of_rank(&from, 0, NHD), of_rank(&to, 0, NHD));
    let error = Plan::between(&from, &to).unwrap_err();
    (error.status, error.message)
}

fn same(_: &mut Layout) {}

#[test]
fn other_models_are_invalid() {
    let (status, message) = refusal(same, |layout| layout.key.rope = "yarn 4".into());
    assert_eq!(status, Status::Invalid);
    assert_eq!(message, "the key's rope differs: the source has \"default\", the target \"yarn 4\"");
    for change in [
        |layout: &mut Layout| layout.key.model = "x".into(),
        |layout: &mut Layout| layout.key.revision = "x".into(),
        |layout: &mut Layout| layout.key.cache = "x".into(),
    ] {
        assert_eq!(refusal(same, change).0, Status::Invalid);
    }
}

#[test]
fn a_target_that_the_source_cannot_fill_is_unsupported() {
    type Change = fn(&mut Layout);
    let cases: [(&str, Change); 6] = [
        ("the source has no layer mtp", |to| to.layers[1].name = "mtp".into()),
        ("the heads of layer layers.1 differs: the source has 4, the target 8", |to| to.layers[1].heads = 8),
        ("the pairs of layer layers.0 differs: the source has 2, the target 1", |to| to.layers[0].pairs = 1),
        ("the elements of layer layers.0 differs: the source has 128, the target 64", |to| {
            to.layers[0].elements = 64
        }),
        ("the element_bytes of layer layers.0 differs: the source has 2, the target 1", |to| {
            to.layers[0].element_bytes = 1
        }),
        (
            "the group kind of layer layers.0 differs: the source has Full, the target Window { tokens: 9 }",
            |to| to.groups[0].kind = GroupKind::Window { tokens: 9 },
        ),
    ];
    for (expected, change) in cases {
        assert_eq!(refusal(same, change), (Status::Unsupported, expected.to_string()));
    }
}

#[test]
fn layouts_that_do_not_check_are_refused() {
    let broken = |layout: &mut Layout| layout.groups[0].block_tokens = 0;
    for (status, message) in [refusal(broken, same), refusal(same, broken)] {
        assert_eq!(
            (status, message.contains("groups[0].block_tokens")),
            (Status::Invalid, true),
            "{message}"
        );
    }
}

#[test]
fn a_window_may_be_shorter_but_not_longer() {
    let window = |tokens| move |layout: &mut Layout| layout.groups[0].kind = GroupKind::Window { tokens };
    let (status, message) = refusal(window(16), window(17));
    assert_eq!(status, Status::Unsupported);
    assert_eq!(message, "the source keeps 16 tokens of layer layers.0, and the target needs 17");
    let (mut from, mut to) = (base(), base());
    window(16)(&mut from);
    window(16)(&mut to);
    Plan::between(&from, &to).unwrap();
}

#[test]
fn layers_of_one_group_must_share_a_group_of_the_source() {
    let (status, message) = refusal(
        |from| {
            from.groups.push(from.groups[0]);
            from.layers[1].group = 1;
        },
        same,
    );
    assert_eq!(status, Status::Unsupported);
    assert_eq!(
        message,
        "layers layers.0 and layers.1 share group 0 of the target, but are in groups 0 and 1 of the source"
    );
}

#[test]
fn states_move_between_equal_shards_only() {
    let state = |tp| {
        let mut layout = layout(tp, 1, 1, NHD, &layers(1, 4));
        layout.groups[0].kind = GroupKind::State;
        layout
    };
    let error = Plan::between(&state(4), &state(2)).unwrap_err();
    assert_eq!(error.status, Status::Unsupported);
    assert_eq!(
        error.message,
        "no rank of the source holds exactly the 2 heads from 0 on of the state layers.0, which rank 0 of \
         the target needs"
    );
    Plan::between(&state(4), &state(4)).unwrap();
}

#[test]
fn a_plan_of_too_many_steps_is_refused() {
    // Each rank of the target needs some tokens of each rank of the source.
    let status = |layers_count| {
        let wide = |pcp_size| {
            let mut layout = layout(1, 1, 16, NHD, &layers(layers_count, 1));
            layout.shard.pcp_size = pcp_size;
            layout
        };
        Plan::between(&wide(256), &wide(255)).map(|_| ()).map_err(|error| error.status)
    };
    assert_eq!(status(1), Ok(()));
    assert_eq!(status(1024), Err(Status::Limit));
}

/// The sentence for a call of `lower` with these lists of `base`'s one group, which has 100 blocks of 16 tokens.
fn lowered(source: (&[u32], u64), target: (&[u32], u64), tokens: std::ops::Range<u64>) -> Result<(), String> {
    let base = base();
    let exchange = Plan::between(&base, &base).unwrap().exchange(0, 0).unwrap();
    let list = |(ids, first_token)| BlockSlice { ids, first_token };
    let blocks = [GroupBlocks { source: list(source), target: list(target) }];
    let strided = exchange.lower(&base, &base, &blocks, tokens, 0..9);
    strided.map(|_| ()).map_err(|error| {
        assert_eq!(error.status, Status::Invalid);
        error.message
    })
}

#[test]
fn lists_that_do_not_fit_are_refused() {
    let err = |message: &str| Err(message.to_string());
    assert_eq!(lowered((&[99, 1], 0), (&[1, 99], 0), 0..32), Ok(()));
    assert_eq!(
        lowered((&[99, 100], 0), (&[1, 99], 0), 0..32),
        err("block id 100 of the source's list of group 0 is beyond the 100 blocks of layer layers.0")
    );
    assert_eq!(
        lowered((&[99, 1], 0), (&[u32::MAX, 99], 0), 0..32),
        err("block id 4294967295 of the target's list of group 0 is beyond the 100 blocks of layer layers.0")
    );
    assert_eq!(
        lowered((&[1, 1], 0), (&[7, 7], 0), 0..32),
        err("block id 7 is twice in the target's list of group 0")
    );
    assert_eq!(
        lowered((&[1, 2], 0), (&[1, 2], 0), 0..33),
        err("the source's list of group 0 is too short: its 2 blocks end before its rank's token 32, and \
             the range ends before token 33")
    );
    assert_eq!(
        lowered((&[1, 2, 3], 0), (&[1, 2], 0), 0..33),
        err("the target's list of group 0 is too short: its 2 blocks end before its rank's token 32, and \
             the range ends before token 33")
    );
    assert_eq!(
        lowered((&[1, 2], 16), (&[1, 2], 0), 15..32),
        err("the source's list of group 0 begins at its rank's token 16, and token 15 is asked for")
    );
    assert_eq!(lowered((&[1, 2], 16), (&[1, 2], 0), 16..32), Ok(()));
    assert_eq!(
        lowered((&[1, 2], 8), (&[1, 2], 0), 8..32),
        err("first_token of the source's list of group 0 is 8, which is no multiple of block_tokens 16")
    );
    assert_eq!(lowered((&[], 0), (&[], 0), 5..5), Ok(()));
    assert!(lowered((&[1], u64::MAX - 15), (&[1], u64::MAX - 15), u64::MAX - 15..u64::MAX).is_ok());
    assert!(lowered((&[1], 0), (&[1], 0), 0..u64::MAX).is_err());
}

#[test]
fn a_block_that_any_layer_lacks_is_refused() {
    let (base, mut small) = (base(), base());
    let exchange = Plan::between(&base, &base).unwrap().exchange(0, 0).unwrap();
    small.layers[1].memory.as_mut().expect("placed").blocks = 50;
    let lower = |source: &Layout, target: &Layout, id, layers| {
        let list = BlockSlice { ids: &[id], first_token: 0 };
        let blocks = [GroupBlocks { source: list, target: list }];
        exchange.lower(source, target, &blocks, 0..16, layers).map(|_| ()).map_err(|error| error.message)
    };
    assert_eq!(lower(&small, &small, 49, 0..2), Ok(()));
    assert_eq!(lower(&small, &small, 50, 0..1), Ok(()));
    let beyond = |side| {
        Err(format!("block id 50 of the {side}'s list of group 0 is beyond the 50 blocks of layer layers.1"))
    };
    assert_eq!(lower(&small, &base, 50, 0..2), beyond("source"));
    assert_eq!(lower(&base, &small, 50, 0..2), beyond("target"));
}

#[test]
fn states_are_paired() {
    let mut layout = layout(1, 1, 1, NHD, &layers(1, 4));
    layout.groups[0].kind = GroupKind::State;
    let exchange = Plan::between(&layout, &layout).unwrap().exchange(0, 0).unwrap();
    let lower = |source, target| {
        let list = |ids| BlockSlice { ids, first_token: 0 };
        let blocks = [GroupBlocks { source: list(source), target: list(target) }];
        exchange.lower(&layout, &layout, &blocks, 0..1, 0..1)
    };
    assert_eq!(lower(&[], &[]).unwrap(), []);
    assert_eq!(lower(&[3, 3], &[1, 2]).unwrap()[0].pairs.source, [3, 3]);
    assert_eq!(
        lower(&[3], &[1, 2]).unwrap_err().message,
        "the source's list of group 0 has 1 blocks and the target's list of group 0 has 2, but the blocks \
         of a State are paired"
    );
}

#[test]
fn other_layouts_than_planned_are_refused() {
    let base = base();
    let exchange = Plan::between(&base, &base).unwrap().exchange(0, 0).unwrap();
    let message = |source: &Layout, target: &Layout, groups: usize| {
        let blocks = vec![GroupBlocks::default(); groups];
        exchange.lower(source, target, &blocks, 0..0, 0..9).map(|_| ()).unwrap_err().message
    };
    let change = |change: fn(&mut Layout)| {
        let mut layout = base.clone();
        change(&mut layout);
        layout
    };
    assert_eq!(message(&base, &base, 2), "blocks has 2 groups, and the target's layout 1");
    let other = change(|layout| layout.shard.tp_size = 2);
    assert!(message(&other, &base, 1).starts_with("the layout of the source is of Shard {"));
    assert!(message(&base, &other, 1).starts_with("the layout of the target is of Shard {"));
    let other = change(|layout| layout.layers[1].memory = None);
    assert_eq!(message(&other, &base, 1), "layer layers.1 of the source has no memory");
    let other = change(|layout| layout.layers.truncate(1));
    assert_eq!(message(&base, &other, 1), "the layout of the target has 1 layers, and no layer 1");
    let other = change(|layout| layout.layers.reverse());
    assert_eq!(
        message(&base, &other, 1),
        "layer 0 of the source is \"layers.0\", and layer 0 of the target \"layers.1\""
    );
    let other = change(|layout| layout.layers.iter_mut().for_each(|layer| layer.heads = 2));
    assert_eq!(
        message(&base, &other, 1),
        "layer layers.0 of the target has the heads 0..2 here, and 4 heads from 0 on are asked for"
    );
    let other = change(|layout| layout.layers.iter_mut().for_each(|layer| layer.elements = 2));
    assert_eq!(
        message(&base, &other, 1),
        "the elements of layer layers.0 differs: the source has 128, the target 2"
    );
}

#[test]
fn memory_that_ends_beyond_all_addresses_is_refused() {
    let base = base();
    let exchange = Plan::between(&base, &base).unwrap().exchange(0, 0).unwrap();
    let block = 2 * 16 * 4 * 128 * 2;
    let lower = |address: u64, id: u32| {
        let mut layout = base.clone();
        layout.layers[1].memory.as_mut().expect("placed").address = address;
        let list = |ids| BlockSlice { ids, first_token: 0 };
        let blocks = [GroupBlocks { source: list(&[1]), target: list(std::slice::from_ref(&id)) }];
        exchange.lower(&base, &layout, &blocks, 0..16, 0..9).map(|_| ()).map_err(|error| error.message)
    };
    assert_eq!(lower(u64::MAX - block * 3, 2), Ok(()));
    assert_eq!(
        lower(u64::MAX - block * 3 + 1, 2),
        Err("layer layers.1 of the target ends beyond the last address".to_string())
    );
}
