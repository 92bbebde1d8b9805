//! A peer's regions that have its cache, found by address. A HELLO names them; each request of a transfer names one.

use std::cmp::Reverse;
use std::sync::Arc;

use super::wire::MemoryRange;

/// Ranges in the order of their addresses, none within another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Regions(Arc<[MemoryRange]>);

impl Regions {
    pub fn new(mut ranges: Vec<MemoryRange>) -> Regions {
        ranges.sort_by_key(|range| (range.address, Reverse(range.bytes)));
        let mut end = 0;
        ranges.retain(|range| {
            let before = end;
            end = end.max(range.address.saturating_add(range.bytes));
            before < end
        });
        Regions(ranges.into())
    }

    /// Returns the range that has these bytes, in the logarithm of the number of ranges.
    pub fn find(&self, address: u64, bytes: u64) -> Option<&MemoryRange> {
        // Among the ranges that begin early enough, the last one ends last.
        let after = self.0.partition_point(|range| range.address <= address);
        self.0.get(after.checked_sub(1)?).filter(|range| range.has(address, bytes))
    }
}

impl MemoryRange {
    pub fn has(&self, address: u64, bytes: u64) -> bool {
        let offset = address.checked_sub(self.address);
        offset.is_some_and(|offset| offset <= self.bytes && bytes <= self.bytes - offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(&(address, bytes): &(u64, u64)) -> MemoryRange {
        MemoryRange { address, bytes, region: address << 32 | bytes }
    }

    proptest! {
        #[test]
        fn what_one_range_has_is_found_in_any_order(all in prop::collection::vec((0u64..40, 0u64..20), 0..12)) {
            let all: Vec<MemoryRange> = all.iter().map(range).collect();
            let regions = Regions::new(all.clone());
            for (address, bytes) in (0..64).flat_map(|address| (1..24).map(move |bytes| (address, bytes))) {
                let found = regions.find(address, bytes);
                prop_assert!(found.is_none_or(|found| found.has(address, bytes)));
                prop_assert_eq!(found.is_some(), all.iter().any(|range| range.has(address, bytes)));
            }
        }
    }

    #[test]
    fn a_range_that_ends_beyond_all_addresses_has_those_that_there_are() {
        let regions = Regions::new(vec![range(&(u64::MAX - 9, 100))]);
        assert!(regions.find(u64::MAX - 9, 9).is_some() && regions.find(u64::MAX, 1).is_some());
        assert!(regions.find(0, 1).is_none());
    }
}
