//! Checks an application's lists of blocks against its own layout, before anything is done with them.

use std::cmp::Ordering;
use std::ops::Range;

use ferry::status::{Error, Result};
use ferry::Status;

use crate::layout::limits::GROUPS_MAX;
use crate::layout::{GroupKind, Layer, LayerMemory, Layout};
use crate::plan::held;

use super::limits::BLOCKS_MAX;
use super::types::BlockList;

/// INVALID unless there is one list for each group, and each has ids of the layout's blocks, none twice. LIMIT for too
/// many blocks.
pub fn check(layout: &Layout, lists: &[BlockList]) -> Result<()> {
    if lists.len() != layout.groups.len() {
        let (lists, groups) = (lists.len(), layout.groups.len());
        return Err(Error::invalid(format!("blocks: {lists} lists, and the layout has {groups} groups")));
    }
    let total: usize = lists.iter().map(|list| list.ids.len()).sum();
    if total > BLOCKS_MAX {
        let text = format!("blocks: {total} are above the {BLOCKS_MAX} of one handoff");
        return Err(Error::new(Status::Limit, text));
    }
    for (index, (list, group)) in lists.iter().zip(&layout.groups).enumerate() {
        if group.kind != GroupKind::State && list.first_token % u64::from(group.block_tokens.max(1)) != 0 {
            return Err(Error::invalid(format!(
                "blocks[{index}].first_token: {} is no multiple of the group's {} tokens a block",
                list.first_token, group.block_tokens
            )));
        }
        let mut sorted = list.ids.clone();
        sorted.sort_unstable();
        if let Some([id, _]) = sorted.windows(2).find(|two| two[0] == two[1]) {
            return Err(Error::invalid(format!("blocks[{index}]: block {id} is there twice")));
        }
        let members = layout.layers.iter().filter(|layer| layer.group as usize == index);
        let least = members.filter_map(|layer| Some((layer.memory?.blocks, &layer.name))).min();
        if let (Some((blocks, name)), Some(last)) = (least, sorted.last()) {
            if u64::from(*last) >= blocks {
                return Err(Error::invalid(format!(
                    "blocks[{index}]: block {last} is beyond the {blocks} blocks of {name}"
                )));
            }
        }
    }
    Ok(())
}

/// INVALID unless the list of a group holds the last token of the range, and, if the list is no window's, the first.
/// `what` names the call's argument that asks for the tokens.
pub fn covers(
    layout: &Layout,
    group: usize,
    list: &BlockList,
    tokens: &Range<u64>,
    what: &str,
) -> Result<()> {
    let Some(found) = layout.groups.get(group) else { return Ok(()) };
    let block = u64::from(found.block_tokens.max(1));
    let own = |token| held(&layout.shard, token);
    let (start, end) = (own(tokens.start), own(tokens.end));
    let held_end = (list.ids.len() as u64).saturating_mul(block).saturating_add(list.first_token);
    let is_held = match found.kind {
        GroupKind::State => !list.ids.is_empty(),
        GroupKind::Window { tokens: kept } => {
            let oldest = own(tokens.end.saturating_sub(kept.into()).max(tokens.start));
            list.first_token <= oldest && held_end >= end
        }
        _ => list.first_token <= start && held_end >= end,
    };
    if start == end || is_held {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{what}: the tokens {} to {} need more than the {} blocks of blocks[{group}], which begin at the rank's token {}",
        tokens.start,
        tokens.end,
        list.ids.len(),
        list.first_token
    )))
}

/// Returns how many tokens a block of each group holds: the steps of a list's `first_token`.
pub fn steps(layout: &Layout) -> impl Iterator<Item = u64> + '_ {
    layout.groups.iter().map(|group| u64::from(group.block_tokens.max(1)))
}

/// Returns the rank's own token at which a list ends, whose blocks hold `step` tokens each.
pub fn end(list: &BlockList, step: u64) -> u64 {
    (list.ids.len() as u64).saturating_mul(step).saturating_add(list.first_token)
}

/// Takes the blocks out that have none of the rank's own tokens before `from`. The next addition begins at `from`.
pub fn cut_back(list: &mut BlockList, step: u64, from: u64) -> Vec<u32> {
    let kept = from.saturating_sub(list.first_token).div_ceil(step).min(list.ids.len() as u64);
    list.first_token = list.first_token.min(from - from % step);
    list.ids.split_off(kept as usize)
}

/// Takes the blocks out that have only the rank's own tokens before `before`.
pub fn cut_front(list: &mut BlockList, step: u64, before: u64) -> Vec<u32> {
    let gone = (before.saturating_sub(list.first_token) / step).min(list.ids.len() as u64);
    list.first_token = list.first_token.saturating_add(gone * step);
    list.ids.drain(..gone as usize).collect()
}

/// Adds blocks behind a list, or in its place if they begin later than it ends. Returns false, and changes nothing, if
/// they begin before the list's end.
pub fn append(list: &mut BlockList, step: u64, added: BlockList) -> bool {
    match added.first_token.cmp(&end(list, step)) {
        _ if added.ids.is_empty() => true,
        Ordering::Less => false,
        Ordering::Equal => {
            list.ids.extend(added.ids);
            true
        }
        Ordering::Greater => {
            *list = added;
            true
        }
    }
}

/// The groups whose lists have blocks, a bit for each.
pub fn wanted(lists: &[BlockList]) -> u64 {
    let bits = lists.iter().take(GROUPS_MAX).enumerate();
    bits.fold(0, |wanted, (group, list)| wanted | u64::from(!list.ids.is_empty()) << group)
}

/// Returns the blocks of a take that hold tokens from `valid` on, as (group, block).
pub fn beyond(layout: &Layout, lists: &[BlockList], valid: u64) -> Vec<(u32, u32)> {
    let mut found = Vec::new();
    for (index, (list, group)) in lists.iter().zip(&layout.groups).enumerate() {
        let first = match group.kind {
            GroupKind::Full | GroupKind::Latent => {
                let token = held(&layout.shard, valid).saturating_sub(list.first_token);
                (token / u64::from(group.block_tokens.max(1))) as usize
            }
            GroupKind::Window { .. } | GroupKind::State => 0,
        };
        found.extend(list.ids.iter().skip(first).map(|id| (index as u32, *id)));
    }
    found
}

/// Returns whether a range of addresses may touch these blocks. All between a block's first and last byte of keys,
/// or of values, counts as the block's.
pub fn touches(layout: &Layout, lists: &[BlockList], range: &Range<u64>) -> bool {
    let touches = |layer: &Layer, memory: &LayerMemory| {
        let (strides, group) = (memory.strides, layer.group as usize);
        let tokens = layout.groups.get(group).map_or(1, |group| u64::from(group.block_tokens));
        let heads = layer.heads_of(&layout.shard).len() as u64;
        let last = |count: u64, stride: u64| count.saturating_sub(1).saturating_mul(stride);
        let bytes = last(heads, strides.head)
            .saturating_add(last(tokens, strides.token))
            .saturating_add(last(layer.elements.into(), strides.element))
            .saturating_add(layer.element_bytes.into());
        lists.get(group).into_iter().flat_map(|list| &list.ids).any(|id| {
            (0..u64::from(layer.pairs)).any(|pair| {
                let offset = u64::from(*id)
                    .saturating_mul(strides.block)
                    .saturating_add(pair.saturating_mul(strides.pair));
                let begin = memory.address.saturating_add(offset);
                range.start < begin.saturating_add(bytes) && begin < range.end
            })
        })
    };
    layout.layers.iter().any(|layer| layer.memory.as_ref().is_some_and(|memory| touches(layer, memory)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(first_token: u64, ids: Range<u32>) -> BlockList {
        BlockList { first_token, ids: ids.collect() }
    }

    #[test]
    fn a_list_is_cut_at_its_blocks() {
        // Blocks of 4 tokens, from token 8 to 20. From; what goes; where the list begins.
        for (from, gone, first) in [
            (21, 3..3, 8),
            (20, 3..3, 8),
            (17, 3..3, 8),
            (16, 2..3, 8),
            (9, 1..3, 8),
            (8, 0..3, 8),
            (6, 0..3, 4),
            (0, 0..3, 0),
        ] {
            let mut cut = list(8, 0..3);
            assert_eq!(cut_back(&mut cut, 4, from), gone.clone().collect::<Vec<_>>(), "{from}");
            assert_eq!(cut, list(first, 0..gone.start));
        }
        for (before, count) in [(0, 0), (11, 0), (12, 1), (15, 1), (20, 3), (u64::MAX, 3)] {
            let mut cut = list(8, 0..3);
            assert_eq!(cut_front(&mut cut, 4, before).len(), count, "{before}");
            assert_eq!(cut, list(8 + 4 * count as u64, count as u32..3));
        }
    }

    #[test]
    fn blocks_follow_those_that_were_told() {
        // Behind blocks 0 to 2, from token 8 to 20.
        for (first, whole) in [
            (20, Some(list(8, 0..3))),
            (19, None),
            (8, None),
            (0, None),
            (21, Some(list(21, 0..0))),
            (u64::MAX, Some(list(u64::MAX, 0..0))),
        ] {
            let mut into = list(8, 0..3);
            let is_good = append(&mut into, 4, list(first, 7..9));
            let kept = whole.clone().unwrap_or(list(8, 0..3));
            let added = if whole.is_some() { 7..9 } else { 0..0 };
            assert_eq!(is_good, whole.is_some(), "{first}");
            assert_eq!(into, BlockList { ids: kept.ids.into_iter().chain(added).collect(), ..kept });
        }
        let mut into = list(8, 0..3);
        assert!(append(&mut into, 4, list(8, 0..0)) && into == list(8, 0..3));
        assert_eq!(end(&into, 4), 20);
    }

    #[test]
    fn a_group_is_wanted_if_its_list_has_blocks() {
        let mut lists = vec![list(0, 0..0); GROUPS_MAX];
        assert_eq!(wanted(&lists), 0);
        (lists[1], lists[63]) = (list(4, 0..1), list(0, 0..2));
        assert_eq!(wanted(&lists), 1 << 1 | 1 << 63);
    }
}
