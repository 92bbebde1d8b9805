//! A sorted persistent table: copies share their common nodes. A change copies the nodes from the root to one leaf,
//! not the table, and does not affect earlier copies. For tables that change one by one while other threads search
//! them.
//!
//! ```text
//!                 [ 100 ▏ 900 ▏ 2000 ]             the lowest key below each child, and the last end
//!                   /       |       \
//!   [ 100 ▏ 340 ▏ … ]  [ 900 ▏ … ]  [ 2000 ▏ … ]   items, by key
//! ```
//! A node has at most `WIDTH` entries and, except the root, at least half of that. A node is one piece of memory, so a
//! search costs little more than a binary search in one long list. `Arc::make_mut` copies exactly the nodes that
//! another copy of the table shares.

use std::fmt;
use std::sync::Arc;

const WIDTH_BITS: u32 = 5;
const WIDTH: usize = 1 << WIDTH_BITS;
const HALF: usize = WIDTH / 2;
/// Room for one entry too many, before the node is split.
const ROOM: usize = WIDTH + 1;

/// The sort order of a tree's items.
pub trait Order {
    type Item: Clone;
    type Key: Copy + Default + Ord;
    fn key(item: &Self::Item) -> Self::Key;
    /// Returns the item's end in memory, for `farthest`.
    fn end(_item: &Self::Item) -> u64 {
        0
    }
}

pub struct Tree<O: Order> {
    root: Option<Arc<Node<O>>>,
    length: usize,
}

/// The first `count` places of each list are in use.
struct Node<O: Order> {
    count: usize,
    /// The key of each entry; for a child node the lowest key below it.
    keys: [O::Key; ROOM],
    below: Below<O>,
    /// The end of each entry; for a child node the last end below it.
    ends: [u64; ROOM],
}

// All items in use are pointers, as the nodes are, so the two variants have the same size.
#[allow(clippy::large_enum_variant)]
enum Below<O: Order> {
    Items([Option<O::Item>; ROOM]),
    Nodes([Option<Arc<Node<O>>>; ROOM]),
}

/// An entry that is moved into a node or out of one.
struct Entry<O: Order> {
    key: O::Key,
    end: u64,
    what: What<O>,
}

enum What<O: Order> {
    Item(O::Item),
    Node(Arc<Node<O>>),
}

/// The place of an item in its tree: unique, and rising with the key. It packs the position in each node from the root
/// to the item; a tree has at most six levels up to 16^6 items.
pub type Place = u32;

impl<O: Order> Tree<O> {
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Inserts the item. Returns the item with the same key that it replaces.
    pub fn insert(&mut self, item: O::Item) -> Option<O::Item> {
        let Some(root) = &mut self.root else {
            self.root = Some(Node::of([Entry::of_item(item)]));
            self.length = 1;
            return None;
        };
        let top = Arc::make_mut(root);
        let old = top.insert(item);
        if let Some(upper) = top.split_if_wide() {
            *root = Node::of([Entry::of_node(root.clone()), Entry::of_node(upper)]);
        }
        self.length += usize::from(old.is_none());
        old
    }

    pub fn remove(&mut self, key: O::Key) -> Option<O::Item> {
        // Checked first, so that no node is copied in vain.
        self.get(key)?;
        let root = self.root.as_mut()?;
        let top = Arc::make_mut(root);
        let old = top.remove(key)?;
        self.length -= 1;
        match &mut top.below {
            Below::Items(_) if top.count == 0 => self.root = None,
            Below::Nodes(nodes) if top.count == 1 => self.root = nodes[0].take(),
            _ => {}
        }
        Some(old)
    }

    pub fn get(&self, key: O::Key) -> Option<&O::Item> {
        self.find(key).map(|(_, item)| item)
    }

    /// Returns the item with exactly this key, and its place.
    pub fn find(&self, key: O::Key) -> Option<(Place, &O::Item)> {
        self.at_or_before(key).filter(|(_, item)| O::key(item) == key)
    }

    /// Returns the last item whose key is not above `key`, and its place.
    pub fn at_or_before(&self, key: O::Key) -> Option<(Place, &O::Item)> {
        let mut node = self.root.as_deref()?;
        let mut place = 0;
        loop {
            let at = node.count_to(key).checked_sub(1)?;
            place = within(place, at);
            match &node.below {
                Below::Items(items) => return items[at].as_ref().map(|item| (place, item)),
                Below::Nodes(nodes) => node = nodes[at].as_deref()?,
            }
        }
    }

    /// Returns the first item whose key is above `key`.
    pub fn after(&self, key: O::Key) -> Option<&O::Item> {
        let mut node = self.root.as_deref()?;
        let mut next: Option<&Node<O>> = None;
        loop {
            let at = node.count_to(key);
            match &node.below {
                Below::Items(items) => return items[at].as_ref().or_else(|| next.and_then(Node::first)),
                Below::Nodes(nodes) => {
                    next = nodes[at].as_deref().or(next);
                    node = nodes[at.saturating_sub(1)].as_deref()?;
                }
            }
        }
    }

    /// Returns the item that ends last among those whose key is not above `key`, and its place.
    pub fn farthest(&self, key: O::Key) -> Option<(Place, &O::Item)> {
        let mut node = self.root.as_deref()?;
        let mut place = 0;
        // The end; the entry, by its node and position; that entry's place.
        let mut best: Option<(u64, &Node<O>, usize, Place)> = None;
        loop {
            let count = node.count_to(key);
            // The last of these children is above the key in part; the next round looks into it.
            let whole = match &node.below {
                Below::Items(_) => count,
                Below::Nodes(_) => count.checked_sub(1)?,
            };
            for (at, end) in node.ends[..whole].iter().enumerate() {
                if best.is_none_or(|(farthest, ..)| *end > farthest) {
                    best = Some((*end, node, at, within(place, at)));
                }
            }
            match &node.below {
                Below::Items(_) => break,
                Below::Nodes(nodes) => (place, node) = (within(place, whole), nodes[whole].as_deref()?),
            }
        }
        let (end, mut node, mut at, mut place) = best?;
        loop {
            match &node.below {
                Below::Items(items) => return items[at].as_ref().map(|item| (place, item)),
                Below::Nodes(nodes) => {
                    node = nodes[at].as_deref()?;
                    at = node.ends[..node.count].iter().position(|it| *it == end)?;
                    place = within(place, at);
                }
            }
        }
    }

    /// Iterates by rising key.
    pub fn iter(&self) -> Iter<'_, O> {
        let mut iter = Iter { above: Vec::new(), items: [].iter() };
        self.root.iter().for_each(|root| iter.enter(root));
        iter
    }

    /// Iterates by rising key, from the first item whose key is not below `key`.
    pub fn iter_from(&self, key: O::Key) -> Iter<'_, O> {
        let mut iter = Iter { above: Vec::new(), items: [].iter() };
        let mut next = self.root.as_deref();
        while let Some(node) = next.take() {
            match &node.below {
                Below::Items(items) => {
                    let at = node.keys().partition_point(|it| *it < key);
                    iter.items = items[at..node.count].iter();
                }
                Below::Nodes(nodes) => {
                    let at = node.count_to(key).saturating_sub(1);
                    iter.above.push(nodes[at + 1..node.count].iter());
                    next = nodes[at].as_deref();
                }
            }
        }
        iter
    }
}

/// Returns the place of entry `at` in the node at `place`.
fn within(place: Place, at: usize) -> Place {
    place << WIDTH_BITS | at as u32
}

impl<O: Order> Entry<O> {
    fn of_item(item: O::Item) -> Entry<O> {
        Entry { key: O::key(&item), end: O::end(&item), what: What::Item(item) }
    }

    fn of_node(node: Arc<Node<O>>) -> Entry<O> {
        Entry { key: node.keys[0], end: node.end(), what: What::Node(node) }
    }
}

impl<O: Order> Node<O> {
    /// Makes a node of these entries: at least one, all items or all nodes.
    fn of(entries: impl IntoIterator<Item = Entry<O>>) -> Arc<Node<O>> {
        let below = Below::Items([const { None }; ROOM]);
        let mut node = Node { count: 0, keys: [O::Key::default(); ROOM], below, ends: [0; ROOM] };
        for entry in entries {
            if let (0, What::Node(_)) = (node.count, &entry.what) {
                node.below = Below::Nodes([const { None }; ROOM]);
            }
            node.put(node.count, entry);
        }
        Arc::new(node)
    }

    fn keys(&self) -> &[O::Key] {
        &self.keys[..self.count]
    }

    /// Returns the number of entries that do not begin above the key.
    fn count_to(&self, key: O::Key) -> usize {
        self.keys().partition_point(|lowest| *lowest <= key)
    }

    fn end(&self) -> u64 {
        self.ends[..self.count].iter().copied().max().unwrap_or(0)
    }

    fn first(&self) -> Option<&O::Item> {
        match &self.below {
            Below::Items(items) => items[0].as_ref(),
            Below::Nodes(nodes) => nodes[0].as_ref()?.first(),
        }
    }

    /// Inserts an entry at a position. The node has room for it.
    fn put(&mut self, at: usize, entry: Entry<O>) {
        let moved = at..self.count + 1;
        self.keys[moved.clone()].rotate_right(1);
        self.ends[moved.clone()].rotate_right(1);
        (self.keys[at], self.ends[at]) = (entry.key, entry.end);
        match (&mut self.below, entry.what) {
            (Below::Items(items), What::Item(item)) => {
                items[moved].rotate_right(1);
                items[at] = Some(item);
            }
            (Below::Nodes(nodes), What::Node(node)) => {
                nodes[moved].rotate_right(1);
                nodes[at] = Some(node);
            }
            // All leaves are at one depth.
            _ => {}
        }
        self.count += 1;
    }

    fn take(&mut self, at: usize) -> Option<Entry<O>> {
        let what = match &mut self.below {
            Below::Items(items) => What::Item(items[at].take()?),
            Below::Nodes(nodes) => What::Node(nodes[at].take()?),
        };
        let entry = Entry { key: self.keys[at], end: self.ends[at], what };
        let moved = at..self.count;
        self.keys[moved.clone()].rotate_left(1);
        self.ends[moved.clone()].rotate_left(1);
        match &mut self.below {
            Below::Items(items) => items[moved].rotate_left(1),
            Below::Nodes(nodes) => nodes[moved].rotate_left(1),
        }
        self.count -= 1;
        Some(entry)
    }

    fn insert(&mut self, item: O::Item) -> Option<O::Item> {
        let key = O::key(&item);
        let found = self.keys().binary_search(&key);
        match (&mut self.below, found) {
            (Below::Items(items), Ok(at)) => {
                self.ends[at] = O::end(&item);
                items[at].replace(item)
            }
            (Below::Items(_), Err(at)) => {
                self.put(at, Entry::of_item(item));
                None
            }
            (Below::Nodes(nodes), found) => {
                // An item below all others goes into the first child.
                let at = found.unwrap_or_else(|after| after.saturating_sub(1));
                let child = Arc::make_mut(nodes[at].as_mut()?);
                let old = child.insert(item);
                let upper = child.split_if_wide();
                self.changed(at);
                upper.into_iter().for_each(|upper| self.put(at + 1, Entry::of_node(upper)));
                old
            }
        }
    }

    fn remove(&mut self, key: O::Key) -> Option<O::Item> {
        let at = self.count_to(key).checked_sub(1)?;
        let Below::Nodes(nodes) = &mut self.below else {
            return match self.take(at)?.what {
                What::Item(item) => Some(item),
                What::Node(_) => None,
            };
        };
        let child = Arc::make_mut(nodes[at].as_mut()?);
        let old = child.remove(key);
        if child.count < HALF && self.count > 1 {
            self.join(at.saturating_sub(1))
        } else {
            self.changed(at)
        }
        old
    }

    /// Joins the children `at` and `at + 1`, one of which became small, into one, or into two of equal size.
    fn join(&mut self, at: usize) {
        let pair = [self.take(at), self.take(at)];
        let nodes = pair.into_iter().flatten().filter_map(|entry| match entry.what {
            What::Node(node) => Some(Arc::unwrap_or_clone(node)),
            What::Item(_) => None,
        });
        let mut lower: Vec<Entry<O>> = nodes.flat_map(Node::into_entries).collect();
        let upper = if lower.len() > WIDTH { lower.split_off(lower.len() / 2) } else { Vec::new() };
        self.put(at, Entry::of_node(Node::of(lower)));
        if !upper.is_empty() {
            self.put(at + 1, Entry::of_node(Node::of(upper)));
        }
    }

    fn into_entries(self) -> impl Iterator<Item = Entry<O>> {
        let whats: Vec<What<O>> = match self.below {
            Below::Items(items) => items.into_iter().flatten().map(What::Item).collect(),
            Below::Nodes(nodes) => nodes.into_iter().flatten().map(What::Node).collect(),
        };
        let all = self.keys.into_iter().zip(self.ends).zip(whats);
        all.map(|((key, end), what)| Entry { key, end, what })
    }

    /// Updates the key and the end of child `at` after a change.
    fn changed(&mut self, at: usize) {
        let Below::Nodes(nodes) = &self.below else { return };
        if let Some(child) = &nodes[at] {
            (self.keys[at], self.ends[at]) = (child.keys[0], child.end());
        }
    }

    /// Splits the upper half off, if the node has too many entries.
    fn split_if_wide(&mut self) -> Option<Arc<Node<O>>> {
        if self.count <= WIDTH {
            return None;
        }
        let from_the_end = (0..self.count / 2).map_while(|_| self.take(self.count - 1));
        let mut upper: Vec<Entry<O>> = from_the_end.collect();
        upper.reverse();
        Some(Node::of(upper))
    }
}

/// Iterates over the items by rising key.
pub struct Iter<'a, O: Order> {
    /// For each node above: the children after the current one.
    above: Vec<std::slice::Iter<'a, Option<Arc<Node<O>>>>>,
    items: std::slice::Iter<'a, Option<O::Item>>,
}

impl<'a, O: Order> Iter<'a, O> {
    fn enter(&mut self, mut node: &'a Node<O>) {
        loop {
            match &node.below {
                Below::Items(items) => return self.items = items[..node.count].iter(),
                Below::Nodes(nodes) => {
                    self.above.push(nodes[1..node.count].iter());
                    let Some(first) = &nodes[0] else { return };
                    node = first;
                }
            }
        }
    }
}

impl<'a, O: Order> Iterator for Iter<'a, O> {
    type Item = &'a O::Item;

    fn next(&mut self) -> Option<&'a O::Item> {
        loop {
            if let Some(item) = self.items.next() {
                return item.as_ref();
            }
            match self.above.last_mut()?.next() {
                Some(Some(node)) => self.enter(node),
                _ => drop(self.above.pop()),
            }
        }
    }
}

impl<O: Order> Default for Tree<O> {
    fn default() -> Tree<O> {
        Tree { root: None, length: 0 }
    }
}

/// Cheap: raises the count of the root; all nodes are shared.
impl<O: Order> Clone for Tree<O> {
    fn clone(&self) -> Tree<O> {
        Tree { root: self.root.clone(), length: self.length }
    }
}

impl<O: Order> Clone for Node<O> {
    fn clone(&self) -> Node<O> {
        let below = match &self.below {
            Below::Items(items) => Below::Items(items.clone()),
            Below::Nodes(nodes) => Below::Nodes(nodes.clone()),
        };
        Node { count: self.count, keys: self.keys, below, ends: self.ends }
    }
}

impl<O: Order> fmt::Debug for Tree<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} items", self.length)
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
