//! Where the pieces of one layer lie on both sides. Below `lower`; `explain` shows the same pieces.

use ferry::status::{Error, Result};

use super::shape::compare_layers;
use super::strided::{merge, Bases, Dimension, Merged};
use super::tokens::Run;
use super::LayerPiece;
use crate::layout::{Layer, LayerMemory, Layout, Strides};

/// The properties that layers must share to be moved by the same strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    heads: u32,
    pairs: u32,
    elements: u32,
    element_bytes: u32,
    pub(super) source: Strides,
    pub(super) target: Strides,
}

impl Geometry {
    pub(super) fn new(layer: &Layer, heads: u32, source: &LayerMemory, target: &LayerMemory) -> Geometry {
        Geometry {
            heads,
            pairs: layer.pairs,
            elements: layer.elements,
            element_bytes: layer.element_bytes,
            source: source.strides,
            target: target.strides,
        }
    }

    /// Returns the pieces of a run of tokens in a block.
    pub(super) fn pieces(&self, tokens: u64) -> Merged {
        let dimension = |name, count, source_stride, target_stride| Dimension {
            name,
            count,
            source_stride,
            target_stride,
        };
        let (from, to) = (&self.source, &self.target);
        let dimensions = [
            dimension("element", self.elements.into(), from.element, to.element),
            dimension("token", tokens, from.token, to.token),
            dimension("head", self.heads.into(), from.head, to.head),
            dimension("pair", self.pairs.into(), from.pair, to.pair),
        ];
        merge(dimensions, self.element_bytes.into())
    }
}

/// One piece of an exchange, with both sides' memory.
#[derive(Clone, Debug)]
pub(super) struct Placed<'a> {
    pub(super) piece: LayerPiece,
    pub(super) from: &'a Layer,
    pub(super) to: &'a Layer,
    pub(super) from_memory: &'a LayerMemory,
    pub(super) to_memory: &'a LayerMemory,
    pub(super) geometry: Geometry,
}

impl<'a> Placed<'a> {
    /// Finds the layers of a piece, and refuses layers that are not those which were planned.
    pub(super) fn of(piece: &LayerPiece, source: &'a Layout, target: &'a Layout) -> Result<Placed<'a>> {
        let (from, from_memory) = held("source", source, piece.source_layer, piece.source_head, piece.heads)?;
        let (to, to_memory) = held("target", target, piece.target_layer, piece.target_head, piece.heads)?;
        if from.name != to.name {
            return Err(Error::invalid(format!(
                "layer {} of the source is {:?}, and layer {} of the target {:?}",
                piece.source_layer, from.name, piece.target_layer, to.name
            )));
        }
        compare_layers(from, to)?;
        let geometry = Geometry::new(to, piece.heads, from_memory, to_memory);
        Ok(Placed { piece: *piece, from, to, from_memory, to_memory, geometry })
    }

    /// Returns where a run's pieces begin, and refuses those that end beyond the last address. `last_ids` has the
    /// largest block ids of the source and the target.
    pub(super) fn bases(&self, run: &Run, last_ids: (u32, u32)) -> Result<Bases> {
        let place = |side: &str, memory: &LayerMemory, head: u32, offset: u64, id: u32| {
            self.base(memory, head, offset, run.tokens, id).ok_or_else(|| {
                Error::invalid(format!("layer {} of the {side} ends beyond the last address", self.to.name))
            })
        };
        let piece = &self.piece;
        Ok(Bases {
            layer: piece.target_layer,
            source: place("source", self.from_memory, piece.source_head, run.source_offset, last_ids.0)?,
            target: place("target", self.to_memory, piece.target_head, run.target_offset, last_ids.1)?,
        })
    }

    /// Returns where a run would begin in block 0, or `None` if its end in the last block is beyond all addresses.
    fn base(&self, memory: &LayerMemory, head: u32, offset: u64, tokens: u64, last_id: u32) -> Option<u64> {
        let strides = &memory.strides;
        let first = u64::from(head).checked_mul(strides.head)?;
        let base = memory.address.checked_add(first)?.checked_add(offset.checked_mul(strides.token)?)?;
        let last = |count: u64| count.saturating_sub(1);
        let mut end = base.checked_add(self.geometry.element_bytes.into())?;
        for (steps, stride) in [
            (last_id.into(), strides.block),
            (last(self.geometry.pairs.into()), strides.pair),
            (last(self.geometry.heads.into()), strides.head),
            (last(tokens), strides.token),
            (last(self.geometry.elements.into()), strides.element),
        ] {
            end = end.checked_add(stride.checked_mul(steps)?)?;
        }
        Some(base)
    }
}

/// Returns a layer and its memory.
fn held<'a>(
    side: &str,
    layout: &'a Layout,
    index: u32,
    head: u32,
    heads: u32,
) -> Result<(&'a Layer, &'a LayerMemory)> {
    let layer = layout.layers.get(index as usize).ok_or_else(|| {
        Error::invalid(format!(
            "the layout of the {side} has {} layers, and no layer {index}",
            layout.layers.len()
        ))
    })?;
    let here = layer.heads_of(&layout.shard);
    if u64::from(head) + u64::from(heads) > u64::from(here.end - here.start) {
        return Err(Error::invalid(format!(
            "layer {} of the {side} has the heads {here:?} here, and {heads} heads from {head} on are \
             asked for",
            layer.name
        )));
    }
    let memory = layer.memory.as_ref();
    let memory =
        memory.ok_or_else(|| Error::invalid(format!("layer {} of the {side} has no memory", layer.name)))?;
    Ok((layer, memory))
}
