//! Turns an exchange, the blocks of a sequence and a range of its tokens into the bytes to move. Above `blocks`, which
//! checks the lists, `tokens`, which finds the runs, and `strided`, which merges dimensions.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use ferry::status::{Error, Result};

use super::blocks::{covers, distinct, within, GroupBlocks};
use super::geometry::{Geometry, Placed};
use super::room::{copy, push, reserve};
use super::shape::group_of;
use super::strided::{Bases, BlockPairs, Strided};
use super::tokens::{classes, Class, Context, Run, Side};
use super::Exchange;
use crate::layout::{Group, GroupKind, Layout, Shard};

impl Exchange {
    /// Returns the bytes to move for the tokens `tokens` of a sequence, of those of the target's layers whose ordinals
    /// are in `layers`. The layouts are those of the two ranks, with their memory; `blocks` has the lists of each group
    /// of the target. A Window moves only its last tokens before the end of the range. A State's blocks are
    /// moved whatever the range: give it empty lists when it shall not move.
    ///
    /// `Invalid` if the layouts are not those of this exchange, a list lacks a token of the range that its rank holds,
    /// a block is beyond a layer's memory, or a block of the target is twice in its list. `NoMemory` if there is none for
    /// so many blocks.
    pub fn lower(
        &self,
        source: &Layout,
        target: &Layout,
        blocks: &[GroupBlocks],
        tokens: Range<u64>,
        layers: Range<u32>,
    ) -> Result<Vec<Strided>> {
        same_rank("source", &self.source, &source.shard)?;
        same_rank("target", &self.target, &target.shard)?;
        if blocks.len() != target.groups.len() {
            return Err(Error::invalid(format!(
                "blocks has {} groups, and the target's layout {}",
                blocks.len(),
                target.groups.len()
            )));
        }
        let mut groups: BTreeMap<u32, Vec<Placed>> = BTreeMap::new();
        for piece in self.layers.iter().filter(|piece| layers.contains(&piece.target_layer)) {
            let placed = Placed::of(piece, source, target)?;
            push(groups.entry(placed.to.group).or_default(), placed, "layers to move")?;
        }
        let mut found = Vec::new();
        for (group, placed) in groups {
            let Some(first) = placed.first() else { continue };
            let lists = Lists {
                group,
                blocks: blocks.get(group as usize).copied().unwrap_or_default(),
                from: *group_of(source, first.from)?,
                to: *group_of(target, first.to)?,
            };
            lists.check_ids(&placed)?;
            let classes = match lists.to.kind {
                GroupKind::State => lists.paired()?,
                _ => lists.runs(self, tokens.clone())?,
            };
            append(&mut found, &placed, classes)?;
        }
        Ok(found)
    }
}

fn same_rank(side: &str, planned: &Shard, given: &Shard) -> Result<()> {
    if planned == given {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the layout of the {side} is of {given:?}, and the exchange is of {planned:?}"
    )))
}

/// The lists of one group, with the group on both sides.
struct Lists<'a> {
    group: u32,
    blocks: GroupBlocks<'a>,
    from: Group,
    to: Group,
}

impl Lists<'_> {
    fn name(&self, side: &str) -> String {
        format!("the {side}'s list of group {}", self.group)
    }

    fn check_ids(&self, placed: &[Placed]) -> Result<()> {
        let fewest = |blocks: fn(&Placed) -> u64| placed.iter().min_by_key(|placed| blocks(placed));
        let (source, target) = (self.blocks.source.ids, self.blocks.target.ids);
        if let Some(least) = fewest(|placed| placed.from_memory.blocks) {
            within(&self.name("source"), source, &least.from.name, least.from_memory.blocks)?;
        }
        if let Some(least) = fewest(|placed| placed.to_memory.blocks) {
            within(&self.name("target"), target, &least.to.name, least.to_memory.blocks)?;
        }
        distinct(&self.name("target"), target)
    }

    /// The blocks of a State, paired one to one.
    fn paired(&self) -> Result<Vec<Class>> {
        let (source, target) = (self.blocks.source.ids, self.blocks.target.ids);
        if source.len() != target.len() {
            return Err(Error::invalid(format!(
                "{} has {} blocks and {} has {}, but the blocks of a State are paired",
                self.name("source"),
                source.len(),
                self.name("target"),
                target.len()
            )));
        }
        if source.is_empty() {
            return Ok(Vec::new());
        }
        let run = Run { source_offset: 0, target_offset: 0, tokens: 1 };
        let copy = |ids| copy(ids, "pairs of blocks to move");
        Ok(vec![Class { run, pairs: BlockPairs { source: copy(source)?, target: copy(target)? } }])
    }

    fn runs(&self, exchange: &Exchange, mut tokens: Range<u64>) -> Result<Vec<Class>> {
        if let GroupKind::Window { tokens: kept } = self.to.kind {
            tokens.start = tokens.start.max(tokens.end.saturating_sub(kept.into()));
        }
        let source = Side {
            context: Context::of(&exchange.source),
            block_tokens: u64::from(self.from.block_tokens).max(1),
            ids: self.blocks.source.ids,
            first_token: self.blocks.source.first_token,
        };
        let target = Side {
            context: Context::of(&exchange.target),
            block_tokens: u64::from(self.to.block_tokens).max(1),
            ids: self.blocks.target.ids,
            first_token: self.blocks.target.first_token,
        };
        covers(&self.name("source"), &source, &tokens)?;
        covers(&self.name("target"), &target, &tokens)?;
        classes(&source, &target, tokens)
    }
}

/// Appends one `Strided` for each class of runs and each geometry of layers.
fn append(found: &mut Vec<Strided>, placed: &[Placed], classes: Vec<Class>) -> Result<()> {
    let mut geometries: Vec<(Geometry, Vec<&Placed>)> = Vec::new();
    for placed in placed {
        match geometries.iter_mut().find(|(geometry, _)| *geometry == placed.geometry) {
            Some((_, alike)) => push(alike, placed, "layers to move")?,
            None => push(&mut geometries, (placed.geometry, vec![placed]), "layers to move")?,
        }
    }
    reserve(found, classes.len().saturating_mul(geometries.len()), "moves of blocks")?;
    for Class { run, pairs } in classes {
        let most = |ids: &[u32]| ids.iter().copied().max().unwrap_or(0);
        let last_ids = (most(&pairs.source), most(&pairs.target));
        let pairs = Arc::new(pairs);
        for (geometry, alike) in &geometries {
            let merged = geometry.pieces(run.tokens);
            let mut layers: Vec<Bases> = Vec::new();
            reserve(&mut layers, alike.len(), "layers of a move")?;
            for placed in alike {
                layers.push(placed.bases(&run, last_ids)?);
            }
            found.push(Strided {
                layers,
                pairs: pairs.clone(),
                source_stride: geometry.source.block,
                target_stride: geometry.target.block,
                inner: merged.inner,
                bytes: merged.bytes,
            });
        }
    }
    Ok(())
}
