//! Tests of `tokens` against counts token by token.

use super::*;

fn contexts() -> Vec<Context> {
    let of =
        |ranks: u32| (0..ranks).flat_map(move |rank| (1..5).map(move |turn| Context::new(rank, ranks, turn)));
    (1..5).flat_map(of).collect()
}

fn holds(context: &Context, token: u64) -> bool {
    token / context.turn % context.ranks == context.rank
}

#[test]
fn a_rank_counts_its_own_tokens() {
    for context in contexts() {
        for token in 0..50 {
            let held = (0..token).filter(|&token| holds(&context, token)).count() as u64;
            assert_eq!(context.held(token), held, "{context:?} before {token}");
        }
    }
}

#[test]
fn two_ranks_meet_if_they_have_a_token_in_common() {
    for one in contexts() {
        for two in contexts() {
            let common = |&token: &u64| holds(&one, token) && holds(&two, token);
            let all = (0..one.turn * one.ranks * two.turn * two.ranks).filter(common).count() as u64;
            assert_eq!(one.meets(&two), all > 0, "{one:?} {two:?}");
            for range in [0..0, 3..40, 10..11] {
                let count = range.clone().filter(common).count() as u64;
                assert_eq!(count_common(&one, &two, range), count, "{one:?} {two:?}");
            }
        }
    }
}

#[test]
fn the_last_tokens_do_not_overflow() {
    let last = u64::MAX;
    for context in contexts() {
        for other in contexts() {
            let count = count_common(&context, &other, last - 50..last);
            assert!(count <= 50);
            let side = |context| Side { context, block_tokens: 3, ids: &[7], first_token: 0 };
            assert_eq!(classes(&side(context), &side(other), last - 50..last).unwrap(), []);
        }
    }
}

#[test]
fn runs_end_with_the_blocks_of_either_side() {
    let side = |block_tokens, ids| Side { context: Context::new(0, 1, 1), block_tokens, ids, first_token: 0 };
    let found = classes(&side(48, &[5, 6, 7, 8]), &side(64, &[1, 2, 3]), 16..150).unwrap();
    let found: Vec<_> = found
        .into_iter()
        .map(|Class { run, pairs }| {
            ((run.source_offset, run.target_offset, run.tokens), pairs.source, pairs.target)
        })
        .collect();
    let expected = [
        ((16, 16, 32), vec![5], vec![1]),
        ((0, 48, 16), vec![6], vec![1]),
        ((16, 0, 32), vec![6], vec![2]),
        ((0, 32, 32), vec![7], vec![2]),
        ((32, 0, 16), vec![7], vec![3]),
        ((0, 16, 6), vec![8], vec![3]),
    ];
    assert_eq!(found, expected);
}
