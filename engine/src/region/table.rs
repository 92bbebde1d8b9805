//! An array indexed by a handle's index. Copies share their common nodes, as in `tree`: a change copies one node of
//! each level. Nodes are never removed; neither are the registry's indexes.

use crate::handle::INDEX_BITS;
use std::fmt;
use std::sync::Arc;

const WIDTH_BITS: u32 = 5;
const WIDTH: usize = 1 << WIDTH_BITS;
/// The number of node levels below the root.
const DEPTH: u32 = INDEX_BITS.div_ceil(WIDTH_BITS) - 1;

#[derive(Clone)]
pub struct Table<T>(Option<Arc<Node<T>>>);

#[derive(Clone)]
// All items in use are pointers, as the nodes are, so the two variants have the same size.
#[allow(clippy::large_enum_variant)]
enum Node<T> {
    Items([Option<T>; WIDTH]),
    Nodes([Option<Arc<Node<T>>>; WIDTH]),
}

impl<T: Clone> Table<T> {
    pub fn get(&self, index: u32) -> Option<&T> {
        let mut node = self.0.as_deref()?;
        for level in (0..=DEPTH).rev() {
            match node {
                Node::Items(items) => return items[position(index, level)].as_ref(),
                Node::Nodes(nodes) => node = nodes[position(index, level)].as_deref()?,
            }
        }
        None
    }

    pub fn set(&mut self, index: u32, item: Option<T>) {
        let mut place = &mut self.0;
        for level in (0..=DEPTH).rev() {
            let node = place.get_or_insert_with(|| Arc::new(Node::empty(level)));
            match Arc::make_mut(node) {
                Node::Items(items) => return items[position(index, level)] = item,
                Node::Nodes(nodes) => place = &mut nodes[position(index, level)],
            }
        }
    }
}

fn position(index: u32, level: u32) -> usize {
    (index >> (level * WIDTH_BITS)) as usize % WIDTH
}

impl<T> Node<T> {
    fn empty(level: u32) -> Node<T> {
        match level {
            0 => Node::Items(std::array::from_fn(|_| None)),
            _ => Node::Nodes(std::array::from_fn(|_| None)),
        }
    }
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table(None)
    }
}

impl<T> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "items" } else { "no items" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::INDEX_MAX;

    #[test]
    fn each_index_has_its_place_and_copies_stay() {
        let indexes = [0, 1, 31, 32, 1023, 1024, 32_767, 32_768, INDEX_MAX - 1, INDEX_MAX];
        let mut table = Table::default();
        indexes.iter().for_each(|index| table.set(*index, Some(*index)));
        let copy = table.clone();
        for index in indexes {
            assert_eq!(table.get(index), Some(&index));
            table.set(index, None);
            assert_eq!((table.get(index), copy.get(index)), (None, Some(&index)));
        }
        assert_eq!((copy.get(2), copy.get(1 << 19), Table::<u32>::default().get(0)), (None, None, None));
    }
}
