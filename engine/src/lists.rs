//! Takes items out of lists. `Vec::extract_if` does the same, and needs a newer Rust than `rust-version`.

/// Removes the items that `is_taken` names, and returns them in their order. The others keep theirs. `is_taken` is
/// asked more than once about an item.
pub(crate) fn take_where<T>(
    items: &mut Vec<T>,
    mut is_taken: impl FnMut(&T) -> bool,
) -> std::vec::Drain<'_, T> {
    items.sort_by_key(&mut is_taken);
    let first = items.partition_point(|item| !is_taken(item));
    items.drain(first..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_parts_keep_their_order() {
        let mut items: Vec<u32> = (0..100).rev().collect();
        let taken: Vec<u32> = take_where(&mut items, |item| item % 3 == 0).collect();
        assert_eq!(taken, (0..100).rev().filter(|item| item % 3 == 0).collect::<Vec<_>>());
        assert_eq!(items, (0..100).rev().filter(|item| item % 3 != 0).collect::<Vec<_>>());
        assert_eq!(take_where(&mut items, |_| false).count(), 0);
        assert_eq!(items.len(), 66);
    }
}
