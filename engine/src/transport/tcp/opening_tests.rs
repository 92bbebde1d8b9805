//! When lanes are opened, and by which side.

use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const NOW: Monotonic = Monotonic::ZERO;
const PAUSES: Pauses = Pauses { min_ns: 20 * MS, max_ns: 1000 * MS };

fn lane(number: u32) -> LaneId {
    LaneId::from_raw(number)
}

/// Returns the state of a dialer's session with an express lane and two bulk lanes.
fn dialer() -> Opening {
    let mut opening = Opening::new(3, PAUSES);
    assert_eq!(opening.begin(true), []);
    opening
}

#[test]
fn no_lane_is_opened_before_it_is_wanted_and_each_kind_once() {
    let mut opening = dialer();
    assert_eq!(opening.want(EXPRESS), [LaneStep::Open(0)]);
    assert_eq!(opening.want(EXPRESS), []);
    assert_eq!(opening.want(ALL), [LaneStep::Open(1), LaneStep::Open(2)]);
    assert_eq!(opening.want(ALL), []);
    assert_eq!(opening.want(!ALL), [], "there are no such kinds");
}

#[test]
fn an_acceptor_asks_for_lanes_and_asks_again_on_the_next_connection() {
    let mut opening = Opening::new(3, PAUSES);
    assert_eq!(opening.want(BULK), [], "there is nobody to ask");
    assert_eq!(opening.begin(false), [LaneStep::Ask(BULK)]);
    assert_eq!(opening.want(ALL), [LaneStep::Ask(EXPRESS)]);
    opening.attached(0, lane(1));
    assert_eq!(opening.lost(NOW, lane(1), false), None, "the dialer opens the next one");
    opening.end();
    assert_eq!(opening.begin(false), [LaneStep::Ask(ALL)]);
}

#[test]
fn what_was_wanted_is_opened_on_the_next_connection() {
    let mut opening = dialer();
    opening.want(EXPRESS);
    opening.attached(0, lane(1));
    opening.end();
    assert_eq!(opening.lost(NOW, lane(1), true), None, "there is no connection");
    assert_eq!(opening.begin(true), [LaneStep::Open(0)]);
}

#[test]
fn a_lost_lane_is_opened_again_at_once() {
    let mut opening = dialer();
    opening.want(ALL);
    opening.attached(1, lane(2));
    assert_eq!(opening.lost(NOW, lane(2), true), Some(LaneStep::Open(1)));
    assert_eq!(opening.lost(NOW, lane(2), true), None);
}

/// A peer that ends each lane at its first frame is not dialed in a loop.
#[test]
fn a_lane_on_which_nothing_moved_is_opened_again_after_pauses_that_double() {
    let (mut opening, mut now, mut pauses) = (dialer(), NOW, Vec::new());
    opening.want(EXPRESS);
    for number in 1..=8 {
        opening.attached(0, lane(number));
        assert_eq!(opening.lost(now, lane(number), false), None);
        let at = opening.next_timer().unwrap();
        pauses.push((at - now) / MS);
        assert_eq!(opening.timer(at - 1), []);
        now = at;
        assert_eq!(opening.timer(now), [LaneStep::Open(0)]);
    }
    assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 1000, 1000]);
    // A lane that fails to open meanwhile pauses no less.
    opening.failed(now, 0);
    assert_eq!(opening.next_timer(), Some(now + 1000 * MS));
    opening.timer(now + 1000 * MS);
    // After something moved, the pauses begin anew.
    opening.attached(0, lane(9));
    assert_eq!(opening.lost(now, lane(9), true), Some(LaneStep::Open(0)));
    opening.attached(0, lane(10));
    assert_eq!(opening.lost(now, lane(10), false), None);
    assert_eq!(opening.next_timer(), Some(now + 20 * MS));
}

#[test]
fn a_lane_that_cannot_be_opened_is_tried_after_pauses_that_double() {
    let (mut opening, mut now, mut pauses) = (dialer(), Monotonic::ZERO, Vec::new());
    opening.want(EXPRESS);
    for _ in 0..8 {
        opening.failed(now, 0);
        let at = opening.next_timer().unwrap();
        pauses.push((at - now) / MS);
        assert_eq!(opening.timer(at - 1), []);
        now = at;
        assert!(matches!(opening.timer(now)[..], [LaneStep::Open(0)]));
        assert_eq!(opening.next_timer(), None);
    }
    assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 1000, 1000]);
    // After something moved on a lane, the pauses begin anew.
    opening.attached(0, lane(99));
    opening.lost(now, lane(99), true);
    opening.failed(now, 0);
    assert_eq!(opening.next_timer(), Some(now + 20 * MS));
}

/// A lane whose number is not above the slot's last number was given up by its dialer.
#[test]
fn an_older_lane_replaces_none() {
    let mut opening = Opening::new(2, PAUSES);
    assert!(!opening.takes(0, lane(1)), "there is no session");
    opening.begin(false);
    assert!(opening.takes(0, lane(1)) && !opening.takes(0, lane(0)) && !opening.takes(2, lane(1)));
    opening.attached(0, lane(5));
    assert!(
        !opening.takes(0, lane(5))
            && !opening.takes(0, lane(4))
            && opening.takes(0, lane(6))
            && opening.takes(1, lane(4))
    );
    opening.end();
    opening.begin(false);
    assert!(opening.takes(0, lane(1)), "another session, other lanes");
}

proptest! {
    /// After any steps, a wanted lane is attached, is being opened, or rests until a known time; an unwanted lane does
    /// none of these; and no number is used twice.
    #[test]
    fn a_wanted_lane_is_always_on_its_way(steps in prop::collection::vec((0..8u8, 0..3u32), 0..80)) {
        let (mut opening, mut now, mut last, mut under_way) = (Opening::new(3, PAUSES), Monotonic::ZERO, 0, Vec::new());
        for (what, slot) in steps {
            now += 50 * MS;
            let at = under_way.iter().position(|(its, _)| *its == slot);
            let taken = match (what, at) {
                (0, _) => {
                    under_way.clear();
                    opening.begin(true)
                }
                (1, _) => {
                    under_way.clear();
                    opening.end();
                    Vec::new()
                }
                (2, _) => opening.want(slot),
                (3, _) => opening.timer(now),
                (4, Some(at)) => {
                    let (slot, lane) = under_way.swap_remove(at);
                    prop_assert!(opening.takes(slot, lane));
                    opening.attached(slot, lane);
                    Vec::new()
                }
                (5, Some(at)) => {
                    under_way.swap_remove(at);
                    opening.failed(now, slot);
                    Vec::new()
                }
                _ => match opening.slots[slot as usize] {
                    LaneSlot::Attached { lane, .. } => opening.lost(now, lane, what == 6).into_iter().collect(),
                    _ => Vec::new(),
                },
            };
            for step in taken {
                let LaneStep::Open(slot) = step else { panic!("{step:?}") };
                last += 1;
                under_way.push((slot, lane(last)));
            }
            for slot in 0..3 {
                let is_wanted = opening.wanted & kind(slot) != 0 && opening.dialed.is_some();
                let is_under_way = under_way.iter().any(|(its, _)| *its == slot);
                let is_on_its_way = match opening.slots[slot as usize] {
                    LaneSlot::Idle => false,
                    LaneSlot::Attached { .. } => !is_under_way,
                    LaneSlot::Opening { .. } => is_under_way,
                    LaneSlot::Pausing { until_ns, .. } => !is_under_way && opening.next_timer() <= Some(until_ns),
                };
                prop_assert_eq!(is_on_its_way, is_wanted, "slot {}", slot);
            }
        }
    }
}
