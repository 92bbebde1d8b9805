//! The numbers of a session's lanes, for all transports. The dialer of the session draws them, and each side takes a
//! number at most once. A fenced number is never taken, whether its lane is attached, still greeting, or unknown here:
//! that keeps contract 3.

use crate::limits::LANE_NUMBERS_KEPT;
use crate::sys::lock::Mutex;
use crate::types::LaneId;
use std::collections::BTreeSet;

/// Shared by the control loop, which fences, and the transports, which open lanes. Any thread may call.
#[derive(Default)]
pub struct LaneNumbers(Mutex<Numbers>);

#[derive(Default)]
struct Numbers {
    /// The highest number that was drawn here or used by the peer.
    last: LaneId,
    /// Numbers that are taken or fenced. Numbers rise, so only the last ones are kept individually: all below
    /// `kept_from` count as gone.
    gone: BTreeSet<LaneId>,
    kept_from: LaneId,
}

impl Numbers {
    fn is_free(&self, lane: LaneId) -> bool {
        lane != LaneId::NONE && lane >= self.kept_from && !self.gone.contains(&lane)
    }

    fn remove(&mut self, lane: LaneId) {
        self.last = self.last.max(lane);
        if self.is_free(lane) {
            self.gone.insert(lane);
        }
        if self.gone.len() > LANE_NUMBERS_KEPT {
            // A lane that is refused because of its low number is opened again with a new one.
            self.kept_from = self.gone.pop_first().map_or(LaneId::NONE, LaneId::next);
        }
    }
}

impl LaneNumbers {
    /// Forgets the lanes of earlier connections. All of them are closed except `open`.
    pub fn begin(&self, open: impl IntoIterator<Item = LaneId>) {
        let mut numbers = self.0.lock();
        (numbers.gone, numbers.kept_from) = (BTreeSet::new(), LaneId::NONE);
        open.into_iter().for_each(|lane| numbers.remove(lane));
    }

    /// Draws the number of a new lane. Only the dialer of the session draws.
    pub fn draw(&self) -> LaneId {
        let mut numbers = self.0.lock();
        numbers.last = numbers.last.next();
        numbers.last
    }

    /// Returns whether `take` would succeed.
    pub fn is_free(&self, lane: LaneId) -> bool {
        self.0.lock().is_free(lane)
    }

    /// Takes the number of a lane before the lane carries anything. False: the number was taken or fenced before, and
    /// the lane must not be opened.
    pub fn take(&self, lane: LaneId) -> bool {
        let mut numbers = self.0.lock();
        let is_free = numbers.is_free(lane);
        if is_free {
            numbers.remove(lane);
        }
        is_free
    }

    /// Fences a lane for the peer: its number is never taken from now on.
    pub fn fence(&self, lane: LaneId) {
        self.0.lock().remove(lane);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEPT: u32 = LANE_NUMBERS_KEPT as u32;

    fn id(number: u32) -> LaneId {
        LaneId::from_raw(number)
    }

    #[test]
    fn a_number_is_taken_once() {
        let numbers = LaneNumbers::default();
        assert!(!numbers.take(id(0)), "no lane has the number 0");
        assert!(numbers.take(id(5)) && !numbers.take(id(5)) && !numbers.is_free(id(5)));
        assert!(numbers.take(id(3)), "lanes of several transports may arrive in any order");
    }

    #[test]
    fn a_number_that_was_fenced_is_never_taken() {
        let numbers = LaneNumbers::default();
        for lane in (10..=10 + KEPT).map(id) {
            numbers.fence(lane);
            assert!(!numbers.take(lane));
        }
        assert!(!numbers.take(id(10)) && !numbers.take(id(9)), "below the numbers kept individually");
        assert!(numbers.0.lock().gone.len() <= LANE_NUMBERS_KEPT);
        assert!(numbers.take(id(11 + KEPT)));
    }

    #[test]
    fn a_number_is_drawn_above_all_that_the_peer_named() {
        let numbers = LaneNumbers::default();
        assert_eq!([numbers.draw(), numbers.draw()], [1, 2].map(id));
        assert!(numbers.take(id(7)));
        assert_eq!(numbers.draw(), id(8));
        numbers.fence(id(20));
        assert_eq!(numbers.draw(), id(21));
        numbers.fence(id(u32::MAX));
        assert!(!numbers.take(numbers.draw()), "a peer that exhausts the numbers gets no lanes");
    }

    #[test]
    fn another_connection_forgets_what_is_closed_and_no_more() {
        let numbers = LaneNumbers::default();
        assert!(numbers.take(id(3)) && numbers.take(id(4)));
        numbers.begin([id(4)]);
        assert!(numbers.take(id(3)) && !numbers.take(id(4)));
        assert_eq!(numbers.draw(), id(5));
    }

    proptest! {
        /// For any order of takes and fences, no number is taken twice or after its fence.
        #[test]
        fn nothing_is_taken_twice_or_behind_its_fence(
            steps in prop::collection::vec((0..3u8, 0..2 * KEPT), 0..2000),
        ) {
            let (numbers, mut gone) = (LaneNumbers::default(), BTreeSet::new());
            for (what, lane) in steps.into_iter().map(|(what, lane)| (what, id(lane))) {
                match what {
                    0 => {
                        numbers.fence(lane);
                        gone.insert(lane);
                    }
                    1 => prop_assert!(!numbers.take(lane) || gone.insert(lane), "{} twice", lane),
                    _ => prop_assert!(!gone.contains(&numbers.draw()), "a gone number was drawn"),
                }
            }
        }
    }
}
