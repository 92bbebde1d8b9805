//! The numbers of ranks, and what each rank holds. Neighbours: `check`, which bounds the sizes; `plan`, which asks for
//! every rank of the other side.
//!
//! ```text
//! rank = (pp_rank * pcp_size + pcp_rank) * tp_size + tp_rank
//! ```
//! These functions answer for a checked layout. They neither panic nor overflow for an unchecked one.

use super::{Layer, Shard};
use std::ops::Range;

impl Shard {
    /// The number of this rank in its instance.
    pub fn rank(&self) -> u32 {
        let line = self.pp_rank.saturating_mul(self.pcp_size).saturating_add(self.pcp_rank);
        line.saturating_mul(self.tp_size).saturating_add(self.tp_rank)
    }

    /// How many ranks the instance has.
    pub fn ranks(&self) -> u32 {
        self.pp_size.saturating_mul(self.pcp_size).saturating_mul(self.tp_size)
    }

    /// The shard of the instance's rank `rank`, which is below `ranks()`.
    pub fn at(&self, rank: u32) -> Shard {
        let (tp_size, pcp_size) = (self.tp_size.max(1), self.pcp_size.max(1));
        let line = rank / tp_size;
        Shard { tp_rank: rank % tp_size, pcp_rank: line % pcp_size, pp_rank: line / pcp_size, ..*self }
    }

    /// This rank's number among those that divide a head's tokens.
    pub fn context_rank(&self) -> u32 {
        let dcp_size = self.dcp_size.max(1);
        self.pcp_rank.saturating_mul(dcp_size).saturating_add(self.tp_rank % dcp_size)
    }

    /// How many ranks divide a head's tokens.
    pub fn context_ranks(&self) -> u32 {
        self.pcp_size.saturating_mul(self.dcp_size)
    }
}

impl Layer {
    /// The heads of this layer that a rank holds, if its stage does. With more ranks than heads, neighbouring ranks
    /// hold replicas of one head.
    pub fn heads_of(&self, shard: &Shard) -> Range<u32> {
        let (heads, size, rank) =
            (u64::from(self.heads), u64::from(shard.tp_size.max(1)), u64::from(shard.tp_rank));
        let first = rank * heads / size;
        // A rank below the size makes both ends at most `heads`; the bound is for one that is not.
        let end = if size > heads { first + 1 } else { (rank + 1) * heads / size };
        bounded(first, heads)..bounded(end, heads)
    }
}

fn bounded(value: u64, most: u64) -> u32 {
    u32::try_from(value.min(most)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::layer;

    fn shard() -> Shard {
        Shard {
            tp_rank: 0,
            tp_size: 4,
            pp_rank: 0,
            pp_size: 3,
            pcp_rank: 0,
            pcp_size: 2,
            dcp_size: 2,
            turn_tokens: 1,
        }
    }

    #[test]
    fn a_rank_is_found_by_its_number() {
        let any = Shard { tp_rank: 1, pp_rank: 2, pcp_rank: 1, ..shard() };
        assert_eq!((any.rank(), any.ranks()), ((2 * 2 + 1) * 4 + 1, 24));
        for rank in 0..24 {
            let at = any.at(rank);
            assert_eq!(at.rank(), rank);
            assert!(at.tp_rank < 4 && at.pcp_rank < 2 && at.pp_rank < 3, "{at:?}");
            assert_eq!(at.at(any.rank()), any);
        }
    }

    #[test]
    fn a_context_rank_counts_the_decode_ranks_within_the_prefill_ranks() {
        let ranks: Vec<u32> = (0..8).map(|rank| shard().at(rank).context_rank()).collect();
        assert_eq!(ranks, [0, 1, 0, 1, 2, 3, 2, 3]);
        assert_eq!(shard().context_ranks(), 4);
    }

    #[test]
    fn the_ranks_divide_the_heads() {
        let of = |heads, tp_size| -> Vec<Range<u32>> {
            let ranks = 0..tp_size;
            ranks.map(|tp_rank| layer("l", heads).heads_of(&Shard { tp_rank, tp_size, ..shard() })).collect()
        };
        assert_eq!(of(8, 4), [0..2, 2..4, 4..6, 6..8]);
        assert_eq!(of(5, 3), [0..1, 1..3, 3..5]);
        assert_eq!(of(2, 4), [0..1, 0..1, 1..2, 1..2]);
        assert_eq!(of(4, 4), [0..1, 1..2, 2..3, 3..4]);
        assert_eq!(of(1, 3), [0..1, 0..1, 0..1]);
    }

    #[test]
    fn no_numbers_panic() {
        let most = u32::MAX;
        for value in [0, most] {
            let shard = Shard {
                tp_rank: most,
                tp_size: value,
                pp_rank: most,
                pp_size: value,
                pcp_rank: most,
                pcp_size: value,
                dcp_size: value,
                turn_tokens: value,
            };
            let _ =
                (shard.rank(), shard.ranks(), shard.at(most), shard.context_rank(), shard.context_ranks());
            let held = layer("l", most).heads_of(&shard);
            assert!(held.end <= most);
            assert_eq!(layer("l", 0).heads_of(&shard), 0..0);
        }
    }
}
