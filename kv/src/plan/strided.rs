//! Bytes to move, by strides. Made by `lower`; read by whoever submits the transfers.

use std::borrow::Borrow;
use std::sync::Arc;

/// Pieces of `bytes` contiguous bytes. Each layer, pair of blocks and step of the loops has one piece, at
/// `base + id * stride + the loops' steps * their strides`, on either side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strided {
    pub layers: Vec<Bases>,
    /// Shared by all that move the same tokens.
    pub pairs: Arc<BlockPairs>,
    /// From one block id to the next.
    pub source_stride: u64,
    pub target_stride: u64,
    /// At most four, the outermost first. All counts are at least 2.
    pub inner: Vec<Loop>,
    pub bytes: u64,
}

/// Where the first piece of a layer would lie in block 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bases {
    /// Index into the target's `Layout::layers`.
    pub layer: u32,
    pub source: u64,
    pub target: u64,
}

/// The ids of blocks that belong together; both lists are equally long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockPairs {
    pub source: Vec<u32>,
    pub target: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    pub count: u64,
    pub source_stride: u64,
    pub target_stride: u64,
}

/// One piece: contiguous on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index into the target's `Layout::layers`.
    pub layer: u32,
    pub source: u64,
    pub target: u64,
    pub bytes: u64,
}

impl Strided {
    /// Returns the pieces one by one: layer by layer, and in each the blocks in the order of the lists.
    pub fn requests(&self) -> impl Iterator<Item = Piece> + '_ {
        Pieces::from(std::slice::from_ref(self), Place::default())
    }

    /// How many pieces there are in all.
    pub fn pieces(&self) -> u64 {
        let blocks = self.pairs.source.len().min(self.pairs.target.len()) as u64;
        (self.layers.len() as u64).saturating_mul(blocks).saturating_mul(self.pieces_of_block())
    }

    /// Whether pieces of neighbouring blocks may continue each other on both sides: not if a block has several with gaps
    /// between them.
    pub fn merges(&self) -> bool {
        let is_within = |inner: &Loop| {
            inner.source_stride < self.source_stride && inner.target_stride < self.target_stride
        };
        !self.inner.iter().any(is_within)
    }

    fn pieces_of_block(&self) -> u64 {
        self.inner.iter().fold(1, |pieces, inner| pieces.saturating_mul(inner.count))
    }
}

/// Where a walk through the pieces of moves has come to. No sum of pieces: more than 2^64 can be walked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    nth: usize,
    layer: usize,
    pair: usize,
    /// One step for each loop, the outermost first.
    steps: [u64; 4],
}

/// Walks through the pieces of moves, from a place on.
#[derive(Clone, Debug)]
pub struct Pieces<M> {
    moves: M,
    place: Place,
}

impl<M: Borrow<[Strided]>> Pieces<M> {
    pub fn from(moves: M, place: Place) -> Pieces<M> {
        Pieces { moves, place }
    }

    /// Returns the place behind the last piece that was given.
    pub fn place(&self) -> Place {
        self.place
    }
}

impl<M: Borrow<[Strided]>> Iterator for Pieces<M> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let at = &mut self.place;
        loop {
            let moves = self.moves.borrow().get(at.nth)?;
            let Some(base) = moves.layers.get(at.layer) else {
                *at = Place { nth: at.nth + 1, ..Place::default() };
                continue;
            };
            let ids = (moves.pairs.source.get(at.pair), moves.pairs.target.get(at.pair));
            let (Some(&source), Some(&target)) = ids else {
                (at.layer, at.pair) = (at.layer + 1, 0);
                continue;
            };
            let source = base.source.wrapping_add(u64::from(source).wrapping_mul(moves.source_stride));
            let target = base.target.wrapping_add(u64::from(target).wrapping_mul(moves.target_stride));
            let mut piece = Piece { layer: base.layer, source, target, bytes: moves.bytes };
            for (inner, step) in moves.inner.iter().zip(at.steps) {
                piece.source = piece.source.wrapping_add(step.wrapping_mul(inner.source_stride));
                piece.target = piece.target.wrapping_add(step.wrapping_mul(inner.target_stride));
            }
            let is_over = moves.inner.iter().zip(&mut at.steps).rev().all(|(inner, step)| {
                *step = if *step + 1 < inner.count { *step + 1 } else { 0 };
                *step == 0
            });
            at.pair += usize::from(is_over);
            return Some(piece);
        }
    }
}

/// One dimension of what is moved of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dimension {
    pub(super) name: &'static str,
    pub(super) count: u64,
    pub(super) source_stride: u64,
    pub(super) target_stride: u64,
}

/// The dimensions after merging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Merged {
    pub(super) bytes: u64,
    pub(super) inner: Vec<Loop>,
    /// The dimensions within the contiguous bytes and those of the loops, each innermost first.
    pub(super) names: Vec<&'static str>,
    pub(super) loops: Vec<&'static str>,
}

/// Merges the dimensions that continue the contiguous bytes on both sides, from the innermost outwards. The rest become
/// loops; loops that continue each other become one.
///
/// ```text
/// 2 heads of 4, 16 tokens, rows of 256 bytes      token, head, element        head, token, element
/// strides of head and token                       256, 1024                   4096, 256
/// merged                                          element, head: 512 bytes    element, token, head: 8192 bytes
/// loops                                           16 x 1024                   none
/// ```
pub(super) fn merge(dimensions: [Dimension; 4], element_bytes: u64) -> Merged {
    let mut rest: Vec<Dimension> = dimensions.into_iter().filter(|dimension| dimension.count > 1).collect();
    let mut bytes = element_bytes;
    let mut names = Vec::new();
    while let Some(next) =
        rest.iter().position(|next| next.source_stride == bytes && next.target_stride == bytes)
    {
        let merged = rest.remove(next);
        bytes = bytes.saturating_mul(merged.count);
        names.push(merged.name);
    }
    rest.sort_by_key(|dimension| (dimension.target_stride, dimension.source_stride));
    let loops = rest.iter().map(|dimension| dimension.name).collect();
    let mut inner: Vec<Loop> = Vec::new();
    for Dimension { count, source_stride, target_stride, .. } in rest {
        match inner.last_mut() {
            Some(last)
                if last.source_stride.saturating_mul(last.count) == source_stride
                    && last.target_stride.saturating_mul(last.count) == target_stride =>
            {
                last.count = last.count.saturating_mul(count);
            }
            _ => inner.push(Loop { count, source_stride, target_stride }),
        }
    }
    inner.reverse();
    Merged { bytes, inner, names, loops }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn moves(layers: u64, pairs: u32, counts: &[u64]) -> Strided {
        let layers = (0..layers).map(|at| Bases { layer: at as u32, source: at << 40, target: at << 41 });
        let stride = |at: usize, side: u64| (16 << (8 * at)) + side;
        let inner = counts.iter().enumerate().map(|(at, count)| Loop {
            count: *count,
            source_stride: stride(at, 0),
            target_stride: stride(at, 1),
        });
        let pairs = BlockPairs { source: (0..pairs).collect(), target: (0..pairs).rev().collect() };
        Strided {
            layers: layers.collect(),
            pairs: Arc::new(pairs),
            source_stride: 1 << 32,
            target_stride: 1 << 33,
            inner: inner.collect(),
            bytes: 8,
        }
    }

    fn shapes() -> impl Strategy<Value = Strided> {
        (0u64..4, 0u32..4, prop::collection::vec(2u64..5, 0..4))
            .prop_map(|(layers, pairs, counts)| moves(layers, pairs, &counts))
    }

    proptest! {
        #[test]
        fn pieces_that_are_taken_in_parts_are_the_same(
            all in prop::collection::vec(shapes(), 0..4),
            part in 1usize..20,
        ) {
            let whole: Vec<Piece> = all.iter().flat_map(Strided::requests).collect();
            prop_assert_eq!(whole.len() as u64, all.iter().map(Strided::pieces).sum::<u64>());
            let (mut found, mut place) = (Vec::new(), Place::default());
            loop {
                let mut pieces = Pieces::from(all.as_slice(), place);
                let before = found.len();
                found.extend(pieces.by_ref().take(part));
                place = pieces.place();
                if found.len() == before {
                    break;
                }
            }
            prop_assert_eq!(found, whole);
        }
    }

    /// Three loops of 2^20, and four: more than 2^64 pieces of a block.
    #[test]
    fn no_count_of_pieces_overflows() {
        let endless = moves(3, 3, &[1 << 20; 3]);
        let last = (1 << 20) - 1;
        let last_of_block = Place { steps: [last, last, last, 0], ..Place::default() };
        let mut pieces = Pieces::from(std::slice::from_ref(&endless), last_of_block);
        assert!(pieces.next().is_some());
        assert_eq!(pieces.place(), Place { pair: 1, ..Place::default() });
        let beyond = moves(3, 3, &[1 << 20; 4]);
        assert_eq!(beyond.pieces(), u64::MAX);
        assert_eq!(Pieces::from(std::slice::from_ref(&beyond), Place::default()).take(1000).count(), 1000);
    }
}
