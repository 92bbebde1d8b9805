//! How many bytes an exchange moves, without lists of blocks: the sum of what `lower` gives. For counting, and for the
//! page of `explain`.

use std::collections::BTreeMap;
use std::ops::Range;

use super::tokens::{count_common, Context};
use super::{Exchange, LayerPiece};
use crate::layout::{GroupKind, Layout};

impl Exchange {
    /// Returns the payload bytes of these tokens, of those of the target's layers whose ordinals are in `layers`.
    /// `blocks` tells how many blocks the list of a layer has: a layer without any does not move, and each block of a
    /// State does. `target` is the layout of a rank of the target.
    pub fn bytes(
        &self,
        target: &Layout,
        tokens: &Range<u64>,
        layers: &Range<u32>,
        blocks: impl Fn(&LayerPiece) -> u64,
    ) -> u64 {
        let (source, needs) = (Context::of(&self.source), Context::of(&self.target));
        // Few groups have windows of their own, so ranges repeat.
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        let mut common = |start: u64| {
            let count = || count_common(&source, &needs, start..tokens.end);
            *counts.entry(start).or_insert_with(count)
        };
        let mut sum = 0u64;
        for piece in self.layers.iter().filter(|piece| layers.contains(&piece.target_layer)) {
            let Some(layer) = target.layers.get(piece.target_layer as usize) else { continue };
            let Some(group) = target.groups.get(layer.group as usize) else { continue };
            let rows = match (blocks(piece), group.kind) {
                (0, _) => continue,
                (blocks, GroupKind::State) => blocks,
                (_, GroupKind::Window { tokens: kept }) => {
                    common(tokens.start.max(tokens.end.saturating_sub(kept.into())))
                }
                _ => common(tokens.start),
            };
            let row = [piece.heads, layer.pairs, layer.elements, layer.element_bytes];
            let bytes = row.iter().fold(rows, |bytes, factor| bytes.saturating_mul((*factor).into()));
            sum = sum.saturating_add(bytes);
        }
        sum
    }
}
