//! The numbers of lanes: none is taken twice on one connection or after its fence, whatever the peer names.

use arbitrary::{Arbitrary, Unstructured};
use ferry::internals::peer::LaneNumbers;
use ferry::limits::LANE_NUMBERS_KEPT;
use ferry::types::LaneId;
use std::collections::BTreeSet;

#[derive(Arbitrary, Debug)]
enum Step {
    Take(Number),
    Fence(Number),
    Draw(bool),
    Begin(u8),
    /// So many fences of numbers that rise.
    Fences(Number, u16),
}

#[derive(Arbitrary, Debug)]
enum Number {
    Low(u8),
    Near(i8),
    Any(u32),
}

pub fn run(data: &[u8]) {
    let Ok(steps) = Vec::<Step>::arbitrary(&mut Unstructured::new(data)) else { return };
    let numbers = LaneNumbers::default();
    let mut gone = BTreeSet::new();
    // The highest number that was named here: a draw lies above.
    let mut highest = 0u32;
    let mut exhausted = false;
    // More than are kept, once an input: such a step takes as long as all others.
    let mut has_flooded = false;
    for step in steps.into_iter().take(100) {
        let lane = |number: &Number| {
            LaneId::from_raw(match *number {
                Number::Low(number) => number.into(),
                Number::Near(off) => highest.saturating_add_signed(off.into()),
                Number::Any(number) => number,
            })
        };
        match &step {
            Step::Take(number) => {
                let lane = lane(number);
                let is_free = numbers.is_free(lane);
                let taken = numbers.take(lane);
                assert_eq!(is_free, taken);
                assert!(!numbers.is_free(lane), "{lane} is still free");
                if taken {
                    assert!(
                        lane != LaneId::NONE && gone.insert(lane),
                        "{lane} is taken twice or behind its fence"
                    );
                    highest = highest.max(lane.raw());
                }
            }
            Step::Fence(number) => {
                let lane = lane(number);
                numbers.fence(lane);
                gone.insert(lane);
                highest = highest.max(lane.raw());
                assert!(!numbers.take(lane), "{lane} is taken behind its fence");
            }
            Step::Fences(number, count) => {
                let most = if has_flooded { 64 } else { 2 * LANE_NUMBERS_KEPT as u32 };
                let (first, count) = (lane(number).raw(), u32::from(*count) % most);
                has_flooded |= count > 64;
                for number in (first..first.saturating_add(count)).map(LaneId::from_raw) {
                    numbers.fence(number);
                    gone.insert(number);
                    highest = highest.max(number.raw());
                }
            }
            Step::Draw(takes) => {
                exhausted |= highest == u32::MAX;
                let lane = numbers.draw();
                assert!(exhausted || lane.raw() > highest, "{lane} is not above {highest}");
                if exhausted {
                    assert!(!numbers.take(lane) || gone.insert(lane));
                } else {
                    highest = lane.raw();
                    assert!(!gone.contains(&lane));
                    if *takes {
                        assert!(numbers.take(lane) && gone.insert(lane), "a drawn number is refused");
                    }
                }
            }
            Step::Begin(open) => {
                let open: Vec<LaneId> = gone.iter().copied().take((*open).into()).collect();
                numbers.begin(open.iter().copied());
                gone = open.into_iter().collect();
            }
        }
    }
}
