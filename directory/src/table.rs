//! The entries that a directory knows, and what has changed since a program last asked. Pure; `shared` has it under a
//! lock.

use std::collections::BTreeMap;

use crate::entry::{Entry, Place};
use crate::limits::{CHANGES_MAX, ENTRIES_MAX};

/// A change of a name. Several changes of one name are told as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Added(Entry),
    /// Another engine, incarnation or address than before.
    Changed(Entry),
    /// The entry as it was.
    Removed(Entry),
    /// More names have changed than are remembered: list them anew.
    ListAnew,
}

#[derive(Default)]
pub struct Table {
    entries: BTreeMap<String, Place>,
    /// Names that have changed, each with what the program knew before.
    before: BTreeMap<String, Option<Place>>,
    is_beyond: bool,
    left_out: u64,
}

impl Table {
    pub fn new(entries: BTreeMap<String, Place>) -> Table {
        Table { entries, ..Table::default() }
    }

    pub fn get(&self, name: &str) -> Option<&Place> {
        self.entries.get(name)
    }

    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// How many entries had no room.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// The entries whose names begin with `prefix`, sorted by name.
    pub fn list(&self, prefix: &str) -> Vec<Entry> {
        let from = self.entries.range(prefix.to_owned()..);
        let these = from.take_while(|(name, _)| name.starts_with(prefix));
        these.map(|(name, place)| place.clone().named(name)).collect()
    }

    /// Sets or removes the entry of a name.
    pub fn set(&mut self, name: &str, place: Option<Place>) {
        if place.is_some() && self.entries.len() >= ENTRIES_MAX && !self.entries.contains_key(name) {
            self.left_out += 1;
            return;
        }
        let old = match place.clone() {
            Some(place) => self.entries.insert(name.to_owned(), place),
            None => self.entries.remove(name),
        };
        if old != place {
            self.note(name, old);
        }
    }

    /// Takes the place of all entries.
    pub fn replace(&mut self, mut entries: BTreeMap<String, Place>) {
        let gone: Vec<String> =
            self.entries.keys().filter(|name| !entries.contains_key(*name)).cloned().collect();
        gone.iter().for_each(|name| self.set(name, None));
        while let Some((name, place)) = entries.pop_first() {
            self.set(&name, Some(place));
        }
    }

    fn note(&mut self, name: &str, old: Option<Place>) {
        if self.is_beyond {
            return;
        }
        let before = self.before.entry(name.to_owned()).or_insert(old);
        if before.as_ref() == self.entries.get(name) {
            self.before.remove(name);
        } else if self.before.len() > CHANGES_MAX {
            self.before.clear();
            self.is_beyond = true;
        }
    }

    pub fn has_changes(&self) -> bool {
        self.is_beyond || !self.before.is_empty()
    }

    /// Takes the next change, in order of the names.
    pub fn next_change(&mut self) -> Option<Change> {
        if std::mem::take(&mut self.is_beyond) {
            return Some(Change::ListAnew);
        }
        let (name, before) = self.before.pop_first()?;
        match (before, self.entries.get(&name).cloned()) {
            (None, Some(place)) => Some(Change::Added(place.named(&name))),
            (Some(_), Some(place)) => Some(Change::Changed(place.named(&name))),
            (Some(place), None) => Some(Change::Removed(place.named(&name))),
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(address: &str) -> Option<Place> {
        Some(Place { address: address.into(), identity: None })
    }

    fn entry(name: &str, address: &str) -> Entry {
        place(address).unwrap().named(name)
    }

    fn changes(table: &mut Table) -> Vec<Change> {
        std::iter::from_fn(|| table.next_change()).collect()
    }

    #[test]
    fn changes_of_a_name_are_told_as_one() {
        let mut table = Table::new(BTreeMap::from([("old".into(), place("h:1").unwrap())]));
        assert!(!table.has_changes());
        table.set("new", place("h:2"));
        table.set("new", place("h:3"));
        table.set("old", place("h:4"));
        table.set("brief", place("h:5"));
        table.set("brief", None);
        assert_eq!(
            changes(&mut table),
            [Change::Added(entry("new", "h:3")), Change::Changed(entry("old", "h:4"))]
        );
        table.set("old", place("h:1"));
        table.set("old", place("h:4"));
        assert!(!table.has_changes(), "it is as the program knows it");
        table.set("old", None);
        table.set("old", place("h:6"));
        table.set("new", None);
        table.set("none", None);
        assert_eq!(
            changes(&mut table),
            [Change::Removed(entry("new", "h:3")), Change::Changed(entry("old", "h:6"))]
        );
        assert!(!table.has_changes());
    }

    #[test]
    fn a_table_that_is_replaced_tells_the_difference() {
        let all = |list: &[(&str, &str)]| -> BTreeMap<String, Place> {
            list.iter().map(|(name, address)| (name.to_string(), place(address).unwrap())).collect()
        };
        let mut table = Table::new(all(&[("a", "h:1"), ("b", "h:2"), ("c", "h:3")]));
        table.replace(all(&[("b", "h:2"), ("c", "h:4"), ("d", "h:5")]));
        let expected = [
            Change::Removed(entry("a", "h:1")),
            Change::Changed(entry("c", "h:4")),
            Change::Added(entry("d", "h:5")),
        ];
        assert_eq!(changes(&mut table), expected);
        assert_eq!(table.list("c"), [entry("c", "h:4")]);
        assert_eq!(table.list("").len(), 3);
    }

    #[test]
    fn lists_have_what_begins_so() {
        let mut table = Table::default();
        for name in ["p", "p/0", "p/1", "p0", "q", "o"] {
            table.set(name, place("h:1"));
        }
        let names = |prefix| table.list(prefix).into_iter().map(|entry| entry.name).collect::<Vec<_>>();
        assert_eq!(names("p/"), ["p/0", "p/1"]);
        assert_eq!(names("p"), ["p", "p/0", "p/1", "p0"]);
        assert!(names("r").is_empty());
    }

    #[test]
    fn more_changes_than_are_remembered_say_list_anew() {
        let mut table = Table::default();
        (0..CHANGES_MAX).for_each(|at| table.set(&format!("{at}"), place("h:1")));
        let mut full = Table::default();
        (0..=CHANGES_MAX).for_each(|at| full.set(&format!("{at}"), place("h:1")));
        assert_eq!(changes(&mut table).len(), CHANGES_MAX);
        assert_eq!(changes(&mut full), [Change::ListAnew]);
        full.set("0", None);
        assert_eq!(changes(&mut full), [Change::Removed(entry("0", "h:1"))]);
    }

    #[test]
    fn entries_beyond_the_bound_are_left_out() {
        let mut table = Table::default();
        (0..=ENTRIES_MAX).for_each(|at| table.set(&format!("{at}"), place("h:1")));
        assert_eq!((table.count(), table.left_out()), (ENTRIES_MAX, 1));
        table.set("0", place("h:2"));
        table.set("1", None);
        table.set("another", place("h:1"));
        assert_eq!((table.count(), table.left_out()), (ENTRIES_MAX, 1));
        assert_eq!(table.get("0"), place("h:2").as_ref());
    }
}
