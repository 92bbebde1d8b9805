//! When the dialer tries a pair of devices without an endpoint again: after a pause, which doubles with each failure
//! and is reset once an endpoint of the pair opens.

use super::session::Pair;
use crate::sys::map::HashMap;
use crate::types::Monotonic;
use std::time::Duration;

pub const PAUSE_MIN: Duration = Duration::from_millis(50);
pub const PAUSE_MAX: Duration = Duration::from_secs(5);

#[derive(Default)]
pub struct Retries {
    due: HashMap<Pair, Monotonic>,
    /// The last pause of each pair whose attempts have failed since its endpoint was last open.
    pauses: HashMap<Pair, Duration>,
}

impl Retries {
    /// Forgets all pairs but these.
    pub fn keep(&mut self, wanted: &[Pair]) {
        self.due.retain(|pair, _| wanted.contains(pair));
        self.pauses.retain(|pair, _| wanted.contains(pair));
    }

    /// Makes the pair due at once.
    pub fn now(&mut self, pair: Pair, now: Monotonic) {
        self.due.insert(pair, now);
    }

    /// Notes that the pair is being tried.
    pub fn begun(&mut self, pair: Pair) {
        self.due.remove(&pair);
    }

    /// Tries no pair until it is made due again.
    pub fn stop(&mut self) {
        self.due.clear();
    }

    /// Schedules the next attempt after a longer pause.
    pub fn failed(&mut self, pair: Pair, now: Monotonic) {
        let pause = self.pauses.get(&pair).map_or(PAUSE_MIN, |pause| (*pause * 2).min(PAUSE_MAX));
        self.pauses.insert(pair, pause);
        self.due.insert(pair, now + pause);
    }

    /// Resets the pause of a pair whose endpoint opened.
    pub fn opened(&mut self, pair: Pair) {
        self.pauses.remove(&pair);
    }

    pub fn due(&self, now: Monotonic) -> Vec<Pair> {
        self.due.iter().filter(|(_, at)| **at <= now).map(|(pair, _)| *pair).collect()
    }

    pub fn next(&self) -> Option<Monotonic> {
        self.due.values().min().copied()
    }

    /// Returns the pairs that are scheduled.
    pub fn pairs(&self) -> impl Iterator<Item = &Pair> {
        self.due.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_until_an_endpoint_is_open() {
        let (mut retries, pair, other) = (Retries::default(), (0, 1), (1, 1));
        let mut now = Monotonic::ZERO;
        retries.now(pair, now);
        for round in 0..12 {
            assert_eq!(retries.due(now), [pair], "round {round}");
            retries.begun(pair);
            assert!(retries.due(now + PAUSE_MAX).is_empty(), "it is being tried");
            retries.failed(pair, now);
            let pause = (PAUSE_MIN * (1 << round)).min(PAUSE_MAX);
            assert_eq!(retries.next(), Some(now + pause), "round {round}");
            now = now + pause;
        }
        // Another pair has its own pause. `now` shortens the wait for the next try, but not the pause.
        retries.failed(other, now);
        assert_eq!(retries.next(), Some(now));
        retries.now(pair, now);
        retries.begun(pair);
        assert_eq!(retries.next(), Some(now + PAUSE_MIN));
        retries.failed(pair, now);
        assert_eq!(retries.due(now + PAUSE_MAX).len(), 2);
        assert!(!retries.due(now + (PAUSE_MAX - Duration::from_millis(1))).contains(&pair));
        retries.begun(pair);
        retries.opened(pair);
        retries.failed(pair, now);
        assert!(retries.due(now + PAUSE_MIN).contains(&pair), "it was open");
        retries.keep(&[other]);
        assert_eq!(retries.pairs().collect::<Vec<_>>(), [&other]);
    }
}
