//! From the structs of `desc` to the layout that they describe. `layout` checks what this file makes.

use super::arrays::read_array;
use super::desc::*;
use crate::handles::check_reserved;
use crate::pointers::text;
use engine::status::Result;
use engine::Error;
use ferry_kv::layout::limits::{GROUPS_MAX, LAYERS_MAX};
use ferry_kv::layout::{Group, GroupKind, Layer, LayerMemory, Layout, ModelKey, Shard, Strides};

/// Returns INVALID for a struct that was NULL.
pub(super) fn required<T>(value: Option<T>, what: &str) -> Result<T> {
    value.ok_or_else(|| Error::invalid(format!("{what} is NULL")))
}

impl ferry_kv_layout_desc {
    /// # Safety
    /// The pointers are NULL or point to what their documentation says.
    pub(super) unsafe fn layout(&self) -> Result<Layout> {
        check_reserved(self.reserved, "desc.reserved")?;
        // SAFETY: the caller's promise.
        let (key, groups, layers) = unsafe {
            let key = ModelKey {
                model: text(self.model, "desc.model")?.to_owned(),
                revision: text(self.revision, "desc.revision")?.to_owned(),
                cache: text(self.cache, "desc.cache")?.to_owned(),
                rope: text(self.rope, "desc.rope")?.to_owned(),
            };
            (key, self.groups()?, read_array(self.layers, self.layer_count, LAYERS_MAX, "desc.layers")?)
        };
        let mut described = Vec::new();
        for (index, layer) in layers.iter().enumerate() {
            // SAFETY: the caller's promise.
            described.push(unsafe { layer.layer(&format!("desc.layers[{index}]")) }?);
        }
        Ok(Layout { key, shard: self.shard(), groups, layers: described })
    }

    pub(super) fn shard(&self) -> Shard {
        Shard {
            tp_rank: self.tp_rank,
            tp_size: self.tp_size,
            pp_rank: self.pp_rank,
            pp_size: self.pp_size,
            pcp_rank: self.pcp_rank,
            pcp_size: self.pcp_size.max(1),
            dcp_size: self.dcp_size.max(1),
            turn_tokens: self.turn_tokens.max(1),
        }
    }

    /// # Safety
    /// `groups` is NULL or points to `group_count` groups.
    pub(super) unsafe fn groups(&self) -> Result<Vec<Group>> {
        // SAFETY: the caller's promise.
        let groups = unsafe { read_array(self.groups, self.group_count, GROUPS_MAX, "desc.groups") }?;
        groups.iter().enumerate().map(|(index, group)| group.group(index)).collect()
    }
}

impl ferry_kv_group {
    fn group(&self, index: usize) -> Result<Group> {
        let kind = match self.kind {
            FERRY_KV_GROUP_FULL => GroupKind::Full,
            FERRY_KV_GROUP_WINDOW => GroupKind::Window { tokens: self.window_tokens },
            FERRY_KV_GROUP_LATENT => GroupKind::Latent,
            FERRY_KV_GROUP_STATE => GroupKind::State,
            kind => {
                let words = "set it to FERRY_KV_GROUP_FULL, _WINDOW, _LATENT or _STATE";
                let text = format!("desc.groups[{index}].kind is {kind}: {words}");
                return Err(Error::invalid(text));
            }
        };
        if self.kind != FERRY_KV_GROUP_WINDOW {
            check_reserved(self.window_tokens, &format!("desc.groups[{index}].window_tokens"))?;
        }
        Ok(Group { kind, block_tokens: self.block_tokens })
    }
}

impl ferry_kv_layer {
    /// # Safety
    /// `name` is NULL or a terminated text.
    unsafe fn layer(&self, what: &str) -> Result<Layer> {
        check_reserved(self.reserved, &format!("{what}.reserved"))?;
        // SAFETY: the caller's promise.
        let name = unsafe { text(self.name, &format!("{what}.name")) }?;
        Ok(self.named(name.to_owned()))
    }

    pub(super) fn named(&self, name: String) -> Layer {
        let strides = Strides {
            block: self.block_stride,
            pair: self.pair_stride,
            head: self.head_stride,
            token: self.token_stride,
            element: self.element_stride,
        };
        let memory = LayerMemory { address: self.address, blocks: self.blocks, strides };
        Layer {
            name,
            group: self.group,
            stage: self.stage,
            heads: self.heads,
            pairs: self.pairs,
            elements: self.elements,
            element_bytes: self.element_bytes,
            memory: (self.address != 0).then_some(memory),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every field has its own number or text, so that none can be taken for another.
    #[test]
    fn every_field_arrives_where_it_belongs() {
        let group = |kind, block_tokens, window_tokens| ferry_kv_group {
            struct_size: 16,
            kind,
            block_tokens,
            window_tokens,
        };
        let groups = [group(1, 20, 0), group(2, 21, 22), group(3, 23, 0), group(4, 24, 0)];
        let layer = ferry_kv_layer {
            struct_size: 96,
            group: 30,
            name: c"layer".as_ptr(),
            stage: 31,
            heads: 32,
            pairs: 33,
            elements: 34,
            element_bytes: 35,
            reserved: 0,
            address: 36,
            blocks: 37,
            block_stride: 38,
            pair_stride: 39,
            head_stride: 40,
            token_stride: 41,
            element_stride: 42,
        };
        let desc = ferry_kv_layout_desc {
            struct_size: 104,
            reserved: 0,
            model: c"model".as_ptr(),
            revision: c"revision".as_ptr(),
            cache: c"cache".as_ptr(),
            rope: c"rope".as_ptr(),
            tp_rank: 10,
            tp_size: 11,
            pp_rank: 12,
            pp_size: 13,
            pcp_rank: 14,
            pcp_size: 15,
            dcp_size: 16,
            turn_tokens: 17,
            groups: groups.as_ptr(),
            group_count: 4,
            layers: &layer,
            layer_count: 1,
        };
        // SAFETY: all pointers are to what lives here.
        let layout = unsafe { desc.layout() }.unwrap();
        // Debug writes the fields in the order of their numbers, and the names of the kinds.
        let text = format!("{layout:?}");
        let words = text.split(|c: char| !c.is_alphanumeric());
        let kinds = ["Full", "Window", "Latent", "State"];
        let told: Vec<&str> =
            words.filter(|word| word.parse::<u32>().is_ok() || kinds.contains(word)).collect();
        let expected = "10 11 12 13 14 15 16 17 Full 20 Window 22 21 Latent 23 State 24 30 31 32 33 34 35 36 37 38 39 40 \
                        41 42";
        assert_eq!(told.join(" "), expected, "{text}");
        let [model, revision, cache, rope] = ["model", "revision", "cache", "rope"].map(String::from);
        assert_eq!(layout.key, ModelKey { model, revision, cache, rope });
        assert_eq!(layout.layers[0].name, "layer");
    }
}
