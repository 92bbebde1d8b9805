//! Takes items out of lists. `Vec::extract_if` does the same, and needs a newer Rust than `rust-version`.

/// Removes the items that `is_taken` names, and returns them in their order. The others keep theirs. `is_taken` is
/// asked once about each item, as its answer may change meanwhile; without an item to take, nothing is allocated.
pub(crate) fn take_where<T>(items: &mut Vec<T>, mut is_taken: impl FnMut(&T) -> bool) -> Vec<T> {
    let Some(first) = items.iter().position(&mut is_taken) else { return Vec::new() };
    let mut behind = items.split_off(first).into_iter();
    let mut taken: Vec<T> = behind.next().into_iter().collect();
    for item in behind {
        if is_taken(&item) {
            taken.push(item);
        } else {
            items.push(item);
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_parts_keep_their_order() {
        let mut items: Vec<u32> = (0..100).rev().collect();
        let taken = take_where(&mut items, |item| item % 3 == 0);
        assert_eq!(taken, (0..100).rev().filter(|item| item % 3 == 0).collect::<Vec<_>>());
        assert_eq!(items, (0..100).rev().filter(|item| item % 3 != 0).collect::<Vec<_>>());
        assert_eq!(take_where(&mut items, |_| false), []);
        assert_eq!(items.len(), 66);
    }

    /// Another thread may strike a transfer while the lists of its lane are looked through.
    #[test]
    fn an_answer_that_changes_counts_for_its_item_alone() {
        for changes_at in 0..20 {
            let mut asked = 0;
            let mut items: Vec<u32> = (0..10).collect();
            let taken = take_where(&mut items, |item| {
                asked += 1;
                *item == 1 && asked > changes_at
            });
            assert!(taken.iter().all(|item| *item == 1), "{taken:?}");
            assert_eq!((asked, taken.len() + items.len()), (10, 10));
        }
    }
}
