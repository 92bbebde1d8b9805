//! Any two instances: after all exchanges every byte of the target is what the naive model says, nothing else was
//! touched, and nothing was written twice.

use std::collections::BTreeSet;
use std::ops::Range;

use ferry_kv::layout::{Arrangement, Group, GroupKind, Layer, Layout, Shard};
use ferry_kv::plan::{LayerPiece, Plan};
use proptest::prelude::*;

use crate::model::{canary, context_rank, heads_of, key, place_of, Instance, Placement, Random, ADDRESS};

const ARRANGEMENTS: [Arrangement; 5] = [
    Arrangement::PairBlockTokenHead,
    Arrangement::PairBlockHeadToken,
    Arrangement::BlockPairTokenHead,
    Arrangement::BlockPairHeadToken,
    Arrangement::BlockHeadPairToken,
];

#[derive(Clone, Debug)]
struct Case {
    source: Shard,
    target: Shard,
    layers: usize,
    tokens: Range<u64>,
    seed: u64,
}

fn shard() -> impl Strategy<Value = Shard> {
    (1u32..=6, 1u32..=3, 1u32..=2, 1u32..=2, 1u32..=3).prop_map(
        |(tp_size, pp_size, pcp_size, dcp, turn_tokens)| {
            let dcp_size = if tp_size % dcp == 0 { dcp } else { 1 };
            Shard { tp_rank: 0, tp_size, pp_rank: 0, pp_size, pcp_rank: 0, pcp_size, dcp_size, turn_tokens }
        },
    )
}

fn case() -> impl Strategy<Value = Case> {
    (shard(), shard(), 1usize..=5, 0u64..30, 0u64..40, any::<u64>()).prop_map(
        |(source, target, layers, start, count, seed)| {
            let tokens = start..start + count;
            Case { source, target, layers, tokens, seed }
        },
    )
}

/// The layouts of a case, before any rank has memory.
struct Shapes {
    source: Layout,
    target: Layout,
    /// The source's group for each of the target's.
    groups: Vec<usize>,
}

fn contexts(shard: &Shard) -> u32 {
    shard.pcp_size * shard.dcp_size
}

/// Heads that both sides can divide.
fn heads(case: &Case, kind: GroupKind, random: &mut Random) -> u32 {
    let equal = case.source.tp_size == case.target.tp_size;
    match kind {
        GroupKind::Latent => return 1,
        GroupKind::State if !equal && random.below(4) > 0 => return 1,
        _ => {}
    }
    let fits = |heads: u32, shard: &Shard| {
        let divides = shard.tp_size <= heads || shard.tp_size % heads == 0;
        divides && (shard.tp_size / heads).max(1) % shard.dcp_size == 0
    };
    let all = 1..=12;
    random.pick(
        &all.filter(|&heads| fits(heads, &case.source) && fits(heads, &case.target)).collect::<Vec<_>>(),
    )
}

fn shapes(case: &Case, random: &mut Random) -> Shapes {
    let is_divided = contexts(&case.source) > 1 || contexts(&case.target) > 1;
    let block = |shard: &Shard, random: &mut Random| match contexts(shard) {
        1 => 1 + random.below(9) as u32,
        _ => shard.turn_tokens * (1 + random.below(3) as u32),
    };
    let mut source_groups = Vec::new();
    for _ in 0..1 + random.below(3) {
        let kind = match random.below(if is_divided { 3 } else { 4 }) {
            0 => GroupKind::Full,
            1 => GroupKind::Window { tokens: 5 + random.below(20) as u32 },
            2 => GroupKind::Latent,
            _ => GroupKind::State,
        };
        source_groups.push(Group { kind, block_tokens: block(&case.source, random) });
    }
    // The target has the source's groups in another order, and may have one of them twice.
    let mut groups: Vec<usize> = (0..source_groups.len()).rev().collect();
    groups.push(random.below(source_groups.len() as u64) as usize);
    groups.truncate(source_groups.len() + random.below(2) as usize);
    let target_group = |&from: &usize| {
        let kind = match source_groups[from].kind {
            GroupKind::Window { tokens } => GroupKind::Window { tokens: tokens - random.below(5) as u32 },
            kind => kind,
        };
        Group { kind, block_tokens: block(&case.target, random) }
    };
    let mut target_groups: Vec<Group> = groups.iter().map(target_group).collect();
    for group in source_groups.iter_mut().chain(&mut target_groups) {
        if group.kind == GroupKind::State {
            group.block_tokens = 1;
        }
    }
    let (mut source_layers, mut target_layers): (Vec<Layer>, Vec<Layer>) = (Vec::new(), Vec::new());
    for number in 0..case.layers {
        let group = random.below(groups.len() as u64) as u32;
        let kind = target_groups[group as usize].kind;
        let layer = Layer {
            name: format!("layers.{number}"),
            group,
            stage: 0,
            heads: heads(case, kind, random),
            pairs: if kind == GroupKind::Latent { 1 } else { 1 + random.below(2) as u32 },
            elements: 1 + random.below(4) as u32,
            element_bytes: random.pick(&[1, 2, 4]),
            memory: None,
        };
        let from = Layer { group: groups[group as usize] as u32, ..layer.clone() };
        if random.below(4) == 0 {
            source_layers.push(Layer { name: format!("source.{number}"), ..from.clone() });
        }
        source_layers.push(from);
        target_layers.push(layer);
    }
    for (layers, shard) in [(&mut source_layers, &case.source), (&mut target_layers, &case.target)] {
        let mut stages: Vec<u32> = layers.iter().map(|_| random.below(shard.pp_size.into()) as u32).collect();
        stages.sort_unstable();
        layers.iter_mut().zip(stages).for_each(|(layer, stage)| layer.stage = stage);
    }
    let layout = |shard, groups, layers| Layout { key: key(), shard, groups, layers };
    Shapes {
        source: layout(case.source, source_groups, source_layers),
        target: layout(case.target, target_groups, target_layers),
        groups,
    }
}

fn placements(layers: usize, random: &mut Random) -> Vec<Placement> {
    // Often alike, as in engines.
    let all = Placement { arrangement: random.pick(&ARRANGEMENTS), padding: 0 };
    let alike = random.below(2) == 0;
    let any = |_| {
        if alike {
            all
        } else {
            Placement { arrangement: random.pick(&ARRANGEMENTS), padding: random.pick(&[0, 0, 1, 3]) }
        }
    };
    (0..layers).map(any).collect()
}

/// Whether each rank of the target finds its states whole on some rank of the source.
fn has_states(shapes: &Shapes) -> bool {
    let (source, target) = (&shapes.source, &shapes.target);
    let ranks = |layout: &Layout| -> Vec<Shard> {
        (0..layout.shard.ranks()).map(|rank| layout.shard.at(rank)).collect()
    };
    target.layers.iter().filter(|to| target.groups[to.group as usize].kind == GroupKind::State).all(|to| {
        let from = source.layers.iter().find(|from| from.name == to.name).expect("matched");
        let needing: Vec<Shard> =
            ranks(target).into_iter().filter(|shard| shard.pp_rank == to.stage).collect();
        needing.iter().all(|needs| {
            let fits = |has: &Shard| {
                has.pp_rank == from.stage && heads_of(to.heads, has) == heads_of(to.heads, needs)
            };
            ranks(source).iter().any(fits)
        })
    })
}

/// Whether the model finds any token that both ranks hold.
fn have_common_tokens(source: &Shard, target: &Shard) -> bool {
    let period = u64::from(source.turn_tokens * contexts(source) * target.turn_tokens * contexts(target));
    (0..period).any(|token| {
        place_of(source, token).0 == context_rank(source) && place_of(target, token).0 == context_rank(target)
    })
}

/// Moves everything and checks it. `split` cuts the layers in two calls.
fn run(
    shapes: &Shapes,
    plan: &Plan,
    source: &Instance,
    target: &mut Instance,
    chunks: &[Range<u64>],
    split: u32,
) -> Result<(), TestCaseError> {
    for to in 0..target.ranks.len() {
        let mut expected = target.memory[to].clone();
        let mut actual = expected.clone();
        let mut written = vec![false; actual.len()];
        for (number, tokens) in chunks.iter().enumerate() {
            let with_states = number + 1 == chunks.len();
            target.walk(to, tokens, with_states, |at, byte| expected[at] = byte);
            for from in 0..source.ranks.len() {
                let exchange = plan.exchange(from as u32, to as u32).expect("ranks exist");
                let blocks = Instance::blocks(source, from, target, to, &shapes.groups, with_states);
                for layers in [0..split, split..u32::MAX] {
                    let strided = exchange
                        .lower(
                            &source.ranks[from],
                            &target.ranks[to],
                            &blocks,
                            tokens.clone(),
                            layers.clone(),
                        )
                        .map_err(|error| TestCaseError::fail(error.message))?;
                    let of_layer = |piece: &LayerPiece| {
                        let group = target.ranks[to].layers[piece.target_layer as usize].group;
                        blocks[group as usize].target.ids.len() as u64
                    };
                    let moved: u64 = strided.iter().map(|strided| strided.pieces() * strided.bytes).sum();
                    let told = exchange.bytes(&target.ranks[to], tokens, &layers, of_layer);
                    prop_assert_eq!(moved, told, "bytes without lists");
                    for piece in strided.iter().flat_map(|strided| strided.requests()) {
                        prop_assert!(layers.contains(&piece.layer));
                        prop_assert!(plan.sources_of(to as u32).contains(&(from as u32)));
                        let [at, place] = [piece.source, piece.target].map(|at| (at - ADDRESS) as usize);
                        for byte in 0..piece.bytes as usize {
                            prop_assert!(
                                !std::mem::replace(&mut written[place + byte], true),
                                "written twice"
                            );
                            actual[place + byte] = source.memory[from][at + byte];
                        }
                    }
                }
            }
        }
        prop_assert!(actual == expected, "rank {} differs at {:?}", to, differs(&actual, &expected, to));
    }
    Ok(())
}

/// The first difference: place, byte, expected byte, and whether the byte is untouched.
fn differs(actual: &[u8], expected: &[u8], rank: usize) -> Option<(usize, u8, u8, bool)> {
    let at = (0..actual.len()).find(|&at| actual[at] != expected[at])?;
    Some((at, actual[at], expected[at], actual[at] == canary(rank, at)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_exchanges_fill_the_target_and_touch_nothing_else(case in case()) {
        let mut random = Random(case.seed);
        let shapes = shapes(&case, &mut random);
        let middle = case.tokens.start + random.below(case.tokens.end - case.tokens.start + 1);
        let chunks = [case.tokens.start..middle, middle..case.tokens.end];
        let states = random.below(4);
        let [from, to] = [&shapes.source, &shapes.target].map(|layout| layout.layers.len());
        let placed = placements(from, &mut random);
        let mut source = Instance::build(&shapes.source, &placed, &chunks, states, &mut random);
        for chunk in &chunks {
            source.fill(chunk);
        }
        let placed = placements(to, &mut random);
        let mut target = Instance::build(&shapes.target, &placed, &chunks, states, &mut random);
        let mut any = |side: &Instance| side.ranks[random.below(side.ranks.len() as u64) as usize].clone();
        let (from, to) = (any(&source), any(&target));
        let plan = match Plan::between(&from, &to) {
            Ok(plan) => plan,
            Err(error) => {
                prop_assert!(!has_states(&shapes), "{}", error.message);
                return Ok(());
            }
        };
        prop_assert!(has_states(&shapes), "a state that no rank holds was planned");
        check_lists(&shapes, &plan)?;
        let split = random.below(case.layers as u64 + 1) as u32;
        run(&shapes, &plan, &source, &mut target, &chunks, split)?;
    }
}

/// `sources_of` and `targets_of` name the exchanges that have pieces, and those whose ranks have tokens in common.
fn check_lists(shapes: &Shapes, plan: &Plan) -> Result<(), TestCaseError> {
    for to in 0..shapes.target.shard.ranks() {
        let mut senders = BTreeSet::new();
        for from in 0..shapes.source.shard.ranks() {
            let exchange = plan.exchange(from, to).expect("ranks exist");
            prop_assert_eq!((exchange.source.rank(), exchange.target.rank()), (from, to));
            if !exchange.layers.is_empty() {
                prop_assert!(have_common_tokens(&exchange.source, &exchange.target));
                senders.insert(from);
            }
            prop_assert_eq!(plan.targets_of(from).contains(&to), senders.contains(&from));
        }
        prop_assert_eq!(plan.sources_of(to), senders.into_iter().collect::<Vec<_>>());
    }
    Ok(())
}
