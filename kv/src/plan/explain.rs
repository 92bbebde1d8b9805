//! The page that explains a plan to people. Reads what `routes` chose; the pieces are those that `lower` would give.

use std::collections::BTreeMap;

use super::geometry::Geometry;
use super::routes::{ranks, Exchanges};
use super::tokens::Context;
use super::{Exchange, LayerPiece};
use crate::layout::{Group, GroupKind, Layer, Layout, Shard};

/// Most lines about exchanges and about idle ranks.
const LINES_MAX: usize = 64;

/// The length of the sequence that the page takes as its example.
const TOKENS: u64 = 1000;

pub(super) fn page(source: &Layout, target: &Layout, exchanges: &Exchanges) -> String {
    let key = &target.key;
    let mut lines = vec![
        format!(
            "model {:?}, revision {:?}, cache {:?}, rope {:?}",
            key.model, key.revision, key.cache, key.rope
        ),
        format!("source: {}", instance(&source.shard)),
        format!("target: {}", instance(&target.shard)),
        String::new(),
    ];
    lines.extend(groups(source, target, exchanges));
    lines.push(String::new());
    lines.extend(traffic(source, target, exchanges));
    lines.push(String::new());
    lines.extend(pieces(source, target, exchanges));
    lines.push(String::new());
    lines.join("\n")
}

fn instance(shard: &Shard) -> String {
    let mut text = format!("{} ranks: tp {}, pp {}", shard.ranks(), shard.tp_size, shard.pp_size);
    if shard.context_ranks() > 1 {
        let Shard { pcp_size, dcp_size, turn_tokens, .. } = shard;
        text += &format!(", pcp {pcp_size}, dcp {dcp_size}, in turns of {turn_tokens} tokens");
    }
    text
}

/// One line for each group of the target and each shape of its layers.
fn groups(source: &Layout, target: &Layout, exchanges: &Exchanges) -> Vec<String> {
    let mut origins: BTreeMap<u32, u32> = BTreeMap::new();
    for piece in exchanges.values().flat_map(|exchange| &exchange.layers) {
        if let (Some(from), Some(to)) = layers(source, target, piece.source_layer, piece.target_layer) {
            origins.insert(to.group, from.group);
        }
    }
    let mut shapes: BTreeMap<(u32, u32, u32, u32, u32), u32> = BTreeMap::new();
    for layer in &target.layers {
        let Layer { group, heads, pairs, elements, element_bytes, .. } = *layer;
        *shapes.entry((group, heads, pairs, elements, element_bytes)).or_default() += 1;
    }
    let line = |((group, heads, pairs, elements, element_bytes), layers)| {
        let to = target.groups.get(group as usize)?;
        let origin = *origins.get(&group)?;
        let from = source.groups.get(origin as usize)?;
        Some(format!(
            "group {group}, group {origin} of the source: {}, blocks of {} tokens to {}; {layers} layers \
             of {heads} heads, {pairs} x {elements} elements of {element_bytes} bytes",
            kind(to),
            from.block_tokens,
            to.block_tokens,
        ))
    };
    shapes.into_iter().filter_map(line).collect()
}

fn kind(group: &Group) -> String {
    match group.kind {
        GroupKind::Full => "full".into(),
        GroupKind::Window { tokens } => format!("window of {tokens} tokens"),
        GroupKind::Latent => "latent".into(),
        GroupKind::State => "state".into(),
    }
}

fn layers<'a>(
    source: &'a Layout,
    target: &'a Layout,
    from: u32,
    to: u32,
) -> (Option<&'a Layer>, Option<&'a Layer>) {
    (source.layers.get(from as usize), target.layers.get(to as usize))
}

/// Who sends how much to whom.
fn traffic(source: &Layout, target: &Layout, exchanges: &Exchanges) -> Vec<String> {
    let mut lines = vec![format!("source rank -> target rank: bytes of {TOKENS} tokens")];
    for ((from, to), exchange) in exchanges.iter().take(LINES_MAX) {
        let (of_tokens, of_states) = bytes(target, exchange);
        let states = match of_states {
            0 => String::new(),
            bytes => format!(", and {bytes} for each block of states"),
        };
        let layers: u32 =
            exchange.layers.chunk_by(|one, two| one.target_layer == two.target_layer).map(|_| 1).sum();
        lines.push(format!("{from} -> {to}: {of_tokens}, of {layers} layers{states}"));
    }
    if exchanges.len() > LINES_MAX {
        lines.push(format!("... {} in all", exchanges.len()));
    }
    let mut sends = vec![false; source.shard.ranks() as usize];
    for &(from, _) in exchanges.keys() {
        sends.get_mut(from as usize).into_iter().for_each(|sends| *sends = true);
    }
    let idle = ranks(&source.shard)
        .map(|shard| shard.rank())
        .filter(|&rank| sends.get(rank as usize) == Some(&false));
    lines.extend(idle.take(LINES_MAX).map(|rank| format!("rank {rank} sends nothing")));
    lines
}

/// Bytes of the example's tokens, and of one block of all states.
fn bytes(target: &Layout, exchange: &Exchange) -> (u64, u64) {
    let is_state = |piece: &LayerPiece| {
        let group = target.layers.get(piece.target_layer as usize).map(|layer| layer.group as usize);
        let group = group.and_then(|group| target.groups.get(group));
        group.is_some_and(|group| group.kind == GroupKind::State)
    };
    let of = |states: bool| {
        exchange.bytes(target, &(0..TOKENS), &(0..u32::MAX), |piece| u64::from(is_state(piece) == states))
    };
    (of(false), of(true))
}

/// How large the contiguous pieces are where both layouts have memory.
fn pieces(source: &Layout, target: &Layout, exchanges: &Exchanges) -> Vec<String> {
    let mut shapes: BTreeMap<String, u32> = BTreeMap::new();
    let to = target.shard.rank();
    let here = exchanges.values().filter(|exchange| exchange.target.rank() == to);
    for (exchange, piece) in
        here.flat_map(|exchange| exchange.layers.iter().map(move |piece| (exchange, piece)))
    {
        let (Some(from), Some(to)) = layers(source, target, piece.source_layer, piece.target_layer) else {
            continue;
        };
        let (Some(from_memory), Some(to_memory)) = (&from.memory, &to.memory) else { continue };
        let turn = Context::of(&exchange.source).turn_with(&Context::of(&exchange.target));
        let tokens = turn.min(block_of(source, from)).min(block_of(target, to));
        let merged = Geometry::new(to, piece.heads, from_memory, to_memory).pieces(tokens);
        let count: u64 = merged.inner.iter().fold(1, |count, inner| count.saturating_mul(inner.count));
        let within = if merged.names.is_empty() { "nothing".into() } else { merged.names.join(", ") };
        let loops = if merged.loops.is_empty() { "nothing".into() } else { merged.loops.join(", ") };
        let text = format!(
            "{} heads of {tokens} tokens: {count} pieces of {} bytes; merged: {within}; one by one: {loops}",
            piece.heads, merged.bytes
        );
        *shapes.entry(text).or_default() += 1;
    }
    if shapes.is_empty() {
        return vec!["pieces: unknown, since these two ranks hold no layer in common".into()];
    }
    let head = format!(
        "layers of the target's rank {to} in pieces, as its memory and that of the source's rank {} lie",
        source.shard.rank()
    );
    std::iter::once(head).chain(shapes.into_iter().map(|(text, count)| format!("{count} x {text}"))).collect()
}

fn block_of(layout: &Layout, layer: &Layer) -> u64 {
    layout.groups.get(layer.group as usize).map_or(1, |group| group.block_tokens.into())
}
