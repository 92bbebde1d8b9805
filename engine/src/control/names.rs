//! The names under which `connect` finds sessions, and connections that have no session yet. A search costs the same
//! however many sessions there are.

use super::conn::ConnState;
use super::dials::Target;
use crate::sys::map::{Entry, HashMap};
use crate::types::EngineId;
use std::collections::BTreeSet;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Name {
    /// The address that the application gave to `connect`.
    Given(String),
    /// The address that the other end claims, and the IP address that it came from. The claim alone proves nothing:
    /// clones of a machine may all claim the same address.
    Claimed(String, IpAddr),
    /// The engine that has answered a dial, and its incarnation.
    Engine(EngineId, u64),
}

/// Maps names to peers or connections. Each peer or connection has few names.
pub struct Names<W, N = Name> {
    by_name: HashMap<N, BTreeSet<W>>,
    of: HashMap<W, Vec<N>>,
}

impl<W, N> Default for Names<W, N> {
    fn default() -> Names<W, N> {
        Names { by_name: HashMap::default(), of: HashMap::default() }
    }
}

impl<W: Copy + Eq + Hash + Ord, N: Clone + Eq + Hash> Names<W, N> {
    /// Replaces the names of `owner`.
    pub fn set(&mut self, owner: W, names: Vec<N>) {
        for name in self.of.remove(&owner).unwrap_or_default() {
            if let Entry::Occupied(mut all) = self.by_name.entry(name) {
                all.get_mut().remove(&owner);
                if all.get().is_empty() {
                    all.remove();
                }
            }
        }
        for name in &names {
            self.by_name.entry(name.clone()).or_default().insert(owner);
        }
        if !names.is_empty() {
            self.of.insert(owner, names);
        }
    }

    pub fn find(&self, name: &N) -> impl Iterator<Item = W> + '_ {
        self.by_name.get(name).into_iter().flatten().copied()
    }

    /// Returns the latest owner of a name. The cost does not grow with the number of owners: clones share a name.
    pub fn latest(&self, name: &N) -> Option<W> {
        self.by_name.get(name)?.last().copied()
    }
}

/// Returns the names under which callers of `connect` find a connection that has no session yet.
pub fn names_of(state: &ConnState) -> Vec<Name> {
    match state {
        ConnState::Dialing(dialing) => {
            let given = match &dialing.target {
                Target::New { address, .. } => Some(Name::Given(address.clone())),
                Target::Again { .. } => None,
            };
            let answered = dialing.dialer.other_end();
            given
                .into_iter()
                .chain(answered.map(|(engine, incarnation)| Name::Engine(engine, incarnation)))
                .collect()
        }
        ConnState::Control(control) if control.peer.is_none() => {
            vec![Name::Claimed(control.identity.address.clone(), control.remote.ip())]
        }
        _ => Vec::new(),
    }
}

/// Returns the names of whatever a caller of `connect` with this address may get.
pub fn address_names<'a>(address: &'a str, resolved: &'a [SocketAddr]) -> impl Iterator<Item = Name> + 'a {
    let claimed = resolved.iter().map(|at| Name::Claimed(address.to_owned(), at.ip()));
    std::iter::once(Name::Given(address.to_owned())).chain(claimed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;

    thread_local!(static COMPARED: Cell<u64> = const { Cell::new(0) });

    /// A name that counts how often it is compared.
    #[derive(Clone, Eq)]
    struct Counted(u64);

    impl Hash for Counted {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }

    impl PartialEq for Counted {
        fn eq(&self, other: &Counted) -> bool {
            COMPARED.set(COMPARED.get() + 1);
            self.0 == other.0
        }
    }

    /// A search or an update costs the names concerned, not all names.
    #[test]
    fn one_among_many_costs_little() {
        const COUNT: u64 = 10_000;
        let mut names = Names::default();
        let of = |owner: u64| vec![Counted(owner), Counted(COUNT + owner)];
        (0..COUNT).for_each(|owner| names.set(owner, of(owner)));
        COMPARED.set(0);
        for owner in 0..100 {
            assert_eq!(names.find(&Counted(COUNT + owner)).collect::<Vec<_>>(), [owner]);
            names.set(owner, Vec::new());
            assert_eq!(names.find(&Counted(owner)).count(), 0);
            names.set(owner, of(owner));
        }
        // Six searches for each, and sometimes a comparison with a name of similar hash.
        assert!(COMPARED.get() < 100 * 12, "{} comparisons", COMPARED.get());
    }

    proptest! {
        /// Compares the names with a plain list.
        #[test]
        fn the_owners_of_a_name_are_found_by_it(
            steps in prop::collection::vec((0..8u64, prop::collection::vec(0..6u64, 0..4)), 0..60),
        ) {
            let name = |number: u64| Name::Engine(EngineId([1; 16]), number);
            let (mut names, mut list) = (Names::<u64>::default(), HashMap::<u64, Vec<u64>>::default());
            for (owner, theirs) in steps {
                names.set(owner, theirs.iter().map(|it| name(*it)).collect());
                list.insert(owner, theirs);
                for number in 0..6 {
                    let mut have: Vec<u64> =
                        list.iter().filter(|(_, names)| names.contains(&number)).map(|(owner, _)| *owner).collect();
                    have.sort_unstable();
                    prop_assert_eq!(names.find(&name(number)).collect::<Vec<_>>(), have);
                }
            }
            list.keys().for_each(|owner| names.set(*owner, Vec::new()));
            prop_assert!(names.by_name.is_empty() && names.of.is_empty(), "nothing is left");
        }
    }
}
