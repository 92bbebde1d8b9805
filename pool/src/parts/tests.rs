//! The parts of one engine as another one gets them, by the model of `model`, and what is refused.

use ferry_kv::{Group, LayerMemory, ModelKey, Strides};

use super::model::*;
use super::*;
use Arrangement::*;

const LLAMA: &Rows = &[(4, 2, 8, 2); 4];
const MLA: &Rows = &[(1, 1, 12, 2); 3];
const MIXED: &Rows = &[(4, 2, 4, 2), (1, 1, 6, 4), (2, 2, 4, 1), (4, 2, 4, 2), (1, 1, 2, 2)];

const NHD: Side =
    Side { tp: 1, pp: 1, block_tokens: 16, arrangement: PairBlockTokenHead, blocks_first: false };
const HND: Side = Side { arrangement: BlockPairHeadToken, ..NHD };

fn cut(head_parts: u32, layer_parts: u32) -> Cut {
    Cut { chunk_tokens: 64, head_parts, layer_parts, ..Cut::default() }
}

#[test]
fn what_one_engine_puts_another_one_gets_in_its_own_sharding() {
    let tp = |tp| Side { tp, ..NHD };
    let blocks = |block_tokens| Side { block_tokens, ..NHD };
    let blocks_first = Side { blocks_first: true, arrangement: BlockPairTokenHead, ..NHD };
    let table: [(&str, Side, Side, &Rows, Cut); 18] = [
        ("equal engines", NHD, NHD, LLAMA, cut(1, 1)),
        ("tp 1 to 2", NHD, tp(2), LLAMA, cut(2, 1)),
        ("tp 2 to 1", tp(2), NHD, LLAMA, cut(2, 1)),
        ("tp 4 to 2", tp(4), tp(2), LLAMA, cut(4, 1)),
        ("tp 2 to 4", tp(2), tp(4), LLAMA, cut(8, 1)),
        ("heads replicated at the source", tp(8), tp(2), LLAMA, cut(4, 1)),
        ("heads replicated at the target", NHD, tp(8), LLAMA, cut(8, 2)),
        ("blocks of 16 to 64", blocks(16), blocks(64), LLAMA, cut(1, 1)),
        ("blocks of 64 to 16", blocks(64), blocks(16), LLAMA, cut(1, 1)),
        ("blocks that divide no chunk", blocks(48), blocks(10), LLAMA, cut(1, 1)),
        ("NHD to HND", NHD, HND, LLAMA, cut(1, 1)),
        (
            "HND to NHD, stored as HND",
            HND,
            tp(2),
            LLAMA,
            Cut { arrangement: BlockPairHeadToken, ..cut(2, 1) },
        ),
        ("layers first to blocks first", NHD, blocks_first, LLAMA, cut(1, 2)),
        ("blocks first to layers first", blocks_first, HND, LLAMA, cut(2, 4)),
        ("stages", Side { pp: 2, ..NHD }, Side { pp: 4, tp: 2, ..NHD }, LLAMA, cut(2, 4)),
        ("stages of two layers", Side { pp: 2, ..NHD }, NHD, LLAMA, cut(1, 2)),
        ("latent vectors", tp(4), HND, MLA, cut(4, 3)),
        ("layers of many kinds", tp(4), Side { tp: 2, ..blocks_first }, MIXED, cut(4, 1)),
    ];
    for (name, from, to, rows, cut) in table {
        pass(&from, &to, rows, &cut, &mut Random(1)).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn any_two_engines() {
    for seed in 0..400 {
        let random = &mut Random(seed);
        let arrangements = [
            PairBlockTokenHead,
            PairBlockHeadToken,
            BlockPairTokenHead,
            BlockPairHeadToken,
            BlockHeadPairToken,
        ];
        let heads = random.pick(&[1, 2, 3, 4, 6]);
        let rows: Vec<_> = (0..1 + random.below(4))
            .map(|_| {
                let elements = 1 + random.below(5) as u32;
                let bytes = random.pick(&[1, 2, 4]);
                match random.below(4) {
                    0 => (1, 1, elements, bytes),
                    _ => (heads, 2, elements, bytes),
                }
            })
            .collect();
        let layers = rows.len() as u64;
        let mut side = || {
            let fits: Vec<u32> = (1..=8).filter(|tp| *tp <= heads || tp % heads == 0).collect();
            let arrangement = random.pick(&arrangements);
            let is_split = matches!(arrangement, PairBlockTokenHead | PairBlockHeadToken);
            Side {
                tp: random.pick(&fits),
                pp: 1 + (random.below(2) * random.below(layers)) as u32,
                block_tokens: 1 + random.below(20) as u32,
                arrangement,
                blocks_first: !is_split && random.below(2) == 0,
            }
        };
        let (from, to) = (side(), side());
        let cut = Cut {
            chunk_tokens: 1 + random.below(40) as u32,
            head_parts: if from.tp == to.tp { from.tp } else { heads + random.below(2) as u32 },
            // Otherwise some part may have layers of two stages.
            layer_parts: if from.pp.max(to.pp) == 1 {
                1 + random.below(layers) as u32
            } else {
                layers as u32
            },
            arrangement: random.pick(&arrangements),
        };
        let passed = pass(&from, &to, &rows, &cut, random);
        passed.unwrap_or_else(|error| panic!("seed {seed}, {from:?} to {to:?}, {cut:?}, {rows:?}: {error}"));
    }
}

/// A rank whose lists begin with the first chunk, of blocks that follow one another.
fn plain(side: &Side, rows: &Rows, cut: &Cut) -> Rank {
    let mut rank = Rank::new(side, rows, cut, 0, 0, &mut Random(2));
    let tokens = u64::from(cut.chunk_tokens);
    let count = (2 * tokens).div_ceil(side.block_tokens.into()) as u32;
    rank.lists = vec![((0..count).collect(), FIRST * tokens); 2];
    let memories = rank.layout.layers.iter_mut().filter_map(|layer| layer.memory.as_mut());
    memories.for_each(|memory| memory.blocks = u64::from(count));
    rank
}

#[test]
fn the_usual_engine_has_few_pieces() {
    let pieces = |side: &Side, cut: Cut| -> Vec<usize> {
        let values = plain(side, LLAMA, &cut).values(&cut).unwrap();
        values.iter().map(|value| value.memory.len()).collect()
    };
    let usual = cut(1, 1);
    // 4 layers, keys and values, 4 blocks of 16 tokens in a chunk.
    assert_eq!(pieces(&NHD, usual), [4 * 2; 2]);
    assert_eq!(pieces(&Side { arrangement: BlockPairTokenHead, ..NHD }, usual), [4 * 2 * 4; 2]);
    let whole = Side { block_tokens: 64, arrangement: BlockPairTokenHead, ..NHD };
    assert_eq!(pieces(&whole, usual), [4; 2]);
    assert_eq!(pieces(&HND, usual), [4 * 2 * 64 * 4; 2], "rows of 64 tokens and 4 heads");
    let hnd = Cut { arrangement: BlockPairHeadToken, ..usual };
    assert_eq!(pieces(&HND, hnd), [4 * 2 * 4 * 4; 2], "4 heads in 4 blocks");
    assert_eq!(pieces(&NHD, cut(2, 1)), [4 * 2 * 64; 4], "tokens of a half of the heads");
}

#[test]
fn a_piece_lies_in_one_layer() {
    let cut = cut(1, 1);
    let side = Side { block_tokens: 64, arrangement: BlockPairTokenHead, blocks_first: true, ..NHD };
    let rank = plain(&side, LLAMA, &cut);
    let [first, second]: [Value; 2] = rank.values(&cut).unwrap().try_into().unwrap();
    let bytes = 2 * 4 * 64 * 8 * 2;
    let expected = |chunk: u64| -> Vec<(u64, u64)> {
        (0..4).map(|layer| (START + (4 * chunk + layer) * bytes, bytes)).collect()
    };
    assert_eq!((first.memory, second.memory), (expected(0), expected(1)));
}

/// SHA-256 of the bytes that `part` documents, made by another program.
#[test]
fn a_digest_is_that_of_the_documented_bytes() {
    let cut = Cut { chunk_tokens: 2, head_parts: 2, layer_parts: 1, arrangement: BlockPairTokenHead };
    let rows: &Rows = &[(4, 2, 3, 2), (1, 1, 5, 1)];
    let mut rank = plain(&NHD, rows, &cut);
    rank.layout.key = ModelKey::new("m", "r", "c", "o");
    let parts = Parts::new(&rank.layout, &cut).unwrap();
    let keys: Vec<String> = parts.keys(&CHUNKS[..1]).unwrap().iter().map(Digest::to_string).collect();
    assert_eq!(keys, DIGESTS);
}

#[test]
fn a_digest_depends_on_all_that_decides_the_bytes_and_on_nothing_else() {
    let keys = |rank: &Rank, cut: &Cut| Parts::new(&rank.layout, cut).unwrap().keys(&CHUNKS[..1]).unwrap();
    let cut = Cut { chunk_tokens: 16, ..Cut::default() };
    let of = |rows: &Rows| keys(&plain(&NHD, rows, &cut), &cut);
    let known = of(LLAMA);
    for rows in [&[(4, 2, 8, 2); 3][..], &[(8, 2, 4, 2); 4], &[(4, 2, 16, 1); 4], &[(4, 1, 8, 2); 4]] {
        let mut rank = plain(&NHD, rows, &cut);
        rank.layout.layers.iter_mut().for_each(|layer| layer.group = 0);
        assert_ne!(keys(&rank, &cut), known, "{rows:?}");
    }
    assert_ne!(of(&[(1, 2, 8, 2)]), of(&[(1, 1, 8, 2)]));
    let changed = |change: &dyn Fn(&mut Layout)| {
        let mut rank = plain(&NHD, LLAMA, &cut);
        change(&mut rank.layout);
        keys(&rank, &cut)
    };
    assert_ne!(changed(&|layout| layout.key.model = "qwen".into()), known);
    assert_ne!(changed(&|layout| layout.key.revision = "2".into()), known);
    assert_ne!(changed(&|layout| layout.key.cache = "fp8".into()), known);
    assert_ne!(changed(&|layout| layout.key.rope = "yarn".into()), known);
    assert_ne!(changed(&|layout| layout.layers[3].name = "layers.4".into()), known);
    for other in [
        Cut { chunk_tokens: 32, ..cut },
        Cut { layer_parts: 2, ..cut },
        Cut { head_parts: 2, ..cut },
        Cut { arrangement: BlockPairHeadToken, ..cut },
    ] {
        let found = keys(&plain(&NHD, LLAMA, &other), &other);
        assert!(found.iter().all(|key| !known.contains(key)), "{other:?}");
    }
    assert_eq!(keys(&plain(&HND, LLAMA, &cut), &cut), known);
    // A latent layer has one head: neither the number of parts nor their order decides anything.
    let mla = keys(&plain(&NHD, MLA, &cut), &cut);
    let other = Cut { head_parts: 8, arrangement: BlockPairHeadToken, ..cut };
    assert_eq!(keys(&plain(&NHD, MLA, &other), &other), mla);
}

#[test]
fn what_cannot_be_is_refused_by_its_name() {
    let cut = cut(2, 1);
    let refused = |side: &Side, cut: Cut, change: &dyn Fn(&mut Layout)| {
        let mut rank = Rank::new(side, LLAMA, &cut, 0, 0, &mut Random(3));
        change(&mut rank.layout);
        let error = Parts::new(&rank.layout, &cut).unwrap_err();
        format!("{}: {}", error.status.name(), error.message)
    };
    let same = |_: &mut Layout| {};
    let state = |layout: &mut Layout| {
        layout.groups[0] = Group::state();
        layout.layers.iter_mut().for_each(|layer| (layer.heads, layer.pairs) = (1, 1));
    };
    let window = |layout: &mut Layout| layout.groups[0] = Group::window(16, 64);
    let context = |layout: &mut Layout| layout.shard.pcp_size = 2;
    let (tp, pp) = (Side { tp: 4, ..NHD }, Side { pp: 2, ..NHD });
    for (told, begins) in [
        (refused(&NHD, Cut { chunk_tokens: 0, ..cut }, &same), "INVALID: chunk_tokens: 0"),
        (refused(&NHD, Cut { chunk_tokens: 65_537, ..cut }, &same), "INVALID: chunk_tokens: 65537"),
        (refused(&NHD, Cut { head_parts: 0, ..cut }, &same), "INVALID: head_parts is 0"),
        (refused(&NHD, Cut { layer_parts: 0, ..cut }, &same), "INVALID: layer_parts is 0; it must be 1 to 4"),
        (refused(&NHD, Cut { layer_parts: 5, ..cut }, &same), "INVALID: layer_parts is 5; it must be 1 to 4"),
        (
            refused(&tp, cut, &same),
            "INVALID: head_parts: each of the 2 parts has 2 heads, and rank 0 of 4 holds 1 of one's; take",
        ),
        (
            refused(&pp, cut, &same),
            "INVALID: layer_parts: with 1, part 0 has layers of the stages 0 and 1; take",
        ),
        (refused(&NHD, Cut { head_parts: 1025, ..cut }, &same), "LIMIT: head_parts is 1025; at most 1024"),
        (refused(&NHD, cut, &state), "UNSUPPORTED: layout.groups[0] is a State"),
        (refused(&NHD, cut, &window), "UNSUPPORTED: layout.groups[0] is a Window"),
        (refused(&NHD, cut, &context), "UNSUPPORTED: layout.shard: 2 ranks divide the tokens"),
        (refused(&NHD, cut, &|layout| layout.layers[0].elements = 0), "INVALID: layers[0]"),
    ] {
        assert!(told.starts_with(begins), "{told}");
    }
}

/// 4 layers of 4 heads, keys and values, 65,536 tokens, and 2^18 elements of 2 bytes are 2^40 bytes.
#[test]
fn a_part_of_too_many_bytes_is_refused() {
    let cut = Cut { chunk_tokens: 65_536, ..Cut::default() };
    let parts = |elements| {
        let mut layout = plain(&NHD, LLAMA, &cut).layout;
        for (at, layer) in layout.layers.iter_mut().enumerate() {
            let strides =
                Strides { block: 1 << 27, pair: 1 << 26, token: 1 << 22, head: 1 << 20, element: 2 };
            layer.elements = elements;
            layer.memory = Some(LayerMemory { address: (1 + at as u64) << 48, blocks: 1, strides });
        }
        Parts::new(&layout, &cut)
    };
    assert_eq!(parts(1 << 18).unwrap().held(), 1);
    let error = parts((1 << 18) + 1).unwrap_err();
    assert_eq!(error.status, Status::Limit);
    assert!(error.message.starts_with("layer_parts: a part has 1099515822080 bytes"), "{error}");
}

#[test]
fn blocks_that_cannot_be_are_refused() {
    let cut = cut(1, 1);
    let rank = plain(&NHD, LLAMA, &cut);
    let parts = Parts::new(&rank.layout, &cut).unwrap();
    let ids = rank.lists[0].0.as_slice();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 7]);
    let first_token = FIRST * 64;
    let refused = |ids: &[u32], first_token| {
        let lists = [BlockSlice { ids, first_token }, BlockSlice::default()];
        parts.values(&CHUNKS, FIRST, &lists).unwrap_err().message
    };
    let list = "blocks (the target is this engine, the source the pool): ";
    for (told, rest) in [
        (refused(&ids[..7], first_token), "the target's list of group 0 is too short"),
        (refused(ids, first_token + 16), "the target's list of group 0 begins at its rank's token 208"),
        (refused(ids, first_token - 8), "first_token of the target's list of group 0 is 184"),
        (refused(&[0, 1, 2, 3, 4, 5, 6, 8], first_token), "block id 8 of the target's list"),
        (refused(&[0, 1, 2, 3, 4, 5, 6, 6], first_token), "block id 6 is twice"),
    ] {
        assert!(told.starts_with(list) && told[list.len()..].starts_with(rest), "{told}");
    }
    let full = [BlockSlice { ids, first_token }; 3];
    assert!(parts.values(&CHUNKS, FIRST, &full[..2]).is_ok());
    let told = |chunks: &[Digest], first, lists| parts.values(chunks, first, lists).unwrap_err().message;
    assert!(told(&CHUNKS, FIRST, &full).starts_with("blocks: 3 lists, and the layout has 2 groups"));
    assert!(told(&CHUNKS, FIRST, &full[..1]).starts_with("blocks: 1 lists"));
    assert!(told(&CHUNKS, u64::MAX / 64, &full[..2]).starts_with("first_chunk: "));
    assert!(told(&CHUNKS, u64::MAX, &full[..2]).starts_with("first_chunk: "));
    let many = vec![CHUNKS[0]; KEYS_OF_CALL_MAX + 1];
    assert!(told(&many, 0, &full[..2]).starts_with("chunks: 65537 of 1 parts"));
}

/// 65,536 rows of a part are the most, and one more token is too much.
#[test]
fn a_part_in_too_many_pieces_is_refused_with_its_mend() {
    let values = |chunk_tokens, arrangement| {
        let side = Side { block_tokens: chunk_tokens, arrangement: PairBlockHeadToken, ..NHD };
        let cut = Cut { chunk_tokens, arrangement, ..cut(1, 1) };
        let rank = plain(&side, &[(4, 2, 1, 1)], &cut);
        rank.values(&cut)
    };
    assert_eq!(values(8192, BlockPairTokenHead).unwrap()[0].memory.len(), 65_536);
    let error = values(8193, BlockPairTokenHead).unwrap_err();
    assert_eq!(error.status, Status::Limit);
    assert!(error.message.starts_with("arrangement: the memory of a part is in 65544 pieces"), "{error}");
    assert_eq!(values(8193, BlockPairHeadToken).unwrap()[0].memory.len(), 2);
}

/// 64 chunks of 65,536 rows are the most of one call.
#[test]
fn a_call_of_too_many_pieces_is_refused() {
    let side = Side { block_tokens: 8192, ..HND };
    let cut = Cut { chunk_tokens: 8192, ..cut(1, 1) };
    let mut layout = plain(&side, &[(4, 2, 1, 1)], &cut).layout;
    layout.layers[0].memory.as_mut().unwrap().blocks = 65;
    let parts = Parts::new(&layout, &cut).unwrap();
    let ids: Vec<u32> = (0..65).collect();
    let lists = [BlockSlice { ids: &ids, first_token: 0 }; 2];
    let values = |chunks| parts.values(&vec![CHUNKS[0]; chunks], 0, &lists);
    assert_eq!(values(64).unwrap().len(), 64);
    let error = values(65).unwrap_err();
    assert_eq!(error.status, Status::Limit);
    assert!(
        error.message.starts_with("chunks: the blocks of 65 are more than 4194304 pieces; take fewer"),
        "{error}"
    );
}

#[test]
fn a_chunk_is_there_when_all_of_its_parts_are() {
    use Outcome::*;
    let end = |outcome, node: u64| KeyEnd { outcome, bytes: 10, node: Some(crate::NodeId(node)) };
    let (ok, here) = (end(Ok, 1), end(Here, 1));
    let folded = |ends: &[KeyEnd]| -> Vec<(Outcome, u64, Option<u64>)> {
        let ends = fold(ends, ends.len() / 2).unwrap();
        ends.iter().map(|end| (end.outcome, end.bytes, end.node.map(|node| node.0))).collect()
    };
    assert_eq!(folded(&[ok, ok, here, here]), [(Ok, 20, Some(1)), (Here, 20, Some(1))]);
    assert_eq!(folded(&[here, ok, ok, end(Ok, 2)]), [(Ok, 20, Some(1)), (Ok, 20, None)]);
    assert_eq!(
        folded(&[ok, end(Absent, 1), end(Full, 1), end(Absent, 2)]),
        [(Absent, 0, Some(1)), (Full, 0, None)]
    );
    assert_eq!(fold(&[], 0).unwrap(), []);
    // A stage without layers misses nothing.
    assert_eq!(fold(&[], 1).unwrap(), [KeyEnd { outcome: Ok, bytes: 0, node: None }]);
    for (ends, chunks) in [(3, 2), (1, 0), (1, 2)] {
        assert!(fold(&vec![ok; ends], chunks).unwrap_err().message.starts_with("ends: "));
    }
}

const DIGESTS: [&str; 3] = [
    "6ee009bb14c08cd50a76cc79b74675f48f168e861d72f2e50404040404040404",
    "0da30dea80595b3ffda337517d0105870b3446fad3779c4e0404040404040404",
    "019bae5b6876f9e7564287e5e427bc259ab35ac950c006560404040404040404",
];
