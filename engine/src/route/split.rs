//! Divides a transfer's ranges over several paths by weight. After `choose`; `slice` then cuts each
//! path's share by that path's limit.
//!
//! ```text
//! ranges   |====== a ======|=== b ===|== c ==|     weights 1, 1
//! path 0   |====== a ======|= b'|                  b is cut; b'' has b's `first` and says with
//! path 1                        |b''=|== c ==|     `first_offset` where in the requests it begins
//! ```

use crate::room::push;
use crate::status::Result;
use crate::types::Range;

/// A range is cut at a multiple of this from its start, and so never cut if it is not longer: pieces of
/// a page-aligned range begin on pages, and small blocks stay whole.
const CUT_BYTES: u64 = 4096;

/// One list of ranges per weight, in the weights' order: together exactly the bytes of `ranges`, each
/// list's share in proportion to its weight, up to one cut's rounding. A weight of 0 gets nothing,
/// unless all are 0, which is as if all were 1. Panics without weights. Errors: NO_MEMORY.
pub fn split(ranges: &[Range], weights: &[u32]) -> Result<Vec<Vec<Range>>> {
    assert!(!weights.is_empty(), "a split over no path loses the transfer");
    let goals = Goals::new(ranges, weights);
    let mut shares = Vec::new();
    let mut source = ranges.iter().copied();
    let mut open = source.next();
    let mut given = 0;
    for path in 0..weights.len() {
        let goal = goals.after(path);
        let mut share = Vec::new();
        while let Some(range) = open.filter(|_| given < goal) {
            let (head, tail) = cut(range, goal - given);
            given += head.map_or(0, |head| u128::from(head.length));
            if let Some(head) = head {
                push(&mut share, head)?;
            }
            open = tail.or_else(|| source.next());
            if tail.is_some() {
                break; // what remains of this range is the next path's
            }
        }
        push(&mut shares, share)?;
    }
    debug_assert!(open.is_none());
    Ok(shares)
}

/// How many bytes the first paths carry together.
struct Goals<'a> {
    bytes: u128,
    weights: &'a [u32],
    weight_sum: u128,
}

impl Goals<'_> {
    fn new<'a>(ranges: &[Range], weights: &'a [u32]) -> Goals<'a> {
        let bytes = ranges.iter().map(|range| u128::from(range.length)).sum();
        Goals { bytes, weights, weight_sum: weights.iter().map(|&weight| u128::from(weight)).sum() }
    }

    /// Bytes of paths 0 to `path`; all bytes for the last that has a weight. Exact below 2^96 bytes.
    fn after(&self, path: usize) -> u128 {
        if self.weight_sum == 0 {
            return self.bytes * (path as u128 + 1) / self.weights.len() as u128;
        }
        let until: u128 = self.weights[..=path].iter().map(|&weight| u128::from(weight)).sum();
        self.bytes * until / self.weight_sum
    }
}

/// A range's first bytes, about `wanted` of them, and what remains.
fn cut(range: Range, wanted: u128) -> (Option<Range>, Option<Range>) {
    if wanted >= u128::from(range.length) {
        return (Some(range), None);
    }
    // To the nearest allowed place, so that rounding does not always favour the later paths.
    let length = (wanted as u64).saturating_add(CUT_BYTES / 2) / CUT_BYTES * CUT_BYTES;
    if length == 0 {
        return (None, Some(range));
    }
    if length >= range.length {
        return (Some(range), None);
    }
    let head = Range { length, ..range };
    let tail = Range {
        local: range.local + length,
        remote: range.remote + length,
        length: range.length - length,
        first_offset: range.first_offset + length,
        ..range
    };
    (Some(head), Some(tail))
}
