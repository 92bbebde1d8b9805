//! Whether a layout makes sense: every number is in its bounds, and every layer's memory can be walked without
//! overflow. `wire` checks what it exports and imports, and `plan` relies on it. An error names layer and field.
//!
//! Layers of different groups may share memory: the groups of a hybrid cache use one tensor and different block ids.
//! Those of one group must not (`overlap`).

use super::limits::*;
use super::overlap::Shared;
use super::{GroupKind, Layer, Layout, ModelKey, Shard};
use ferry::status::{Error, Result};
use ferry::Status;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

impl Layout {
    /// Checks everything that the other functions of this crate rely on. Any layout with its fields filled in can be
    /// asked; nothing overflows.
    pub fn check(&self) -> Result<()> {
        self.check_each()?;
        self.check_shared()
    }

    /// As `check`, without comparing layers with each other, which may take a million steps. It is enough for a peer's
    /// layout: two layers that share a byte of the peer's memory harm the peer alone.
    pub(crate) fn check_each(&self) -> Result<()> {
        self.key.check()?;
        self.shard.check()?;
        within("groups has", self.groups.len(), 1..=GROUPS_MAX)?;
        self.check_groups()?;
        within("layers has", self.layers.len(), 1..=LAYERS_MAX)?;
        let mut names = BTreeSet::new();
        for (index, layer) in self.layers.iter().enumerate() {
            within(&format!("layers[{index}].name: bytes are"), layer.name.len(), 1..=NAME_BYTES_MAX)?;
            let place = format!("layers[{index}] {:?}", layer.name);
            let checked = self.check_layer(layer).and_then(|()| self.check_memory(layer));
            checked.map_err(|error| Error { message: format!("{place}: {}", error.message), ..error })?;
            if !names.insert(&layer.name) {
                return Err(Error::invalid(format!("{place}: another layer has this name")));
            }
        }
        Ok(())
    }

    fn check_shared(&self) -> Result<()> {
        match self.shared() {
            None => Ok(()),
            Some(Shared { layers: [one, other], address }) => {
                let name = |index: usize| self.layers.get(index).map_or("", |layer| &layer.name);
                Err(Error::invalid(format!(
                    "layers[{other}] {:?}: memory: the byte at {address:#x} is also that of layers[{one}] {:?} of the \
                     same group; each has memory of its own",
                    name(other),
                    name(one),
                )))
            }
        }
    }

    fn check_groups(&self) -> Result<()> {
        let turn = self.shard.turn_tokens;
        let is_divided = self.shard.context_ranks() > 1;
        for (index, group) in self.groups.iter().enumerate() {
            let tokens = group.block_tokens;
            let is_state = group.kind == GroupKind::State;
            let most = if is_state { 1 } else { BLOCK_TOKENS_MAX };
            within(&format!("groups[{index}].block_tokens is"), tokens, 1..=most)?;
            if let GroupKind::Window { tokens: window } = group.kind {
                within(&format!("groups[{index}]: the window's tokens are"), window, 1..=u32::MAX)?;
            }
            if is_state && is_divided {
                let text = format!("groups[{index}] is State, which context parallel ranks cannot divide");
                return Err(Error::new(Status::Unsupported, text));
            }
            if is_divided && tokens % turn != 0 {
                return Err(Error::invalid(format!(
                    "groups[{index}].block_tokens {tokens} is not a multiple of shard.turn_tokens {turn}"
                )));
            }
        }
        Ok(())
    }

    fn check_layer(&self, layer: &Layer) -> Result<()> {
        let Some(group) = self.groups.get(layer.group as usize) else {
            let groups = self.groups.len();
            return Err(Error::invalid(format!("group {} of {groups} groups", layer.group)));
        };
        let Shard { tp_size, pp_size, dcp_size, .. } = self.shard;
        let heads = layer.heads;
        if layer.stage >= pp_size {
            return Err(Error::invalid(format!("stage {} of {pp_size} stages", layer.stage)));
        }
        within("heads is", heads, 1..=HEADS_MAX)?;
        within("pairs is", layer.pairs, 1..=2)?;
        within("elements is", layer.elements, 1..=ELEMENTS_MAX)?;
        within("element_bytes is", layer.element_bytes, 1..=ELEMENT_BYTES_MAX)?;
        if tp_size > heads && tp_size % heads != 0 {
            return Err(Error::invalid(format!(
                "heads {heads} does not divide shard.tp_size {tp_size}, so some heads would have more replicas"
            )));
        }
        match group.kind {
            GroupKind::Latent if heads != 1 => {
                Err(Error::invalid(format!("heads is {heads}, not 1, in a Latent group")))
            }
            // The ranks that divide a head's tokens must hold the same head.
            GroupKind::Full | GroupKind::Window { .. } if (tp_size / heads).max(1) % dcp_size != 0 => {
                let words = "does not divide the replicas of each of";
                Err(Error::invalid(format!(
                    "shard.dcp_size {dcp_size} {words} {heads} heads among {tp_size} ranks"
                )))
            }
            _ => Ok(()),
        }
    }

    fn check_memory(&self, layer: &Layer) -> Result<()> {
        let own = self.shard.pp_rank;
        let memory = match &layer.memory {
            None if layer.stage == own => return Err(Error::invalid("memory is missing, in its own stage")),
            None => return Ok(()),
            Some(_) if layer.stage != own => {
                return Err(Error::invalid(format!("memory of stage {}, not {own}", layer.stage)));
            }
            Some(memory) => memory,
        };
        within("memory.blocks is", memory.blocks, 1..=BLOCKS_MAX)?;
        if memory.address == 0 {
            return Err(Error::invalid("memory.address is 0"));
        }
        match layer.misplaced(memory, self) {
            Some(reason) => Err(Error::invalid(format!("memory: {reason}"))),
            None => Ok(()),
        }
    }
}

impl ModelKey {
    fn check(&self) -> Result<()> {
        for (name, value) in self.fields() {
            within(&format!("key.{name}: bytes are"), value.len(), 0..=NAME_BYTES_MAX)?;
        }
        Ok(())
    }

    /// Says which field differs first, in words; `None` if the keys are equal.
    pub fn difference(&self, other: &ModelKey) -> Option<String> {
        let mut fields = self.fields().into_iter().zip(other.fields());
        let ((name, one), (_, two)) = fields.find(|((_, one), (_, two))| one != two)?;
        Some(format!("the {name} is {one:?} on one side and {two:?} on the other"))
    }

    pub(super) fn fields(&self) -> [(&'static str, &str); 4] {
        let ModelKey { model, revision, cache, rope } = self;
        [("model", model), ("revision", revision), ("cache", cache), ("rope", rope)]
    }
}

impl Shard {
    fn check(&self) -> Result<()> {
        let Shard { tp_size, pp_size, pcp_size, dcp_size, .. } = *self;
        for (name, rank, size) in
            [("tp", self.tp_rank, tp_size), ("pp", self.pp_rank, pp_size), ("pcp", self.pcp_rank, pcp_size)]
        {
            within(&format!("shard.{name}_size is"), size, 1..=RANKS_MAX)?;
            if rank >= size {
                return Err(Error::invalid(format!("shard.{name}_rank {rank} of {size} ranks")));
            }
        }
        within("shard: tp_size * pp_size * pcp_size is", self.ranks(), 1..=RANKS_MAX)?;
        if tp_size.checked_rem(dcp_size) != Some(0) {
            return Err(Error::invalid(format!(
                "shard.dcp_size {dcp_size} does not divide shard.tp_size {tp_size}"
            )));
        }
        within("shard.turn_tokens is", self.turn_tokens, 1..=BLOCK_TOKENS_MAX)
    }
}

/// Refuses a value outside its bounds: INVALID below, LIMIT above. `what` names it and ends with a verb.
fn within<T: Copy + PartialOrd + std::fmt::Display>(
    what: &str,
    value: T,
    bounds: RangeInclusive<T>,
) -> Result<()> {
    let (least, most) = (*bounds.start(), *bounds.end());
    if value < least {
        Err(Error::invalid(format!("{what} {value}; at least {least}")))
    } else if value > most {
        Err(Error::new(Status::Limit, format!("{what} {value}; at most {most}")))
    } else {
        Ok(())
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
