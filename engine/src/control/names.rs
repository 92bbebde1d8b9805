//! Who is known by which name: sessions by their peers', and connections that are to become one. They are found by
//! name, however many there are.

use super::conn::{Conn, State, Target};
use super::Control;
use crate::session::handshake::Identity;
use crate::types::PeerId;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Name {
    /// What the application called it.
    Asked(String),
    /// What the other end says of its address, and where it came from: what it says is no proof that it is there,
    /// clones may all say the same.
    Said(String, IpAddr),
    /// Where it is dialed.
    At(SocketAddr),
    /// Who has answered: the engine and its incarnation.
    Engine([u8; 16], u64),
}

/// Peers or connections by their names, of which each has few.
pub struct Names<W, N = Name> {
    by_name: HashMap<N, BTreeSet<W>>,
    of: HashMap<W, Vec<N>>,
}

impl<W, N> Default for Names<W, N> {
    fn default() -> Names<W, N> {
        Names { by_name: HashMap::new(), of: HashMap::new() }
    }
}

impl<W: Copy + Eq + Hash + Ord, N: Clone + Eq + Hash> Names<W, N> {
    /// From here on these are its names.
    pub fn set(&mut self, who: W, names: Vec<N>) {
        for name in self.of.remove(&who).unwrap_or_default() {
            if let Entry::Occupied(mut all) = self.by_name.entry(name) {
                all.get_mut().remove(&who);
                if all.get().is_empty() {
                    all.remove();
                }
            }
        }
        for name in &names {
            self.by_name.entry(name.clone()).or_default().insert(who);
        }
        if !names.is_empty() {
            self.of.insert(who, names);
        }
    }

    pub fn find(&self, name: &N) -> impl Iterator<Item = W> + '_ {
        self.by_name.get(name).into_iter().flatten().copied()
    }
}

/// The names under which a caller of `connect` may find a connection that has no session yet.
pub fn names_of(state: &State) -> Vec<Name> {
    match state {
        State::Dialing(dialing) => {
            let Target::New { address, .. } = &dialing.target else { return Vec::new() };
            let mut names = vec![Name::Asked(address.clone()), Name::At(dialing.remote)];
            names.extend(
                dialing.dialer.other_end().map(|(engine, incarnation)| Name::Engine(engine, incarnation)),
            );
            names
        }
        State::Control(control) if control.peer.is_none() => {
            vec![Name::Said(control.identity.address.clone(), control.remote.ip())]
        }
        _ => Vec::new(),
    }
}

impl Control {
    /// Its session has begun, or what it is called may have changed.
    pub(super) fn name_session(&mut self, peer: PeerId) {
        let named = self.sessions.get(&peer).filter(|session| !session.machine.is_given_up());
        let names = named.map(|session| {
            let dialed = (!session.dialed.is_empty()).then(|| Name::Asked(session.dialed.clone()));
            let said = Name::Said(session.identity.address.clone(), session.remote.ip());
            dialed.into_iter().chain([said]).collect()
        });
        self.names.set(peer, names.unwrap_or_default());
    }

    /// The session that whoever connects to this address means, if it stands or is about to.
    pub(super) fn session_at(&self, address: &str, resolved: &[SocketAddr]) -> Option<PeerId> {
        let said = resolved.iter().map(|at| Name::Said(address.to_owned(), at.ip()));
        let names = std::iter::once(Name::Asked(address.to_owned())).chain(said);
        names.flat_map(|name| self.names.find(&name).last()).next()
    }

    /// Has a caller wait with those of a dial that is under way, or of a connection whose session is about to begin.
    pub(super) fn wait_with(
        &mut self,
        address: &str,
        resolved: &[SocketAddr],
        deadline: std::time::Instant,
        caller: u64,
    ) -> bool {
        let said = resolved.iter().map(|at| Name::Said(address.to_owned(), at.ip()));
        let names = std::iter::once(Name::Asked(address.to_owned())).chain(said);
        let found: Vec<u64> = names.flat_map(|name| self.pending.find(&name).collect::<Vec<_>>()).collect();
        let now_asked = self.fences;
        found.into_iter().any(|token| {
            let target = match self.conns.get_mut(&token).map(|conn| &mut conn.state) {
                Some(State::Dialing(dialing)) => {
                    dialing.deadline = dialing.deadline.max(deadline);
                    &mut dialing.target
                }
                // It dialed us.
                Some(State::Control(control)) => control.target.get_or_insert_with(|| Target::New {
                    address: address.to_owned(),
                    asked: now_asked,
                    waiting: Vec::new(),
                }),
                _ => return false,
            };
            match target {
                Target::New { asked, waiting, .. } => {
                    *asked = now_asked;
                    waiting.push(caller);
                    true
                }
                Target::Again { .. } => false,
            }
        })
    }

    /// Whether a dial for `connect` to this engine is under way: by who has answered it, and as long as nobody has, by
    /// the address. A dial that was meant for another one after all is made again by its dialer.
    pub(super) fn dials(&self, theirs: &Identity) -> bool {
        let unanswered = |token: u64| match self.conns.get(&token) {
            Some(Conn { state: State::Dialing(dialing), .. }) => dialing.dialer.other_end().is_none(),
            _ => false,
        };
        let at = theirs.address.parse::<SocketAddr>().ok().map(Name::At);
        let answered = Name::Engine(theirs.engine_id, theirs.incarnation);
        self.pending.find(&answered).next().is_some()
            || self.pending.find(&Name::Asked(theirs.address.clone())).any(unanswered)
            || at.is_some_and(|at| self.pending.find(&at).any(unanswered))
    }
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

    /// Who has a name is found, comes and goes at the cost of its own names, not of those that there are.
    #[test]
    fn one_among_many_costs_little() {
        const COUNT: u64 = 10_000;
        let mut names = Names::default();
        let of = |who: u64| vec![Counted(who), Counted(COUNT + who)];
        (0..COUNT).for_each(|who| names.set(who, of(who)));
        COMPARED.set(0);
        for who in 0..100 {
            assert_eq!(names.find(&Counted(COUNT + who)).collect::<Vec<_>>(), [who]);
            names.set(who, Vec::new());
            assert_eq!(names.find(&Counted(who)).count(), 0);
            names.set(who, of(who));
        }
        // Six look-ups by name for each, and now and then another name whose hash looks the same.
        assert!(COMPARED.get() < 100 * 12, "{} comparisons", COMPARED.get());
    }

    proptest! {
        /// Against a list that is searched: who has the name is found, and nobody else is looked at.
        #[test]
        fn who_has_a_name_is_found_by_it(
            steps in prop::collection::vec((0..8u64, prop::collection::vec(0..6u64, 0..4)), 0..60),
        ) {
            let name = |number: u64| Name::Engine([1; 16], number);
            let (mut names, mut list) = (Names::<u64>::default(), HashMap::<u64, Vec<u64>>::new());
            for (who, theirs) in steps {
                names.set(who, theirs.iter().map(|it| name(*it)).collect());
                list.insert(who, theirs);
                for number in 0..6 {
                    let mut have: Vec<u64> =
                        list.iter().filter(|(_, names)| names.contains(&number)).map(|(who, _)| *who).collect();
                    have.sort_unstable();
                    prop_assert_eq!(names.find(&name(number)).collect::<Vec<_>>(), have);
                }
            }
            list.keys().for_each(|who| names.set(*who, Vec::new()));
            prop_assert!(names.by_name.is_empty() && names.of.is_empty(), "nothing is left");
        }
    }
}
