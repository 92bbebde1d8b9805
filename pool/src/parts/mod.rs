//! Values of engines that are sharded differently: a chunk is stored in *parts*, each under a digest of its own, and an
//! engine's blocks are cut into the pieces of these values. Pure: `ferry_kv` plans which byte is which, and `Pool`
//! moves them.
//!
//! ```text
//! Layout, Cut ─▶ Parts ─ keys ─▶ digests of all parts of each chunk           exists, remove
//!                      └ values ─▶ the parts that this rank holds, in pieces   put, get
//! ends of parts ─ fold ─▶ ends of chunks
//! ```
//!
//! A part has neighbouring heads of neighbouring layers that have equally many heads. Heads that several ranks hold,
//! and latent vectors, are in one part, which each of these ranks may put. `part` has the bytes of a value and of its
//! digest.

#[cfg(test)]
mod model;
mod part;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use ferry::status::{Error, Result};
use ferry::Status;
use ferry_kv::plan::{BlockSlice, Plan};
use ferry_kv::{Arrangement, GroupKind, Layout, Shard};

use crate::key::{Chain, Digest};
use crate::limits::{CHUNK_TOKENS_DEFAULT, HEAD_PARTS_MAX, KEYS_OF_CALL_MAX, PIECES_OF_VALUES_MAX};
use crate::node::KeyEnd;
use crate::outcome::Outcome;
use crate::pool::Value;
use part::Part;

/// How chunks are cut into parts. Engines share what they cut alike; what another engine has cut in another way, an
/// engine does not find unless the part is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Tokens of a chunk: those of the `Chain` that made the keys.
    pub chunk_tokens: u32,
    /// Into how many parts the heads of a layer are divided: a common multiple of the tensor parallel sizes of the
    /// engines. A layer of fewer heads is divided into single heads.
    pub head_parts: u32,
    /// Into how many parts the layers are divided, in their order. No part may have layers of two stages of an engine.
    pub layer_parts: u32,
    /// The order of the bytes of a layer in a part. That of most engines makes the fewest pieces.
    pub arrangement: Arrangement,
}

impl Default for Cut {
    fn default() -> Cut {
        let arrangement = Arrangement::BlockPairTokenHead;
        Cut { chunk_tokens: CHUNK_TOKENS_DEFAULT, head_parts: 1, layer_parts: 1, arrangement }
    }
}

/// The parts of a chunk, and what of them one rank of an engine holds. Cheap to keep, and usable from any thread.
#[derive(Debug)]
pub struct Parts {
    parts: Vec<Part>,
    groups: usize,
    chunk_tokens: u32,
}

impl Parts {
    /// INVALID names the argument that cannot be: the layout, or a cut by which this rank would hold a piece of a part.
    /// UNSUPPORTED: layers have windows or states, or there is context parallelism. LIMIT: a value would be too long, or
    /// the heads are divided too often.
    pub fn new(layout: &Layout, cut: &Cut) -> Result<Parts> {
        layout.check()?;
        check_layout(layout)?;
        check_cut(layout, cut)?;
        let count = layout.layers.len() as u64;
        let mut classes: BTreeMap<(u64, u32), Vec<usize>> = BTreeMap::new();
        for (at, layer) in layout.layers.iter().enumerate() {
            let part = at as u64 * u64::from(cut.layer_parts) / count;
            classes.entry((part, layer.heads)).or_default().push(at);
        }
        let mut parts = Vec::new();
        for ((number, heads), layers) in classes {
            let layers = layers.into_iter().map(|at| layout.layers[at].clone()).collect();
            let engine = Arc::new(Layout { layers, ..layout.clone() });
            check_stages(&engine, number, cut)?;
            let shard = Shard { tp_size: cut.head_parts.min(heads), ..Shard::default() };
            let new = |tp_rank| Part::new(&engine, cut, Shard { tp_rank, ..shard });
            let mut found = (0..shard.tp_size).map(new).collect::<Result<Vec<Part>>>()?;
            if engine.layers.iter().any(|layer| layer.memory.is_some()) {
                let plan = Plan::between(&found[0].stored, &engine)?;
                found.iter_mut().try_for_each(|part| part.hold(&plan, &engine))?;
            }
            parts.append(&mut found);
        }
        Ok(Parts { parts, groups: layout.groups.len(), chunk_tokens: cut.chunk_tokens })
    }

    /// How many parts a chunk has in all ranks together: as many digests `keys` returns for each chunk.
    pub fn count(&self) -> usize {
        self.parts.len()
    }

    /// How many of them this rank holds: as many values `values` returns for each chunk.
    pub fn held(&self) -> usize {
        self.parts.iter().filter(|part| part.is_held()).count()
    }

    /// Returns the digests of all parts: those of the first chunk, then those of the second, and so on. LIMIT: more than
    /// a call takes.
    pub fn keys(&self, chunks: &[Digest]) -> Result<Vec<Digest>> {
        check_calls(chunks.len(), self.count())?;
        Ok(chunks.iter().flat_map(|chunk| self.parts.iter().map(|part| part.digest(chunk))).collect())
    }

    /// Returns the values of the parts that this rank holds, whose memory is that of the blocks: those of the first
    /// chunk, then those of the second, and so on. `chunks` are consecutive; the first is chunk `first_chunk` of the
    /// sequence. `blocks` has a list for each group of the layout, which holds at least the tokens of the chunks.
    ///
    /// INVALID: a list lacks a token, has a block twice, or one that a layer does not have. LIMIT: too many values or
    /// pieces.
    pub fn values(
        &self,
        chunks: &[Digest],
        first_chunk: u64,
        blocks: &[BlockSlice<'_>],
    ) -> Result<Vec<Value>> {
        let held = self.held();
        check_calls(chunks.len(), held)?;
        if blocks.len() != self.groups {
            let (found, groups) = (blocks.len(), self.groups);
            let text =
                format!("blocks: {found} lists, and the layout has {groups} groups: pass a list for each");
            return Err(Error::invalid(text));
        }
        let tokens = u64::from(self.chunk_tokens);
        let end = first_chunk.checked_add(chunks.len() as u64).and_then(|end| end.checked_mul(tokens));
        let Some(end) = end else {
            return Err(Error::invalid(format!("first_chunk: {first_chunk} is beyond all sequences")));
        };
        let tokens = first_chunk * tokens..end;
        let (mut columns, mut pieces) = (Vec::with_capacity(held), PIECES_OF_VALUES_MAX);
        for part in self.parts.iter().filter(|part| part.is_held()) {
            let memory = part.memory(chunks.len(), tokens.clone(), blocks, &mut pieces)?;
            columns.push((part, memory.into_iter()));
        }
        let mut values = Vec::with_capacity(chunks.len() * held);
        for chunk in chunks {
            for (part, memory) in &mut columns {
                values.extend(memory.next().map(|memory| Value { key: part.digest(chunk), memory }));
            }
        }
        Ok(values)
    }
}

/// Returns how each chunk of a call ended whose keys were those of all its parts, in the order of `Parts::keys` or
/// `Parts::values`: OK only if all are, HERE if all were; otherwise as the first of its parts that was not. INVALID
/// unless `ends` are equally many for each chunk.
pub fn fold(ends: &[KeyEnd], chunks: usize) -> Result<Vec<KeyEnd>> {
    let parts = ends.len().checked_div(chunks).unwrap_or(0);
    if parts * chunks != ends.len() {
        let text = format!("ends: {} are not equally many for each of {chunks} chunks", ends.len());
        return Err(Error::invalid(text));
    }
    Ok((0..chunks).map(|at| chunk_end(&ends[at * parts..][..parts])).collect())
}

fn chunk_end(parts: &[KeyEnd]) -> KeyEnd {
    let is_one = parts.windows(2).all(|two| two[0].node == two[1].node);
    let node = parts.first().filter(|_| is_one).and_then(|first| first.node);
    if let Some(missing) = parts.iter().find(|part| !part.outcome.is_ok()) {
        return KeyEnd { outcome: missing.outcome, bytes: 0, node };
    }
    let moved = parts.is_empty() || parts.iter().any(|part| part.outcome == Outcome::Ok);
    let outcome = if moved { Outcome::Ok } else { Outcome::Here };
    let bytes = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.bytes));
    KeyEnd { outcome, bytes, node }
}

fn check_calls(chunks: usize, parts: usize) -> Result<()> {
    if chunks.saturating_mul(parts.max(1)) > KEYS_OF_CALL_MAX {
        let text = format!(
            "chunks: {chunks} of {parts} parts each are more than the {KEYS_OF_CALL_MAX} that a call takes"
        );
        return Err(Error::new(Status::Limit, text));
    }
    Ok(())
}

fn check_layout(layout: &Layout) -> Result<()> {
    let unsupported = |text| Err(Error::new(Status::Unsupported, text));
    if layout.shard.context_ranks() > 1 {
        let ranks = layout.shard.context_ranks();
        return unsupported(format!(
            "layout.shard: {ranks} ranks divide the tokens, and a chunk has all of its own"
        ));
    }
    let has_layers = |at: usize| layout.layers.iter().any(|layer| layer.group as usize == at);
    for (at, group) in layout.groups.iter().enumerate().filter(|(at, _)| has_layers(*at)) {
        let mend =
            "describe it as Full if the engine keeps all tokens, or leave its layers out of the layout";
        match group.kind {
            GroupKind::Full | GroupKind::Latent => {}
            GroupKind::Window { .. } => {
                return unsupported(format!(
                    "layout.groups[{at}] is a Window, whose blocks lose tokens: {mend}"
                ));
            }
            GroupKind::State => {
                return unsupported(format!(
                    "layout.groups[{at}] is a State, of which chunks have no part: leave its layers out of the layout"
                ));
            }
        }
    }
    Ok(())
}

fn check_cut(layout: &Layout, cut: &Cut) -> Result<()> {
    Chain::new(cut.chunk_tokens)?;
    if cut.head_parts == 0 {
        return Err(Error::invalid("head_parts is 0; 1 leaves the heads undivided"));
    }
    if cut.head_parts > HEAD_PARTS_MAX {
        let text = format!("head_parts is {}; at most {HEAD_PARTS_MAX}", cut.head_parts);
        return Err(Error::new(Status::Limit, text));
    }
    let (parts, layers) = (cut.layer_parts, layout.layers.len());
    if !(1..=layers).contains(&(parts as usize)) {
        let text = format!("layer_parts is {parts}; it must be 1 to {layers}, the number of layers");
        return Err(Error::invalid(text));
    }
    Ok(())
}

/// Refuses a part that no stage holds whole.
fn check_stages(part: &Layout, number: u64, cut: &Cut) -> Result<()> {
    let mut stages = part.layers.iter().map(|layer| layer.stage);
    let first = stages.next();
    match stages.find(|stage| Some(*stage) != first) {
        None => Ok(()),
        Some(other) => Err(Error::invalid(format!(
            "layer_parts: with {}, part {number} has layers of the stages {} and {other}; take more parts, at most \
             one for each layer",
            cut.layer_parts,
            first.unwrap_or_default(),
        ))),
    }
}
