//! Free space of a node's memory, in units of equal size. An object takes the shortest run that fits or, if there is
//! none, the longest runs: space that is free can be used, however scattered it is.

use std::collections::{BTreeMap, BTreeSet};

use crate::limits::EXTENTS_MAX;

/// A run of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub first: u32,
    pub units: u32,
}

/// Where an object lies. Nearly all have one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extents {
    One(Extent),
    Many(Box<[Extent]>),
}

impl Extents {
    pub fn as_slice(&self) -> &[Extent] {
        match self {
            Extents::One(extent) => std::slice::from_ref(extent),
            Extents::Many(extents) => extents,
        }
    }

    pub fn units(&self) -> u32 {
        self.as_slice().iter().map(|extent| extent.units).sum()
    }
}

#[derive(Debug)]
pub struct Space {
    free: u32,
    /// Free runs by their first unit; no two touch.
    by_first: BTreeMap<u32, u32>,
    /// (units, first unit) of the same runs.
    by_units: BTreeSet<(u32, u32)>,
}

impl Space {
    pub fn new(units: u32) -> Space {
        let mut space = Space { free: 0, by_first: BTreeMap::new(), by_units: BTreeSet::new() };
        if units > 0 {
            space.give(Extent { first: 0, units });
        }
        space
    }

    /// The units that are free.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Takes units. None if too few are free, or if they are scattered over more than `EXTENTS_MAX` runs.
    pub fn take(&mut self, units: u32) -> Option<Extents> {
        if units == 0 || units > self.free {
            return None;
        }
        if let Some(&(run, first)) = self.by_units.range((units, 0)..).next() {
            self.remove(first, run);
            if run > units {
                self.insert(first + units, run - units);
            }
            return Some(Extents::One(Extent { first, units }));
        }
        let longest = self.by_units.iter().rev().take(EXTENTS_MAX);
        if longest.map(|(run, _)| u64::from(*run)).sum::<u64>() < u64::from(units) {
            return None;
        }
        let (mut taken, mut left) = (Vec::new(), units);
        while left > 0 {
            let &(run, first) = self.by_units.last()?;
            let units = run.min(left);
            self.remove(first, run);
            if run > units {
                self.insert(first + units, run - units);
            }
            taken.push(Extent { first, units });
            left -= units;
        }
        Some(Extents::Many(taken.into()))
    }

    /// Takes these units. False if not all of them are free.
    pub fn take_run(&mut self, wanted: Extent) -> bool {
        let Some((&first, &units)) = self.by_first.range(..=wanted.first).next_back() else { return false };
        let before = wanted.first - first;
        let Some(after) = units.checked_sub(before).and_then(|left| left.checked_sub(wanted.units)) else {
            return false;
        };
        self.remove(first, units);
        let parts = [(first, before), (wanted.first.wrapping_add(wanted.units), after)];
        parts
            .into_iter()
            .filter(|(_, units)| *units > 0)
            .for_each(|(first, units)| self.insert(first, units));
        true
    }

    /// Gives a run back, and joins it with free neighbours.
    pub fn give(&mut self, extent: Extent) {
        let Extent { mut first, mut units } = extent;
        if let Some((&before, &run)) = self.by_first.range(..first).next_back() {
            if before + run == first {
                self.remove(before, run);
                (first, units) = (before, units + run);
            }
        }
        if let Some(&run) = self.by_first.get(&(first + units)) {
            self.remove(first + units, run);
            units += run;
        }
        self.insert(first, units);
    }

    fn insert(&mut self, first: u32, units: u32) {
        self.by_first.insert(first, units);
        self.by_units.insert((units, first));
        self.free += units;
    }

    fn remove(&mut self, first: u32, units: u32) {
        self.by_first.remove(&first);
        self.by_units.remove(&(units, first));
        self.free -= units;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_shortest_run_that_fits_is_taken() {
        let mut space = Space::new(100);
        let all: Vec<Extents> = (0..10).map(|_| space.take(10).unwrap()).collect();
        assert_eq!((space.free(), space.take(1)), (0, None));
        [1, 2, 5].into_iter().for_each(|nth| space.give(all[nth].as_slice()[0]));
        assert_eq!(space.take(10), Some(Extents::One(Extent { first: 50, units: 10 })));
        assert_eq!(space.take(20), Some(Extents::One(Extent { first: 10, units: 20 })));
    }

    #[test]
    fn scattered_space_is_one_object_up_to_the_bound() {
        let mut space = Space::new(4 * EXTENTS_MAX as u32);
        let all: Vec<Extents> = (0..4 * EXTENTS_MAX).map(|_| space.take(1).unwrap()).collect();
        all.iter().step_by(2).for_each(|extents| space.give(extents.as_slice()[0]));
        assert_eq!(space.take(EXTENTS_MAX as u32 + 1), None);
        let taken = space.take(EXTENTS_MAX as u32).unwrap();
        assert_eq!(taken.as_slice().len(), EXTENTS_MAX);
        taken.as_slice().iter().for_each(|extent| space.give(*extent));
        all.iter().skip(1).step_by(2).for_each(|extents| space.give(extents.as_slice()[0]));
        assert_eq!(space.by_first.len(), 1);
    }

    proptest! {
        #[test]
        fn no_unit_is_given_twice_and_none_is_lost(steps in prop::collection::vec((0..4u8, 1..40u32), 1..200)) {
            const UNITS: u32 = 300;
            let (mut space, mut held) = (Space::new(UNITS), Vec::<Extents>::new());
            let mut owners = vec![false; UNITS as usize];
            for (what, number) in steps {
                if what == 0 && !held.is_empty() {
                    let extents = held.swap_remove(number as usize % held.len());
                    for extent in extents.as_slice() {
                        (extent.first..extent.first + extent.units).for_each(|unit| owners[unit as usize] = false);
                        space.give(*extent);
                    }
                } else if let Some(extents) = space.take(number) {
                    let taken: u32 = extents.as_slice().iter().map(|extent| extent.units).sum();
                    prop_assert_eq!(taken, number);
                    for extent in extents.as_slice() {
                        for unit in extent.first..extent.first + extent.units {
                            prop_assert!(!std::mem::replace(&mut owners[unit as usize], true));
                        }
                    }
                    held.push(extents);
                } else {
                    prop_assert!(number > space.free() || space.by_first.len() > EXTENTS_MAX);
                }
                prop_assert_eq!(space.free() as usize, owners.iter().filter(|owned| !**owned).count());
            }
        }
    }
}
