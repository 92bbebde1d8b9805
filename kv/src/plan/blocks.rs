//! The caller's lists of blocks, and what `lower` refuses in them.

use std::ops::Range;

use ferry::status::{Error, Result};

use super::room::{copy, reserve};
use super::tokens::Side;

/// Blocks that hold consecutive tokens of one sequence on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockSlice<'a> {
    pub ids: &'a [u32],
    /// The local position of the first block's first token, a multiple of the group's `block_tokens`. Without meaning
    /// for a State.
    pub first_token: u64,
}

/// The lists of one group of the target. For a State the blocks are paired one to one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupBlocks<'a> {
    pub source: BlockSlice<'a>,
    pub target: BlockSlice<'a>,
}

/// Refuses a list that lacks any token of its rank in the range. `list` names it: "the source's list of group 0".
pub(super) fn covers(list: &str, side: &Side, tokens: &Range<u64>) -> Result<()> {
    let needed = side.context.held(tokens.start)..side.context.held(tokens.end);
    if needed.is_empty() {
        return Ok(());
    }
    let (first, size) = (side.first_token, side.block_tokens);
    if first % size != 0 {
        return Err(Error::invalid(format!(
            "first_token of {list} is {first}, which is no multiple of block_tokens {size}"
        )));
    }
    if needed.start < first {
        return Err(Error::invalid(format!(
            "{list} begins at its rank's token {first}, and token {} is asked for",
            needed.start
        )));
    }
    let end = (side.ids.len() as u64).saturating_mul(size).saturating_add(first);
    if needed.end > end {
        return Err(Error::invalid(format!(
            "{list} is too short: its {} blocks end before its rank's token {end}, and the range ends \
             before token {}",
            side.ids.len(),
            needed.end
        )));
    }
    Ok(())
}

/// Refuses a list with an id that a layer does not have.
pub(super) fn within(list: &str, ids: &[u32], layer: &str, blocks: u64) -> Result<()> {
    match ids.iter().max() {
        Some(&most) if u64::from(most) >= blocks => Err(Error::invalid(format!(
            "block id {most} of {list} is beyond the {blocks} blocks of layer {layer}"
        ))),
        _ => Ok(()),
    }
}

/// Refuses a list that has a block twice, since it would be written twice.
pub(super) fn distinct(list: &str, ids: &[u32]) -> Result<()> {
    match repeated(list, ids)? {
        Some(id) => Err(Error::invalid(format!("block id {id} is twice in {list}"))),
        None => Ok(()),
    }
}

fn repeated(list: &str, ids: &[u32]) -> Result<Option<u32>> {
    let Some(most) = ids.iter().max().map(|most| *most as usize) else { return Ok(None) };
    if most / 64 <= ids.len() {
        let (mut seen, words) = (Vec::new(), most / 64 + 1);
        reserve(&mut seen, words, format_args!("words, to check {list}"))?;
        seen.resize(words, 0u64);
        return Ok(ids.iter().copied().find(|&id| {
            let Some(word) = seen.get_mut(id as usize / 64) else { return false };
            let bit = 1u64 << (id % 64);
            let was = *word & bit != 0;
            *word |= bit;
            was
        }));
    }
    let mut sorted = copy(ids, format_args!("block ids, to check {list}"))?;
    sorted.sort_unstable();
    let mut last = None;
    Ok(sorted.into_iter().find(|&id| last.replace(id) == Some(id)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_repeated_id_is_found_close_and_far() {
        let repeated = |ids: &[u32]| super::repeated("it", ids).unwrap();
        assert_eq!(repeated(&[]), None);
        assert_eq!(repeated(&[3, 0, 64, 63, 65]), None);
        assert_eq!(repeated(&[3, 0, 64, 63, 0]), Some(0));
        assert_eq!(repeated(&[u32::MAX, 1, 0]), None);
        assert_eq!(repeated(&[u32::MAX, 1, u32::MAX]), Some(u32::MAX));
    }
}
