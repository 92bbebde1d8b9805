//! Bytes to move, by strides. Made by `lower`; read by whoever submits the transfers.

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
        self.layers.iter().flat_map(move |base| {
            let ids = self.pairs.source.iter().zip(&self.pairs.target);
            ids.flat_map(move |(&source, &target)| {
                let source = base.source.wrapping_add(u64::from(source).wrapping_mul(self.source_stride));
                let target = base.target.wrapping_add(u64::from(target).wrapping_mul(self.target_stride));
                (0..self.pieces_of_block()).map(move |step| self.piece(base.layer, source, target, step))
            })
        })
    }

    /// How many pieces there are in all.
    pub fn pieces(&self) -> u64 {
        let blocks = self.pairs.source.len().min(self.pairs.target.len()) as u64;
        (self.layers.len() as u64).saturating_mul(blocks).saturating_mul(self.pieces_of_block())
    }

    fn pieces_of_block(&self) -> u64 {
        self.inner.iter().fold(1, |pieces, inner| pieces.saturating_mul(inner.count))
    }

    fn piece(&self, layer: u32, source: u64, target: u64, mut step: u64) -> Piece {
        let mut piece = Piece { layer, source, target, bytes: self.bytes };
        for inner in self.inner.iter().rev() {
            let at = step % inner.count;
            step /= inner.count;
            piece.source = piece.source.wrapping_add(at.wrapping_mul(inner.source_stride));
            piece.target = piece.target.wrapping_add(at.wrapping_mul(inner.target_stride));
        }
        piece
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
