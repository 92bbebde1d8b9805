//! The order in which several engines are measured, round after round.

/// Returns the engines' order in a round. Each round begins with the next engine and turns around. So every engine
/// begins equally often, none always follows the same engine, and two engines alternate.
pub fn order(round: usize, count: usize) -> impl Iterator<Item = usize> {
    let step = move |place| if round.is_multiple_of(2) { place } else { count - place };
    (0..count).map(move |place| (round + step(place)) % count)
}

/// Runs `count` pairs: a run of the reference and a run of the subject in turn, so that a slow phase of the machine
/// slows both.
pub fn pairs<T>(
    count: usize,
    mut reference: impl FnMut() -> anyhow::Result<T>,
    mut subject: impl FnMut() -> anyhow::Result<T>,
) -> anyhow::Result<Vec<(T, T)>> {
    let mut pairs = Vec::with_capacity(count);
    for round in 0..count {
        let (mut left, mut right) = (None, None);
        for side in order(round, 2) {
            match side {
                0 => left = Some(reference()?),
                _ => right = Some(subject()?),
            }
        }
        pairs.extend(left.zip(right));
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn rounds(count: usize) -> Vec<Vec<usize>> {
        (0..2 * count).map(|round| order(round, count).collect()).collect()
    }

    #[test]
    fn the_order_rotates_and_turns_around() {
        let expected = [[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]];
        assert_eq!(rounds(4)[..4], expected);
        for mut round in rounds(5) {
            round.sort_unstable();
            assert_eq!(round, [0, 1, 2, 3, 4]);
        }
    }

    #[test]
    fn two_engines_alternate() {
        assert_eq!(rounds(2), [[0, 1], [1, 0], [0, 1], [1, 0]]);
    }

    #[test]
    fn every_engine_begins_equally_often_and_follows_several() {
        for count in 2..=9 {
            let rounds = rounds(count);
            for engine in 0..count {
                assert_eq!(
                    rounds.iter().filter(|round| round[0] == engine).count(),
                    2,
                    "{engine} of {count}"
                );
                let before = |round: &Vec<usize>| {
                    let place = round.iter().position(|&other| other == engine).expect("every engine");
                    place.checked_sub(1).map(|place| round[place])
                };
                let mut followed: Vec<_> = rounds.iter().map(before).collect();
                followed.sort_unstable();
                followed.dedup();
                assert!(followed.len() > 1, "{engine} of {count}: {followed:?}");
            }
        }
    }

    #[test]
    fn the_sides_alternate_and_stay_apart() {
        let order = RefCell::new(String::new());
        let run = |name| {
            order.borrow_mut().push(name);
            Ok(name)
        };
        let pairs = pairs(4, || run('r'), || run('s')).expect("no run fails");
        assert_eq!(order.into_inner(), "rssrrssr");
        assert!(pairs.into_iter().all(|pair| pair == ('r', 's')));
    }
}
