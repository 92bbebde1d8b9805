//! How a layer's five dimensions lie in memory: the usual arrangements, and the check that no two bytes share a place.
//! Neighbours: `check`, which calls it for each layer with memory; `plan`, which walks the strides.

use super::{Layer, LayerMemory, Layout, Strides};
use std::ops::Range;

/// The order of the dimensions of a contiguous tensor, from the outermost to the innermost. `T` counts the block's
/// tokens, `H` the rank's heads; the innermost is always a row's elements. "NHD" and "HND" are the engines' words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// `[2][blocks][T][H][elements]`: all keys, then all values. NHD.
    PairBlockTokenHead,
    /// `[2][blocks][H][T][elements]`: all keys, then all values. HND.
    PairBlockHeadToken,
    /// `[blocks][2][T][H][elements]`: a block's keys, then its values. NHD. Also if there are no pairs.
    BlockPairTokenHead,
    /// `[blocks][2][H][T][elements]`: a block's keys, then its values. HND.
    BlockPairHeadToken,
    /// `[blocks][H][2][T][elements]`: a head's keys, then its values.
    BlockHeadPairToken,
}

/// The sizes of a tensor that holds one layer of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub blocks: u64,
    pub pairs: u32,
    /// Heads of this rank.
    pub heads: u32,
    /// Tokens of one block.
    pub tokens: u32,
    pub elements: u32,
    pub element_bytes: u32,
}

impl Strides {
    /// The strides of a contiguous tensor. A product above a u64 becomes `u64::MAX`, which `Layout::check` refuses if
    /// it is of use.
    pub fn of(arrangement: Arrangement, sizes: Sizes) -> Strides {
        let element = u64::from(sizes.element_bytes);
        let mut strides = Strides { block: 0, pair: 0, head: 0, token: 0, element };
        let mut inside = element.saturating_mul(u64::from(sizes.elements));
        let mut next = |stride: &mut u64, size: u64| {
            *stride = inside;
            inside = inside.saturating_mul(size);
        };
        let (pairs, heads, tokens) = (sizes.pairs.into(), sizes.heads.into(), sizes.tokens.into());
        let Strides { block, pair, head, token, .. } = &mut strides;
        // From the innermost to the outermost.
        let order = match arrangement {
            Arrangement::PairBlockTokenHead => {
                [(head, heads), (token, tokens), (block, sizes.blocks), (pair, pairs)]
            }
            Arrangement::PairBlockHeadToken => {
                [(token, tokens), (head, heads), (block, sizes.blocks), (pair, pairs)]
            }
            Arrangement::BlockPairTokenHead => {
                [(head, heads), (token, tokens), (pair, pairs), (block, sizes.blocks)]
            }
            Arrangement::BlockPairHeadToken => {
                [(token, tokens), (head, heads), (pair, pairs), (block, sizes.blocks)]
            }
            Arrangement::BlockHeadPairToken => {
                [(token, tokens), (pair, pairs), (head, heads), (block, sizes.blocks)]
            }
        };
        for (stride, size) in order {
            next(stride, size);
        }
        strides
    }
}

/// One dimension of a layer's memory.
#[derive(Clone, Copy)]
struct Dimension {
    /// The field of `Strides`.
    name: &'static str,
    plural: &'static str,
    stride: u64,
    size: u64,
}

impl Layer {
    /// The addresses from the layer's first byte to behind its last one; `None` without memory. For a checked layout,
    /// to which this layer belongs.
    pub fn extent(&self, layout: &Layout) -> Option<Range<u64>> {
        let memory = self.memory.as_ref()?;
        let last = self.dimensions(memory, layout).iter().fold(0u64, |sum, dimension| {
            sum.saturating_add(dimension.stride.saturating_mul(dimension.size.saturating_sub(1)))
        });
        let bytes = last.saturating_add(self.element_bytes.into());
        Some(memory.address..memory.address.saturating_add(bytes))
    }

    /// Inner ones first, as the names suggest.
    fn dimensions(&self, memory: &LayerMemory, layout: &Layout) -> [Dimension; 5] {
        let Strides { block, pair, head, token, element } = memory.strides;
        let tokens = layout.groups.get(self.group as usize).map_or(1, |group| group.block_tokens);
        let heads = self.heads_of(&layout.shard).len() as u64;
        [
            Dimension { name: "element", plural: "elements", stride: element, size: self.elements.into() },
            Dimension { name: "token", plural: "tokens", stride: token, size: tokens.into() },
            Dimension { name: "head", plural: "heads", stride: head, size: heads },
            Dimension { name: "pair", plural: "pairs", stride: pair, size: self.pairs.into() },
            Dimension { name: "block", plural: "blocks", stride: block, size: memory.blocks },
        ]
    }

    /// The layer's runs of bytes: how long one is, and the (stride, size) of the dimensions outside it, outermost first.
    pub(super) fn runs(&self, memory: &LayerMemory, layout: &Layout) -> (u64, Vec<(u64, u64)>) {
        let mut dimensions = self.dimensions(memory, layout);
        dimensions.sort_by_key(|dimension| dimension.stride);
        let (mut bytes, mut outside) = (u64::from(self.element_bytes), Vec::new());
        for Dimension { stride, size, .. } in dimensions.into_iter().filter(|it| it.size > 1) {
            if outside.is_empty() && stride == bytes {
                bytes *= size;
            } else {
                outside.insert(0, (stride, size));
            }
        }
        (bytes, outside)
    }

    /// Says why two of the layer's bytes would share a place or lie above the last address. A dimension of one element
    /// has no say, whatever its stride.
    ///
    /// ```text
    /// one head:  [t0 e0..e63][t1 e0..e63]..[t15 e0..e63]      stride of a token >= 64 elements
    /// one block: [one head      ][one head      ]..           stride of a head >= the extent of one head
    /// ```
    pub(super) fn misplaced(&self, memory: &LayerMemory, layout: &Layout) -> Option<String> {
        let mut dimensions = self.dimensions(memory, layout);
        // Stable: of two equal strides the outer dimension's is blamed.
        dimensions.sort_by_key(|dimension| dimension.stride);
        let mut bytes = u64::from(self.element_bytes);
        let mut inside = String::new();
        for Dimension { name, plural, stride, size } in dimensions.into_iter().filter(|it| it.size > 1) {
            if stride < bytes {
                let of = if inside.is_empty() { String::new() } else { format!("'s {inside}") };
                return Some(format!(
                    "strides.{name} {stride} is less than the {bytes} bytes of one {name}{of}"
                ));
            }
            let sum = stride.checked_mul(size - 1).and_then(|last| last.checked_add(bytes));
            let Some(sum) = sum else {
                return Some(format!(
                    "strides.{name} {stride} times {size} {plural} is more than a u64 holds"
                ));
            };
            bytes = sum;
            inside = if inside.is_empty() { plural.into() } else { format!("{plural}, {inside}") };
        }
        let ends = memory.address.checked_add(bytes);
        ends.is_none().then(|| format!("address {:#x} and {bytes} bytes end above a u64", memory.address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::layout;

    #[test]
    fn the_strides_of_the_usual_arrangements() {
        let sizes = Sizes { blocks: 10, pairs: 2, heads: 3, tokens: 16, elements: 64, element_bytes: 2 };
        // (block, pair, head, token)
        for (arrangement, expected) in [
            (Arrangement::PairBlockTokenHead, (6144, 61440, 128, 384)),
            (Arrangement::PairBlockHeadToken, (6144, 61440, 2048, 128)),
            (Arrangement::BlockPairTokenHead, (12288, 6144, 128, 384)),
            (Arrangement::BlockPairHeadToken, (12288, 6144, 2048, 128)),
            (Arrangement::BlockHeadPairToken, (12288, 2048, 4096, 128)),
        ] {
            let strides = Strides::of(arrangement, sizes);
            let found = (strides.block, strides.pair, strides.head, strides.token);
            assert_eq!((found, strides.element), (expected, 2), "{arrangement:?}");
        }
        let most = Sizes { blocks: u64::MAX, ..sizes };
        assert_eq!(Strides::of(Arrangement::PairBlockTokenHead, most).pair, u64::MAX);
    }

    #[test]
    fn an_extent_ends_behind_the_last_byte() {
        let mut layout = layout();
        // Two heads of four are this rank's; blocks of 16 tokens.
        let sizes = Sizes { blocks: 10, pairs: 2, heads: 2, tokens: 16, elements: 64, element_bytes: 2 };
        let strides = Strides::of(Arrangement::BlockPairHeadToken, sizes);
        layout.layers[0].memory = Some(LayerMemory { address: 4096, blocks: 10, strides });
        let extent = |layout: &Layout| layout.layers[0].extent(layout);
        assert_eq!(extent(&layout), Some(4096..4096 + 10 * 2 * 2 * 16 * 128));
        let padded = Strides { block: 10_000, ..strides };
        layout.layers[0].memory = Some(LayerMemory { address: 4096, blocks: 10, strides: padded });
        assert_eq!(extent(&layout), Some(4096..4096 + 9 * 10_000 + 2 * 2 * 16 * 128));
        layout.layers[0].memory = None;
        assert_eq!(extent(&layout), None);
    }

    /// Compares with the places of all bytes, for a small tensor and many strides.
    #[test]
    fn strides_are_taken_if_they_are_nested_and_then_no_bytes_meet() {
        let mut layout = layout();
        layout.groups[0].block_tokens = 2;
        layout.layers[0].elements = 2;
        let choices = [1u64, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40];
        let (mut taken, mut met) = (0, 0);
        for number in 0..choices.len().pow(4) {
            let mut sorted = [0, 1, 2, 3].map(|at| choices[number / choices.len().pow(at) % choices.len()]);
            let [block, pair, head, token] = sorted;
            let strides = Strides { block, pair, head, token, element: 2 };
            let memory = LayerMemory { address: 1, blocks: 2, strides };
            let is_taken = layout.layers[0].misplaced(&memory, &layout).is_none();
            // Each dimension has two elements, and a row has 4 bytes.
            sorted.sort();
            let is_nested = (0..4).all(|at| sorted[at] >= 4 + sorted[..at].iter().sum::<u64>());
            assert_eq!(is_taken, is_nested, "{strides:?}");
            let steps = [1, 2, token, head, pair, block];
            let place = |index: u64| -> u64 { (0..6).map(|at| (index >> at & 1) * steps[at as usize]).sum() };
            let places: std::collections::BTreeSet<u64> = (0..64).map(place).collect();
            assert!(!is_taken || places.len() == 64, "{strides:?}");
            taken += u32::from(is_taken);
            met += u32::from(places.len() < 64);
        }
        assert!(taken > 50 && met > 50, "{taken} taken; of {met} some bytes meet");
    }
}
