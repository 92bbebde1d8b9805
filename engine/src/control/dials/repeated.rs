//! Dials that are repeated after a pause, because the peer had no room for another handshake or dials us itself.

use super::Target;
use crate::status::Error;
use crate::sys::clock;
use crate::sys::map::{Entry, HashMap};
use crate::types::{Incarnation, Monotonic};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

/// The shortest pause before a dial is repeated.
const PAUSE_MS: u64 = 50;

/// A dial to be repeated after a pause: the peer had no room for another handshake, or dials us itself.
pub struct RepeatedDial {
    pub at: Monotonic,
    pub target: Target,
    pub addresses: Vec<SocketAddr>,
    pub deadline: Monotonic,
    /// The error that the callers get when their deadline has passed.
    pub error: Error,
    /// The engine that dials us; the session of its dial may be established first.
    pub awaited: Option<Incarnation>,
}

impl RepeatedDial {
    pub fn new(
        target: Target,
        addresses: Vec<SocketAddr>,
        deadline: Monotonic,
        error: Error,
        awaited: Option<Incarnation>,
    ) -> RepeatedDial {
        // A random pause, so that dialers do not retry in step.
        let pause = Duration::from_millis(PAUSE_MS + crate::sys::random_u64() % PAUSE_MS);
        RepeatedDial { at: clock::monotonic_ns() + pause, target, addresses, deadline, error, awaited }
    }
}

/// The time of a repeated dial, and a unique number.
type Turn = (Monotonic, u64);

/// The dials to be repeated, by their time and by the engine that dials us.
#[derive(Default)]
pub struct RepeatedDials {
    by_time: BTreeMap<Turn, RepeatedDial>,
    by_engine: HashMap<Incarnation, BTreeSet<Turn>>,
    last: u64,
}

impl RepeatedDials {
    pub fn push(&mut self, repeated: RepeatedDial) {
        self.last += 1;
        let key = (repeated.at, self.last);
        if let Some(engine) = repeated.awaited {
            self.by_engine.entry(engine).or_default().insert(key);
        }
        self.by_time.insert(key, repeated);
    }

    /// Returns when the first dial is repeated.
    pub fn next(&self) -> Option<Monotonic> {
        self.by_time.first_key_value().map(|((at, _), _)| *at)
    }

    fn take(&mut self, key: (Monotonic, u64)) -> Option<RepeatedDial> {
        let repeated = self.by_time.remove(&key)?;
        if let Some(Entry::Occupied(mut keys)) = repeated.awaited.map(|engine| self.by_engine.entry(engine)) {
            keys.get_mut().remove(&key);
            if keys.get().is_empty() {
                keys.remove();
            }
        }
        Some(repeated)
    }

    pub fn take_due(&mut self, now: Monotonic) -> Vec<RepeatedDial> {
        let keys: Vec<_> = self.by_time.keys().take_while(|(at, _)| *at <= now).copied().collect();
        keys.into_iter().filter_map(|key| self.take(key)).collect()
    }

    pub fn take_awaiting(&mut self, engine: Incarnation) -> Vec<RepeatedDial> {
        let keys = self.by_engine.remove(&engine).unwrap_or_default();
        keys.into_iter().filter_map(|key| self.take(key)).collect()
    }

    pub fn clear(&mut self) {
        self.by_time.clear();
        self.by_engine.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lists::take_where;
    use crate::status::Status;
    use crate::types::{EngineId, PeerId};
    use proptest::prelude::*;

    /// Makes a dial that its target's peer identifies.
    fn repeated(peer: PeerId, at: Monotonic, awaited: Option<u64>) -> RepeatedDial {
        let error = Error::new(Status::Unreachable, "");
        let awaited = awaited.map(|engine| (EngineId([0; 16]), engine));
        RepeatedDial { at, ..RepeatedDial::new(Target::Again { peer }, Vec::new(), at, error, awaited) }
    }

    fn peers(taken: Vec<RepeatedDial>) -> Vec<PeerId> {
        let peer = |it: RepeatedDial| match it.target {
            Target::Again { peer } => Some(peer),
            Target::New { .. } => None,
        };
        let mut peers: Vec<PeerId> = taken.into_iter().filter_map(peer).collect();
        peers.sort_unstable();
        peers
    }

    proptest! {
        /// Compares the crowd with a plain list.
        #[test]
        fn repeated_dials_are_found_by_time_and_by_engine(
            steps in prop::collection::vec((0..3u8, 0..6u64, 0..20u64), 0..60),
        ) {
            let (begun, mut dials, mut last) = (Monotonic::ZERO, RepeatedDials::default(), 0);
            let mut list: Vec<(PeerId, Monotonic, Option<u64>)> = Vec::new();
            for (what, engine, ms) in steps {
                let at = begun + Duration::from_millis(ms);
                let mut gone: Vec<PeerId> = Vec::new();
                match what {
                    0 => {
                        last += 1;
                        let awaited = (engine > 0).then_some(engine);
                        dials.push(repeated(PeerId::from_raw(last), at, awaited));
                        list.push((PeerId::from_raw(last), at, awaited));
                    }
                    1 => {
                        gone.extend(take_where(&mut list, |it| it.1 <= at).into_iter().map(|it| it.0));
                        prop_assert_eq!(peers(dials.take_due(at)), gone);
                    }
                    _ => {
                        gone.extend(take_where(&mut list, |it| it.2 == Some(engine)).into_iter().map(|it| it.0));
                        prop_assert_eq!(peers(dials.take_awaiting((EngineId([0; 16]), engine))), gone);
                    }
                }
                prop_assert_eq!(dials.next(), list.iter().map(|it| it.1).min());
                let awaited = dials.by_engine.values().map(BTreeSet::len).sum::<usize>();
                prop_assert_eq!(awaited, list.iter().filter(|it| it.2.is_some()).count());
            }
        }
    }
}
